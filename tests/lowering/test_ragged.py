"""Tiles whose last one is smaller than its block: the reference path and every strategy give torch's numbers, or a reason why not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pytest
import torch
from lowering_support import to_jax

import helion_rt.language as hl
from helion_rt import lowering, targets
from helion_rt.capture import capture
from helion_rt.config import Config
from helion_rt.exc import PlanError
from helion_rt.lowering import emit
from helion_rt.program.ir import Program
from helion_rt.program.signature import TensorFact

CPU = targets.get("cpu")


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def program_of(fn: Callable[..., Any], *args: torch.Tensor) -> Program:
    return capture(fn, tuple(TensorFact(tuple(a.shape), str(a.dtype).removeprefix("torch.")) for a in args))


def pallas(program: Program, args: Sequence[torch.Tensor], blocks: Sequence[int] = (), strategy: str = "fori") -> list[np.ndarray]:
    strategies = [strategy] * len(lowering.loops(program))
    run = lowering.build(program, Config(block_sizes=list(blocks), loop_strategies=strategies), CPU)
    return [np.asarray(x) for x in jax.jit(run)(*map(to_jax, args))]


def reference(program: Program, args: Sequence[torch.Tensor], blocks: Sequence[int] = ()) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.jit(lowering.reference(program, blocks))(*map(to_jax, args))]


def check(fn: Callable[..., Any], args: Sequence[torch.Tensor], *expected: torch.Tensor, blocks: Sequence[int] = ()) -> None:
    program = program_of(fn, *args)
    strategies = ("grid", "unroll", "fori") if lowering.loops(program) else ("fori",)
    for got in (reference(program, args, blocks), *(pallas(program, args, blocks, s) for s in strategies)):
        for x, want in zip(got, expected, strict=True):
            np.testing.assert_allclose(x, want.numpy(), rtol=2e-4, atol=2e-5 * max(1.0, float(want.abs().max())))


def _constant_of_block(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0), block_size=64):
        out[tile] = x[tile] * torch.arange(64) + hl.full([tile.block_size], 1.0)
    return out


def test_a_fixed_block_meets_values_of_its_size() -> None:
    x = rand(130)
    check(_constant_of_block, [x], x * (torch.arange(130) % 64) + 1)


def _shared(x):
    out = x.new_empty([x.size(0)])
    for tile in hl.tile(x.size(0)):
        total = hl.zeros([tile])
        for other in hl.tile(x.size(0), block_size=tile.block_size):
            total = total + (x[tile][:, None] * x[other][None, :]).sum(1)
        out[tile] = total
    return out


def test_two_nested_axes_share_one_block() -> None:
    x = rand(57)
    check(_shared, [x], x * x.sum(), blocks=[16])


def _statistics(x):
    mean, var = x.new_empty([x.size(0)]), x.new_empty([x.size(0)])
    for row in hl.tile(x.size(0)):
        m, v = hl.zeros([row]), hl.zeros([row])
        for col in hl.tile(x.size(1), block_size=64):
            m, v = m + x[row, col].mean(1), v + x[row, col].var(1)
        mean[row], var[row] = m, v
    return mean, var


def test_mean_and_variance_of_a_last_tile_count_what_exists() -> None:
    x = rand(5, 130)
    parts = x.split(64, 1)
    check(_statistics, [x], sum(p.mean(1) for p in parts), sum(p.var(1) for p in parts), blocks=[4])  # type: ignore[arg-type]


def _chain(x):
    out = x.new_empty([9])
    for tile in hl.tile(x.size(0), block_size=16):
        a, b, c, d = hl.zeros([tile]), hl.zeros([tile]), hl.zeros([tile]), hl.zeros([tile])
        for _step in hl.tile(8, block_size=1):
            d = d * 0 + c
            c = c * 0 + b
            b = b * 0 + a
            a = x[tile] + 1
        out[tile.id] = d.sum()
    return out


def test_a_last_tile_is_known_through_a_chain_of_carried_variables() -> None:
    x = rand(130)
    check(_chain, [x], torch.stack([p.sum() + p.numel() for p in x.split(16)]))


def _positions(x):
    out = torch.zeros_like(x)
    for tile in hl.tile(x.size(0)):
        for row in hl.grid(4):
            out[tile] = out[tile] + row * tile.begin + x[tile]
    return out


def test_positions_known_early_are_values_with_a_dtype() -> None:
    x = rand(20)
    check(_positions, [x], 4 * x, blocks=[20])
    check(_positions, [x], 4 * x + 6 * (torch.arange(20) // 8 * 8), blocks=[8])


def _padded_axis(x):
    out, total = torch.empty_like(x), x.new_empty([x.size(0)])
    block = hl.register_block_size(8, 128)
    for tile in hl.tile(hl.cdiv(x.size(0), block) * block, block_size=block):
        out[tile] = x[tile] + tile.index
        partial = hl.zeros([tile])
        for other in hl.tile(2 * block, block_size=block):
            partial = partial + torch.where(other.index < x.size(0), x[other], 0).sum()
        total[tile] = partial
    return out, total


@pytest.mark.parametrize("block", [16, 64, 100])
def test_an_axis_whose_last_tiles_reach_past_the_tensor(block: int) -> None:
    x = rand(130)
    check(_padded_axis, [x], x + torch.arange(130), x[: 2 * block].sum().expand(130), blocks=[block])


def _gather(x, i):
    out, one = x.new_empty([i.size(0)]), x.new_empty([i.size(0)])
    for tile in hl.tile(i.size(0)):
        out[tile] = x[i[tile]]
        one[tile] = x[i[0]] + 0 * i[tile]
    return out, one


def test_negative_positions_count_from_the_end() -> None:
    x, i = rand(130), torch.tensor([-1, 0, 129, -130, 5], dtype=torch.int32)
    check(_gather, [x, i], x[i], x[i[0]].expand(5), blocks=[2])


def _flip(x):
    out = torch.empty_like(x)
    for row, col in hl.tile(x.size()):
        out[row, col] = torch.flip(x[row, col], [1])
    return out


def _last(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0), block_size=64):
        out[tile] = x[tile] - x[tile][5]
    return out


def _split(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0), block_size=64):
        out[tile] = (x[tile].reshape(8, 8) * 2).reshape(64)
    return out


def test_what_mixes_elements_that_exist_with_others_is_a_plan_error() -> None:
    x = rand(5, 130)
    with pytest.raises(PlanError, match=r"flip.* along a ragged tile"):
        pallas(program_of(_flip, x), [x], [5, 64])
    check(_flip, [x], torch.cat([p.flip(1) for p in x.split(65, 1)], 1), blocks=[2, 65])
    for fn, reason in ((_last, "selected by its position"), (_split, "merges or splits a ragged tile")):
        program = program_of(fn, x[0])
        for run in (pallas, reference):
            with pytest.raises(PlanError, match=reason) as caught:
                run(program, [x[0]])
            assert caught.value.file == __file__ and caught.value.line


def _other_tile(x, y):
    out = torch.zeros_like(x)
    block = hl.register_block_size(32)
    for tile in hl.tile(x.size(0), block_size=block):
        for other in hl.tile(y.size(0), block_size=block):
            out[tile] = y[other]
    return out


def test_a_ragged_tile_of_another_axis_is_not_stored_with_what_does_not_exist() -> None:
    x, y = rand(64), rand(40)
    program = program_of(_other_tile, x, y)
    want = torch.cat([y[32:40], y[8:32]]).repeat(2)  # the last tile has 8 elements, the rest keeps what was there
    for run in (pallas, reference):
        np.testing.assert_array_equal(run(program, [x, y], [32])[0], want.numpy())


def test_an_array_with_no_elements_is_a_plan_error() -> None:
    def rows(x):
        out = x.new_empty([x.size(0)])
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile, :].sum(1) + 1
        return out

    x = rand(5, 0)
    program = program_of(rows, x)
    with pytest.raises(PlanError, match="no elements"):
        pallas(program, [x], [5])
    np.testing.assert_array_equal(reference(program, [x], [5])[0], np.ones(5))


def _overloads(x, y, i):
    a, b, c, d = torch.empty_like(x), torch.empty_like(x), torch.empty_like(i), x.new_empty([])
    for tile in hl.tile(x.size(0)):
        a[tile] = torch.round(x[tile], decimals=1) + torch.round(x[tile] * 100, decimals=-1)
        b[tile] = torch.rsub(x[tile], y[tile], alpha=2) + torch.rsub(x[tile], 1, alpha=3)
        c[tile] = (i[tile] << 2) + (i[tile] >> 1)
    return a, b, c, torch.var(x, correction=0.5) + d * 0


def test_arguments_that_only_some_overloads_have() -> None:
    x, y, i = rand(50), rand(50, seed=1), torch.arange(-25, 25, dtype=torch.int32)
    rounded = torch.round(x, decimals=1) + torch.round(x * 100, decimals=-1)
    check(_overloads, [x, y, i], rounded, y - 2 * x + 1 - 3 * x, (i << 2) + (i >> 1), torch.var(x, correction=0.5), blocks=[16])


def pl(jnp, lax, x_ref, pl_kernel, jax):
    out = torch.empty_like(jnp)
    for s in hl.tile(jnp.size(0)):
        step = jnp[s] + lax[s] * x_ref[s]
        out[s] = step + pl_kernel[s] + jax[s]
    return out


def test_names_that_generated_code_uses_are_free_for_kernels() -> None:
    args = [rand(20, seed=n) for n in range(5)]
    check(pl, args, args[0] + args[1] * args[2] + args[3] + args[4], blocks=[8])
    assert emit.entry_name(program_of(pl, *args)) not in emit.RESERVED


def _counted(x):
    out = x.new_zeros([4, 1])
    for one in hl.tile(1):
        counts = [hl.zeros([one]) for _ in range(4)]
        a, b, c, d = counts
        for tile in hl.tile(x.size(0)):
            a = a + hl.full([tile], 1.0).sum()
            b = b + torch.ones_like(x[tile]).sum()
            c = c + torch.exp(torch.zeros([tile])).sum()
            d = d + hl.full([tile], x[0] * 0 + 1).sum()
        out[0, one], out[1, one], out[2, one], out[3, one] = a, b, c, d
    return out


def _counted_by_eight(x):
    out = x.new_zeros([1])
    for one in hl.tile(1):
        total = hl.zeros([one])
        for tile in hl.tile(x.size(0), block_size=8):
            total = total + x.new_ones([tile, 3]).sum()
        out[one] = total
    return out


def test_what_is_allocated_in_the_shape_of_a_last_tile_has_its_elements() -> None:
    x = rand(17)
    check(_counted, [x], torch.full([4, 1], 17.0), blocks=[1, 8])
    check(_counted_by_eight, [x], torch.full([1], 51.0), blocks=[1])


def _position_in_tile(x):
    out = torch.empty([hl.cdiv(x.size(0), 8), hl.cdiv(x.size(1), 8), 2], dtype=torch.int32)
    for rows, columns in hl.tile(x.size(), block_size=[8, 8]):
        value = x[rows, columns]
        out[rows.id, columns.id, 0] = value.argmax().int()
        out[rows.id, columns.id, 1] = value.argmin().int()
    return out


def test_a_position_in_a_whole_last_tile_counts_what_exists() -> None:
    x = rand(13, 11)
    tiles = [[x[i : i + 8, j : j + 8] for j in (0, 8)] for i in (0, 8)]
    want = torch.tensor([[[int(t.argmax()), int(t.argmin())] for t in row] for row in tiles])
    check(_position_in_tile, [x], want)


def _in_tiles(x):
    """How many elements of each tile there are, in every way to make values of its size; and its last row number."""
    out = torch.empty([8, x.size(0)])
    for tile in hl.tile(x.size(0)):
        one = x[0] * 0 + 1
        counts = [one.expand([tile, 3])[:, 0].sum(), hl.full([tile.block_size], 1.0).sum(), torch.broadcast_to(one, [tile]).sum()]
        counts += [hl.arange(tile.block_size).amax(), one.expand(tile.block_size).sum(), torch.ones([tile.block_size, 2]).sum() / 2]
        counts += [x[0:2][None, :].expand(tile, 2).sum() / x[0:2].sum(), torch.ones([tile.block_size]).mean()]
        for i, count in enumerate(counts):
            out[i, tile] = count + hl.zeros([tile])
    return out


def test_what_has_the_size_of_a_tile_has_its_elements_only() -> None:
    x = rand(13)
    size = torch.tensor([4.0] * 12 + [1.0])
    check(_in_tiles, [x], torch.stack([size, size, size, size - 1, size, size, size, torch.ones(13)]), blocks=[4])


def _shared_block(x):
    out = torch.empty([x.size(0)])
    for rows in hl.tile(x.size(0)):
        total = hl.zeros([rows, rows.block_size])
        for columns in hl.tile(x.size(1), block_size=rows.block_size):
            total = total + x[rows, columns]
        out[rows] = total.sum(1)
    return out


def test_a_block_of_two_loops_is_no_tile_of_either() -> None:
    x = rand(13, 6)
    check(_shared_block, [x], x.sum(1), blocks=[4])
