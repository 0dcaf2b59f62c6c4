"""One tiny example for each name of ``helion_rt.language``: shown in ``language.md``, run by the tests.

An example is a kernel, the arguments of a call, and what torch says the result is. ``tpu`` is why no TPU can compile it, None where all do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import helion_rt
import helion_rt.language as hl
from helion_rt.autotuner import PowerOfTwoFragment


@dataclass(frozen=True)
class Example:
    """``names`` are the names of the language that it shows; ``expected`` gets the arguments."""

    names: tuple[str, ...]
    kernel: Any
    arguments: Callable[[], tuple[Any, ...]]
    expected: Callable[..., Any]
    tpu: str | None = None


EXAMPLES: list[Example] = []


def example(*names: str, args: Callable[[], tuple[Any, ...]], expected: Callable[..., Any], tpu: str | None = None) -> Callable[[Any], Any]:
    def register(kernel: Any) -> Any:
        EXAMPLES.append(Example(names, kernel, args, expected, tpu))
        return kernel

    return register


def vector() -> tuple[torch.Tensor]:
    return (torch.linspace(-3, 4, 200),)


def matrix() -> tuple[torch.Tensor]:
    return (torch.linspace(-3, 3, 24 * 130).reshape(24, 130).sin(),)


def integers() -> tuple[torch.Tensor]:
    return (torch.arange(200, dtype=torch.int32) * 7 % 23,)


# ------------------------------------------------------------------------------------------------ loops and tiles


@example("tile", args=matrix, expected=lambda x: 2 * x)
@helion_rt.kernel
def double(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows, columns in hl.tile(x.size()):
        out[rows, columns] = x[rows, columns] * 2
    return out


@example("grid", args=matrix, expected=lambda x: x.sum(1))
@helion_rt.kernel
def row_sums(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)])
    for row in hl.grid(x.size(0)):
        out[row] = x[row, :].sum()
    return out


@example("static_range", args=vector, expected=lambda x: x + x**2 + x**3)
@helion_rt.kernel
def powers(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        total = hl.zeros([tile])
        for n in hl.static_range(1, 4):
            total = total + x[tile] ** n
        out[tile] = total
    return out


@example("register_block_size", args=matrix, expected=lambda x: x.amax(1))
@helion_rt.kernel
def row_max(x: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty([m])
    block = hl.register_block_size(n)
    for rows in hl.tile(m):
        most = hl.full([rows, block], float("-inf"))
        for columns in hl.tile(n, block_size=block):
            most = torch.maximum(most, x[rows, columns])
        out[rows] = most.amax(1)
    return out


def lengths() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.linspace(-1, 1, 8 * 40).reshape(8, 40), torch.tensor([3, 0, 40, 7, 1, 22, 9, 5], dtype=torch.int32)


@example("jagged_tile", args=lengths, expected=lambda x, n: torch.stack([x[i, : n[i]].sum() for i in range(8)]))
@helion_rt.kernel
def jagged_sums(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)])
    for rows in hl.tile(x.size(0)):
        total = hl.zeros([rows])
        for columns in hl.jagged_tile(lengths[rows]):
            total = total + x[rows, columns].sum(1)
        out[rows] = total
    return out


@example("tile_index", "tile_begin", "tile_end", args=vector, expected=lambda x: x + torch.arange(200))
@helion_rt.kernel
def positions(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        middle = (hl.tile_begin(tile) + hl.tile_end(tile)) * 0.5  # also tile.begin and tile.end
        out[tile] = x[tile] + (hl.tile_index(tile) - middle) + middle  # also tile.index, or the tile itself
    return out


@example("tile_id", "tile_count", args=lambda: (torch.linspace(-3, 4, 1024),), expected=lambda x: x.view(8, 128).sum(1) + 8)
@helion_rt.kernel
def partial_sums(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([8])
    for tile in hl.tile(x.size(0), block_size=128):
        out[hl.tile_id(tile)] = x[tile].sum() + hl.tile_count(tile)  # also tile.id and tile.count
    return out


@example("tile_block_size", args=vector, expected=lambda x: x * x.sum())
@helion_rt.kernel
def times_sum(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        total = hl.zeros([tile])
        for other in hl.tile(x.size(0), block_size=hl.tile_block_size(tile)):  # also tile.block_size
            total = total + (x[tile][:, None] * x[other][None, :]).sum(1)
        out[tile] = total
    return out


@example("Tile", args=vector, expected=lambda x: x + 1)
@helion_rt.kernel
def is_tile(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        assert isinstance(tile, hl.Tile)
        out[tile] = x[tile] + 1
    return out


@example("barrier", args=matrix, expected=lambda x: x.sum(1).softmax(0))
@helion_rt.kernel
def softmax_of_sums(x: torch.Tensor) -> torch.Tensor:
    sums, out = torch.empty([x.size(0)]), torch.empty([x.size(0)])
    for rows in hl.tile(x.size(0)):
        sums[rows] = x[rows, :].sum(1)
    hl.barrier()
    for rows in hl.tile(x.size(0)):
        e = torch.exp(sums[:] - sums[:].amax())
        out[rows] = torch.exp(sums[rows] - sums[:].amax()) / e.sum()
    return out


# ------------------------------------------------------------------------------------------------ making and combining tiles


@example("zeros", args=matrix, expected=lambda x: x.sum(0))
@helion_rt.kernel
def column_sums(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(1)])
    for columns in hl.tile(x.size(1)):
        total = hl.zeros([columns])
        for rows in hl.tile(x.size(0)):
            total = total + x[rows, columns].sum(0)
        out[columns] = total
    return out


@example("full", args=vector, expected=lambda x: torch.full_like(x, 2.5))
@helion_rt.kernel
def filled(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = hl.full([tile], 2.5)
    return out


@example("arange", args=matrix, expected=lambda x: x * torch.arange(130))
@helion_rt.kernel
def by_column_number(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows in hl.tile(x.size(0)):
        out[rows, :] = x[rows, :] * hl.arange(x.size(1))
    return out


def two_matrices() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.linspace(-1, 1, 24 * 40).reshape(24, 40), torch.linspace(-1, 1, 40 * 130).reshape(40, 130).cos()


@example("dot", args=two_matrices, expected=lambda x, y: x @ y)
@helion_rt.kernel
def matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k, n = x.size(0), x.size(1), y.size(1)
    out = torch.empty([m, n])
    for rows, columns in hl.tile([m, n]):
        acc = hl.zeros([rows, columns])
        for inner in hl.tile(k):
            acc = hl.dot(x[rows, inner], y[inner, columns], acc=acc)
        out[rows, columns] = acc
    return out


@example("subscript", args=vector, expected=lambda x: x[:, None] * torch.ones(4))
@helion_rt.kernel
def four_columns(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), 4])
    for tile in hl.tile(x.size(0)):
        out[tile, :] = hl.subscript(x[tile], [slice(None), None]) + hl.zeros([tile, 4])  # also x[tile][:, None]
    return out


def pairs() -> tuple[torch.Tensor]:
    return (torch.linspace(-3, 3, 24 * 64 * 2).reshape(24, 64, 2),)


@example("split", "join", args=pairs, expected=lambda x: x.flip(-1))
@helion_rt.kernel
def swapped(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows in hl.tile(x.size(0)):
        first, second = hl.split(x[rows, :, :])
        out[rows, :, :] = hl.join(second, first)
    return out


# ------------------------------------------------------------------------------------------------ scans


@example("cumsum", args=matrix, expected=lambda x: x.cumsum(1))
@helion_rt.kernel
def running_sums(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows in hl.tile(x.size(0)):
        out[rows, :] = hl.cumsum(x[rows, :], dim=1)
    return out


@example("cumprod", args=matrix, expected=lambda x: (1 + x / 10).cumprod(1))
@helion_rt.kernel
def running_products(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows in hl.tile(x.size(0)):
        out[rows, :] = hl.cumprod(1 + x[rows, :] / 10, dim=1)
    return out


def larger(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return torch.maximum(left, right)


@example("associative_scan", args=matrix, expected=lambda x: x.cummax(1).values)
@helion_rt.kernel
def running_max(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows in hl.tile(x.size(0)):
        out[rows, :] = hl.associative_scan(larger, x[rows, :], dim=1)
    return out


@example("reduce", args=matrix, expected=lambda x: x.amax(1))
@helion_rt.kernel
def combined_max(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)])
    for rows in hl.tile(x.size(0)):
        out[rows] = hl.reduce(larger, x[rows, :], dim=1)
    return out


# ------------------------------------------------------------------------------------------------ memory


def table() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.linspace(-1, 1, 50 * 128).reshape(50, 128), torch.arange(24, dtype=torch.int32) * 7 % 50


@example("load", args=table, expected=lambda x, i: torch.where(i[:, None] < 25, x[i], 0))
@helion_rt.kernel
def embedding(weight: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    out = torch.empty([index.size(0), weight.size(1)])
    for rows in hl.tile(index.size(0)):
        chosen = index[rows]
        out[rows, :] = hl.load(weight, [chosen, slice(None)], extra_mask=chosen[:, None] < 25)
    return out


@example("store", args=vector, expected=lambda x: torch.where(x > 0, x, -1.0))
@helion_rt.kernel
def positive_only(x: torch.Tensor) -> torch.Tensor:
    out = torch.full_like(x, -1.0)
    for tile in hl.tile(x.size(0)):
        hl.store(out, [tile], x[tile], extra_mask=x[tile] > 0)
    return out


@example("atomic_add", args=integers, expected=lambda i: torch.bincount(i, minlength=32).float())
@helion_rt.kernel
def histogram(index: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([32])
    for tile in hl.tile(index.size(0)):
        hl.atomic_add(out, [index[tile]], 1.0)
    return out


@example("atomic_max", args=matrix, expected=lambda x: x.amax(0))
@helion_rt.kernel
def column_max(x: torch.Tensor) -> torch.Tensor:
    out = torch.full([x.size(1)], -100.0)
    for rows in hl.tile(x.size(0)):
        hl.atomic_max(out, [slice(None)], x[rows, :].amax(0))
    return out


@example("atomic_min", args=matrix, expected=lambda x: x.amin(0))
@helion_rt.kernel
def column_min(x: torch.Tensor) -> torch.Tensor:
    out = torch.full([x.size(1)], 100.0)
    for rows in hl.tile(x.size(0)):
        hl.atomic_min(out, [slice(None)], x[rows, :].amin(0))
    return out


@example("atomic_and", args=integers, expected=lambda x: x & 12)
@helion_rt.kernel
def masked_bits(x: torch.Tensor) -> torch.Tensor:
    out = torch.full_like(x, 12)
    for tile in hl.tile(x.size(0)):
        hl.atomic_and(out, [tile], x[tile])
    return out


@example("atomic_or", args=integers, expected=lambda x: x | 12)
@helion_rt.kernel
def set_bits(x: torch.Tensor) -> torch.Tensor:
    out = torch.full_like(x, 12)
    for tile in hl.tile(x.size(0)):
        hl.atomic_or(out, [tile], x[tile])
    return out


@example("atomic_xor", args=integers, expected=lambda x: x ^ 12)
@helion_rt.kernel
def flipped_bits(x: torch.Tensor) -> torch.Tensor:
    out = torch.full_like(x, 12)
    for tile in hl.tile(x.size(0)):
        hl.atomic_xor(out, [tile], x[tile])
    return out


@example("atomic_xchg", args=vector, expected=lambda x: (torch.full_like(x, 5.0), x))
@helion_rt.kernel
def exchanged(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    before, out = torch.empty_like(x), torch.full_like(x, 5.0)
    for tile in hl.tile(x.size(0)):
        before[tile] = hl.atomic_xchg(out, [tile], x[tile])
    return before, out


@example("atomic_cas", args=integers, expected=lambda x: torch.where(x == 3, -1, 3))
@helion_rt.kernel
def where_it_is_three(x: torch.Tensor) -> torch.Tensor:
    out = torch.full_like(x, 3)
    for tile in hl.tile(x.size(0)):
        hl.atomic_cas(out, [tile], x[tile], -1)  # expected, then the new value
    return out


# ------------------------------------------------------------------------------------------------ random numbers


def within(low: float, high: float) -> Callable[..., Any]:
    """No numbers are expected, only their range and that they differ."""
    return lambda *args: lambda out: bool(((out >= low) & (out < high)).all()) and len(out.unique()) > 5


@example("rand", args=vector, expected=within(0, 1))
@helion_rt.kernel
def noise(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = hl.rand([tile], seed=42)
    return out


@example("randint", args=vector, expected=within(0, 10))
@helion_rt.kernel
def dice(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.size(), dtype=torch.int32)
    for tile in hl.tile(x.size(0)):
        out[tile] = hl.randint([tile], 0, 10, seed=42)
    return out


@example("rand4x", args=vector, expected=within(0, 4))
@helion_rt.kernel
def sum_of_four(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        a, b, c, d = hl.rand4x(42, tile.index)
        out[tile] = a + b + c + d
    return out


# ------------------------------------------------------------------------------------------------ constants, printing, JAX


@example("specialize", args=lambda: (*matrix(), 3), expected=lambda x, n: x**n)
@helion_rt.kernel
def to_a_power(x: torch.Tensor, n: int) -> torch.Tensor:
    n = hl.specialize(n)
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] ** n
    return out


@example("constexpr", args=lambda: (*vector(), True), expected=lambda x, squared: x * x)
@helion_rt.kernel
def maybe_squared(x: torch.Tensor, squared: hl.constexpr) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * x[tile] if squared else x[tile]
    return out


@example("cdiv", args=vector, expected=lambda x: torch.stack([x[:128].sum(), x[128:].sum()]))
@helion_rt.kernel
def sums_by_tile(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([hl.cdiv(x.size(0), 128)])
    for tile in hl.tile(x.size(0), block_size=128):
        out[tile.id] = x[tile].sum()
    return out


@example("register_tunable", args=matrix, expected=lambda x: x.sum(1))
@helion_rt.kernel
def sums_in_parts(x: torch.Tensor) -> torch.Tensor:
    parts = hl.register_tunable("parts", PowerOfTwoFragment(1, 8, 4))
    out = torch.empty([x.size(0)])
    for rows in hl.tile(x.size(0)):
        total = hl.zeros([rows])
        for columns in hl.tile(x.size(1), block_size=hl.cdiv(x.size(1), parts)):
            total = total + x[rows, columns].sum(1)
        out[rows] = total
    return out


@example("device_print", args=lambda: (torch.ones(4),), expected=lambda x: x + 1, tpu="tiles cannot be printed there, only scalars")
@helion_rt.kernel
def shown(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        hl.device_print("x", x[tile])
        out[tile] = x[tile] + 1
    return out


def in_jax(x: Any) -> Any:
    import jax.numpy as jnp

    return jnp.tanh(x) + 1


@example("inline_pallas", args=matrix, expected=lambda x: torch.tanh(x) + 1)
@helion_rt.kernel
def through_jax(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = hl.inline_pallas(in_jax, (x[tile],), x[tile], elementwise=True)
    return out
