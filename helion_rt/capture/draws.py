"""torch's own random functions in device code: ``rand``, ``randn``, ``randint``, ``bernoulli``, ``dropout``.

Each place that draws has a seed of its own, a row of a hidden parameter of the program that the runtime draws from torch's
generator at each call. The numbers are Philox's, counted by the position of an element in the whole tensor and by where the
loops around it are that the tensor does not run along: so a loop draws anew in every round, and block sizes do not matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..exc import DTypeError
from ..program.expr import Block
from ..program.ir import ArgKind, Param, Ref, TensorType
from . import aten, rng
from . import tracer as tracing
from .tensors import CaptureMode, TracedTensor
from .tiles import Tile

if TYPE_CHECKING:
    from .tracer import Tracer

_aten = torch.ops.aten
_DIGITS = {torch.float32: None, torch.bfloat16: 8, torch.float16: 11}  # bits that a uniform number can have and stay below 1
_MOST = 1 << 31  # elements that one word can count


class Seeds:
    """The hidden parameter: two words for each place that draws."""

    def __init__(self) -> None:
        self._tensor: TracedTensor | None = None
        self._count = 0

    def next(self, tracer: Tracer) -> tuple[TracedTensor, TracedTensor]:
        """The two words of a new place, int32 []."""
        if self._tensor is None:
            self._tensor = tracer.wrap(tracer.meta((1, 2), torch.int32), tracer.host)  # how many rows it has shows at the end
        words = [tracer.wrap(tracer.meta((), torch.int32)) for _ in range(2)]
        for column, word in enumerate(words):
            tracer.emit("hl.load", (tracer.use(self._tensor), (self._count, column)), [word])
        self._count += 1
        return words[0], words[1]

    def params(self, tracer: Tracer) -> tuple[Param, ...]:
        """The parameter of the program, if anything draws."""
        if self._tensor is None:
            return ()
        tracer.types[self._tensor.value] = TensorType((self._count, 2), "int32")
        return (Param("seeds", (), ArgKind.SEEDS, self._tensor.value),)


# Where an element is.


@dataclass(frozen=True)
class _Place:
    """Positions along a dimension or a loop (int32, of a shape that broadcasts), and what they are less than; None: nobody knows."""

    position: Any
    extent: Any


def _words(tracer: Tracer, shape: Sequence[int]) -> tuple[TracedTensor, ...]:
    """Four words for each element of a new value of ``shape`` (as PyTorch sees it: in hints)."""
    if not tracer.in_device:
        tracer.refuse("random numbers outside of a tile loop", "draw them in the tile loop, or pass them as an argument")
    if any(frame.kind is tracing.FrameKind.COMBINE for frame in tracer.stack):
        tracer.refuse("random numbers in the function that a scan or reduction combines with", "draw them before it")
    if any(frame.repeats for frame in tracer.stack):
        hint = "use hl.rand with a seed that the loop changes"
        tracer.refuse("random numbers in a 'while' that the device decides: every round would draw the same", hint)
    axes = [_axis_of(tracer, size) for size in shape]
    low = _count(tracer, [_along(tracer, size, axis, at, len(shape)) for at, (size, axis) in enumerate(zip(shape, axes, strict=True))])
    high = _count(tracer, [_around(tracer, axis) for axis in _others(tracer, {a for a in axes if a is not None})])
    return rng.philox(tracer, *tracer.seeds.next(tracer), low, high)


def _axis_of(tracer: Tracer, size: int) -> int | None:
    """The axis whose tile a dimension is; None for one of a fixed size."""
    if (axis := tracer.axis_of_tile.get(size)) is not None:
        return tracer.active(axis)
    expr = tracer.hints.decode(size)
    if isinstance(expr, int):
        return None
    axes = [a for frame in tracer.stack for a in frame.axes if tracer.axes[a].block == expr.id] if isinstance(expr, Block) else []
    if len(axes) != 1:
        message = f"random numbers of a shape with {expr}, which does not say where in a tensor they are"
        tracer.refuse(message, "give tiles: torch.rand([tile_m, tile_n]), and reshape the result")
    return axes[0]


def _along(tracer: Tracer, size: int, axis: int | None, at: int, rank: int) -> _Place:
    if axis is None:
        place = _Place(torch.arange(size, dtype=torch.int32), size)
    else:
        place = _from_begin(tracer, axis, tracer.tile_index(Tile(tracer, axis)))
    return _Place(place.position.reshape([-1 if d == at else 1 for d in range(rank)]) if rank > 1 else place.position, place.extent)


def _around(tracer: Tracer, axis: int) -> _Place:
    return _from_begin(tracer, axis, tracer.tile_scalar(Tile(tracer, axis), "begin"))


def _from_begin(tracer: Tracer, axis: int, position: Any) -> _Place:
    info = tracer.axes[axis]
    begin = info.begin if isinstance(info.begin, int) else 0
    end = info.limit if isinstance(info.end, Ref) else tracer.dim(info.end)
    return _Place(position - begin if begin else position, None if end is None else end - begin)


def _others(tracer: Tracer, covered: set[int]) -> list[int]:
    """The axes of the loops around that no dimension runs along. A loop over the tile of another runs along that one, too."""
    waiting = list(covered)
    while waiting:
        info = tracer.axes[waiting.pop()]
        ops = [tracer.made_by.get(bound.id) if isinstance(bound, Ref) else None for bound in (info.begin, info.end)]
        if [op.name if op else None for op in ops] == ["hl.tile_begin", "hl.tile_end"]:
            outer = {op.args[0] for op in ops if op}
            if len(outer) == 1 and not outer <= covered:
                covered |= outer  # type: ignore[arg-type]
                waiting.extend(outer)  # type: ignore[arg-type]
    return [axis for frame in tracer.stack for axis in frame.axes if axis not in covered]


def _count(tracer: Tracer, places: Sequence[_Place]) -> Any:
    """One number for every combination of positions, row by row; the place that nobody knows the extent of counts the rows."""
    unknown = [place for place in places if place.extent is None]
    if len(unknown) > 1:
        tracer.refuse("random numbers along two loops whose ends are known only at run time", "bound one with torch.minimum(end, limit)")
    known = [place for place in places if place.extent is not None]
    if math.prod(p.extent for p in known if type(p.extent) is int) >= _MOST:
        tracer.refuse("random numbers for a tensor of 2**31 elements or more", "use hl.rand for parts of it, with seeds of their own")
    number: Any = 0
    for place in (*unknown, *known):
        if place.extent is not None:
            number = number * place.extent
        number = place.position if type(number) is int else number + place.position
    return number


# The numbers.


def _uniform(tracer: Tracer, shape: Sequence[int], dtype: torch.dtype) -> Any:
    """Uniform in [0, 1), multiples of what ``dtype`` can hold just below 1."""
    digits = _digits(tracer, dtype)
    numbers = rng.uniform(_words(tracer, shape)[0])
    return numbers if digits is None else (torch.floor(numbers * 2.0**digits) * 2.0**-digits).to(dtype)


def _normal(tracer: Tracer, shape: Sequence[int], dtype: torch.dtype) -> Any:
    _digits(tracer, dtype)
    return rng.normal(*_words(tracer, shape)[:2]).to(dtype)


def _digits(tracer: Tracer, dtype: torch.dtype) -> int | None:
    if dtype not in _DIGITS:
        raise tracer.error(DTypeError, f"random numbers of {dtype}", f"expected one of {', '.join(map(str, _DIGITS))}")
    return _DIGITS[dtype]


def _integers(tracer: Tracer, shape: Sequence[int], low: int, high: int, dtype: torch.dtype) -> Any:
    """Integers in [low, high)."""
    if not all(isinstance(tracer.hints.decode(n), int) for n in (low, high)):
        tracer.refuse("a block size is a bound of random integers")
    if not -_MOST <= low < high <= _MOST or high - low >= _MOST:
        tracer.refuse(f"torch.randint of {low} to {high}", "expected low < high that fit int32, and less than 2**31 apart")
    if dtype is torch.bool or (not dtype.is_floating_point and not torch.iinfo(dtype).min <= low < high <= torch.iinfo(dtype).max + 1):
        raise tracer.error(DTypeError, f"torch.randint of {low} to {high} as {dtype}")
    return rng.integers(_words(tracer, shape)[0], low, high).to(dtype)


def _chosen(tracer: Tracer, shape: Sequence[int], probability: Any) -> Any:
    """True with ``probability``, a number or a tensor of that shape."""
    if not isinstance(probability, torch.Tensor) and not 0 <= probability <= 1:
        raise ValueError(f"a probability of {probability}, expected one from 0 to 1")
    return rng.uniform(_words(tracer, shape)[0]) < probability


# As ATen has them.

Special = Callable[["Tracer", Any, tuple[Any, ...], dict[str, Any]], Any]


def _own(make: Special) -> Special:
    """``make`` as what is called when PyTorch dispatches the operation; the operations that it is made of are recorded."""

    def special(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs.get("generator") is not None:
            hint = "torch's default generator is used; for numbers of one's own there is hl.rand(shape, seed)"
            tracer.refuse("generator= in a kernel", hint)
        tensors = aten.tensors_in(args)
        if any(isinstance(t, TracedTensor) and t.is_host and not t.is_param and t.meta.shape for t in tensors) and tracer.in_device:
            tracer.refuse(f"{func} in a tile loop on a whole tensor", "subscript it first: t[tile]")
        guarding, tracer.guarding = tracer.guarding, True  # element by element: nothing that a jagged tile must be guarded from
        try:
            with CaptureMode(tracer):
                return make(tracer, func, args, kwargs)
        finally:
            tracer.guarding = guarding

    return special


def _new(numbers: Callable[..., Any]) -> Special:
    def make(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return numbers(tracer, args[0], kwargs.get("dtype") or torch.get_default_dtype())

    return _own(make)


def _like(numbers: Callable[..., Any]) -> Special:
    def make(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return numbers(tracer, args[0].meta.shape, kwargs.get("dtype") or args[0].dtype)

    return _own(make)


@_own
def _randint(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    *bounds, shape = args
    low, high = bounds if len(bounds) == 2 else (0, bounds[0])
    return _integers(tracer, shape, low, high, kwargs.get("dtype") or torch.int64)


@_own
def _randint_like(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    like, *bounds = args
    low, high = bounds if len(bounds) == 2 else (0, bounds[0])
    return _integers(tracer, like.meta.shape, low, high, kwargs.get("dtype") or like.dtype)


@_own
def _bernoulli(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``bernoulli(p)`` and ``bernoulli(like, p)``."""
    like = args[0]
    probability = args[1] if len(args) > 1 else kwargs.get("p", like)
    if not like.dtype.is_floating_point and probability is like:
        raise tracer.error(DTypeError, f"torch.bernoulli of {tracer.describe(like)}", "probabilities are floating numbers")
    return _chosen(tracer, like.meta.shape, probability).to(like.dtype)


@_own
def _bernoulli_in_place(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    target, probability = args[0], args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    value = _chosen(tracer, target.meta.shape, probability).to(target.dtype)
    return target.copy_(value)


SPECIAL: dict[Any, Special] = {
    _aten.rand.default: _new(_uniform), _aten.rand_like.default: _like(_uniform),
    _aten.randn.default: _new(_normal), _aten.randn_like.default: _like(_normal),
    _aten.randint.default: _randint, _aten.randint.low: _randint,
    _aten.randint_like.default: _randint_like, _aten.randint_like.low_dtype: _randint_like,
    _aten.bernoulli.default: _bernoulli, _aten.bernoulli.p: _bernoulli,
    _aten.bernoulli_.float: _bernoulli_in_place, _aten.bernoulli_.Tensor: _bernoulli_in_place,
}  # fmt: skip


def _dropout(tracer: Tracer, x: Any, p: Any = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """``x``, with probability ``p`` 0, else scaled; rounded once. PyTorch would round the scale to the dtype of ``x``, too."""
    if not isinstance(x, TracedTensor) or x.is_host:
        return NotImplemented
    p = float(p)
    if not 0 <= p <= 1:
        raise ValueError(f"dropout with a probability of {p}, expected one from 0 to 1")
    if not x.dtype.is_floating_point:
        raise tracer.error(DTypeError, f"dropout of a {tracer.describe(x)}", "expected floating numbers")
    if not training or p == 0:
        return x
    scale = 0.0 if p == 1 else 1 / (1 - p)
    kept = _chosen(tracer, x.meta.shape, 1 - p).to(torch.float32) * scale
    result = (x.to(torch.float32) * kept).to(x.dtype)
    return x.copy_(result) if inplace else result


def _dropout_in_place(tracer: Tracer, x: Any, p: Any, train: bool) -> Any:
    return _dropout(tracer, x, p, train, True)


# As the functions that are called, which are several operations to PyTorch.
CAUGHT: dict[Any, Callable[..., Any]] = {
    torch.nn.functional.dropout: _dropout, torch.dropout: _dropout, torch.dropout_: _dropout_in_place,
}  # fmt: skip
__all__ = ["CAUGHT", "SPECIAL", "Seeds"]
