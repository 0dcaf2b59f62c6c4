"""Subscripts of host tensors in device code: what ``x[tile, :, index]`` selects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..exc import DTypeError, ShapeMismatch
from ..program.expr import Expr, binary
from ..program.ir import Arg, Ref, Span, TileIndex
from . import affine
from .hints import Dim
from .shapes import broadcast
from .tensors import TracedTensor
from .tiles import Tile

if TYPE_CHECKING:
    from .tracer import Tracer


@dataclass(frozen=True)
class Selection:
    """What an index selects of a tensor.

    ``elements`` and ``shape`` (in hints) are as the program has them: index tensors broadcast together, and take the place
    of the first of them. ``order``: the dimensions as kernel code sees them, each as one of ``shape``.
    ``mask``: which elements there are, for slices that may reach past the end; of the shape that kernel code sees.
    """

    elements: tuple[Arg, ...]
    shape: tuple[int, ...]
    order: tuple[int, ...]
    mask: TracedTensor | None = None
    first_tensor: int | None = None  # the element in whose place the dimensions of index tensors are

    @property
    def seen(self) -> tuple[int, ...]:
        """The shape that kernel code sees."""
        return tuple(self.shape[i] for i in self.order)

    @property
    def is_moved(self) -> bool:
        return self.order != tuple(range(len(self.order)))


@dataclass
class _Part:
    """One item of an index: an element of the program, or an index tensor, and the dimensions that it gives."""

    element: Arg = None
    tensor: TracedTensor | None = None
    shape: tuple[int, ...] = ()
    length: int | None = None  # of a slice: positions from there on are not in the tensor


def select(tracer: Tracer, tensor: TracedTensor, index: Any, has_mask: bool = False) -> Selection:
    """The selection of ``tensor[index]``.

    Index tensors: if all have one dimension they form a grid, each in its own place; else neighbours broadcast together.
    ``has_mask``: the user says which elements are meant, so that tiles may reach past the end of their dimension.
    """
    items = _complete(tracer, tensor, _flatten(tracer, index))
    together = _broadcasts(items)
    sizes = iter(tensor.meta.shape)
    parts = []
    for item in items:
        size = 1 if item is None else next(sizes)
        parts.append(_Part(None, None, (1,)) if item is None else _part(tracer, item, size, together, has_mask))
        _note_reach(tracer, parts[-1], size)
    tensors = [i for i, part in enumerate(parts) if part.tensor is not None]
    groups = [tensors] if together else [[i] for i in tensors]
    return _arranged(tracer, parts, [g for g in groups if g])


def _note_reach(tracer: Tracer, part: _Part, size: int) -> None:
    """Remembers that the axes in an index run over a dimension of ``size`` elements."""
    if isinstance(part.element, TileIndex):
        axes = {part.element.axis}
    else:
        axes = set() if part.tensor is None else tracer.axes_of(part.tensor.value)
    extent = tracer.hints.decode(size)
    for axis in axes:
        if isinstance(extent, int):
            tracer.reach[axis] = max(extent, tracer.reach.get(axis, 1))


def _broadcasts(items: list[Any]) -> bool:
    """Whether the index tensors among ``items`` broadcast together, as in PyTorch; else they form a grid."""
    at = [i for i, item in enumerate(items) if isinstance(item, TracedTensor) and item.meta.shape]
    return len(at) > 1 and any(len(items[i].meta.shape) > 1 for i in at) and at == list(range(at[0], at[-1] + 1))


def _arranged(tracer: Tracer, parts: list[_Part], groups: list[list[int]]) -> Selection:
    """The parts as one index. Index tensors of different groups get dimensions of their own."""
    shapes = [_common_shape(tracer, [parts[i] for i in group]) for group in groups]
    labels: list[tuple[int, int]] = []  # (part, dimension of it) for each dimension of the program's shape
    for i, part in enumerate(parts):
        if groups and i == groups[0][0]:
            labels.extend((group[0], d) for group, shape in zip(groups, shapes, strict=True) for d in range(len(shape)))
        elif part.tensor is None:
            labels.extend((i, d) for d in range(len(part.shape)))
    before = 0
    total = sum(map(len, shapes))
    for group, shape in zip(groups, shapes, strict=True):
        for i in group:
            part = parts[i]
            assert part.tensor is not None
            part.element = tracer.use(_placed(part.tensor, len(shape), before, total))
        parts[group[0]].shape = shape
        for i in group[1:]:
            parts[i].shape = ()
        before += len(shape)
    seen = [(i, d) for i, part in enumerate(parts) for d in range(len(part.shape))]
    order = tuple(labels.index(label) for label in seen)
    shape = tuple(parts[i].shape[d] for i, d in labels)
    elements = tuple(part.element for part in parts)
    return Selection(elements, shape, order, _in_range(parts, seen), groups[0][0] if groups else None)


def _common_shape(tracer: Tracer, parts: list[_Part]) -> tuple[int, ...]:
    try:
        return broadcast(*(p.shape for p in parts))
    except ValueError as error:
        shapes = " and ".join(tracer.describe(p.tensor) for p in parts if p.tensor is not None)
        raise tracer.error(ShapeMismatch, f"the index tensors do not broadcast: {shapes}") from error


def _placed(tensor: TracedTensor, rank: int, before: int, total: int) -> Any:
    """An index tensor of a group of ``rank`` dimensions with unit dimensions for those of the other groups."""
    own = (1,) * (rank - len(tensor.meta.shape)) + tuple(tensor.meta.shape)
    if total == rank:
        return tensor
    return torch.Tensor.view(tensor, (1,) * before + own + (1,) * (total - before - rank))


def _in_range(parts: list[_Part], seen: list[tuple[int, int]]) -> Any:
    """Which positions of slices lie in the tensor."""
    mask: Any = None
    for i, part in enumerate(parts):
        if part.length is None or part.tensor is None:
            continue
        at = seen.index((i, 0))
        inside = torch.Tensor.view(part.tensor < part.length, (1,) * at + part.shape + (1,) * (len(seen) - at - 1))
        mask = inside if mask is None else mask & inside
    return mask


def _part(tracer: Tracer, item: Any, size: int, together: bool, has_mask: bool) -> _Part:
    """One item of an index, for a dimension of ``size`` elements. ``together``: index tensors broadcast."""
    if isinstance(item, Tile):
        return _tile_part(tracer, item.axis, size, has_mask)
    if isinstance(item, slice):
        return _slice(tracer, item, size)
    if isinstance(item, Dim):
        tracer.refuse("a block size is used as a position", "use tile.begin or tile.index")
    if isinstance(item, bool):
        tracer.refuse("a bool in an index")
    if isinstance(item, int):
        position = item + size if item < 0 else item
        if not 0 <= position < size:
            raise tracer.error(ShapeMismatch, f"index {item} is out of range for a dimension of {size}", f"expected -{size} to {size - 1}")
        return _Part(position)
    if isinstance(item, TracedTensor):
        return _tensor_part(tracer, item, size, together, has_mask)
    if isinstance(item, torch.Tensor):
        tracer.refuse("a tensor from outside of the kernel is used as an index", "pass it as an argument")
    tracer.refuse(f"a {type(item).__name__} in an index", "use tiles, slices, ints or integer tensors")


def _tile_part(tracer: Tracer, axis: int, size: int, has_mask: bool = False) -> _Part:
    """A tile as an index: it must not reach past a dimension of ``size`` elements, or what it reads there would be nothing."""
    info = tracer.axes[tracer.active(axis)]
    end = info.limit if isinstance(info.end, Ref) else info.end
    extent = tracer.hints.decode(size)
    if isinstance(end, int) and isinstance(extent, int) and end > extent:
        if has_mask:
            positions = Tile(tracer, axis).index
            return _Part(None, positions, tuple(positions.meta.shape), size)
        message = f"a tile of a loop that ends at {end} indexes a dimension of {extent}"
        raise tracer.error(ShapeMismatch, message, "the dimensions that one loop tiles must agree; or use extra_mask")
    return _Part(TileIndex(axis), None, (tracer.block_hint(axis),))


def _tensor_part(tracer: Tracer, item: TracedTensor, size: int, together: bool, has_mask: bool) -> _Part:
    if item.dtype in (torch.bool, torch.uint8) or item.dtype.is_floating_point:
        hint = "torch.where(mask, value, 0)" if item.dtype is torch.bool else "convert it with .to(torch.int32)"
        raise tracer.error(DTypeError, f"an index of dtype {str(item.dtype).removeprefix('torch.')}; expected integers", hint)
    if item.origin is not None and item.origin[0] == "index" and not together:  # x[tile.index] is x[tile]
        return _tile_part(tracer, item.origin[1], size, has_mask)
    if item.is_host and not item.is_param:
        if item.meta.shape:
            tracer.refuse(f"a whole {tracer.describe(item)} is used as an index in a tile loop", "subscript it first: x[index[tile]]")
        item = tracer.getitem(item, ())
    if not item.meta.shape:
        return _Part(tracer.use(item))
    return _Part(None, item, tuple(item.meta.shape))


def _slice(tracer: Tracer, item: slice, size: int) -> _Part:
    step = 1 if item.step is None else item.step
    if not isinstance(step, int) or isinstance(step, (Dim, Tile)) or step < 1:
        tracer.refuse("the step of a slice must be a positive constant", "torch.flip turns a dimension round")
    tile = _whole_tile(item)
    if tile is not None:
        return _tile_part(tracer, tile, size)
    ends = (item.start, item.stop)
    if any(isinstance(e, Tile) for e in ends):
        tracer.refuse("a tile is the end of a slice", "use the tile itself, x[tile], or tile.begin and tile.end")
    if any(isinstance(e, TracedTensor) for e in ends):
        return _run_time_slice(tracer, item, step, size)
    if not any(isinstance(e, Dim) for e in ends):
        start, stop, step = item.indices(size)
        length = len(range(start, stop, step))
        return _Part(Span() if length == size else Span(start, start + max(0, stop - start), step), None, (length,))
    first, last = (e.expr if isinstance(e, Dim) else e for e in ends)
    if any(isinstance(e, int) and e < 0 for e in (first, last)) or step != 1:
        tracer.refuse("a slice with a block size at one end and a negative position or a step")
    begin: Expr = 0 if first is None else first
    stop_expr: Expr = binary("min", size, last) if last is not None else size
    return _Part(Span(begin, stop_expr, 1), None, (tracer.hints.encode(binary("-", stop_expr, begin)),))


def _run_time_slice(tracer: Tracer, item: slice, step: int, size: int) -> _Part:
    """A slice that begins where only the device knows; its length must be known. What reaches past the end reads as 0."""
    start, stop = (0 if item.start is None else item.start), (size if item.stop is None else item.stop)
    first = affine.linear(tracer, start)
    length = affine.as_expr(affine.minus(affine.linear(tracer, stop), first))
    if length is None:
        hint = "give it a length: x[start : start + 64]; or use an inner hl.tile(begin, end)"
        tracer.refuse("a slice whose length is known only on the device", hint)
    length = binary("//", binary("+", length, step - 1), step)
    multiple = affine.tile_multiple(first) if step == 1 else None
    if multiple is not None:
        axis, factor, offset = multiple
        whole = tracer.dim(binary("*", tracer.block_expr(axis), factor))
        if not affine.minus(affine.linear(tracer, tracer.dim(length)), affine.linear(tracer, whole)):
            return _tile_slice(tracer, axis, factor, offset, size)
    positions: Any = torch.arange(tracer.dim(length), dtype=torch.int32)
    positions = start + (positions * step if step > 1 else positions)
    return _Part(None, positions, tuple(positions.meta.shape), size)


def _tile_slice(tracer: Tracer, axis: int, factor: int, offset: int, size: int) -> _Part:
    """``x[tile.begin * factor + offset :][: tile.block_size * factor]``: ``factor`` elements for each of the tile."""
    info = tracer.axes[tracer.active(axis)]
    end = info.limit if isinstance(info.end, Ref) else info.end
    inside = isinstance(end, int) and end * factor + offset <= size and offset >= 0
    if inside and (factor, offset) == (1, 0):
        return _tile_part(tracer, axis, size)
    positions = Tile(tracer, axis).index
    if factor > 1:
        positions = positions[:, None] * factor + torch.arange(factor, dtype=torch.int32)[None, :]
        positions = positions.reshape(tracer.dim(binary("*", tracer.block_expr(axis), factor)))
    positions = positions + offset if offset else positions
    return _Part(None, positions, tuple(positions.meta.shape), None if inside else size)


def _whole_tile(item: slice) -> int | None:
    """The axis whose tile ``tile.begin:tile.end`` is."""
    ends = (item.start, item.stop)
    if item.step not in (None, 1) or not all(isinstance(e, TracedTensor) and e.origin for e in ends):
        return None
    (first, axis), (last, other) = ends[0].origin, ends[1].origin
    return axis if (first, last) == ("begin", "end") and axis == other else None


def _flatten(tracer: Tracer, index: Any) -> list[Any]:
    """An index as a list; tuples of tiles (the variable of an n-dimensional loop) are spread."""
    items: list[Any] = []
    for item in index if isinstance(index, (tuple, list)) else (index,):
        if isinstance(item, (tuple, list)):
            if not all(isinstance(i, Tile) for i in item):
                tracer.refuse("a list in an index", "use tiles, slices, ints or integer tensors")
            items.extend(item)
        else:
            items.append(item)
    return items


def _complete(tracer: Tracer, tensor: TracedTensor, items: list[Any]) -> list[Any]:
    """``items`` with the Ellipsis, or the end, filled up with whole dimensions."""
    rank = len(tensor.meta.shape)
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    given = sum(item is not None and item is not Ellipsis for item in items)
    if given > rank or len(dots) > 1:
        hint = "one index for each dimension, one '...' at most"
        raise tracer.error(ShapeMismatch, f"{given} indices for a {tracer.describe(tensor)}", hint)
    at = dots[0] if dots else len(items)
    return [*items[:at], *[slice(None)] * (rank - given), *items[at + 1 :]]


def plain_index(tracer: Tracer, index: Any) -> Any:
    """An index of something that is no host tensor in device code: PyTorch's own views; no tiles in it."""
    for item in index if isinstance(index, tuple) else (index,):
        if isinstance(item, (Tile, tuple)):
            what = "a value that is already a tile" if tracer.in_device else "a tensor outside of the tile loop"
            tracer.refuse(f"a tile indexes {what}", "index the whole tensor with it" if tracer.in_device else "move it into the loop")
    return index
