"""``helion-rt prewarm``: what it fills, what it says when it cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import helion_rt
from helion_rt.cli.main import main
from helion_rt.database import EvidenceKind, open_local
from helion_rt.runtime import ahead, sharing
from helion_rt.settings import Settings

sys.path.insert(0, str(Path(__file__).parent))
from cli_support import Compiles, Searches, illegal

ROOT = str(Path(helion_rt.__file__).parent.parent)

MANIFEST = """
[[kernels]]
kernel = "my_kernels.py:double"
args = [{ shape = [64, 128], dtype = "float32" }, { value = 3.0 }]
"""


@pytest.fixture
def manifest(folder: Path) -> Path:
    path = folder / "manifest.toml"
    path.write_text(MANIFEST)
    return path


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> Searches:
    found = Searches()
    monkeypatch.setattr(ahead, "search", found)
    monkeypatch.setattr(ahead.pool, "WorkerEvaluator", Compiles)
    monkeypatch.setattr(Compiles, "asked", [])
    return found


def run(manifest: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": ROOT}
    command = [sys.executable, "-m", "helion_rt.cli.main", "prewarm", str(manifest), *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)


@pytest.mark.slow
def test_this_machine_and_an_absent_tpu(manifest: Path, own_cache: Path) -> None:
    words = ("--target", "cpu", "--target", "v5e", "--seconds-each", "3", "--json")
    done = run(manifest, *words)
    assert done.returncode == 0, done.stderr
    cpu, tpu = json.loads(done.stdout)
    assert cpu["filled"] and cpu["evidence"] == "measured" and tpu["filled"] and tpu["evidence"] == "scheduled"
    kinds = {record.key.target: record.evidence.kind for record in open_local(own_cache).records()}
    assert kinds.pop("v5e") is EvidenceKind.SCHEDULED and list(kinds.values()) == [EvidenceKind.MEASURED]
    again = json.loads(run(manifest, *words).stdout)
    assert [r["candidates_tried"] for r in again] == [0, 0] and all(r["filled"] for r in again)


def test_every_target_of_every_kernel(manifest: Path, searches: Searches, own_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest.write_text(MANIFEST + MANIFEST.replace("[64, 128]", "[256, 128]"))
    assert main(["prewarm", str(manifest), "--target", "v5e", "--target", "v6e", "--target", "v5litepod", "--jobs", "2"]) == 0
    out, err = capsys.readouterr()
    assert "4 of 4 keys filled" in out and sorted(searches.calls) == ["v5e", "v5e", "v6e", "v6e"]  # v5litepod is v5e
    assert "double(64x128, 3.0) on v5e: 1 ms scheduled, 2.00× the default's speed" in err
    assert len(list(open_local(own_cache).records())) == 4


def test_each_key_gets_its_share_of_the_time() -> None:
    from helion_rt.cli.prewarm import Work

    now = time.monotonic()
    entries: list[Any] = [None] * 10
    assert Work(entries, 60.0, False).share(2) == 60.0
    assert Work(entries, 60.0, False, now + 100).share(2) == pytest.approx(20.0, abs=0.5)
    assert Work(entries, 5.0, False, now + 100).share(2) == 5.0
    assert Work(entries, 60.0, False, now - 100).share(2) == 1.0


def test_what_is_known_is_not_done_again_unless_asked(manifest: Path, searches: Searches, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["prewarm", str(manifest), "--target", "v5e", "--json"]
    assert main(command) == main(command) == 0
    assert searches.calls == ["v5e"]
    _, second = capsys.readouterr().out.split("]\n[")
    assert '"candidates_tried": 0' in second
    assert main([*command, "--again"]) == 0 and searches.calls == ["v5e", "v5e"]


def test_what_is_to_be_retuned_is_searched_again(manifest: Path, searches: Searches, own_cache: Path) -> None:
    words = ["prewarm", str(manifest), "--target", "v5e"]
    assert main(words) == 0 and searches.calls == ["v5e"]
    tier = open_local(own_cache)
    (record,) = tier.records()
    assert tier.put(record.to_be_retuned())
    sharing.tiers_of(Settings.from_env()).refresh(record.key)  # as another process, which has it not in memory
    assert main(words) == 0 and searches.calls == ["v5e", "v5e"]
    (found,) = tier.records()
    assert not found.retune and found.revision == record.revision + 1
    assert main(words) == 0 and searches.calls == ["v5e", "v5e"]


def test_the_report_says_what_each_winner_costs_elsewhere(manifest: Path, searches: Searches, capsys: pytest.CaptureFixture[str]) -> None:
    searches.stays = ("v6e",)
    path = manifest.parent / "report.html"
    words = ["--target", "v5e", "--target", "v6e", "--jobs", "1", "--report", str(path)]
    assert main(["prewarm", str(manifest), *words]) == 0
    text = path.read_text()
    # v5e's winner is compiled for v6e; v6e's, the default, was tried for v5e already.
    assert [target for target, _ in Compiles.asked] == ["v6e"]
    assert "1.5 ms (-25.0%)" in text and "2 ms (+100.0%)" in text
    assert "report: " in capsys.readouterr().out
    # All is known now, and so is the report.
    assert main(["prewarm", str(manifest), *words]) == 0
    assert searches.calls == ["v5e", "v6e"] and "The database had the answer" in path.read_text()


def test_a_winner_that_is_not_legal_elsewhere_is_not_compiled_there(
    manifest: Path, searches: Searches, monkeypatch: pytest.MonkeyPatch
) -> None:
    legal = ahead.Space.check
    monkeypatch.setattr(ahead.Space, "check", lambda space, config: illegal() if space.target.name == "v6e" else legal(space, config))
    searches.stays = ("v6e",)
    path = manifest.parent / "report.html"
    assert main(["prewarm", str(manifest), "--target", "v5e", "--target", "v6e", "--report", str(path), "--json"]) == 0
    text = path.read_text()
    assert Compiles.asked == [] and "does not work" in text and "not legal on v6e: needs too much VMEM" in text


def test_a_bad_entry_does_not_stop_the_others(
    manifest: Path, searches: Searches, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest.write_text(
        MANIFEST.replace("double", "nothing")
        + MANIFEST.replace("my_kernels.py", "broken.py")
        + MANIFEST.replace("float32", "float33")
        + MANIFEST.replace("float32", "complex64")
        + MANIFEST
    )
    (manifest.parent / "broken.py").write_text("raise RuntimeError('boom')")
    assert main(["prewarm", str(manifest), "--target", "v5e"]) == 1
    out, err = capsys.readouterr()
    assert "1 of 5 keys filled" in out and len(list(open_local(own_cache).records())) == 1
    for reason in ("has no nothing", "cannot import broken.py: RuntimeError: boom", "float33", "complex64"):
        assert any(line.startswith("not filled: ") and reason in line for line in err.splitlines())


def test_where_no_config_works_the_others_go_on(manifest: Path, searches: Searches, capsys: pytest.CaptureFixture[str]) -> None:
    searches.broken = ("v5e",)
    assert main(["prewarm", str(manifest), "--target", "v5e", "--target", "v6e", "--jobs", "1"]) == 1
    out, err = capsys.readouterr()
    assert "1 of 2 keys filled" in out
    assert "not filled: double(64x128, 3.0) on v5e: no config compiles: CompileError: out of VMEM" in err
    # Nor is it tried again at once; it is not filled all the same.
    assert main(["prewarm", str(manifest), "--target", "v5e"]) == 1
    assert searches.calls == ["v5e", "v6e"] and "no config compiled when it was last tried" in capsys.readouterr().err


def test_an_interruption_keeps_what_is_done(
    manifest: Path, searches: Searches, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    searches.raises = KeyboardInterrupt()
    path = manifest.parent / "report.html"
    assert main(["prewarm", str(manifest), "--target", "v5e", "--target", "v6e", "--jobs", "1", "--report", str(path)]) == 130
    assert "1 of 2 keys filled" in capsys.readouterr().out
    assert [record.key.target for record in open_local(own_cache).records()] == ["v5e"]
    assert path.read_text().count("<section") == 1
    searches.raises = None
    assert main(["prewarm", str(manifest), "--target", "v5e", "--target", "v6e"]) == 0
    assert searches.calls == ["v5e", "v6e", "v6e"]  # what was done is not done again


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected a list 'kernels'"),
        ("targets = ['v99']\n[[kernels]]\nkernel = 'my_kernels.py:double'\nargs = []", "no target 'v99'"),
        ("not toml", "manifest.toml"),
        ("seconds_each = 0\n" + MANIFEST, "seconds_each = a number above 0"),
        ("[[kernels]]\nkernel = 7\nargs = []", "kernel 1: expected kernel"),
        ('targets = "cpu"\n' + MANIFEST, "a list of names, not 'cpu'"),
    ],
)
def test_manifests_that_cannot_be_used(manifest: Path, capsys: pytest.CaptureFixture[str], text: str, says: str) -> None:
    manifest.write_text(text)
    assert main(["prewarm", str(manifest)]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("body", ["raise RuntimeError('boom')", "def (", "import no_such_module"])
def test_a_module_that_does_not_import_is_named(manifest: Path, own_cache: Path, capsys: pytest.CaptureFixture[str], body: str) -> None:
    (manifest.parent / "broken.py").write_text(body)
    manifest.write_text("[[kernels]]\nkernel = 'broken.py:f'\nargs = []")
    assert main(["prewarm", str(manifest)]) == 1
    assert "'broken.py:f': cannot import broken.py" in capsys.readouterr().err


def test_recorded_keys_are_filled_and_then_pass_the_check(
    folder: Path, searches: Searches, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "keys.jsonl"
    tensor, by = {"shape": [64, 128], "dtype": "float32"}, {"by": {"value": 3.0}}
    rare = {"kernel": "my_kernels.py:double", "args": [tensor], "kwargs": by, "target": "v5e", "id": "1"}
    busy = {**rare, "target": "v6e", "id": "2"}
    path.write_text("".join(json.dumps(line) + "\n" for line in (rare, busy, rare, {"id": "2", "calls": 7, "process": 1})))
    assert main(["prewarm", str(path), "--check"]) == 1
    assert main(["prewarm", str(path), "--jobs", "1"]) == 0
    assert searches.calls == ["v6e", "v5e"]
    assert "double(64x128, by=3.0) on v6e" in capsys.readouterr().err
    assert main(["prewarm", str(path), "--check"]) == 0
    assert "2 of 2 keys have a record" in capsys.readouterr().out
    path.write_text(path.read_text() + "{\n")
    assert main(["prewarm", str(path)]) == 1 and searches.calls == ["v6e", "v5e"]
    assert "not filled: line 5" in capsys.readouterr().err


def test_the_example_manifest_can_be_used() -> None:
    from helion_rt.cli import manifest

    path = Path(ROOT) / "examples" / "prewarm.toml"
    entries = list(manifest.entries(manifest.load(path), path.parent, None))
    assert len(entries) == 36 and not any(entry.problem for entry in entries)
    assert {entry.short_name for entry in entries} == {"matmul", "softmax", "layer_norm", "attention"}


def test_a_record_that_the_directory_does_not_take_fills_nothing(
    manifest: Path, searches: Searches, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_cache.write_text("a file, not a directory")
    assert main(["prewarm", str(manifest), "--target", "v5e", "--json"]) == 1
    (result,) = json.loads(capsys.readouterr().out)
    assert not result["filled"] and result["status"] == f"found, but {own_cache} cannot be written"
