"""What is not supported is refused at the user's line, with the variable or the construct named."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion_rt.language as hl
from helion_rt.capture import capture
from helion_rt.exc import CaptureError, DTypeError, HelionError, ShapeMismatch, SourceUnavailable, Unsupported

from .test_capture import fact, program_of, rand

CONSTANT = torch.ones(8)


def _break(x):
    for tile in hl.tile(x.size(0)):
        x[tile] = x[tile] + 1
        break  # HERE


def _return(x):
    for tile in hl.tile(x.size(0)):
        x[tile] = 1
        return x  # HERE


def _item(x):
    for tile in hl.tile(x.size(0)):
        x[tile] = x[tile].sum().item()  # HERE


def _compared_block(x):
    for tile in hl.tile(x.size(0)):
        if tile.block_size > 8:  # HERE
            x[tile] = 1


def _range_of_block(x):
    for tile in hl.tile(x.size(0)):
        for _ in range(tile.block_size):  # HERE
            x[tile] = 1


def _whole_tensor(x):
    for tile in hl.tile(x.size(0)):
        x[tile] = (x * 2)[tile]  # HERE


def _constant(x):
    for tile in hl.tile(x.size(0)):
        x[tile] = x[tile] + CONSTANT  # HERE


def _random(x):
    for tile in hl.tile(x.size(0)):
        x[tile] = torch.normal(0.0, 1.0, [tile])  # HERE


def _mask_index(x):
    for tile in hl.tile(x.size(0)):
        v = x[tile]
        x[tile] = v[v > 0].sum()  # HERE


def _read_after(x):
    for tile in hl.tile(x.size(0)):
        v = x[tile]
        x[tile] = v + 1
    return v + 1  # HERE


def _read_after_inner(x):
    for tile in hl.tile(x.size(0)):
        for inner in hl.tile(8):
            last = x[inner]
        x[tile] = last.sum()  # HERE


def _read_before(x):
    for tile in hl.tile(x.size(0)):
        x[tile] = later + 1  # HERE  # noqa: F821
        later = x[tile]  # noqa: F841


def _tuple_carried(x):
    for tile in hl.tile(x.size(0)):
        state = (hl.zeros([tile]), hl.zeros([tile]))
        for inner in hl.tile(8):
            a, b = state  # HERE
            state = (a + x[inner].sum(), b)
        x[tile] = state[0]


def _carried_by_outer(x):
    count = 0
    for tile in hl.tile(x.size(0)):
        count = count + 1  # HERE
        x[tile] = count


def _helper(x):
    def helper(n):
        return list(hl.tile(n))  # HERE

    helper(x.size(0))


def _after_tile(x):
    for tile in hl.tile(x.size(0)):
        x[tile] = 1
    for other in hl.tile(x.size(0)):
        x[other] = tile.index  # HERE


def _in_place_whole(x):
    for tile in hl.tile(x.size(0)):
        x.add_(1)  # HERE
        x[tile] = 1


def _list_of_tiles(x):
    kept = []
    for tile in hl.tile(x.size(0)):  # HERE
        kept.append(x[tile])
        x[tile] = 1
    return kept[0]


def _list_in_branch(x):
    for tile in hl.tile(x.size(0)):
        scale = [1.0]
        if x[0] > 1:  # HERE
            scale[0] = 5.0
        x[tile] = x[tile] * scale[0]


def _dict_in_while(x):
    for tile in hl.tile(x.size(0)):
        left, seen = x[0], {"rounds": 0}
        while left > 0:  # HERE
            left = left - 1
            seen["rounds"] += 1
        x[tile] = seen["rounds"]


def _nonlocal_in_branch(x):
    for tile in hl.tile(x.size(0)):
        count = 0

        def add():
            nonlocal count
            count = count + 1

        if x[0] > 1:  # HERE
            add()
        x[tile] = x[tile] * count


def _iterator_in_loop(x):
    numbers = iter([1, 2, 3])
    for tile in hl.tile(x.size(0)):  # HERE
        x[tile] = next(numbers)


def _tile_as_number(x):
    for tile in hl.tile(x.size(0)):
        x[tile] = torch.add(x[tile], tile)  # HERE


def _tile_on_tile(x):
    for tile in hl.tile(x.size(0)):
        v = x[tile]
        x[tile] = v[tile]  # HERE


def _stored_after_inner(x):
    for tile in hl.tile(x.size(0)):
        for inner in hl.tile(8):
            last = x[inner].sum()
        x[tile] = last  # HERE


def _random_in_place(x):
    for tile in hl.tile(x.size(0)):
        x[tile] = torch.zeros_like(x[tile]).uniform_()  # HERE


REFUSED = [
    (_stored_after_inner, "'last' is assigned in the tile loop"), (_random_in_place, "random"),
    (_break, "'break'"), (_return, "'return'"), (_item, "item"),
    (_compared_block, "block size"), (_range_of_block, "range over a block size"), (_whole_tensor, "whole host tensor"),
    (_constant, "from outside of the kernel"), (_random, "random"), (_mask_index, "boolean mask"),
    (_read_after, "'v' is assigned in the tile loop"),
    (_read_after_inner, "'last' is assigned in the tile loop"),
    (_read_before, "'later' is used before"), (_tuple_carried, "'state' .tuple. would be carried"),
    (_carried_by_outer, "'count' .int. would be carried"),
    (_helper, "body of the kernel itself"), (_after_tile, "after its loop has ended"),
    (_list_in_branch, "a list that is made before"), (_dict_in_while, "a dict that is made before"),
    (_nonlocal_in_branch, "'count' is changed by a function"), (_iterator_in_loop, "a list_iterator that is made before"),
    (_in_place_whole, "changed in place"), (_list_of_tiles, "a list that is made before"), (_tile_as_number, "used as a number"),
    (_tile_on_tile, "already a tile"),
]  # fmt: skip


def line_of(fn: Callable[..., Any]) -> int:
    lines, first = inspect.getsourcelines(fn)
    (at,) = [i for i, text in enumerate(lines) if "# HERE" in text]
    return first + at


@pytest.mark.parametrize(("fn", "message"), REFUSED, ids=[fn.__name__.strip("_") for fn, _ in REFUSED])
def test_refused_with_its_line(fn: Callable[..., Any], message: str) -> None:
    with pytest.raises(Unsupported, match=message) as caught:
        program_of(fn, rand(8))
    assert caught.value.kernel == fn.__name__ and caught.value.file == __file__
    assert caught.value.line == line_of(fn)


def _typo_of_language(x):
    for tile in hl.tile(x.size(0)):
        x[tile] = hl.tiel(x[tile])  # HERE


def _typo_of_tensor(x):
    for tile in hl.tile(x.size(0)):
        x[tile] = x[tile].foo()  # HERE


def _typo_of_tile(x):
    for tile in hl.tile(x.size(0)):
        x[tile] = tile.size  # HERE


def _no_such_name(x):
    for tile in hl.tile(x.size(0)):
        x[tile] = no_such_name(x[tile])  # HERE  # noqa: F821


def _unpacked(x):
    for a, b in hl.tile([x.size(0)]):  # HERE
        x[a] = b


@pytest.mark.parametrize("fn", [_typo_of_language, _typo_of_tensor, _typo_of_tile, _no_such_name, _unpacked])
def test_python_errors_name_the_line(fn: Callable[..., Any]) -> None:
    with pytest.raises(CaptureError) as caught:
        program_of(fn, rand(8))
    assert type(caught.value) is CaptureError and caught.value.file == __file__ and caught.value.line == line_of(fn)


def _shapes(x, y):
    for tile in hl.tile(x.size(0)):
        x[tile] = x[tile] + y[:]  # HERE


def _store_shape(x, y):
    for tile in hl.tile(x.size(0)):
        x[tile] = y[:]  # HERE


def _product(x, y):
    for tile in hl.tile(x.size(0)):
        x[tile] = (x[tile][None, :] @ y[:][:, None])[0]  # HERE


def _carried_shape(x, y):
    for tile in hl.tile(x.size(0)):
        acc = hl.zeros([tile])
        for inner in hl.tile(y.size(0)):  # HERE
            acc = acc[:, None] * y[inner]
        x[tile] = acc


def _too_many(x, y):
    for tile in hl.tile(x.size(0)):
        x[tile, 0] = 1  # HERE


@pytest.mark.parametrize("fn", [_shapes, _store_shape, _product, _carried_shape, _too_many])
def test_shapes_that_do_not_go_together(fn: Callable[..., Any]) -> None:
    with pytest.raises(ShapeMismatch) as caught:
        program_of(fn, rand(8), rand(5))
    assert caught.value.line == line_of(fn) and caught.value.file == __file__
    assert "4099" not in str(caught.value) and "6007" not in str(caught.value)


def _carried_dtype(x, y):
    for tile in hl.tile(x.size(0)):
        acc = hl.zeros([tile], dtype=torch.bfloat16)
        for inner in hl.tile(y.size(0)):  # HERE
            acc = acc + y[inner].sum(0, keepdim=True)
        x[tile] = acc


def _float_index(x, y):
    for tile in hl.tile(x.size(0)):
        x[tile] = y[x[tile]]  # HERE


def _complex(x, y):
    for tile in hl.tile(x.size(0)):
        x[tile] = x[tile].to(torch.complex64).real  # HERE


def _dot_of_two_dtypes(x, y):
    for tile in hl.tile(x.size(0)):
        x[tile] = hl.dot(x[tile][:, None], y[0:1][None, :].to(torch.bfloat16))[:, 0]  # HERE


def _bits_of_floats(x, y):
    for tile in hl.tile(x.size(0)):
        x[tile] = x[tile] & 1  # HERE


@pytest.mark.parametrize("fn", [_carried_dtype, _float_index, _complex, _dot_of_two_dtypes, _bits_of_floats])
def test_dtypes_that_do_not_fit(fn: Callable[..., Any]) -> None:
    with pytest.raises(DTypeError) as caught:
        program_of(fn, rand(8), rand(5))
    assert caught.value.line == line_of(fn)


def test_errors_of_the_user_stay_what_they_are() -> None:
    def check(x):
        if x.dim() != 2:
            raise RuntimeError("expected a matrix")
        return x

    with pytest.raises(RuntimeError, match="expected a matrix") as caught:
        program_of(check, rand(8))
    assert not isinstance(caught.value, HelionError)


def test_no_source() -> None:
    scope: dict[str, Any] = {}
    exec("def kernel(x):\n    return x\n", scope)
    with pytest.raises(SourceUnavailable, match="file or a notebook cell"):
        capture(scope["kernel"], (fact(rand(4)),))


def test_lambda_is_no_kernel() -> None:
    with pytest.raises(CaptureError, match="def"):
        capture(lambda x: x, (fact(rand(4)),))


def test_outside_of_a_kernel() -> None:
    with pytest.raises(HelionError, match="is used outside of a kernel"):
        hl.tile(3)
    with pytest.raises(Unsupported, match="is not supported"):
        _ = hl.inline_triton
    with pytest.raises(AttributeError):
        _ = hl.tiel


def test_a_tile_must_not_reach_past_a_dimension() -> None:
    def add(x, y):
        out = torch.empty_like(x)
        for tile in hl.tile(out.size()):
            out[tile] = x[tile] + y[tile]
        return out

    with pytest.raises(ShapeMismatch, match=r"ends at 8 indexes a dimension of 7"):
        program_of(add, torch.ones(8, 8), torch.ones(7, 8))
