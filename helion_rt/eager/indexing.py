"""Subscripts in device code: every element's position is computed, so that masks, gathers and atomics are all the same thing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..exc import DTypeError, ShapeMismatch, Unsupported
from .tiles import EagerTile, as_value


@dataclass(frozen=True)
class Places:
    """What an index selects: ``at`` has an int64 tensor for each dimension of the tensor; they broadcast to ``shape``."""

    at: tuple[torch.Tensor, ...]
    shape: tuple[int, ...]

    def where(self, mask: Any) -> tuple[torch.Tensor, ...]:
        """The positions at which ``mask`` (broadcasts to ``shape``) holds, [n] each."""
        chosen = torch.broadcast_to(torch.as_tensor(mask), self.shape)
        return tuple(torch.broadcast_to(a, self.shape)[chosen] for a in self.at)


def load(tensor: torch.Tensor, index: Any, mask: Any = None) -> torch.Tensor:
    """``tensor[index]``, a copy; 0 where ``mask`` does not hold, and nothing is read there."""
    places = find(tensor, index, checked=mask is None)
    if mask is None:
        return _gather(tensor, places.at).expand(places.shape).clone()
    result = torch.zeros(places.shape, dtype=tensor.dtype)
    result[torch.broadcast_to(torch.as_tensor(mask), places.shape)] = _gather(tensor, places.where(mask))
    return result


def store(tensor: torch.Tensor, index: Any, value: Any, mask: Any = None) -> None:
    """``tensor[index] = value``, where ``mask`` holds."""
    places = find(tensor, index, checked=mask is None)
    full = _value(value, tensor, places.shape)
    if mask is None:
        at = tuple(torch.broadcast_to(a, places.shape) for a in places.at)
    else:
        at, full = places.where(mask), full[torch.broadcast_to(torch.as_tensor(mask), places.shape)]
    if at:
        tensor[at] = full
    elif full.numel():
        tensor.copy_(full.reshape(()))


_COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add, "max": torch.maximum, "min": torch.minimum, "and": torch.bitwise_and, "or": torch.bitwise_or,
    "xor": torch.bitwise_xor, "xchg": lambda old, new: new,
}  # fmt: skip


def atomic(kind: str, tensor: torch.Tensor, index: Any, value: Any, expected: Any = None) -> torch.Tensor:
    """Combines ``value`` into ``tensor[index]``, one element after the other; what the elements held before."""
    before, places = load(tensor, index).clone(), find(tensor, index)
    held = before.reshape(-1)
    full = _value(value, tensor, places.shape).reshape(-1)
    wanted = None if expected is None else _value(expected, tensor, places.shape).reshape(-1)
    at = [torch.broadcast_to(a, places.shape).reshape(-1).tolist() for a in places.at]
    for i in range(full.numel()):
        place = tuple(a[i] for a in at)
        held[i] = tensor[place]  # where an element comes twice, each turn sees what the last one left
        if wanted is None:
            tensor[place] = _COMBINE[kind](tensor[place], full[i])
        elif bool(tensor[place] == wanted[i]):
            tensor[place] = full[i]
    return held.reshape(before.shape)


def _gather(tensor: torch.Tensor, at: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return tensor[at] if at else tensor


def _value(value: Any, tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    value = as_value(value)
    given = value if isinstance(value, torch.Tensor) else torch.tensor(value)
    try:
        return torch.broadcast_to(given.to(tensor.dtype), tuple(shape)).clone()
    except RuntimeError as error:
        raise ShapeMismatch(f"a tensor {list(given.shape)} is stored into {list(shape)}") from error


def find(tensor: torch.Tensor, index: Any, checked: bool = True) -> Places:
    """What ``index`` selects. Unless ``checked`` a tile may reach past the tensor. Raises as the capture does."""
    items = _complete(tensor, index)
    gathers = [item for item in items if isinstance(item, torch.Tensor) and item.dim()]
    outer = len(gathers) > 1 and all(g.dim() == 1 for g in gathers)
    group = [g.numel() for g in gathers] if outer else list(torch.broadcast_shapes(*(g.shape for g in gathers))) if gathers else []
    shape: list[int] = []
    placed: list[tuple[torch.Tensor, int]] = []  # (positions, the dimension of the result where they begin)
    group_at, number, sizes = -1, 0, iter(tensor.shape)
    for item in items:
        if item is None:
            shape.append(1)
            continue
        size = next(sizes)
        if isinstance(item, torch.Tensor) and item.dim():
            if group_at < 0:
                group_at = len(shape)
                shape += group
            lanes = item.reshape([-1 if i == number else 1 for i in range(len(group))]) if outer else torch.broadcast_to(item, group)
            placed.append((lanes.long(), group_at))
            number += 1
        elif isinstance(item, (slice, EagerTile)):
            placed.append((_along(item, size, checked), len(shape)))
            shape.append(placed[-1][0].numel())
        else:
            placed.append((torch.tensor(_position(int(item), size)), -1))
    at = tuple(p if d < 0 else p.reshape([1] * d + list(p.shape) + [1] * (len(shape) - d - p.dim())) for p, d in placed)
    return Places(at, tuple(shape))


def _complete(tensor: torch.Tensor, index: Any) -> list[Any]:
    """An entry a dimension, and the ``None``s."""
    items = list(index) if isinstance(index, (tuple, list)) else [index]
    items = [part for item in items for part in (item if isinstance(item, (tuple, list)) else (item,))]
    for item in items:
        wrong = isinstance(item, torch.Tensor) and (item.is_floating_point() or item.dtype in (torch.bool, torch.uint8))
        if wrong or isinstance(item, bool):
            raise DTypeError(f"an index of dtype {getattr(item, 'dtype', 'bool')}; expected integers")
    given = sum(item is not None and item is not Ellipsis for item in items)
    if given > tensor.dim():
        raise ShapeMismatch(f"{given} indices for a tensor of {tensor.dim()} dimensions")
    rest: list[Any] = [slice(None)] * (tensor.dim() - given)
    where = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(where) > 1:
        raise Unsupported("more than one ... in an index")
    return [*items[: where[0]], *rest, *items[where[0] + 1 :]] if where else [*items, *rest]


def _along(item: slice | EagerTile, size: int, checked: bool) -> torch.Tensor:
    if isinstance(item, slice):
        bounds = [None if b is None else int(b) for b in (item.start, item.stop, item.step)]
        return torch.arange(size)[slice(*bounds)]
    at = item.positions
    if checked and at.stop > size and int.__int__(item):
        raise ShapeMismatch(f"{item!r} indexes a dimension of {size}", hint="the dimensions that one loop tiles must agree")
    return torch.arange(at.start, at.stop)


def _position(value: int, size: int) -> int:
    if not -size <= value < size:
        raise ShapeMismatch(f"index {value} is out of range for a dimension of {size}", hint=f"expected -{size} to {size - 1}")
    return value


__all__ = ["Places", "atomic", "find", "load", "store"]
