"""Tensors that are written where their blocks do not come one after the other, and dimensions that reshapes merge."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_control import check, plans, program_of, rand, to_jax

import helion_rt.language as hl
from helion_rt import lowering, targets
from helion_rt.config import Config


def _column_sums(x):
    """Each block of the result is come back to for every tile of rows."""
    out = x.new_zeros([x.size(1)])
    for tile_m, tile_n in hl.tile(x.size()):
        out[tile_n] = out[tile_n] + x[tile_m, tile_n].sum(0)
    return out


def _running(x):
    """A tensor carries a state from step to step."""
    out, state = torch.empty_like(x), x.new_zeros([2])
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + state[1]
        state[1] = state[1] + x[tile].sum()
    return out


def _read_back(x):
    """What a loop stored is read by another, tile by other tile."""
    out, kept = x.new_empty(x.size(0)), torch.empty_like(x)
    for tile_m in hl.tile(x.size(0)):
        for tile_n in hl.tile(x.size(1)):
            kept[tile_m, tile_n] = x[tile_m, tile_n] * 2
        total = hl.zeros([tile_m])
        for other in hl.tile(x.size(1)):
            total = total + kept[tile_m, other].sum(1)
        out[tile_m] = total
    return out


def _inner_part(x):
    """Rows that begin where no block does, under an axis that moves faster."""
    out = torch.ones_like(x)
    for tile_m, tile_n in hl.tile([3, 0], x.size()):
        out[tile_m, tile_n] = x[tile_m, tile_n] * 2
    return out


def _two_places(x):
    """A tensor is stored to by tile, and in another place by position."""
    out = torch.zeros_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = x[tile, :]
        out[0, :] = x[tile, :].sum(0)
    return out


def _branch_adds(x):
    out = x.new_zeros([1])
    for tile in hl.tile(x.size(0)):
        total = x[tile].sum()
        if total > 0:
            out[0] = out[0] + total
    return out


def test_blocks_that_are_come_back_to() -> None:
    x = rand(40, 37)
    check(_column_sums, [x], x.double().sum(0), [16, 8])
    check(_column_sums, [x[:, :32].contiguous()], x[:, :32].double().sum(0), [8, 16])


def test_a_state_from_step_to_step() -> None:
    x = rand(37)
    want = torch.cat([part + before for part, before in _with_sums(x.double(), 8)])
    program = program_of(_running, [x])
    for config in plans(program, [8])[:-1]:
        np.testing.assert_allclose(_run(program, config, x), want, atol=1e-5)


def _with_sums(x: torch.Tensor, block: int):
    total = torch.zeros((), dtype=x.dtype)
    for part in x.split(block):
        yield part, total
        total = total + part.sum()


def _run(program, config: Config, *args: torch.Tensor) -> np.ndarray:
    return np.asarray(lowering.build(program, config, targets.get("cpu"))(*map(to_jax, args))[0])


def test_what_was_stored_is_read_back() -> None:
    x = rand(20, 37)
    check(_read_back, [x], 2 * x.double().sum(1), [8, 16, 8])


def test_tiles_that_are_no_blocks_under_a_faster_axis() -> None:
    x = rand(21, 20)
    want = torch.cat([torch.ones(3, 20), x[3:] * 2])
    check(_inner_part, [x], want, [8, 8])


def test_one_tensor_in_two_places() -> None:
    x = rand(21, 5)
    want = x.clone()
    want[0] = x[16:].sum(0)
    program = program_of(_two_places, [x])
    for config in plans(program, [8])[:-1]:
        np.testing.assert_allclose(_run(program, config, x), want, atol=1e-5)


def test_a_branch_that_adds_to_a_tensor() -> None:
    x = rand(37)
    sums = [part.double().sum() for part in x.split(8)]
    program = program_of(_branch_adds, [x])
    for config in plans(program, [8])[:-1]:
        np.testing.assert_allclose(_run(program, config, x), [sum(s for s in sums if s > 0)], rtol=1e-5)


def _interleaved(packed, y):
    """Each number holds two: the tile of one axis becomes a dimension of twice its size, which is then contracted."""
    out = y.new_empty([packed.size(1), y.size(1)])
    for tile_m in hl.tile(packed.size(1)):
        acc = hl.zeros([tile_m, y.size(1)])
        for tile_k in hl.tile(packed.size(0)):
            both = packed[tile_k, tile_m]
            low, high = (both & 15).to(torch.float32), (both >> 4).to(torch.float32)
            wide = torch.stack([low, high], dim=1).reshape(tile_k.block_size * 2, tile_m.block_size)
            rows = tile_k.begin * 2 + hl.arange(tile_k.block_size * 2)
            acc = acc + hl.dot(wide.T, hl.load(y, [rows, hl.arange(y.size(1))], extra_mask=(rows < y.size(0))[:, None]))
        out[tile_m, :] = acc
    return out


@pytest.mark.parametrize("n", [16, 21])
def test_a_ragged_tile_merged_with_a_dimension_after_it(n: int) -> None:
    packed = torch.randint(0, 256, (n, 12), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    y = rand(2 * n, 5)
    wide = torch.stack([packed & 15, packed >> 4], dim=1).reshape(2 * n, 12).double()
    check(_interleaved, [packed, y], wide.T @ y.double(), [8, 8])
