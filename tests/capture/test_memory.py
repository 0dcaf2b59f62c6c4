"""Masks, index tensors, slices that begin where only the device knows, atomics, loops with bounds from tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import helion_rt.language as hl
from helion_rt.capture import capture
from helion_rt.exc import DTypeError, ShapeMismatch, Unsupported
from helion_rt.program.ir import Ref, TileIndex, walk

from .evaluator import run
from .test_capture import arrays, check, fact, names, program_of, rand


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def masked_load(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for m, n in hl.tile(x.size()):
        keep = m.index[:, None] >= n.index[None, :]
        out[m, n] = hl.load(x, [m, n], extra_mask=keep) + hl.load(x, [m, n], extra_mask=n.index < 2)
    return out


def test_masked_load() -> None:
    x = rand(6, 4)
    check(masked_load, (x,), (3, 2), x.tril() + x * (torch.arange(4) < 2))


def masked_store(x: torch.Tensor) -> torch.Tensor:
    out = torch.full_like(x, 7)
    for m, n in hl.tile(x.size()):
        hl.store(out, [m, n], x[m, n], extra_mask=(m.index % 2 == 0)[:, None])
    return out


def test_masked_store() -> None:
    x = rand(6, 4)
    check(masked_store, (x,), (3, 2), torch.where(torch.arange(6)[:, None] % 2 == 0, x, torch.tensor(7.0)))


def concatenated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    n = x.size(1)
    out = torch.empty([x.size(0), n + y.size(1)])
    for rows, columns in hl.tile(out.size()):
        first = hl.load(x, [rows, columns], extra_mask=(columns.index < n)[None, :])
        second = hl.load(y, [rows, columns.index - n], extra_mask=(columns.index >= n)[None, :])
        out[rows, columns] = first + second
    return out


def test_a_mask_lets_a_tile_reach_past_the_end() -> None:
    x, y = rand(4, 3), rand(4, 5)
    check(concatenated, (x, y), (2, 4), torch.cat([x, y], 1))


def grid_of_indices(x: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    out = torch.empty([rows.size(0), columns.size(0)])
    for m, n in hl.tile(out.size()):
        out[m, n] = x[rows[m], columns[n]]
    return out


def test_one_dimensional_index_tensors_form_a_grid() -> None:
    x, rows, columns = rand(5, 7), ints(4, 0, 2, -1), ints(6, 1)
    check(grid_of_indices, (x, rows, columns), (2, 1), x[rows.long()][:, columns.long()])


def pairs(x: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    out = torch.empty(list(rows.size()))
    for m, n in hl.tile(out.size()):
        out[m, n] = x[rows[m, n], columns[m, n]]
    return out


def test_wider_index_tensors_broadcast() -> None:
    x, rows, columns = rand(5, 7), torch.randint(0, 5, (4, 6), dtype=torch.int32), torch.randint(0, 7, (4, 6), dtype=torch.int32)
    check(pairs, (x, rows, columns), (2, 3), x[rows.long(), columns.long()])


def apart(x: torch.Tensor, first: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    out = torch.empty([first.size(0), x.size(1), last.size(0)])
    back = torch.zeros_like(x)
    for tile in hl.tile(first.size(0)):
        values = x[first[tile], :, last[:]]
        out[tile, :, :] = values
        back[first[tile], :, last[:]] = values * 2
    return out + back.sum()


def test_index_tensors_with_a_slice_between_stay_in_place() -> None:
    x, first, last = rand(4, 3, 5), ints(3, 1), ints(0, 4, 2)
    selected = x[first.long()][:, :, last.long()]
    program = check(apart, (x, first, last), (1,), selected + 2 * selected.sum(), 1e-4)
    assert names(program).count("aten.permute.default") == 2


def scatter_rows(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for m, n in hl.tile(x.size()):
        out[at[m], n] = x[m, n]
    return out


def test_scatter() -> None:
    x, at = rand(4, 6), ints(2, 0, 3, 1)
    expected = torch.zeros_like(x)
    expected[at.long()] = x
    check(scatter_rows, (x, at), (2, 3), expected)


def unit_dimension_in_a_store(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, None, :] = x[tile, :][:, None, :]
    return out


def test_none_in_a_store() -> None:
    x = rand(4, 6)
    check(unit_dimension_in_a_store, (x,), (2,), x)


def windows(x: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    out = torch.empty([starts.size(0), 4])
    for row in hl.grid(starts.size(0)):
        start = starts[row]
        out[row, :] = x[start : start + 4]
    return out


def test_slice_from_a_device_position_reads_zeros_past_the_end() -> None:
    x, starts = rand(10), ints(0, 5, 8)
    expected = torch.cat([x, torch.zeros(4)]).unfold(0, 4, 1)[starts.long()]
    check(windows, (x, starts), (), expected)


def twice_as_long(x: torch.Tensor) -> torch.Tensor:
    half = x.size(1) // 2
    out = torch.empty([x.size(0), half])
    for m, n in hl.tile(out.size()):
        both = x[m, n.begin * 2 : n.begin * 2 + n.block_size * 2]
        out[m, n] = both.reshape(m, n, 2).sum(-1)
    return out


def test_slice_of_a_multiple_of_a_tile() -> None:
    x = rand(4, 12)
    program = check(twice_as_long, (x,), (2, 3), x.view(4, 6, 2).sum(-1))
    assert all(len(op.args) == 2 for op in walk(program.host) if op.name == "hl.load")  # it cannot reach past the end


def same_tile(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile.begin : tile.begin + tile.block_size] = x[tile.begin : tile.end]
    return out


def test_slice_that_is_a_tile() -> None:
    program = check(same_tile, (rand(8),), (4,), rand(8))
    assert [op.args[1] for op in walk(program.host) if op.name in ("hl.load", "hl.store")] == [(TileIndex(0),)] * 2


def rank_zero(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([])
    also = torch.zeros([], dtype=torch.int32)
    for tile in hl.tile(x.size(0)):
        out[()] = x[tile].sum()
        also[[]] = 3
    return out + also


def test_store_to_rank_zero() -> None:
    check(rank_zero, (rand(8),), (8,), rand(8).sum() + 3)


# Atomics.


def histogram(at: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.zeros([count], dtype=torch.int32)
    old = torch.zeros_like(at)
    for tile in hl.tile(at.size(0)):
        old[tile] = hl.atomic_add(out, [at[tile]], 1)
    return out, old


def test_atomic_add_counts_what_is_named_twice() -> None:
    at = ints(1, 1, 3, 1, 0, 3)
    check(histogram, (at, 5), (3,), (ints(1, 3, 0, 2, 0), ints(0, 0, 0, 2, 0, 1)))


KINDS = {
    "and": (hl.atomic_and, lambda a, b: a & b), "or": (hl.atomic_or, lambda a, b: a | b), "xor": (hl.atomic_xor, lambda a, b: a ^ b),
    "max": (hl.atomic_max, torch.maximum), "min": (hl.atomic_min, torch.minimum), "xchg": (hl.atomic_xchg, lambda a, b: b),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_atomics(kind: str) -> None:
    atomic, function = KINDS[kind]

    def kernel(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        old = torch.empty_like(x)
        for m, n in hl.tile(x.size()):
            old[m, n] = atomic(x, [m, n], y[m, n], sem="acq_rel")
        return x, old

    x, y = torch.arange(24, dtype=torch.int32).view(4, 6), torch.arange(24, dtype=torch.int32).view(4, 6).flip(0)
    check(kernel, (x, y), (2, 3), (function(x, y), x))


def test_compare_and_swap() -> None:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        for tile in hl.tile(x.size(0)):
            hl.atomic_cas(x, [tile], 2, 9)
        return x

    check(kernel, (ints(1, 2, 3, 2),), (2,), ints(1, 9, 3, 9))


def test_two_launches_with_a_barrier() -> None:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros([1])
        for tile in hl.tile(x.size(0)):
            hl.atomic_add(total, [0], x[tile].sum())
        hl.barrier()
        for tile in hl.tile(x.size(0)):
            x[tile] = x[tile] / total[0]
        return x

    x = rand(8).abs()
    check(kernel, (x,), (4, 2), x / x.sum())


# Loops.


def ragged_rows(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([offsets.size(0) - 1, x.size(1)])
    for row in hl.grid(out.size(0)):
        begin, end = offsets[row], offsets[row + 1]
        for tile, columns in hl.tile([begin, 0], [end, x.size(1)]):
            hl.atomic_add(out, [row, columns], x[tile, columns].sum(0) * tile.count)
    return out


def test_bounds_from_tensors() -> None:
    x, offsets = rand(9, 4), ints(0, 3, 3, 9)
    expected = torch.stack([x[0:3].sum(0), torch.zeros(4), 2 * x[3:9].sum(0)])
    program = check(ragged_rows, (x, offsets), (3, 2), expected)
    assert names(program).count("hl.loop") == 2


def carried_through_two(n: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(n)
    for row in hl.grid(n.size(0)):
        count = 0
        for i, j in hl.grid([n[row], 3]):
            count = count + i * j
        out[row] = count
    return out


def test_carried_through_nested_loops() -> None:
    n = ints(0, 1, 4)
    check(carried_through_two, (n,), (), ints(*(sum(i * j for i in range(k) for j in range(3)) for k in (0, 1, 4))))


def stepped(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in hl.grid(1, x.size(0), step=3):
        out[i] = x[i]
        for j in hl.grid(i, i + 2, step=2):
            out[j] = out[j] * 2
    return out


def test_grid_with_a_step() -> None:
    x = rand(9)
    expected = torch.zeros(9)
    expected[1::3] = x[1::3] * 2
    check(stepped, (x,), (), expected)


# Jagged tiles.


def jagged(x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
    total, mean, top = torch.empty([x.size(0)]), torch.empty([x.size(0)]), torch.empty([x.size(0)])
    out = torch.full_like(x, 5)
    for rows in hl.tile(x.size(0)):
        ends = lengths[rows]
        a, b, c = hl.zeros([rows]), hl.zeros([rows]), hl.full([rows], float("-inf"))
        for columns in hl.jagged_tile(ends):
            v = x[rows, columns] + 1
            a = a + v.sum(1)
            b = b + v.mean(1)
            c = torch.maximum(c, v.amax(1))
            out[rows, columns] = torch.softmax(v, 1)
        total[rows], mean[rows], top[rows] = a, b, c
    return total, mean, top, out


def test_jagged_rows_of_unequal_length() -> None:
    x, lengths = rand(4, 6), ints(3, 6, 1, 2)
    rows = [x[i, :n] + 1 for i, n in enumerate(lengths.tolist())]
    out = torch.full_like(x, 5)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row.softmax(0)
    expected = (torch.stack([r.sum() for r in rows]), torch.stack([r.mean() for r in rows]), torch.stack([r.amax() for r in rows]), out)
    check(jagged, (x, lengths), (4, 6), expected)


def packed(x: torch.Tensor, offsets: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty([offsets.size(0) - 1, w.size(1)])
    for rows in hl.tile(out.size(0)):
        starts = offsets[rows]
        lengths = offsets[rows.index + 1] - starts
        acc = hl.zeros([rows, w.size(1)])
        for k in hl.jagged_tile(lengths):
            values = x[starts[:, None] + k.index[None, :]]
            acc = acc + values @ w[k, :]
        out[rows, :] = acc
    return out


@pytest.mark.parametrize("block", [1, 2])
def test_jagged_product(block: int) -> None:
    x, offsets, w = rand(12), ints(0, 3, 3, 7, 12), rand(6, 4)
    expected = torch.stack([x[a:b] @ w[: b - a] for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)])
    program = capture(packed, tuple(map(fact, (x, offsets, w))), (x, offsets, w))
    got, _ = run(program, arrays(program, (x, offsets, w)), (block, 1))
    torch.testing.assert_close(got, expected)


def nested(x: torch.Tensor, rows_of: torch.Tensor, columns_of: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([x.size(0)])
    for b in hl.tile(x.size(0)):
        m, n = rows_of[b], columns_of[b]
        acc = hl.zeros([b])
        for rows in hl.jagged_tile(m):
            for columns in hl.jagged_tile(n):
                acc = acc + x[b, rows, columns].sum([1, 2])
        out[b] = acc
    return out


def test_nested_jagged_tiles() -> None:
    x, m, n = rand(3, 4, 5), ints(4, 1, 0), ints(2, 5, 3)
    expected = torch.stack([x[i, : m[i], : n[i]].sum() for i in range(3)])
    check(nested, (x, m, n), (3, 1, 1), expected)


# What is refused.


def _without_lanes(x: torch.Tensor, n: torch.Tensor) -> None:
    for rows in hl.tile(4):
        for k in hl.jagged_tile(n[rows]):
            x[0, k] = n[k]  # HERE


def _sum_without_lanes(x: torch.Tensor, n: torch.Tensor) -> None:
    for rows in hl.tile(4):
        for k in hl.jagged_tile(n[rows]):
            x[rows, 0] = n[k].sum()  # HERE


def _variance(x: torch.Tensor, n: torch.Tensor) -> None:
    for rows in hl.tile(4):
        for k in hl.jagged_tile(n[rows]):
            x[rows, 0] = x[rows, k].var(1)  # HERE


def _jagged_outside(x: torch.Tensor, n: torch.Tensor) -> None:
    for k in hl.jagged_tile(n):  # HERE
        x[k, 0] = 1


def _unknown_length(x: torch.Tensor, n: torch.Tensor) -> None:
    for i in hl.grid(4):
        x[i, 0] = x[i, n[0] : n[1]].sum()  # HERE


def _barrier(x: torch.Tensor, n: torch.Tensor) -> None:
    for i in hl.grid(4):
        hl.barrier()  # HERE
        x[i, 0] = 1


def _atomic_on_a_tile(x: torch.Tensor, n: torch.Tensor) -> None:
    for i in hl.tile(4):
        hl.atomic_add(x[i, :], [0], 1)  # HERE


def _whole_mask(x: torch.Tensor, n: torch.Tensor) -> None:
    for i in hl.tile(4):
        hl.store(x, [i, 0], 1, extra_mask=n)  # HERE


REFUSED = [
    (_without_lanes, "lanes"), (_sum_without_lanes, "lanes"),
    (_variance, "jagged"), (_jagged_outside, "hl.jagged_tile of a host"), (_unknown_length, "length"),
    (_barrier, "hl.barrier in a tile loop"), (_atomic_on_a_tile, "whole tensor"), (_whole_mask, "mask"),
]  # fmt: skip


@pytest.mark.parametrize(("fn", "message"), REFUSED, ids=[fn.__name__.strip("_") for fn, _ in REFUSED])
def test_refused_with_its_line(fn: Any, message: str) -> None:
    with pytest.raises(Unsupported, match=message) as caught:
        program_of(fn, rand(4, 6), ints(1, 2, 3, 4))
    line = caught.value.line
    assert line is not None
    with open(__file__) as file:
        assert "# HERE" in file.read().splitlines()[line - 1]


def test_wrong_types() -> None:
    def float_bits(x: torch.Tensor) -> None:
        for i in hl.tile(4):
            hl.atomic_or(x, [i], 1)

    def float_in_integers(x: torch.Tensor) -> None:
        for i in hl.tile(4):
            hl.atomic_add(x, [i], 0.5)

    def integer_mask(x: torch.Tensor) -> None:
        for i in hl.tile(4):
            hl.store(x, [i], 1, extra_mask=x[i])

    def wide_mask(x: torch.Tensor) -> None:
        for i in hl.tile(4):
            hl.store(x, [i], 1, extra_mask=(i.index > 0)[:, None])

    for fn, argument, error in (
        (float_bits, rand(4), DTypeError), (float_in_integers, ints(1, 2, 3, 4), DTypeError), (integer_mask, ints(1, 2, 3, 4), DTypeError),
        (wide_mask, rand(4), ShapeMismatch),
    ):  # fmt: skip
        with pytest.raises(error):
            program_of(fn, argument)


def test_masks_are_arguments_of_the_program() -> None:
    program = program_of(masked_store, rand(4, 4))
    (store,) = [op for op in walk(program.host) if op.name == "hl.store"]
    assert len(store.args) == 4 and isinstance(store.args[3], Ref)


def test_blocks_of_unbounded_loops_are_as_long_as_what_they_index() -> None:
    def kernel(x: torch.Tensor, offsets: torch.Tensor, wide: torch.Tensor) -> torch.Tensor:
        out = torch.zeros([offsets.size(0) - 1])
        for row in hl.grid(out.size(0)):
            start = offsets[row]
            total = hl.zeros([])
            for tile in hl.tile(offsets[row + 1] - start):
                total = total + x[start + tile.index].sum()
            out[row] = total + wide[0]
        return out

    program = program_of(kernel, rand(12), ints(0, 5, 12), rand(5000))
    assert [b.extent for b in program.blocks if b.fixed is None] == [12]
