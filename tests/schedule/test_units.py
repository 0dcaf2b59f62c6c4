"""The rates that are derived from TpuInfo."""

from __future__ import annotations

import pytest

from helion_rt import targets
from helion_rt.schedule.units import rates


@pytest.mark.parametrize(("name", "gigahertz"), [("v4", 1.05), ("v5e", 1.5), ("v5p", 1.75), ("v6e", 1.75), ("tpu7x", 2.2)])
def test_the_clock_is_the_published_one(name: str, gigahertz: float) -> None:
    assert rates(targets.get(name)).clock == pytest.approx(gigahertz * 1e9, rel=0.01)


@pytest.mark.parametrize("name", targets.TPU_NAMES)
def test_matmuls_back_to_back_reach_the_peak(name: str) -> None:
    core = rates(targets.get(name))
    flops = 16 * core.columns**2 * 2  # a register of 16 bfloat16 rows
    rate = core.mxus * flops / core.matmul_cycles("mubr.bf16.gmra.mxu0") * core.clock
    assert rate == pytest.approx(targets.get(name).info.bf16_ops_per_second)
    assert core.matmul_cycles("f32.gmra.mxu0") * 2 == core.matmul_cycles("bf16.gmra.mxu0")
