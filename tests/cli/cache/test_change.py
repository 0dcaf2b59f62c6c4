"""``helion-rt cache forget`` and ``retune``."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from helion_rt.database import Evidence, EvidenceKind, LocalTier, Status, better, utc_now
from helion_rt.database.shared import open_shared
from helion_rt.database.signing import Trust
from helion_rt.runtime.standing import Standing, standing, toolchain_here
from helion_rt.tuning.space import SPACE_VERSION


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_forget_by_a_prefix(run: Any, make: Any, fill: Any, has: Any, home: Path) -> None:
    fill(home, make(key=1), make(key=2))
    result = run("forget", make(key=1).key.digest[:10].upper(), "--yes")
    assert (result.status, result.err) == (0, "") and result.out == f"1 of 1 records forgotten in {home}\n"
    assert list(has(home)) == ["kernel_2 v5e"]
    assert run("forget", make(key=1).key.digest, "--yes").status == 1


@pytest.mark.parametrize("action", [("forget", "--yes"), ("retune",)], ids=["forget", "retune"])
def test_a_prefix_of_several_keys_is_refused(action: tuple[str, ...], run: Any, make: Any, fill: Any, has: Any, home: Path) -> None:
    many = [make(key=n) for n in range(17)]  # of 17 digests two begin alike
    fill(home, *many)
    digit = next(d for d in "0123456789abcdef" if sum(record.key.digest.startswith(d) for record in many) > 1)
    result = run(action[0], digit, *action[1:])
    assert result.status == 1 and "keys" in result.err and len(has(home)) == 17
    assert not any(record.retune for record in has(home).values())


def test_forget_of_a_kernel_on_a_target(run: Any, make: Any, fill: Any, has: Any, home: Path) -> None:
    fill(home, make(key=1), make(key=1, target="v6e"), make(key=2))
    assert run("forget", "--kernel", "kernel_1", "--target", "v6e", "--yes").status == 0
    assert set(has(home)) == {"kernel_1 v5e", "kernel_2 v5e"}
    assert run("forget", "--kernel", "*", "--yes").status == 0 and not has(home)


@pytest.mark.parametrize("answer, stays", [("y\n", 0), ("YES\n", 0), ("\n", 2), ("n\n", 2), ("", 2), ("whatever\n", 2)])
def test_forget_asks(
    answer: str, stays: int, run: Any, make: Any, fill: Any, has: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(home, make(key=1, kernel="one\x1b[2J"), make(key=2))
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    result = run("forget", "--target", "v5e")
    assert result.status == (1 if stays else 0) and len(has(home)) == stays
    assert "Forget 2 records" in result.out and make(key=2).key.digest[:12] in result.out and "\x1b" not in result.out


def test_forget_without_a_terminal_or_a_word_changes_nothing(
    run: Any, make: Any, fill: Any, has: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(home, make(key=1))
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    result = run("forget", "--kernel", "kernel_1")
    assert result.status == 1 and "--yes" in result.err and len(has(home)) == 1
    for action in ("forget", "retune"):
        result = run(action)
        assert result.status == 1 and "which records?" in result.err and len(has(home)) == 1
        assert "no such record" in run(action, "--kernel", "none").err and "no such record" in run(action, "zz").err


def test_forget_and_retune_in_a_shared_tier(run: Any, make: Any, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    tier = open_shared(f"file://{shared}", trust=Trust())
    tier.put(make(key=1))
    tier.put(make(key=2))
    where = ("--dir", f"file://{shared}")
    assert run("retune", "--kernel", "kernel_1", *where).status == 0
    assert {record.kernel: record.retune for record in tier.records()} == {"kernel_1": True, "kernel_2": False}
    assert run("forget", "--kernel", "kernel_1", "--yes", *where).status == 0
    assert [record.kernel for record in tier.records()] == ["kernel_2"]


def test_retune(run: Any, make: Any, fill: Any, has: Any, home: Path) -> None:
    here = {"toolchain": toolchain_here(), "space_version": SPACE_VERSION}
    was = make(key=1, date="2026-11-29T12:00:00Z", **here)
    fill(home, was, make(key=2, **here))
    assert run("retune", was.key.digest[:9]).out == f"1 records of {home} will be searched again where they are next called\n"
    asked = has(home)["kernel_1 v5e"]
    # It serves on, and is looked at again.
    assert asked.retune and asked.config == was.config and asked.evidence == was.evidence and asked.revision == was.revision + 1
    assert standing(asked, toolchain_here()) is Standing.HINT and not has(home)["kernel_2 v5e"].retune
    assert run("retune", "--kernel", "kernel_1").status == 0 and has(home)["kernel_1 v5e"] == asked  # once is enough
    # What is found then wins, even where it is slower than what was known; what a peer still has of before does not.
    found = make(key=1, **here, revision=asked.revision, config={"block_sizes": [1, 1]}, evidence=was.evidence.__class__(
        was.evidence.kind, ms=50.0, default_ms=60.0))  # fmt: skip
    assert better(asked, found) == better(found, asked) == found and better(was, found) == found and better(was, asked) == asked


def test_retune_of_what_failed(make: Any) -> None:
    nothing = Evidence(EvidenceKind.MODELLED)
    failed = make(
        status=Status.ALL_FAILED, config={}, toolchain=toolchain_here(), space_version=SPACE_VERSION, date=utc_now(), evidence=nothing
    )
    assert standing(failed, toolchain_here()) is Standing.FINAL
    assert standing(failed.to_be_retuned(), toolchain_here()) is Standing.MISS
    none = make(status=Status.NO_CANDIDATE, config={}, toolchain=toolchain_here(), space_version=SPACE_VERSION)
    assert standing(none, toolchain_here()) is Standing.FINAL
    assert standing(none.to_be_retuned(), toolchain_here()) is Standing.HINT


def test_a_database_that_cannot_be_written(run: Any, make: Any, fill: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(home, make(key=1))
    monkeypatch.setattr(LocalTier, "put", lambda self, record, force=False: False)
    result = run("retune", "--kernel", "*")
    assert result.status == 1 and "cannot be written" in result.err and "0 records" in result.out
