"""``hl.jagged_tile``: a tile loop whose end differs from lane to lane of its parent.

The loop runs to the longest lane. Its block is new, so a dimension of a value is known to be jagged by it. What does not
exist in a lane is not read or written, and counts for nothing where a jagged dimension is reduced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..program.expr import Block, blocks_in
from . import aten
from .tensors import CaptureMode, TracedTensor
from .tiles import Tile

if TYPE_CHECKING:
    from .tracer import Tracer

_aten = torch.ops.aten


@dataclass(frozen=True)
class Jagged:
    """One jagged loop: its axis, and the ends of its lanes."""

    axis: int
    ends: TracedTensor


def begin(tracer: Tracer, parent: Any) -> Any:
    """The end of the loop: the longest lane."""
    hint = "expected the lengths of the lanes of an outer tile: lengths[tile]"
    if not isinstance(parent, TracedTensor) or not tracer.in_device or parent.is_host or not parent.meta.shape:
        given = tracer.describe(parent) if isinstance(parent, TracedTensor) else type(parent).__name__
        tracer.refuse(f"hl.jagged_tile of a {given}", hint)
    if parent.dtype.is_floating_point or parent.dtype is torch.bool:
        tracer.refuse(f"hl.jagged_tile of a {tracer.describe(parent)}", "lengths are integers")
    shape = [n for n in parent.meta.shape if n != 1]
    if len(set(shape)) != len(shape):
        tracer.refuse(f"hl.jagged_tile of a {tracer.describe(parent)}: two of its dimensions cannot be told apart", hint)
    return parent.amax()


def mask_for(tracer: Tracer, shape: tuple[int, ...], is_load: bool = False) -> Any:
    """Which elements of a value of this shape (in hints) exist in their lanes; None if no dimension is jagged.

    ``is_load``: what has no lanes at all is the same for each of them, and may be read.
    """
    result = None
    for at, jagged in _dims(tracer, shape):
        lanes = [n for n in jagged.ends.meta.shape if n != 1]
        if is_load and lanes and not any(n in shape for n in lanes):
            continue
        ends = _aligned(tracer, jagged, shape, at)
        index = _view(Tile(tracer, jagged.axis).index, (shape[at],) + (1,) * (len(shape) - at - 1))
        mask = index < ends
        result = mask if result is None else result & mask
    return result


def _dims(tracer: Tracer, shape: tuple[int, ...]) -> list[tuple[int, Jagged]]:
    """The jagged dimensions of a shape."""
    found = []
    for at, hint in enumerate(shape):
        expr = tracer.hints.decode(hint)
        inside = [tracer.jagged[b] for b in blocks_in(expr) if b in tracer.jagged]
        if inside and not isinstance(expr, Block):
            text = f"a jagged dimension is part of a larger one, {expr}, where its elements matter"
            tracer.refuse(text, "keep it a dimension of its own")
        found.extend((at, jagged) for jagged in inside)
    return found


def _aligned(tracer: Tracer, jagged: Jagged, shape: tuple[int, ...], at: int) -> Any:
    """The ends of the lanes, with their dimensions where a value of this shape has them."""
    ends: Any = jagged.ends
    places: list[int] = []  # of the dimensions of `ends` that have more than one element
    for hint in ends.meta.shape:
        if hint == 1:
            continue
        candidates = [i for i, other in enumerate(shape) if other == hint and i != at]
        if len(candidates) != 1:
            expr, text = tracer.hints.decode(hint), ", ".join(str(tracer.hints.decode(n)) for n in shape)
            what = "without" if not candidates else "with more than one of"
            tracer.refuse(
                f"a jagged tile is used {what} the lanes ({expr}) that it belongs to, in a value [{text}]",
                "index it together with the tile of its lanes: x[tile_b, tile_k]",
            )
        places.append(candidates[0])
    ends = _view(ends, tuple(n for n in ends.meta.shape if n != 1))
    order = sorted(range(len(places)), key=lambda i: places[i])
    if order != list(range(len(places))):
        ends = torch.permute(ends, order)
    return _view(ends, tuple(n if i in places else 1 for i, n in enumerate(shape)))


def _view(tensor: Any, shape: tuple[int, ...]) -> Any:
    return tensor if tuple(tensor.meta.shape) == shape else torch.Tensor.view(tensor, shape)


# Reductions.

_IDENTITY: dict[str, Callable[[torch.dtype], float | int | bool]] = {
    "sum": lambda dtype: 0,
    "nansum": lambda dtype: 0,
    "count_nonzero": lambda dtype: 0,
    "linalg_vector_norm": lambda dtype: 0,
    "norm": lambda dtype: 0,
    "prod": lambda dtype: 1,
    "any": lambda dtype: False,
    "all": lambda dtype: True,
    "amax": lambda dtype: _lowest(dtype),
    "max": lambda dtype: _lowest(dtype),
    "argmax": lambda dtype: _lowest(dtype),
    "_softmax": lambda dtype: _lowest(dtype),
    "_log_softmax": lambda dtype: _lowest(dtype),
    "logsumexp": lambda dtype: _lowest(dtype),
    "amin": lambda dtype: _highest(dtype),
    "min": lambda dtype: _highest(dtype),
    "argmin": lambda dtype: _highest(dtype),
}
# Forward scans: what does not exist in a lane comes last.
_FORWARD = frozenset(("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"))
# (operand, its contracted dimension) of products.
_CONTRACTED = {
    "mm": ((0, -1), (1, -2)), "bmm": ((0, -1), (1, -2)), "addmm": ((1, -1), (2, -2)), "baddbmm": ((1, -1), (2, -2)),
    "mv": ((0, -1), (1, -1)), "dot": ((0, -1), (1, -1)),
}  # fmt: skip
_RESHAPES = frozenset(
    """view _unsafe_view _reshape_alias reshape unsqueeze squeeze expand permute transpose t clone _to_copy detach alias slice select
    cat stack split split_with_sizes unbind full_like zeros_like ones_like empty_like new_zeros new_full new_ones new_empty
    repeat flip index rand_like randn_like randint_like bernoulli bernoulli_""".split()
)


def _lowest(dtype: torch.dtype) -> float | int | bool:
    return float("-inf") if dtype.is_floating_point else False if dtype is torch.bool else torch.iinfo(dtype).min


def _highest(dtype: torch.dtype) -> float | int | bool:
    return float("inf") if dtype.is_floating_point else True if dtype is torch.bool else torch.iinfo(dtype).max


def guard(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operation on values with jagged dimensions: its arguments, with what does not exist replaced by what counts for nothing.

    A mean comes back as its result, a ``TracedTensor``.
    """
    tracer.guarding = True
    try:
        with CaptureMode(tracer):
            return _guarded(tracer, func, args, kwargs)
    finally:
        tracer.guarding = False


def _guarded(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    jags = [t for t in aten.tensors_in((args, kwargs)) if isinstance(t, TracedTensor) and _touches(tracer, t)]
    if not jags or torch.Tag.pointwise in func.tags:
        return args
    base = aten.info(func).base
    if base in _CONTRACTED:
        return _guard_product(tracer, args, _CONTRACTED[base])
    x = args[0]
    if base in _IDENTITY or base in _FORWARD or base == "mean":
        dims = _reduced(func, args, kwargs)
        if not any(_is_jagged(tracer, x, d) for d in dims) or base in _FORWARD:
            return args
        if base == "mean":
            return _mean(tracer, args, kwargs, dims)
        return (masked(tracer, x, _IDENTITY[base](x.dtype)), *args[1:])
    if base in _RESHAPES:
        return _check_reshape(tracer, base, args, kwargs)
    dims = _reduced(func, args, kwargs)
    if isinstance(x, TracedTensor) and not any(_is_jagged(tracer, x, d) for d in dims) and len(dims) < len(x.meta.shape):
        return args
    refuse_over(tracer, base)


def refuse_over(tracer: Tracer, what: str) -> Any:
    hint = "use sum, mean, amax, amin, any, all, softmax, or a product; or sums of powers"
    tracer.refuse(f"{what} over a jagged dimension is not supported", hint)


def _touches(tracer: Tracer, tensor: TracedTensor) -> bool:
    return any(b in tracer.jagged for n in tensor.meta.shape for b in blocks_in(tracer.hints.decode(n)))


def _is_jagged(tracer: Tracer, tensor: TracedTensor, dim: int) -> bool:
    return any(b in tracer.jagged for b in blocks_in(tracer.hints.decode(tensor.meta.shape[dim])))


def _reduced(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int]:
    """The dimensions an operation reduces, from its argument ``dim``; all of them if it has none."""
    names = [a.name for a in func._schema.arguments]
    bound = {**dict(zip(names, args, strict=False)), **kwargs}
    dim = bound.get("dim")
    rank = len(args[0].meta.shape)
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(rank))
    return [d % rank for d in (dim if isinstance(dim, (list, tuple)) else [dim])] if rank else []


def masked(tracer: Tracer, x: TracedTensor, identity: float | int | bool) -> Any:
    """``x`` with ``identity`` where an element does not exist in its lane."""
    mask = mask_for(tracer, tuple(x.meta.shape))
    return x if mask is None else torch.where(mask, x, torch.full((), identity, dtype=x.dtype))


def product(tracer: Tracer, a: TracedTensor, b: TracedTensor) -> tuple[TracedTensor, TracedTensor]:
    """The operands of ``hl.dot``, with 0 for what does not exist."""
    if not tracer.jagged:
        return a, b
    result = _guard_product(tracer, (a, b), _CONTRACTED["mm"])
    return result[0], result[1]


def check_order(tracer: Tracer, tensors: Sequence[TracedTensor], dim: int, what: str) -> None:
    """Refuses ``what``, which depends on where the lanes end along ``dim``."""
    if any(_is_jagged(tracer, tensor, dim) for tensor in tensors):
        refuse_over(tracer, what)


def _guard_product(tracer: Tracer, args: tuple[Any, ...], contracted: tuple[tuple[int, int], ...]) -> tuple[Any, ...]:
    result = list(args)
    jagged = [(i, d) for i, d in contracted if _is_jagged(tracer, args[i], d)]
    for i, _ in jagged:
        if len(jagged) > 1 and not _has_lanes(tracer, args[i]):
            continue  # the other operand is 0 there
        result[i] = masked(tracer, args[i], 0)
    return tuple(result)


def _has_lanes(tracer: Tracer, tensor: TracedTensor) -> bool:
    """Whether a value has the dimensions of the lanes of all its jagged dimensions."""
    shape = tuple(tensor.meta.shape)
    return all(n == 1 or n in shape for _, jagged in _dims(tracer, shape) for n in jagged.ends.meta.shape)


def _mean(tracer: Tracer, args: tuple[Any, ...], kwargs: dict[str, Any], dims: list[int]) -> Any:
    """A mean: the sum divided by how many elements there are in each lane."""
    x = args[0]
    shape = tuple(x.meta.shape)
    keep = bool(args[2]) if len(args) > 2 else bool(kwargs.get("keepdim", False))
    dtype = kwargs.get("dtype") or x.dtype
    wide = torch.float32 if dtype.itemsize < 4 else dtype
    mask = mask_for(tracer, shape)
    assert mask is not None
    ones = torch.where(mask, torch.full((), 1.0), torch.full((), 0.0)).expand(shape)
    total = masked(tracer, x, 0).to(wide).sum(dims, keepdim=keep)
    return (total / ones.sum(dims, keepdim=keep)).to(dtype)


def _check_reshape(tracer: Tracer, base: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Cutting or turning a jagged dimension would move elements between what exists and what does not."""
    dims = {"slice": 1, "select": 1, "cat": 1, "split": 2, "split_with_sizes": 2, "unbind": 1, "flip": 1}
    if base not in dims and base not in ("repeat", "index"):
        return args
    if base in ("repeat", "index"):
        refuse_over(tracer, base)
    dim = args[dims[base]] if len(args) > dims[base] else kwargs.get("dim", 0)
    for tensor in args[0] if base == "cat" else [args[0]]:
        for d in dim if isinstance(dim, (list, tuple)) else [dim]:
            whole = base == "slice" and (len(args) < 3 or (args[2] in (None, 0) and (len(args) < 4 or args[3] is None or args[3] >= 2**62)))
            if not whole and _is_jagged(tracer, tensor, d):
                refuse_over(tracer, base)
    return args
