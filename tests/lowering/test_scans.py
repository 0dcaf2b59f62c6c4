"""Scans and reductions with a combine function against torch in float64, along ragged tiles too."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch

import helion_rt
import helion_rt.language as hl
from helion_rt import lowering
from helion_rt.capture import capture
from helion_rt.exc import PlanError, ShapeMismatch, Unsupported
from helion_rt.program.signature import TensorFact

SHAPES = [(32, 24), (37, 21)]


def add(a, b):
    return a + b


def welford(mean_a, m2_a, count_a, mean_b, m2_b, count_b):
    count = count_a + count_b
    delta = mean_b - mean_a
    return mean_a + delta * count_b / count, m2_a + m2_b + delta * delta * count_a * count_b / count, count


def affine(left, right):
    """Composition of x -> a x + b, which does not commute."""
    return left[0] * right[0], left[1] * right[0] + right[1]


def segmented(left_value, left_id, right_value, right_id):
    return torch.where(left_id == right_id, left_value + right_value, right_value), right_id


@helion_rt.kernel(config=helion_rt.Config(block_sizes=[16]))
def along_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    forward, backward, sums = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
    top = torch.empty([x.size(0)], dtype=x.dtype)
    for tile in hl.tile(x.size(0)):
        value = x[tile, :]
        forward[tile, :] = hl.associative_scan(add, value, 1)
        backward[tile, :] = hl.associative_scan(add, value, dim=-1, reverse=True)
        sums[tile, :] = hl.cumsum(value, dim=1)
        top[tile] = hl.reduce(torch.maximum, value, 1)
    return forward, backward, sums, top


@helion_rt.kernel(config=helion_rt.Config(block_sizes=[16]))
def along_tiles(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    forward, backward = torch.empty_like(x), torch.empty_like(x)
    last = torch.zeros([hl.cdiv(x.size(0), 16), x.size(1)], dtype=x.dtype)
    for tile in hl.tile(x.size(0)):
        value = x[tile, :]
        forward[tile, :] = hl.associative_scan(torch.add, value, 0)
        backward[tile, :] = hl.associative_scan(torch.add, value, 0, reverse=True)
        last[tile.id, :] = hl.reduce(add, value, 0)
    return forward, backward, last


@helion_rt.kernel(config=helion_rt.Config(block_sizes=[16]))
def statistics(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean, variance = torch.empty([x.size(1)], dtype=x.dtype), torch.empty([x.size(1)], dtype=x.dtype)
    for tile in hl.tile(x.size(1)):
        value = x[:, tile]
        parts = (value, torch.zeros_like(value), torch.ones_like(value))
        mean_part, m2, count = hl.reduce(welford, parts, dim=0)
        mean[tile] = mean_part
        variance[tile] = m2 / count
    return mean, variance


@helion_rt.kernel(config=helion_rt.Config(block_sizes=[16]))
def recurrence(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    forward, backward = torch.empty_like(a), torch.empty_like(a)
    for tile in hl.tile(a.size(0)):
        pair = (a[tile, :], b[tile, :])
        forward[tile, :] = hl.associative_scan(affine, pair, 1)[1]
        backward[tile, :] = hl.associative_scan(affine, pair, 1, reverse=True)[1]
    return forward, backward


@helion_rt.kernel(config=helion_rt.Config(block_sizes=[16]))
def segments(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        names = ids[tile][:, None].expand(tile, x.size(1))
        out[tile, :] = hl.associative_scan(segmented, (x[tile, :], names), 0)[0]
    return out


def blockwise(function, x: torch.Tensor, size: int = 16) -> torch.Tensor:
    return torch.cat([function(part) for part in x.split(size)])


def reverse_cumsum(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x.flip(dim).cumsum(dim).flip(dim)


def close(got: torch.Tensor, want: torch.Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(got.double(), want.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_along_rows(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = torch.randint(-9, 9, shape).to(dtype)  # exact in every dtype
    forward, backward, sums, top = along_rows(x)
    assert forward.dtype == dtype
    close(forward, x.double().cumsum(1))
    close(backward, reverse_cumsum(x.double(), 1))
    close(sums, x.double().cumsum(1))
    close(top, x.double().amax(1))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_along_a_ragged_tile(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = torch.randint(-9, 9, shape).to(dtype)
    forward, backward, last = along_tiles(x)
    close(forward, blockwise(lambda p: p.cumsum(0), x.double()))
    close(backward, blockwise(lambda p: reverse_cumsum(p, 0), x.double()))
    close(last, blockwise(lambda p: p.sum(0, keepdim=True), x.double()))


@pytest.mark.parametrize("shape", SHAPES)
def test_welford_as_a_reduction_of_three_tensors(shape: tuple[int, int]) -> None:
    x = torch.randn(shape) + 100
    mean, variance = statistics(x)
    close(mean, x.double().mean(0))
    close(variance, x.double().var(0, unbiased=False), 1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_function_that_does_not_commute(shape: tuple[int, int]) -> None:
    a, b = torch.rand(shape), torch.randn(shape)
    state = torch.zeros(shape[0], dtype=torch.float64)
    want = []
    for i in range(shape[1]):
        state = state * a[:, i].double() + b[:, i].double()
        want.append(state)
    forward, backward = recurrence(a, b)
    close(forward, torch.stack(want, 1))
    state, want = torch.zeros(shape[0], dtype=torch.float64), []
    for i in reversed(range(shape[1])):
        state = state * a[:, i].double() + b[:, i].double()
        want.insert(0, state)
    close(backward, torch.stack(want, 1))


@pytest.mark.parametrize("shape", SHAPES)
def test_segments(shape: tuple[int, int]) -> None:
    x, ids = torch.randn(shape), torch.sort(torch.randint(0, 6, (shape[0],), dtype=torch.int32)).values
    want = torch.zeros(shape, dtype=torch.float64)
    for i in range(shape[0]):
        same = i % 16 and ids[i] == ids[i - 1]
        want[i] = x[i].double() + (want[i - 1] if same else 0)
    close(segments(x, ids), want)


@helion_rt.kernel(config=helion_rt.Config(block_sizes=[8]))
def whole(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total, kept = torch.zeros([1], dtype=x.dtype), torch.empty([x.size(0), 1], dtype=x.dtype)
    for tile in hl.tile(x.size(0)):
        kept[tile, :] = hl.reduce(lambda a, b: torch.minimum(a, b), x[tile, :], 1, keep_dims=True)
    for tile in hl.tile(x.size(0), block_size=64):
        total[0] = hl.reduce(add, x[tile, :])
    return total, kept


def test_all_dimensions_and_kept_ones() -> None:
    x = torch.randn(13, 10)
    total, kept = whole(x)
    close(total, x.double().sum().reshape(1))
    close(kept, x.double().amin(1, keepdim=True))


def test_what_is_no_combine_function_is_refused() -> None:
    @helion_rt.kernel
    def mixing(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile, :] = hl.associative_scan(lambda a, b: a + b.flip(0), x[tile, :], 1)
        return out

    @helion_rt.kernel
    def outside(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            value = x[tile, :]
            out[tile, :] = hl.associative_scan(lambda a, b, other=value: a + b + other, value, 1)
        return out

    @helion_rt.kernel
    def no_such_dim(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile, :] = hl.cumsum(x[tile, :], 2)
        return out

    x = torch.zeros(8, 8)
    with pytest.raises(Unsupported, match="must be elementwise"):
        mixing(x)
    with pytest.raises(Unsupported, match="no parameter of it"):
        outside(x)
    with pytest.raises(ShapeMismatch, match="dimension 2"):
        no_such_dim(x)


@pytest.mark.parametrize("block", [4, 16])
def test_the_reference_path_scans_the_last_tile_of_a_jagged_row_as_one(block: int) -> None:
    """Its size is known only on the device. In pieces of powers of two the sum would begin again in each."""

    def sums(x, lengths):
        out = torch.zeros_like(x)
        for rows in hl.tile(x.size(0)):
            n = lengths[rows]
            for columns in hl.jagged_tile(n):
                out[rows, columns] = hl.cumsum(x[rows, columns], 1)
        return out

    lengths = torch.tensor([9, 7, 0, 3], dtype=torch.int32)
    x = torch.arange(1.0, 37.0).reshape(4, 9)
    program = capture(sums, (TensorFact((4, 9), "float32"), TensorFact((4,), "int32")))
    (got,) = jax.jit(lowering.reference(program, (4, block)))(x.numpy(), lengths.numpy())
    expected = torch.zeros_like(x)
    for row, n in enumerate(lengths.tolist()):
        for start in range(0, n, block):
            part = slice(start, min(start + block, n))
            expected[row, part] = x[row, part].cumsum(0)
    assert torch.equal(torch.from_numpy(np.asarray(got).copy()), expected)


def test_the_reference_path_refuses_what_it_would_get_wrong() -> None:
    def sums(x, lengths):
        out = torch.zeros_like(x)
        for rows in hl.tile(x.size(0)):
            for columns in hl.jagged_tile(lengths[rows]):
                out[rows, columns] = hl.cumsum(x[rows, columns], 1)
        return out

    program = capture(sums, (TensorFact((4, 900), "float32"), TensorFact((4,), "int32")))
    with pytest.raises(PlanError, match="size is known only at run time of blocks of 512"):
        jax.eval_shape(lowering.reference(program, (4, 512)), np.zeros((4, 900), np.float32), np.zeros(4, np.int32))
