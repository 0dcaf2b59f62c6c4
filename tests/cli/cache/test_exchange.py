"""``helion-rt cache export``, ``import`` and ``merge``."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import helion_rt
from helion_rt.cli.cache.exchange import Outcome, bring
from helion_rt.cli.cache.place import LocalPlace
from helion_rt.cli.main import main
from helion_rt.database import Evidence, EvidenceKind, Key, LocalTier, Origin, Record, Status, pack
from helion_rt.database.signing import Trust

ROOT = Path(helion_rt.__file__).parents[1]
KEY = "a secret of at least sixteen bytes"


def outcomes(result: Any) -> list[str]:
    return [line.split()[0] for line in result.lines[:-1]]


def test_what_becomes_of_each_record(run: Any, make: Any, fill: Any, has: Any, home: Path, tmp_path: Path) -> None:
    fill(home, make(2, key=1), make(2, key=2), make(2, key=3))
    file = tmp_path / "some.pack"
    pack.write([make(1, key=0), make(1, key=1), make(2, key=2), make(3, key=3)], file, Trust())
    dry = run("import", file, "--dry-run")
    assert outcomes(dry) == ["new", "worse", "same", "better"] and "nothing was written" in dry.out and len(has(home)) == 3
    done = run("import", file)
    assert (done.status, done.err) == (0, "") and outcomes(done) == ["new", "worse", "same", "better"]
    assert done.lines[-1].endswith("1 new, 1 better, 1 worse, 1 same, 0 refused")
    found = has(home)
    assert [found[f"kernel_{n} v5e"].evidence.ms for n in range(4)] == [1, 1 / 2, 1 / 2, 1 / 3]
    # What came is to be tried here first; what was here stays as it was, even where the pack says the same.
    origins = [found[f"kernel_{n} v5e"].origin for n in range(4)]
    assert origins == [Origin.IMPORTED, Origin.TUNED_HERE, Origin.TUNED_HERE, Origin.IMPORTED]


def test_importing_twice_changes_nothing(run: Any, make: Any, fill: Any, home: Path, tmp_path: Path) -> None:
    fill(tmp_path / "other", *(make(1, key=n) for n in range(3)))
    assert run("export", tmp_path / "a.pack", "--dir", tmp_path / "other").status == 0
    assert outcomes(run("import", tmp_path / "a.pack")) == ["new"] * 3
    before = (home / "v1/local/cache.db").read_bytes()
    assert outcomes(run("import", tmp_path / "a.pack")) == ["same"] * 3
    assert (home / "v1/local/cache.db").read_bytes() == before


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
many = st.lists(
    st.builds(
        lambda n, kernel, target, ms, config, bad, retune: Record(
            Key(f"{n:08x}", (("tensor", (n,), "float32"), float("inf"), b"\0"), "", target), kernel, Status.WINNER,
            {"block_sizes": config}, 1, Evidence(EvidenceKind.MEASURED, ms, 2.0), {"jax": "0.10.2"}, quarantined=bad, retune=retune,
            date="2026-11-29T12:00:00Z",
        ),
        st.integers(0, 9), words, words, st.floats(0.1, 10), st.lists(st.integers(1, 512), max_size=3),
        st.lists(st.builds(lambda n: {"block_sizes": [n]}, st.integers(1, 64)), max_size=2).map(tuple), st.booleans(),
    ),
    min_size=1, max_size=3,
)  # fmt: skip


@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(many)
def test_a_round_trip_gives_identical_bytes(records: list[Record]) -> None:
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        tier = LocalTier(here / "first")
        for record in records:
            assert tier.put(record)
        for words in (
            ["export", here / "1.pack", "--dir", here / "first"], ["import", here / "1.pack", "--dir", here / "second", "--quiet"],
            ["export", here / "2.pack", "--dir", here / "second"], ["diff", here / "first", here / "second"],
        ):  # fmt: skip
            assert main(["cache", *map(str, words)]) == 0
        assert (here / "1.pack").read_bytes() == (here / "2.pack").read_bytes()


def test_export_chooses(run: Any, make: Any, fill: Any, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(home, make(key=1), make(key=2, target="v6e"), make(key=3, date="2026-01-01T00:00:00Z"))
    file = tmp_path / "a.pack"

    def exported(*words: str) -> list[str]:
        result = run("export", file, *words)
        found, problems = pack.read(file, Trust())
        assert result.status == 0 and not problems and f"{len(found)} records, " in result.out
        return [record.kernel for record in found]

    assert exported() == ["kernel_1", "kernel_2", "kernel_3"]
    assert exported("--kernel", "kernel_[12]") == ["kernel_1", "kernel_2"]
    assert exported("--target", "v6e") == ["kernel_2"]
    assert exported("--since", "2026-11-01") == ["kernel_1", "kernel_2"] and exported("--since", "2026-11-29T12:00:01Z") == []
    assert len(exported("--since", "9999w")) == 3
    result = run("export", "-", "--kernel", "kernel_1")
    assert result.out == "".join(pack.lines([make(key=1)], Trust())) and result.err == ""
    for bad in ("yesterday", "5y", "2026-13", "99999999d", ""):
        with pytest.raises(SystemExit) as stop:
            main(["cache", "export", str(file), "--since", bad])
        assert stop.value.code == 2 and "--since" in capsys.readouterr().err


def test_signed_packs(run: Any, make: Any, fill: Any, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(home, make())
    run("export", tmp_path / "plain.pack")
    monkeypatch.setenv("HELION_RT_SIGNING_KEY", KEY)
    run("export", tmp_path / "signed.pack")
    assert "hmac" in (tmp_path / "signed.pack").read_text()
    monkeypatch.setenv("HELION_RT_SIGNED_ONLY", "1")
    monkeypatch.setenv("HELION_RT_CACHE_DIR", str(tmp_path / "other"))
    refused = run("import", tmp_path / "plain.pack")
    assert refused.status == 1 and "line 2: it is not signed" in refused.err
    assert outcomes(run("import", tmp_path / "signed.pack")) == ["new"]
    monkeypatch.setenv("HELION_RT_SIGNING_KEY", KEY + "!")
    monkeypatch.setenv("HELION_RT_CACHE_DIR", str(tmp_path / "third"))
    wrong = run("import", tmp_path / "signed.pack")
    assert wrong.status == 1 and "the signature is not one of our key" in wrong.err


def test_a_pack_with_bad_lines_is_imported_but_for_them(run: Any, make: Any, has: Any, home: Path, tmp_path: Path) -> None:
    lines = list(pack.lines([make(key=n) for n in range(3)], Trust()))
    (tmp_path / "a.pack").write_text("".join([lines[0], lines[1], lines[2].replace('"pairs": 9', '"pairs": 8'), "\x1b[2J\n", lines[3]]))
    result = run("import", tmp_path / "a.pack")
    assert result.status == 1 and outcomes(result) == ["new", "new"] and len(has(home)) == 2
    assert "line 3: the check does not fit" in result.err and "line 4: not JSON" in result.err and "\x1b" not in result.out + result.err


def test_a_config_that_is_none_is_refused(run: Any, make: Any, home: Path, has: Any, tmp_path: Path) -> None:
    bad = make(key=1, config={"block_sizes": "many\x1b[31m"}, kernel="\x1b]0;title\x07\u202e")
    pack.write([bad, make(key=2, quarantined=({"block_sizes": [True]},)), make(key=3)], tmp_path / "a.pack", Trust())
    result = run("import", tmp_path / "a.pack")
    assert result.status == 1 and sorted(outcomes(result)) == ["new", "refused", "refused"] and list(has(home)) == ["kernel_3 v5e"]
    assert "not a config" in result.out and not any(c in result.out for c in "\x1b\x07\u202e")


def test_merging_a_directory_and_a_shared_tier(run: Any, make: Any, fill: Any, has: Any, home: Path, tmp_path: Path) -> None:
    fill(home, make(1, key=0))
    other = fill(tmp_path / "other", make(2, key=0), make(1, key=1))
    shared = tmp_path / "shared"
    shared.mkdir()
    assert sorted(outcomes(run("merge", other, "--dir", f"file://{shared}"))) == ["new", "new"]
    result = run("merge", f"file://{shared}")
    assert result.status == 0 and sorted(outcomes(result)) == ["better", "new"]
    assert has(home)["kernel_0 v5e"].evidence.ms == 1 / 2
    quiet = run("merge", other, "--quiet")
    assert quiet.lines == [f"{other} -> {home}: 0 new, 0 better, 0 worse, 2 same, 0 refused"]


def test_what_cannot_be_merged(run: Any, make: Any, fill: Any, home: Path, tmp_path: Path) -> None:
    other = fill(tmp_path / "other", make())
    for words, reason in [
        (("merge", tmp_path / "missing"), "No such file"),
        (("import", other), "is no pack"),
        (("import", tmp_path / "none"), "No such file"),
        (("merge", "nothing://x"), "begins with one of"),
        (("merge", other, "--dir", other / "v1/local/cache.db"), "not a directory"),
        (("export", tmp_path / "no/such/folder.pack"), "was not written"),
        (("merge", "a\0b"), "null"),
    ]:  # fmt: skip
        result = run(*words)
        assert result.status == 1 and reason in result.err and "\0" not in result.err, words
    (tmp_path / "file").write_text("something else\n")
    result = run("merge", tmp_path / "file")
    assert result.status == 1 and "line 1: not JSON" in result.err
    assert not home.exists()


def test_a_place_that_cannot_be_written(run: Any, make: Any, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalTier, "put", lambda self, record, force=False: False)
    pack.write([make()], tmp_path / "a.pack", Trust())
    result = run("import", tmp_path / "a.pack")
    assert result.status == 1 and outcomes(result) == ["refused"] and "cannot be written" in result.out


def test_a_huge_file_is_refused(run: Any, home: Path, tmp_path: Path) -> None:
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(1 << 40)
    result = run("import", tmp_path / "huge")
    assert result.status == 1 and "1048576 MiB" in result.err


def test_two_processes_import_at_once(make: Callable[..., Record], home: Path, has: Any, tmp_path: Path) -> None:
    for side in range(2):
        pack.write([make(1 + (key + side) % 2, key=key) for key in range(12)], tmp_path / f"{side}.pack", Trust())
    code = "import sys; from helion_rt.cli.main import main; sys.exit(main())"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", code, "cache", "import", "--quiet"]
    started = [
        subprocess.Popen([*command, str(tmp_path / f"{side}.pack")], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for side in range(2)
    ]
    for process in started:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0 and err == "" and "0 refused" in out
    assert [record.evidence.ms for record in has(home).values()] == [1 / 2] * 12


def test_an_outcome_is_that_of_merging(make: Callable[..., Record], home: Path) -> None:
    """What one knows to be in quarantine is news, even from a record that is worse."""
    place = LocalPlace(home, Trust())
    place.put(make(3))
    knows = make(1, quarantined=({"block_sizes": [1, 1]},))
    assert [outcome for _, outcome, _ in bring([knows, knows, make(2)], place)] == [Outcome.BETTER, Outcome.WORSE, Outcome.WORSE]
    stored = place.get(knows.key)
    assert stored is not None and stored.evidence.ms == 1 / 3 and stored.quarantined == knows.quarantined
