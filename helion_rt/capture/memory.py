"""Loads, stores and atomics of host tensors in device code: ``hl.load``, ``hl.store``, ``hl.atomic``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..exc import DTypeError, ShapeMismatch
from ..program.ir import Arg, Ref
from . import indexing, jagged
from .hints import Dim
from .indexing import Selection
from .shapes import broadcast
from .tensors import TracedTensor
from .tiles import Tile
from .undefined import Undefined

if TYPE_CHECKING:
    from .tracer import Tracer

_BITWISE = ("and", "or", "xor")


def load(tracer: Tracer, tensor: TracedTensor, index: Any, mask: Any = None) -> Any:
    """``tensor[index]`` as a tile; 0 where ``mask`` does not hold."""
    selection = indexing.select(tracer, tensor, index, mask is not None)
    args: tuple[Arg, ...] = (tracer.use(tensor), selection.elements)
    where = _mask(tracer, selection, mask, is_load=True)
    result = tracer.wrap(tracer.meta(selection.shape, tensor.dtype))
    tracer.emit("hl.load", args if where is None else (*args, where), [result])
    tracer.loaded.append(tensor)
    return _seen(result, selection)


def store(tracer: Tracer, tensor: TracedTensor, index: Any, value: Any, mask: Any = None) -> None:
    """``tensor[index] = value`` where ``mask`` holds; converts to the tensor's dtype."""
    selection = indexing.select(tracer, tensor, index, mask is not None)
    stored = _operand(tracer, value, tensor, selection, "stored into")
    where = _mask(tracer, selection, mask)
    args: tuple[Arg, ...] = (tracer.use(tensor), _without_none(selection), stored)
    tracer.emit("hl.store", args if where is None else (*args, where))
    _note_written(tracer, tensor)


def atomic(tracer: Tracer, kind: str, tensor: Any, index: Any, value: Any, expected: Any = None) -> Any:
    """``tensor[index]`` combined with ``value``; what was there before."""
    name = f"hl.atomic_{kind}"
    if not isinstance(tensor, TracedTensor) or not tensor.is_host or tensor.is_param:
        tracer.refuse(f"{name} takes a whole tensor and an index", "e.g. hl.atomic_add(out, [tile], value)")
    if not tracer.in_device:
        tracer.refuse(f"{name} outside of a tile loop", "write t[...] = value")
    _check_atomic(tracer, name, kind, tensor)
    selection = indexing.select(tracer, tensor, index)
    if None in selection.elements:
        tracer.refuse(f"None in the index of {name}", "leave it out: the value broadcasts")
    operand = _operand(tracer, value, tensor, selection, "combined into", exact=kind)
    args: list[Arg] = [kind, tracer.use(tensor), selection.elements, operand, _mask(tracer, selection, None)]
    if kind == "cas":
        args.append(_operand(tracer, expected, tensor, selection, "compared to", exact=kind))
    result = tracer.wrap(tracer.meta(selection.shape, tensor.dtype))
    tracer.emit("hl.atomic", tuple(args), [result])
    tracer.loaded.append(tensor)
    _note_written(tracer, tensor)
    return _seen(result, selection)


def _check_atomic(tracer: Tracer, name: str, kind: str, tensor: TracedTensor) -> None:
    floating = tensor.dtype.is_floating_point
    if (kind in _BITWISE and floating) or (kind in ("add", "max", "min") and tensor.dtype is torch.bool):
        expected = "integers or bool" if kind in _BITWISE else "numbers"
        raise tracer.error(DTypeError, f"{name} on a {tracer.describe(tensor)}; expected {expected}")


def _note_written(tracer: Tracer, tensor: TracedTensor) -> None:
    if not any(t is tensor for t in tracer.written):
        tracer.written.append(tensor)


def _seen(result: TracedTensor, selection: Selection) -> Any:
    """A tile of the program as kernel code expects it."""
    return torch.permute(result, selection.order) if selection.is_moved else result


def _without_none(selection: Selection) -> tuple[Arg, ...]:
    return tuple(e for e in selection.elements if e is not None)


def _stored_order(selection: Selection) -> list[int]:
    """Dimensions of what kernel code sees, in the order of the program, without those that ``None`` adds."""
    added, at = set(), 0
    ranks = _ranks(selection)
    for element, rank in zip(selection.elements, ranks, strict=True):
        if element is None:
            added.add(at)
        at += rank
    return [selection.order.index(d) for d in range(len(selection.shape)) if d not in added]


def _ranks(selection: Selection) -> list[int]:
    """How many dimensions of the program's shape each element gives: index tensors give theirs at the first of them."""
    ranks = [0 if isinstance(e, (int, Ref)) else 1 for e in selection.elements]
    if selection.first_tensor is not None:
        ranks[selection.first_tensor] = len(selection.shape) - sum(ranks)
    return ranks


def _to_program(value: Any, selection: Selection) -> Any:
    """A tile as kernel code sees it in the dimensions of the program."""
    order, rank = _stored_order(selection), len(selection.shape)
    if order == list(range(rank)):
        return value
    shape = tuple(value.meta.shape)
    value = torch.Tensor.view(value, (1,) * (rank - len(shape)) + shape) if len(shape) < rank else value
    dropped = [d for d in range(rank) if d not in order]
    value = torch.permute(value, [*dropped, *order])
    return torch.Tensor.view(value, tuple(value.meta.shape)[len(dropped) :]) if dropped else value


def _operand(tracer: Tracer, value: Any, tensor: TracedTensor, selection: Selection, use: str, exact: str | None = None) -> Arg:
    """What is stored or combined, as an argument: of the tensor's dtype, broadcasting to the selection."""
    if isinstance(value, Tile):
        value = value.index
    if isinstance(value, TracedTensor):
        value = _fit(tracer, value, tensor, selection.seen, use)
        return tracer.use(_to_program(value, selection))
    if isinstance(value, (bool, int, float)):
        if exact is not None:
            _check_number(tracer, value, tensor, exact)
        return tracer.arg(value)
    if isinstance(value, Undefined):
        bool(value)  # says why it has no value
    tracer.refuse(f"a {type(value).__name__} is {use} a tensor", "use a tile or a number")


def _check_number(tracer: Tracer, value: float, tensor: TracedTensor, kind: str) -> None:
    if isinstance(value, float) and not tensor.dtype.is_floating_point and not isinstance(value, Dim):
        raise tracer.error(DTypeError, f"hl.atomic_{kind} of {value} on a {tracer.describe(tensor)}", "give it an integer")


def _fit(tracer: Tracer, value: TracedTensor, tensor: TracedTensor, shape: tuple[int, ...], use: str) -> TracedTensor:
    if value.is_host and not value.is_param:
        if value.meta.shape:
            tracer.refuse(f"a whole {tracer.describe(value)} is {use} a tile", "subscript it first")
        value = load(tracer, value, ())
    if not _fits(value, shape):
        target = ", ".join(str(tracer.hints.decode(n)) for n in shape)
        hint = "both need the same dimensions: reshape or reduce the value"
        raise tracer.error(ShapeMismatch, f"a {tracer.describe(value)} is {use} [{target}]", hint)
    return value if value.dtype == tensor.dtype else tracer.cast(value, tensor.dtype)


def _fits(value: TracedTensor, shape: tuple[int, ...]) -> bool:
    try:
        return broadcast(value.meta.shape, shape) == shape
    except ValueError:
        return False


def _mask(tracer: Tracer, selection: Selection, extra: Any, is_load: bool = False) -> Ref | None:
    """The mask of an access: the user's, that of slices which may reach past the end, and that of jagged tiles."""
    masks = [selection.mask, jagged.mask_for(tracer, selection.seen, is_load)]
    if isinstance(extra, bool):
        extra = None if extra else torch.full((), False)
    if isinstance(extra, Undefined):
        bool(extra)  # says why it has no value
    if extra is not None:
        masks.append(_user_mask(tracer, extra, selection.seen))
    result: Any = None
    for mask in masks:
        if mask is not None:
            result = mask if result is None else result & mask
    return None if result is None else tracer.use(_to_program(result, selection))


def _user_mask(tracer: Tracer, mask: Any, shape: tuple[int, ...]) -> TracedTensor:
    if not isinstance(mask, TracedTensor):
        tracer.refuse(f"a {type(mask).__name__} is a mask", "expected a bool tensor")
    if mask.is_host and not mask.is_param:
        if mask.meta.shape:
            tracer.refuse(f"a whole {tracer.describe(mask)} is a mask", "subscript it first: mask[tile]")
        mask = load(tracer, mask, ())
    if mask.dtype is not torch.bool:
        raise tracer.error(DTypeError, f"a {tracer.describe(mask)} is a mask; expected bool", "compare it: mask != 0")
    if not _fits(mask, shape):
        target = ", ".join(str(tracer.hints.decode(n)) for n in shape)
        raise tracer.error(ShapeMismatch, f"a {tracer.describe(mask)} is the mask of [{target}]", "it must broadcast to what is selected")
    return mask
