"""The scalar half of kernels, run: loops, guards, copies and what is unknown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helion_rt import targets
from helion_rt.schedule import bundles, scalar
from helion_rt.schedule.copies import Copies
from helion_rt.schedule.tables import Contents
from helion_rt.schedule.units import GRANULE_BYTES, rates

from .texts import GUARDED, PIPELINE, TABLED

RATES = rates(targets.get("v5e"))


def run(text: str, operands: tuple[np.ndarray, ...] | None = None, budget: int = 1000, **options: Any) -> Any:
    """(translated, counts by block, cycles, copies, unknowns, cut short)."""
    translated = scalar.translate(bundles.parse(text), RATES, operands is not None)
    counts = [0] * len(translated.blocks)
    copies, unknowns, contents = Copies(rate=10.0, latency=50.0), scalar.Unknowns(**options), Contents(operands or ())
    cycles, cut = translated.run(copies, unknowns, {}, contents.copy_in, contents.scalar, lambda now, name: now, counts, budget)
    return translated, counts, cycles, copies, unknowns, cut


def times(translated: scalar.Scalar, counts: list[int], address: int) -> int:
    return next(n for block, n in zip(translated.blocks, counts, strict=True) if block.begin <= address < block.end)


def test_a_guarded_region_runs_on_its_share_of_the_turns() -> None:
    translated, counts, cycles, _, unknowns, cut = run(GUARDED)
    assert times(translated, counts, 0x2) == 6
    assert times(translated, counts, 0x9) == 2
    assert times(translated, counts, 0xB) == 6
    assert not unknowns.used and not cut
    # Bundles 9 and 10 hold a matmul on each of two MXUs, which keeps it for 16 cycles: longer than the two bundles.
    assert cycles == 2 + 6 * 7 + 2 * 16 + 6 * 8 + 1


def test_the_shadow_of_a_branch_is_issued_always() -> None:
    translated, counts, *_ = run(GUARDED)
    assert times(translated, counts, 0x8) == 6
    assert [(b.begin, b.end) for b in translated.blocks] == [(0, 2), (2, 9), (9, 11), (11, 19), (19, 20)]


def test_a_loop_is_cut_at_the_budget_and_its_length_known() -> None:
    translated, counts, _, _, _, cut = run(GUARDED, budget=2)
    assert cut and translated.outer is not None
    block, turns = translated.outer
    assert turns == 6 and counts[block] == 3


def test_a_pipeline_costs_latency_plus_bytes_or_compute() -> None:
    *_, cycles, copies, _, _ = run(PIPELINE)
    assert copies.moved == 4 * 100 * GRANULE_BYTES
    step = 50 + 100 * GRANULE_BYTES / 10
    # The first copy starts at bundle 2, each other two bundles after the wait for the one before.
    assert cycles == pytest.approx(2 + step + 3 * (2 + step) + 9)


def test_tables_decide() -> None:
    translated, counts, _, copies, unknowns, _ = run(TABLED, (np.asarray(3, np.int32), np.asarray([7, 1, 7, 7], np.int32)))
    assert times(translated, counts, 0x6) == 3
    assert copies.moved == 2 * 10 * GRANULE_BYTES
    assert not unknowns.used


def test_without_tables_half_of_the_tests_hold_and_that_is_told() -> None:
    translated, counts, _, copies, unknowns, _ = run(TABLED, trips=8)
    assert times(translated, counts, 0x6) == 8
    assert copies.moved == 4 * 10 * GRANULE_BYTES
    assert set(unknowns.used) == {0x8, 0x9}


def test_arithmetic_is_that_of_32_bits() -> None:
    forms = {
        "sadd.s32 4294967295, 1": 0, "ssub.s32 0, 1": 0xFFFFFFFF, "sshra.s32 4294967288, 1": 0xFFFFFFFC,
        "sshrl.u32 4294967288, 1": 0x7FFFFFFC,
        "scmp.lt.s32.totalorder 4294967295, 1": True, "scmp.lt.u32.totalorder 4294967295, 1": False, "sshll.u32 3, 31": 0x80000000,
        "smin.u32 4294967295, 1": 1, "smin.s32 4294967295, 1": 0xFFFFFFFF, "pnand 1, 0": True, "smul.u32 65536, 65536": 0,
    }  # fmt: skip
    for text, expected in forms.items():
        (op,) = bundles.parse(f"   0   :  {{ %s1_s1 = {text} }}")[0].ops
        source = scalar.expression(op)
        assert source is not None, text
        assert eval(source, {"M": 0xFFFFFFFF, "S": 0x80000000}) == expected, text


def test_a_form_that_is_not_known_is_unknown() -> None:
    (op,) = bundles.parse("   0   :  { %s1_s1 = sfancy.s32 1, 2 }")[0].ops
    assert scalar.expression(op) is None
