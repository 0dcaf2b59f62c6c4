"""The compiler's text: what is read of a line."""

from __future__ import annotations

import pytest

from helion_rt.schedule import bundles

from .texts import GUARDED, PIPELINE, TABLED, TOP, UTILIZATION


def test_depths_regions_and_matmuls() -> None:
    parsed = bundles.parse(GUARDED)
    assert [b.address for b in parsed] == list(range(20))
    assert [b.depth for b in parsed][1:5] == [0, 1, 1, 1]
    assert parsed[2].regions == [5, 6] and parsed[11].regions == [8]
    assert parsed[10].matmuls == ["bf16.gmra.mxu0", "bf16.gmra.mxu1"]


def test_operations_guards_and_choices() -> None:
    parsed = bundles.parse(GUARDED)
    (branch,) = parsed[4].ops
    assert (branch.dest, branch.code, branch.guard, branch.negated) == (None, "sbr.rel", "p3_p0", False)
    (choice,) = parsed[7].ops
    assert (choice.dest, choice.code, choice.guard, choice.otherwise, choice.args) == ("s21_s2", "smov", "p4_p1", "%s12_s3", "0")
    assert parsed[14].ops[0].negated
    assert [op.code for op in parsed[2].ops] == ["sphi", "sphi", "sst"]
    assert parsed[9].ops == []  # a vector store


def test_copies_keep_their_fields_and_window() -> None:
    copy = bundles.parse(PIPELINE)[6].ops[0]
    assert copy.code == "dma.hbm_to_vmem" and copy.guard == "p6_p3"
    assert "size_in_granules=100" in copy.args and "dst_syncflagno=%s2_s2" in copy.args
    assert copy.note == f"{4 * 2 * 2048} hbm"


def test_operands_and_callees() -> None:
    first = bundles.parse(TABLED)[0].ops
    assert [op.note for op in first] == ["0 s32[] input", "1 s32[4] input"]
    assert bundles.parse(TOP)[7].ops[0].note == "kernel.1"


def test_text_that_is_something_else() -> None:
    with pytest.raises(ValueError, match="no bundles"):
        bundles.parse("nothing\nof the kind\n")
    with pytest.raises(ValueError, match="bundle 1"):
        bundles.parse("   0   :  {}\n 0x2   :  {}\n")


def test_utilization() -> None:
    names, capacity, rows = bundles.parse_utilization(UTILIZATION)
    assert names[0] == "MXU" and capacity == [4, 3, 4, 3, 1, 2]
    assert len(rows) == 20 and rows[10] == [2, 0, 1, 0, 0, 0]
    with pytest.raises(ValueError):
        bundles.parse_utilization("== CAPACITY:\nMXU, XLU\n 4 3\n== UTILIZATION:\n1 2 3\n")
    with pytest.raises(ValueError):
        bundles.parse_utilization("")
