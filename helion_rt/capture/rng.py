"""Random numbers in device code: Philox-4x32-10, counted by the position of an element in the whole tensor.

An element's number depends on the seed and its position alone, so results do not depend on block sizes, and they are those of
Triton's ``tl.rand`` and ``tl.randint4x`` for the same seed and offset.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..program.expr import Block
from ..program.ir import Ref
from .hints import Dim
from .shapes import broadcast
from .tensors import TracedTensor
from .tiles import Tile

if TYPE_CHECKING:
    from .tracer import Tracer

_UNIFORM = 4.6566127342e-10  # Triton's scale: the largest float32 by which 2**31 - 1 gives less than 1
_TAU = 6.283185307179586
_LEAST = 1.0e-7  # Triton's: what the logarithm of Box and Muller is taken of is no less


def words(tracer: Tracer, seed: Any, offset: Any) -> tuple[TracedTensor, ...]:
    """The four words of Philox, int32 bit patterns of the shape of ``offset`` broadcast with ``seed``."""
    return philox(tracer, *_halves(tracer, seed, "seed"), *_halves(tracer, offset, "offset"))


def philox(tracer: Tracer, *key_and_counter: Any) -> tuple[TracedTensor, ...]:
    """The same of the two words of the seed and the two of the offset, each an int32 tensor or an int."""
    tensors = [x for x in key_and_counter if isinstance(x, TracedTensor)]
    shape = torch.Size(()) if not tensors else _common(tensors)
    results = [tracer.wrap(tracer.meta(shape, torch.int32)) for _ in range(4)]
    tracer.emit("hl.philox", tuple(map(tracer.arg, key_and_counter)), results)
    return tuple(results)


def _common(tensors: Sequence[TracedTensor]) -> Any:
    return broadcast(*(t.meta.shape for t in tensors))


def _halves(tracer: Tracer, value: Any, what: str) -> tuple[Any, Any]:
    """``value`` as two 32-bit words, signed. A tensor's is int32 (int64 is where the door has seen that its values fit)."""
    if isinstance(value, Tile):
        value = value.index
    if isinstance(value, TracedTensor):
        if value.dtype.is_floating_point or value.dtype is torch.bool:
            tracer.refuse(f"a {tracer.describe(value)} is the {what} of random numbers", "expected integers")
        if value.is_host and not value.is_param:
            value = tracer.getitem(value, ())
        low = value if value.dtype is torch.int32 else value.to(torch.int32)
        return low, low >> 31
    if isinstance(value, (Dim, bool)) or not isinstance(value, int):
        tracer.refuse(f"a {type(value).__name__} is the {what} of random numbers", "expected an integer or a tensor of integers")
    return _signed(value), _signed(value >> 32)


def _signed(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def rand(tracer: Tracer, shape: Sequence[Any], seed: Any) -> Any:
    """Uniform in [0, 1), float32."""
    _device_only(tracer, "hl.rand")
    return uniform(words(tracer, seed, offset_of(tracer, shape))[0])


def randint(tracer: Tracer, shape: Sequence[Any], low: Any, high: Any, seed: Any) -> Any:
    """Integers in [low, high), int32."""
    _device_only(tracer, "hl.randint")
    if not all(type(n) is int for n in (low, high)) or not low < high or not -(2**31) <= low < high <= 2**31 or high - low >= 2**31:
        tracer.refuse(f"hl.randint of {low} to {high}", "expected integers low < high that fit int32, and less than 2**31 apart")
    return integers(words(tracer, seed, offset_of(tracer, shape))[0], low, high)


def integers(word: Any, low: int, high: int) -> Any:
    """A word as an int32 in [low, high), at most 2**31 - 1 apart."""
    count = high - low
    # abs(word) % count, where abs(-2**31) does not fit: one less, and one added after.
    magnitude = torch.where(word < 0, -1 - word, word) % count
    return torch.where(word < 0, (magnitude + 1) % count, magnitude) + low


def rand4x(tracer: Tracer, seed: Any, offset: Any) -> tuple[Any, ...]:
    """Four tensors, uniform in [0, 1), float32, of the shape of ``offset``."""
    _device_only(tracer, "hl.rand4x")
    return tuple(uniform(word) for word in words(tracer, seed, offset))


def normal(first: Any, second: Any) -> Any:
    """Two words as a float32, normal with mean 0 and deviation 1, by Box and Muller."""
    radius = torch.sqrt(torch.log(torch.clamp_min(uniform(first), _LEAST)) * -2.0)
    return radius * torch.cos(uniform(second) * _TAU)


def uniform(word: Any) -> Any:
    """A word as a float32 in [0, 1)."""
    return torch.where(word < 0, -1 - word, word).to(torch.float32) * _UNIFORM


def _device_only(tracer: Tracer, name: str) -> None:
    if not tracer.in_device:
        tracer.refuse(f"{name} outside of a tile loop", "draw the numbers in the tile loop, or pass them as an argument")


def offset_of(tracer: Tracer, shape: Sequence[Any]) -> Any:
    """The position of each element of a tile of ``shape`` in the whole tensor, counted row by row: int32, of that shape."""
    dims = [_positions(tracer, size) for size in shape]
    static = [extent for _, extent in dims if isinstance(extent, int)]
    if math.prod(static) >= 1 << 31:
        tracer.refuse("random numbers for a tensor of 2**31 elements or more", "draw them for parts of it, with seeds of their own")
    offset: Any = None
    stride: Any = 1
    for i, (index, extent) in reversed(list(enumerate(dims))):
        part = index.reshape([-1 if d == i else 1 for d in range(len(dims))]) if len(dims) > 1 else index
        part = part * stride if not (isinstance(stride, int) and stride == 1) else part
        offset = part if offset is None else offset + part
        stride = stride * extent
    return 0 if offset is None else offset


def _positions(tracer: Tracer, size: Any) -> tuple[Any, Any]:
    """(positions along one dimension, int32; the extent of the whole): of a tile, of the axis that a size is the block of, or all."""
    if isinstance(size, Tile):
        return size.index, _extent(tracer, size.axis)
    expr = tracer.hints.decode(tracer.hints.size_of(int.__index__(size)))
    if isinstance(expr, int):
        return torch.arange(expr, dtype=torch.int32), expr
    if isinstance(expr, Block):
        axes = [a for frame in tracer.stack for a in frame.axes if tracer.axes[a].block == expr.id]
        if len(axes) == 1:
            return tracer.tile_index(Tile(tracer, axes[0])), _extent(tracer, axes[0])
    message = f"random numbers of a shape with {expr}, which does not say where in a tensor they are"
    tracer.refuse(message, "give tiles: hl.rand([tile_m, tile_n], seed)")


def _extent(tracer: Tracer, axis: int) -> Any:
    begin, end = tracer.axes[axis].begin, tracer.axes[axis].end
    if isinstance(begin, int) and isinstance(end, int):
        return end - begin
    return _bound(tracer, axis, "end") - _bound(tracer, axis, "begin")


def _bound(tracer: Tracer, axis: int, which: str) -> Any:
    """A bound of an axis as kernel code sees it: a dimension, or the tensor that holds it."""
    value = getattr(tracer.axes[axis], which)
    if not isinstance(value, Ref):
        return tracer.dim(value)
    frame = next(f for f in tracer.stack if axis in f.axes)
    return TracedTensor.make(tracer, tracer.meta((), torch.int32), value.id, tracer.stack[max(0, tracer.stack.index(frame) - 1)])
