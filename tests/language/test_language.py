"""The names of the language, and arithmetic on block sizes."""

from __future__ import annotations

from typing import Any

import torch

import helion_rt.language as hl
from helion_rt.program.expr import Block, binary
from helion_rt.program.ir import BlockInfo, Ref, Span
from tests.capture.evaluator import run
from tests.capture.test_capture import check, program_of, rand


def test_every_public_name_is_documented() -> None:
    assert sorted(hl.__all__) == hl.__all__
    assert all(getattr(hl, name).__doc__ for name in hl.__all__)


def test_bounds_and_block_sizes() -> None:
    def kernel(x):
        for a, b in hl.tile([2, 0], [8, 6], block_size=[2, None]):
            x[a, b] = 1
        for i in hl.grid(1, 3):
            x[i, 0] = 2
        for tile in hl.tile(0, 4, block_size=hl.register_block_size(2, 4)):
            x[tile, 1] = 3

    program = program_of(kernel, torch.zeros(8, 6))
    assert program.blocks == (BlockInfo(2, 6), BlockInfo(None, 6), BlockInfo(1, 2), BlockInfo(None, 4, 2, 4))
    assert [(a.begin, a.end) for a in program.axes] == [(2, 8), (0, 6), (1, 3), (0, 4)]
    expected = torch.zeros(8, 6)
    expected[2:] = 1
    expected[1:3, 0] = 2
    expected[:4, 1] = 3
    torch.testing.assert_close(run(program, [torch.zeros(8, 6)], (3, 2))[1][0], expected)


def test_dimensions_keep_their_expressions() -> None:
    seen: dict[str, Any] = {}
    note = seen.update

    def kernel(x):
        for tile in hl.tile(x.size(0)):
            size = tile.block_size
            note(twice=(size * 2).expr, up=(size + 1).expr, count=tile.count.expr)
            wide = torch.zeros([size + 1, 4])
            note(shape=wide.shape[0].expr, equal=wide.shape[0] == size + 1)
            x[tile] = wide.sum() + size // 2

    program_of(kernel, rand(10))
    assert seen["twice"] == binary("*", Block(0), 2)
    assert seen["up"] == seen["shape"] == binary("+", Block(0), 1) and seen["equal"] is True
    assert seen["count"] == binary("//", binary("+", 9, Block(0)), Block(0))


def test_creation() -> None:
    def kernel(x):
        out = torch.empty([3, x.size(0)], dtype=torch.float32)
        for tile in hl.tile(x.size(0)):
            out[0, tile] = hl.full([tile], x[0])
            out[1, tile] = hl.arange(tile.block_size).to(torch.float32)
            out[2, tile] = hl.zeros([tile], dtype=torch.bfloat16) + tile
        return out

    x = rand(8)
    expected = torch.stack([x[0].expand(8), torch.arange(8.0) % 4, torch.arange(8.0)])
    check(kernel, (x,), (4,), expected)


def test_dot_dtypes() -> None:
    def kernel(x):
        out = torch.empty([8, 8], dtype=torch.float32)
        for tile in hl.tile(8):
            a = x[tile, :].to(torch.bfloat16)
            assert hl.dot(a, a.T).dtype is torch.float32
            assert hl.dot(a, a.T, out_dtype=torch.bfloat16).dtype is torch.bfloat16
            assert hl.dot(a.to(torch.int8), a.to(torch.int8).T).dtype is torch.int32
            out[tile, :] = hl.dot(x[tile, :], x[:, :].T)
        return out

    x = rand(8, 8)
    check(kernel, (x,), (4,), x @ x.T)


def test_slices_and_load_store() -> None:
    def kernel(x):
        out = torch.zeros_like(x)
        for tile in hl.tile(x.size(0)):
            hl.store(out, [tile, slice(1, 3)], hl.load(x, [tile, slice(-2, None)]))
            out[tile.begin : tile.end, 0] = x[tile, ..., None][:, -1, 0]
        return out

    x = rand(6, 4)
    expected = torch.zeros(6, 4)
    expected[:, 1:3], expected[:, 0] = x[:, 2:], x[:, -1]
    program = check(kernel, (x,), (3,), expected)
    ops = program.launches[0].regions[0].ops
    assert next(op.args[1][1] for op in ops if op.name == "hl.load") == Span(2, 4)  # type: ignore[index]


def test_specialize_makes_a_scalar_static() -> None:
    def kernel(x, n: int):
        n = hl.specialize(n)
        out = torch.empty([n])
        for tile in hl.tile(n):
            out[tile] = x[tile] * n
        return out

    x = rand(8)
    program = check(kernel, (x, 4), (2,), x[:4] * 4)
    assert program.params[1].static == 4


def test_cdiv_and_static_range() -> None:
    assert hl.cdiv(7, 2) == 4 and list(hl.static_range(1, 4)) == [1, 2, 3]


def test_mutation_is_reported_with_its_value() -> None:
    def kernel(x, y):
        for tile in hl.tile(8):
            y[tile] = x[tile]

    program = program_of(kernel, rand(8), rand(8))
    assert program.mutated == ((1, Ref(program.launches[0].results[0])),)
