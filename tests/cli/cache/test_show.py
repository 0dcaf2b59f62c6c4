"""``helion-rt cache ls``, ``show`` and ``path``: what they print and how they exit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from helion_rt.cli.main import main
from helion_rt.database import Evidence, EvidenceKind, Key, LocalTier, Record, Status
from helion_rt.database.shared import open_shared
from helion_rt.database.signing import Trust

MEASURED = Evidence(EvidenceKind.MEASURED, ms=1.25, default_ms=2.5, pairs=9, candidates_tried=17, seconds=3.0)


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """A cache with records, some of them awkward to print, as the one of HELION_RT_CACHE_DIR."""
    monkeypatch.setenv("HELION_RT_CACHE_DIR", str(tmp_path))
    tier, made = LocalTier(tmp_path), []
    for n in range(12):
        key = Key(f"{n:064x}", (("tensor", (128, n), "bfloat16"), float("nan"), float("inf"), b"\1", 2**80), "default", "v5e")
        kernel = "[red]bad[/red]\x1b[31m" if n == 0 else f"kernel_{n}"
        made.append(Record(key, kernel, Status.WINNER, {"block_sizes": [8, 128 * n]}, 1, MEASURED, {"jax": "0.10.2"}))
    made.append(Record(Key("ab" * 32, (), "x64", "cpu"), "none", Status.NO_CANDIDATE, {}, 1, Evidence(EvidenceKind.SCHEDULED), {}))
    assert all(tier.put(record) for record in made)
    return made


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(["cache", *words])
    out, err = capsys.readouterr()
    return status, out, err


def test_ls_shows_every_record_whole_in_a_pipe(records: list[Record], capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "ls")
    assert status == 0 and err == ""
    for record in records:
        (line,) = [line for line in out.splitlines() if record.key.digest[:12] in line]
        assert record.key.target in line and record.status.value in line and record.date in line
    assert "2.00x" in out and "block_sizes=[8, 1408]" in out
    assert "[red]bad[/red]" in out and "\x1b[31m" not in out


def test_ls_json(records: list[Record], capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "ls", "--json")
    found = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert status == 0 and [item["digest"] for item in found] == sorted(record.key.digest for record in records)
    item = next(item for item in found if item["kernel"] == "kernel_3")
    assert item["key"]["signature"] == [
        ["tensor", [128, 3], "bfloat16"], {"float": "nan"}, {"float": "inf"}, {"bytes": "01"}, {"int": str(2**80)}
    ]  # fmt: skip
    assert item["evidence"]["ms"] == 1.25 and item["speedup"] == 2.0 and item["config"] == {"block_sizes": [8, 384]}


def test_show_by_a_prefix(records: list[Record], capsys: pytest.CaptureFixture[str]) -> None:
    digest = records[3].key.digest
    status, out, _ = run(capsys, "show", digest[:10].upper())
    assert status == 0 and f"digest: {digest}" in out and "kernel: kernel_3" in out and "candidates_tried: 17" in out
    status, out, _ = run(capsys, "show", digest, "--json")
    assert status == 0 and json.loads(out)["digest"] == digest


def test_show_says_which_keys_a_prefix_may_mean(records: list[Record], capsys: pytest.CaptureFixture[str]) -> None:
    digests = [record.key.digest for record in records]
    shared = next(digit for digit in "0123456789abcdef" if sum(digest.startswith(digit) for digest in digests) > 1)
    status, out, err = run(capsys, "show", shared)
    assert status == 1 and out == "" and "give more digits" in err
    assert all(digest[:12] in err for digest in sorted(digest for digest in digests if digest.startswith(shared))[:5])


def test_show_of_nothing(records: list[Record], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "show", "nothex")
    assert status == 1 and out == "" and "'nothex'" in err and str(tmp_path) in err and "cache ls" in err


def test_an_empty_cache_is_said_to_be_empty_and_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "none"
    assert run(capsys, "ls", "--dir", str(place)) == (0, f"no records in {place}, which does not exist\n", "")
    assert run(capsys, "ls", "--json", "--dir", str(place)) == (0, "[]\n", "")
    assert not place.exists()


def test_what_is_shipped_is_listed_and_shown_but_not_changed(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "ls", "--dir", "shipped", "--kernel", "layer_norm", "--target", "v6e")
    (line,) = [line for line in out.splitlines() if " 8x512x768 bfloat16, 2 of 768 bfloat16, 1e-12" in line]
    assert status == 0 and err == "" and "scheduled" in line
    assert "kernel: layer_norm" in run(capsys, "show", line.split()[0], "--dir", "shipped")[1]
    status, _, err = run(capsys, "forget", line.split()[0], "--dir", "shipped", "--yes")
    assert status == 1 and "shipped=off" in err
    assert Path(run(capsys, "path", "--dir", "shipped")[1].strip()).is_dir()


def test_path(records: list[Record], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "path") == (0, f"{tmp_path}\n", "")
    assert run(capsys, "path", "--json") == (0, json.dumps({"path": str(tmp_path)}) + "\n", "")
    assert run(capsys, "path", "--dir", "/elsewhere")[1] == "/elsewhere\n"


def test_bad_records_are_told(records: list[Record], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    LocalTier(tmp_path)._store().merge(f"r-{records[5].key.digest}", b"junk", lambda old, new: new)
    status, out, err = run(capsys, "ls", "--json")
    assert status == 0 and len(json.loads(out)) == len(records) - 1 and "1 bad record" in err
    assert run(capsys, "ls", "--json")[2] == ""


def test_a_directory_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    status, _, err = run(capsys, "ls", "--dir", str(tmp_path / "file"))
    assert status == 1 and "is not a directory" in err
    status, _, err = run(capsys, "ls", "--dir", "~no_such_user_of_helion_rt/x")
    assert status == 1 and "home directory" in err


def test_ls_of_a_kernel_or_a_target(records: list[Record], capsys: pytest.CaptureFixture[str]) -> None:
    def listed(*words: str) -> list[str]:
        return [json.loads(line)["kernel"] for line in run(capsys, "ls", "--json-lines", *words)[1].splitlines()]

    assert listed("--kernel", "kernel_3") == ["kernel_3"] and len(listed("--kernel", "kernel_1*")) == 3
    assert listed("--target", "cpu") == ["none"] and len(listed("--target", "v5*")) == 12
    assert listed("--kernel", "kernel_3", "--target", "cpu") == []
    assert run(capsys, "ls", "--kernel", "kernel_99")[1].endswith("for --kernel kernel_99\n")


def test_ls_prints_while_it_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    record = Record(Key("ab" * 32, (), "x64", "cpu"), "first", Status.NO_CANDIDATE, {}, 1, Evidence(EvidenceKind.SCHEDULED), {})
    seen: list[str] = []

    def slowly(self: LocalTier) -> Iterator[Record]:
        yield record
        seen.append(capsys.readouterr().out)
        yield record

    monkeypatch.setattr(LocalTier, "records", slowly)
    for words in ([], ["--json"], ["--json-lines"]):
        seen.clear()
        assert run(capsys, "ls", "--dir", str(tmp_path), *words)[0] == 0
        assert "first" in seen[0]


def test_a_shared_tier_is_listed_and_shown_by_its_url(records: list[Record], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    tier = open_shared(f"file://{shared}", trust=Trust())
    for record in records:
        tier.put(record)
    status, out, err = run(capsys, "ls", "--dir", f"file://{shared}", "--json-lines")
    assert (status, err) == (0, "") and sorted(json.loads(line)["digest"] for line in out.splitlines()) == sorted(
        record.key.digest for record in records
    )
    assert "kernel: kernel_3" in run(capsys, "show", records[3].key.digest[:10], "--dir", f"file://{shared}")[1]
    assert run(capsys, "path", "--dir", "redis://me:secret@host/0")[1] == "redis://***@host/0\n"


@pytest.mark.parametrize("url", ["ftp://x/y", "file:///nowhere/at/all", "redis://127.0.0.1:1/0", "file://"])
def test_a_shared_tier_that_cannot_be_asked(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "ls", "--dir", url)
    assert status == 1 and out == "" and err.startswith("helion-rt: ")


def test_cpu_is_every_cpu(records: list[Record], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    LocalTier(tmp_path).put(replace(records[3], key=Key("cd" * 32, (), "x64", "cpu/x86_64-v3/2")))
    for pattern, count in {"cpu": 2, "cpu/x86_64-v3/2": 1, "cpu/*": 1, "cp": 0}.items():
        assert len(run(capsys, "ls", "--json-lines", "--target", pattern)[1].splitlines()) == count
