"""``helion-rt tune``: one signature, now."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import helion_rt
from helion_rt.cli.main import main
from helion_rt.database import EvidenceKind, Status, open_local
from helion_rt.runtime import ahead

sys.path.insert(0, str(Path(__file__).parent))
from cli_support import Compiles, Searches

ARGS = '[{shape = [64, 128], dtype = "float32"}, {value = 3.0}]'
ROOT = str(Path(helion_rt.__file__).parent.parent)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch, folder: Path, own_cache: Path) -> Searches:
    found = Searches()
    monkeypatch.setattr(ahead, "search", found)
    monkeypatch.setattr(ahead.pool, "WorkerEvaluator", Compiles)
    monkeypatch.setattr(Compiles, "asked", [])
    monkeypatch.chdir(folder)
    return found


def test_the_winner_is_printed_and_stored(searches: Searches, own_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "my_kernels.py:double", "--args", ARGS, "--target", "v5e"]) == 0
    out, err = capsys.readouterr()
    (record,) = open_local(own_cache).records()
    assert record.status is Status.WINNER and record.evidence.kind is EvidenceKind.SCHEDULED and record.key.target == "v5e"
    assert json.dumps(record.config) in out and "2.00× the default's speed, by scheduled times; 2 candidates" in out
    assert record.key.digest in out
    assert "candidate 2: 1 ms scheduled" in err  # not a terminal: lines


def test_json_is_all_that_standard_output_has(searches: Searches, capsys: pytest.CaptureFixture[str]) -> None:
    json_args = '[{"shape": [64, 128], "dtype": "float32"}, {"value": 3.0}]'
    assert main(["tune", "my_kernels.py:double", "--args", json_args, "--target", "tpu7x", "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["filled"] and found["evidence"] == "scheduled"
    assert (found["ms"], found["default_ms"], found["candidates_tried"]) == (1.0, 2.0, 2)
    assert found["config"]["block_sizes"] and err == ""


def test_it_tunes_again_what_is_known(searches: Searches) -> None:
    command = ["tune", "my_kernels.py:double", "--args", ARGS, "--target", "v6e", "--json"]
    assert main(command) == main(command) == 0
    assert searches.calls == ["v6e", "v6e"]


def test_the_default_may_stay(searches: Searches, own_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    searches.stays = ("v5e",)
    assert main(["tune", "my_kernels.py:double", "--args", ARGS, "--target", "v5e"]) == 0
    assert "none: the default stays, by scheduled times" in capsys.readouterr().out
    assert [record.status for record in open_local(own_cache).records()] == [Status.NO_CANDIDATE]


def test_that_nothing_works_is_stored_as_such(searches: Searches, own_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    searches.broken = ("v5e",)
    assert main(["tune", "my_kernels.py:double", "--args", ARGS, "--target", "v5e"]) == 1
    assert "no config compiles: CompileError: out of VMEM" in capsys.readouterr().err
    assert [record.status for record in open_local(own_cache).records()] == [Status.ALL_FAILED]


def test_a_report_of_two_targets_has_the_matrix(searches: Searches, folder: Path) -> None:
    path = folder / "report.html"
    words = ["--target", "v5e", "--target", "tpu7x", "--report", str(path), "--json"]
    assert main(["tune", "my_kernels.py:double", "--args", ARGS, *words]) == 0
    text = path.read_text()
    assert "winner of" in text and "on tpu7x" in text and text.count("<section") == 2


def test_a_forced_config_is_told(searches: Searches, capsys: pytest.CaptureFixture[str]) -> None:
    args = '[{shape = [64, 128], dtype = "float32"}]'
    assert main(["tune", "my_kernels.py:forced", "--args", args, "--target", "v5e"]) == 0
    assert "forced by config=" in capsys.readouterr().out and searches.calls == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["my_kernels.py:double", "--args", "nonsense"], "--args is a list in TOML or JSON"),
        (["my_kernels.py:double", "--args", '{"shape": [1]}'], "--args is a list"),
        (["my_kernels.py:double", "--args", "[7]"], "an argument is"),
        (["my_kernels.py:nothing", "--args", ARGS], "has no nothing"),
        (["helion_rt.kernels:rmsnorm", "--args", ARGS], "helion_rt.kernels has no rmsnorm; it has rms_norm"),
        (["no_file.py:double", "--args", ARGS], "cannot import no_file.py"),
        (["my_kernels.py:double", "--args", ARGS, "--target", "v99"], "no target 'v99'"),
        (["my_kernels.py:double", "--args", ARGS, "--report", "no/such/folder/r.html"], "there is no folder"),
    ],
)
def test_what_cannot_be_used(searches: Searches, capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    assert main(["tune", *words]) == 2
    assert says in capsys.readouterr().err and searches.calls == []


@pytest.mark.parametrize("words", [["--seconds", "0"], ["--seconds", "soon"]])
def test_a_budget_that_is_none(searches: Searches, words: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["tune", "my_kernels.py:double", "--args", ARGS, *words])
    assert stop.value.code == 2


@pytest.mark.slow
def test_this_machine_and_an_absent_tpu_for_real(folder: Path, own_cache: Path) -> None:
    path = folder / "report.html"
    words = ["tune", "my_kernels.py:double", "--args", ARGS, "--seconds", "5", "--target", "cpu", "--target", "v5e"]
    command = [sys.executable, "-m", "helion_rt.cli.main", *words, "--report", str(path), "--json"]
    env = {**os.environ, "PYTHONPATH": ROOT}
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    cpu, tpu = json.loads(done.stdout)
    assert (cpu["evidence"], tpu["evidence"]) == ("measured", "scheduled") and cpu["candidates_tried"] and tpu["candidates_tried"]
    assert {record.evidence.kind for record in open_local(own_cache).records()} == {EvidenceKind.MEASURED, EvidenceKind.SCHEDULED}
    text = path.read_text()
    assert text.count("<section") == 2 and 'class="kind measured"' in text and 'class="kind scheduled"' in text
