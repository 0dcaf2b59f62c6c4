"""``helion-rt cache diff``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from helion_rt.database import Evidence, EvidenceKind, Origin, pack
from helion_rt.database.shared import open_shared
from helion_rt.database.signing import Trust

SCHEDULED = Evidence(EvidenceKind.SCHEDULED, ms=0.1, default_ms=0.2)


def test_differences_of_two_directories(run: Any, make: Any, fill: Any, tmp_path: Path) -> None:
    a = fill(tmp_path / "a", make(1, key=1), make(2, key=2), make(1, key=4), make(1, key=5, evidence=SCHEDULED))
    b = fill(tmp_path / "b", make(1, key=1, origin=Origin.IMPORTED), make(3, key=2), make(1, key=3), make(1, key=5))
    result = run("diff", a, b)
    assert result.status == 1 and result.err == ""
    told = [line.split(":")[0] for line in result.lines if not line.startswith(" ") and not line.startswith("A ")]
    assert told == ["another winner", "only in B", "only in A", "other evidence"]
    text = result.out
    assert "block_sizes=[8, 256]  winner, measured 0.5 ms (default 2 ms, 9 pairs), jax 0.10.2, 2026-11-29" in text
    assert "block_sizes=[8, 384]  winner, measured 0.3333 ms" in text and "scheduled 0.1 ms" in text
    assert [line.strip() for line in result.lines if "merged" in line] == ["merged: B", "merged: B"]
    assert result.lines[-1] == f"A {a}: 4 records; B {b}: 4 records; 4 differ"


def test_json(run: Any, make: Any, fill: Any, tmp_path: Path) -> None:
    a, b = fill(tmp_path / "a", make(1, key=1), make(1, key=2)), fill(tmp_path / "b", make(2, key=2))
    found = [json.loads(line) for line in run("diff", a, b, "--json").lines]
    assert [item["difference"] for item in found] == ["only_in_a", "winner"]
    assert found[0]["b"] is None and found[1]["a"]["evidence"]["ms"] == 1 and found[1]["b"]["evidence"]["ms"] == 0.5


def test_the_same_by_whatever_way(run: Any, make: Any, fill: Any, tmp_path: Path) -> None:
    records = [make(1, key=n) for n in range(3)]
    a, shared = fill(tmp_path / "a", *records), tmp_path / "shared"
    shared.mkdir()
    for record in records:
        open_shared(f"file://{shared}", trust=Trust()).put(record)
    pack.write(records, tmp_path / "a.pack", Trust())
    for other in (a, f"file://{shared}", tmp_path / "a.pack"):
        result = run("diff", a, other)
        assert result.status == 0 and result.lines[-1].endswith("0 differ"), other
    assert run("diff", a, shared).status == 1  # as a database of a machine it is empty


def test_filters(run: Any, make: Any, fill: Any, tmp_path: Path) -> None:
    a, b = fill(tmp_path / "a", make(1, key=1), make(1, key=2)), fill(tmp_path / "b", make(1, key=1))
    assert run("diff", a, b).status == 1
    assert run("diff", a, b, "--kernel", "kernel_1").status == 0 and run("diff", a, b, "--target", "cpu").status == 0


def test_what_cannot_be_compared(run: Any, make: Any, fill: Any, tmp_path: Path) -> None:
    a = fill(tmp_path / "a", make())
    result = run("diff", a, tmp_path / "none")
    assert result.status == 1 and "none: No such file" in result.err and result.out == ""
    (tmp_path / "bad.pack").write_text("".join(pack.lines([make()], Trust())) + "junk\n")
    result = run("diff", a, tmp_path / "bad.pack")
    assert result.status == 1 and "line 3: not JSON" in result.err and "0 differ" in result.out


def test_nothing_of_a_record_reaches_the_terminal(run: Any, make: Any, fill: Any, tmp_path: Path) -> None:
    wild = "\x1b[2J\r\n\u202e\x9b"
    a = fill(tmp_path / "a", make(1, kernel=wild, target=wild, toolchain={"jax": wild}, config={wild: [wild]}))
    result = run("diff", a, fill(tmp_path / "b"))
    assert result.status == 1 and not any(c in result.out for c in "\x1b\r\u202e\x9b")
