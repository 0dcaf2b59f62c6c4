"""Inner loops over one tile of the outer one: where the only outer tile begins at a number, slices must, too."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import helion_rt.language as hl
from helion_rt import lowering, targets
from helion_rt.capture import capture
from helion_rt.config import Config
from helion_rt.program.ir import Program
from helion_rt.program.signature import TensorFact

TPU = targets.get("tpu7x")
# (rows, outer block, inner block, strategy): several inner tiles are run by fori, one is the same straight line whatever is asked for.
ONE = [(rows, block, block, s) for rows, block in ((64, 64), (50, 50), (256, 128)) for s in ("unroll", "fori", "emit_pipeline", "grid")]
PLANS = pytest.mark.parametrize(("rows", "outer", "inner", "strategy"), [*ONE, (64, 64, 16, "fori"), (256, 128, 32, "fori")])


def _summed_twice(x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows scaled, and the sum of each outer tile's."""
    block = hl.register_block_size(x.size(0))
    out = torch.empty_like(x)
    sums = x.new_zeros([(x.size(0) + block - 1) // block, x.size(1)])
    for outer in hl.tile(x.size(0), block_size=block):
        acc = x.new_zeros([x.size(1)])
        for inner in hl.tile(outer.begin, outer.end):
            rows = x[inner, :] * scale[inner][:, None]
            acc = acc + rows.sum(0)
            out[inner, :] = rows
        sums[outer.id, :] = acc
    return out, sums


def _program(rows: int) -> Program:
    return capture(_summed_twice, (TensorFact((rows, 128), "float32"), TensorFact((rows,), "float32")))


@PLANS
def test_numbers(rows: int, outer: int, inner: int, strategy: str) -> None:
    program = _program(rows)
    x, scale = (np.random.default_rng(seed).integers(-4, 4, shape).astype(np.float32) for seed, shape in ((1, (rows, 128)), (2, (rows,))))
    wanted = x * scale[:, None]
    sums = np.stack([wanted[i : i + outer].sum(0) for i in range(0, rows, outer)])
    for target in (TPU, targets.get("cpu")):
        if strategy == "emit_pipeline" and not target.is_tpu:
            continue
        config = Config(block_sizes=[outer, inner], loop_strategies=[strategy])
        lowered = lowering.lower(program, config, target)
        assert "pl.ds(jnp.asarray" not in lowered.source
        run = lowered.interpret if target.is_tpu else lowering.build(program, config, target)
        for got, want in zip(run(jnp.asarray(x), jnp.asarray(scale)), (wanted, sums), strict=True):
            np.testing.assert_array_equal(got, want)


@PLANS
def test_they_compile(rows: int, outer: int, inner: int, strategy: str) -> None:
    program = _program(rows)
    config = Config(block_sizes=[outer, inner], loop_strategies=[strategy])
    assert lowering.lower(program, config, TPU).compile().tpu_custom_calls == 1
