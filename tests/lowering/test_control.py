"""Branches, whiles and loops whose bounds are data: the reference path and every strategy give torch's numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import control_kernels as kernels
import jax
import numpy as np
import pytest
import torch
from lowering_support import TOLERANCE, to_jax

from helion_rt import lowering, targets
from helion_rt.capture import capture
from helion_rt.config import Config, LoopStrategy
from helion_rt.exc import PlanError
from helion_rt.program.codec import decode, encode
from helion_rt.program.fingerprint import fingerprint, simplify
from helion_rt.program.ir import Program
from helion_rt.program.signature import TensorFact
from helion_rt.tuning.space import Space

CPU = targets.get("cpu")
FLOATS = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
# Where compiling takes long, the second dtype has its turn in the slow suite.
FLOATS_SLOWLY = pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])


def rand(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def program_of(fn: Callable[..., Any], args: Sequence[torch.Tensor]) -> Program:
    return capture(fn, tuple(TensorFact(tuple(a.shape), str(a.dtype).removeprefix("torch.")) for a in args))


def plans(program: Program, blocks: Sequence[int]) -> list[Config]:
    """A config for each strategy where the loops can have it (fori where not), and the default."""
    choices = [loop.choices for loop in lowering.loops(program)]
    assigned = {tuple(s if s in own else LoopStrategy.FORI for own in choices): None for s in ("fori", "unroll", "grid")}
    made = []
    for strategies in assigned:
        config = Config(block_sizes=list(blocks), loop_strategies=list(strategies))
        try:
            lowering.make_plan(program, config, CPU)
        except PlanError:
            assert LoopStrategy.FORI not in strategies or len(set(strategies)) > 1
            continue
        made.append(config)
    return [*made, Space(program, CPU).default()]


def check(fn: Callable[..., Any], args: Sequence[torch.Tensor], want: torch.Tensor, blocks: Sequence[int] = ()) -> Program:
    program = program_of(fn, args)
    dtype = next(str(a.dtype).removeprefix("torch.") for a in args if a.is_floating_point())
    scale = max(1.0, float(want.abs().max())) if want.numel() else 1.0
    runs = [lowering.reference(program, blocks), *(lowering.build(program, config, CPU) for config in plans(program, blocks))]
    for run in runs:
        (got,) = jax.jit(run)(*map(to_jax, args))
        np.testing.assert_allclose(
            np.asarray(got, np.float64), want.double().numpy(), rtol=10 * TOLERANCE[dtype], atol=TOLERANCE[dtype] * scale
        )
    return program


def segments(offsets: torch.Tensor) -> list[tuple[int, int]]:
    return list(itertools.pairwise(offsets.tolist()))


@FLOATS
def test_a_loop_over_a_segment(dtype: torch.dtype) -> None:
    x, offsets = rand(37, 5, dtype=dtype), ints(0, 3, 3, 24, 37)
    want = torch.stack([x.double()[a:b].sum(0) for a, b in segments(offsets)])
    check(kernels.segment_sum, [x, offsets], want, [8])


def test_bounds_that_make_no_tiles_run_zero_times() -> None:
    x, offsets = rand(20, 5), ints(8, 3, 3, -4, 20)
    want = torch.stack([x.double()[a:b].sum(0) if 0 <= a < b else torch.zeros(5, dtype=torch.float64) for a, b in segments(offsets)])
    want[3] = x.double().sum(0)
    offsets[3], want[2] = 0, 0
    check(kernels.segment_sum, [x, offsets], want, [8])


@FLOATS
def test_tiles_that_begin_anywhere_are_stored(dtype: torch.dtype) -> None:
    x, offsets = rand(40, 6, dtype=dtype), ints(2, 7, 7, 30, 39)
    want = torch.zeros(40, 6, dtype=torch.float64)
    for a, b in segments(offsets):
        want[a:b] = torch.softmax(x.double()[a:b], 0)
    check(kernels.segment_softmax, [x, offsets], want, [4, 4])


@FLOATS_SLOWLY
def test_attention_within_segments(dtype: torch.dtype) -> None:
    (q, k, v), offsets = (rand(40, 16, seed=s, dtype=dtype) for s in range(3)), ints(0, 9, 25, 38)
    want = torch.zeros(40, 16, dtype=torch.float64)
    for a, b in segments(offsets):
        want[a:b] = torch.softmax(q.double()[a:b] @ k.double()[a:b].T / 4, -1) @ v.double()[a:b]
    check(kernels.varlen_attention, [q, k, v, offsets], want, [4, 4])


@FLOATS
def test_a_while_goes_on_until_its_test_fails(dtype: torch.dtype) -> None:
    x = rand(50, dtype=dtype).abs() + 0.5
    check(kernels.newton_sqrt, [x], x.double().sqrt(), [16])


@FLOATS_SLOWLY
@pytest.mark.parametrize("limit", [-5.0, 2.0])
def test_both_sides_of_a_branch_give_a_value(dtype: torch.dtype, limit: float) -> None:
    x, bound = rand(37, 20, dtype=dtype), torch.tensor([limit])
    wide = x.double()
    want = torch.cat([
        wide[i : i + 8].clamp(max=1.0).sum(1) if wide[i : i + 8].max() > limit else wide[i : i + 8].sum(1) for i in range(0, 37, 8)
    ])  # fmt: skip
    program = program_of(kernels.clipped_rows, [x, bound])
    tolerance = TOLERANCE[str(dtype).removeprefix("torch.")] * float(want.abs().max())
    for config in plans(program, [8, 8])[:-1]:
        (got,) = jax.jit(lowering.build(program, config, CPU))(to_jax(x), to_jax(bound))
        np.testing.assert_allclose(np.asarray(got, np.float64), want.numpy(), rtol=0.02, atol=tolerance)
    (got,) = jax.jit(lowering.reference(program, [8, 8]))(to_jax(x), to_jax(bound))
    np.testing.assert_allclose(np.asarray(got, np.float64), want.numpy(), rtol=0.02, atol=tolerance)


def test_what_a_branch_does_not_store_stays() -> None:
    x, flags = rand(6, 10), ints(1, 0, -1, 2, 0, -3)
    want = torch.ones(6, 10, dtype=torch.float64)
    want[flags > 0], want[flags < 0] = x.double()[flags > 0] * 2, -x.double()[flags < 0]
    check(kernels.stored_where, [x, flags], want)


def test_loops_counted_by_data() -> None:
    counts, x = ints(3, 0, 5, 1), rand(7)
    want = torch.stack([sum((x.double()[: s + 1].sum() for s in range(n)), torch.zeros((), dtype=torch.float64)) for n in counts.tolist()])
    check(kernels.counted, [counts, x], want, [4])


@FLOATS_SLOWLY
def test_rows_of_groups(dtype: torch.dtype) -> None:
    x, weights, offsets = rand(30, 20, dtype=dtype), rand(3, 20, 12, seed=1, dtype=dtype), ints(0, 11, 11, 30)
    want = torch.cat([x.double()[a:b] @ w for (a, b), w in zip(segments(offsets), weights.double(), strict=True)])
    check(kernels.grouped_matmul, [x, weights, offsets], want, [16, 12, 8])


@pytest.mark.parametrize("name", ["clipped_rows", "newton_sqrt", "stored_where"])
def test_programs_with_regions_survive_the_codec(name: str) -> None:
    args = {"clipped_rows": [rand(9, 4), rand(1)], "newton_sqrt": [rand(9)], "stored_where": [rand(4, 4), ints(1, 0, 0, 1)]}[name]
    program = program_of(getattr(kernels, name), args)
    assert decode(encode(program)) == program
    assert fingerprint(simplify(program)) == fingerprint(program)


@pytest.mark.parametrize("shape", [(0, 7), (5, 0), (0, 0), (5, 7)])
def test_loops_without_tiles(shape: tuple[int, int]) -> None:
    x = rand(*shape)
    blocks = [min(4, max(1, n)) for n in shape]
    program = program_of(kernels.row_sums, [x])
    want = x.double().sum(1) + 1
    check(kernels.row_sums, [x], want, blocks[: len(program.tunable_blocks)])
    program = program_of(kernels.skipped_rows, [x])
    check(kernels.skipped_rows, [x], torch.ones(shape), [1] * len(program.tunable_blocks))


def test_many_loops_and_blocks_have_a_default_soon() -> None:
    """Each loop has its own strategies: where one has a single one, the others are not tried against it."""
    x, offsets = rand(64, 16), ints(0, 9, 64)
    program = program_of(kernels.varlen_attention, [x, x, x, offsets])
    space = Space(program, CPU)
    assert space.strategies == [(LoopStrategy.FORI,)] * 2
    space.default()
    assert len(space._forms) < 50


def test_a_last_tile_of_unknown_size_is_one_tile() -> None:
    x, offsets = rand(15), ints(0, 0, 3, 10, 10, 14, 15)
    want = torch.zeros(6, 4, dtype=torch.float64)
    for i, (a, b) in enumerate(segments(offsets)):
        for k, at in enumerate(range(a, b, 4)):
            want[i, k] = x[at : min(at + 4, b)].double().sum()
    check(kernels.tile_sums, [x, offsets], want)
    check(kernels.softmax_of_tiles, [x, offsets], torch.cat([torch.softmax(x.double()[a:b], 0) for a, b in segments(offsets)]))


@FLOATS_SLOWLY
@pytest.mark.parametrize("k", [64, 59, 40], ids=["even", "ragged", "fewer chunks than places"])
@pytest.mark.parametrize("inner", [16, 8, 12], ids=["one tile a chunk", "two tiles a chunk", "tiles with a rest"])
def test_tiles_of_a_tile(dtype: torch.dtype, k: int, inner: int) -> None:
    x, y = rand(13, k, dtype=dtype), rand(k, 9, seed=1, dtype=dtype)
    want = torch.zeros(13, 9, 4)
    for n, (a, b) in enumerate(zip(x.double().split(16, 1), y.double().split(16, 0), strict=True)):
        want[:, :, n] = a @ b
    check(kernels.chunk_products, [x, y], want, blocks=(8, 9, inner))


def test_the_only_tile_of_a_tile_is_no_loop() -> None:
    program = program_of(kernels.chunk_products, [rand(13, 64), rand(64, 9)])
    source = lowering.lower(program, Config(block_sizes=[8, 9, 16], loop_strategies=["fori"]), CPU).source
    assert "fori_loop" not in source and "jnp.clip" not in source and "_mask(load" not in source
    assert "(8, 9, None,)" in source  # of the result, a step holds its own chunk
