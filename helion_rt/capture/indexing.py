"""Subscripts of host tensors in device code: ``x[tile, :]`` becomes ``hl.load``, ``out[tile] = v`` becomes ``hl.store``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..exc import DTypeError, ShapeMismatch
from ..program.expr import Expr, binary
from ..program.ir import Arg, Ref, Span, TileIndex
from .hints import Dim
from .shapes import broadcast
from .tensors import TracedTensor
from .tiles import Tile
from .undefined import Undefined

if TYPE_CHECKING:
    from .tracer import Tracer


def load(tracer: Tracer, tensor: TracedTensor, index: Any) -> TracedTensor:
    """``tensor[index]`` as a tile."""
    elements, shape = parse(tracer, tensor, index)
    result = tracer.wrap(tracer.meta(shape, tensor.dtype))
    tracer.emit("hl.load", (tracer.use(tensor), elements), [result])
    tracer.loaded.append(tensor)
    return result


def store(tracer: Tracer, tensor: TracedTensor, index: Any, value: Any) -> None:
    """``tensor[index] = value``; converts to the tensor's dtype."""
    elements, shape = parse(tracer, tensor, index)
    if _gathers(tracer, elements):
        tracer.refuse("storing through an index tensor is not supported yet", "store tiles, and gather when you load: x[index[tile]]")
    if None in elements:
        tracer.refuse("None in the index of a store", "leave it out: the value broadcasts")
    if isinstance(value, Tile):
        value = value.index
    if isinstance(value, TracedTensor):
        value = _fit(tracer, value, tensor, shape)
        stored: Arg = tracer.use(value)
    elif isinstance(value, (bool, int, float)):
        stored = tracer.arg(value)
    elif isinstance(value, Undefined):
        bool(value)  # says why it has no value
    else:
        tracer.refuse(f"a {type(value).__name__} is stored into a tensor", "store a tile or a number")
    tracer.emit("hl.store", (tracer.use(tensor), elements, stored))
    if not any(t is tensor for t in tracer.written):
        tracer.written.append(tensor)


def _fit(tracer: Tracer, value: TracedTensor, tensor: TracedTensor, shape: tuple[int, ...]) -> TracedTensor:
    if value.is_host and not value.is_param:
        if value.meta.shape:
            tracer.refuse(f"a whole {tracer.describe(value)} is stored into a tile", "subscript it first")
        value = load(tracer, value, ())
    try:
        fits = broadcast(value.meta.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        target = ", ".join(str(tracer.hints.decode(n)) for n in shape)
        hint = "both need the same dimensions: reshape or reduce the value"
        raise tracer.error(ShapeMismatch, f"a {tracer.describe(value)} is stored into [{target}]", hint)
    return value if value.dtype == tensor.dtype else tracer.cast(value, tensor.dtype)


def parse(tracer: Tracer, tensor: TracedTensor, index: Any) -> tuple[tuple[Arg, ...], tuple[int, ...]]:
    """The elements of an index as the program has them, and the shape (in hints) of what it selects."""
    items = _complete(tracer, tensor, _flatten(tracer, index))
    elements: list[Arg] = []
    dims: list[int] = []  # of the tensor, after ints have selected and slices have cut
    selectors: list[Any] = []  # what PyTorch's own indexing is asked with, for the shape
    sizes = iter(tensor.meta.shape)
    for item in items:
        if item is None:
            elements.append(None)
            selectors.append(None)
            continue
        element, length, selector = _element(tracer, item, next(sizes))
        elements.append(element)
        if length is not None:
            dims.append(length)
            selectors.append(selector)
    if _gathers(tracer, elements) > 1:
        tracer.refuse("more than one index tensor in a subscript is not supported yet", "index the flattened tensor: x.view(-1)[i * n + j]")
    with torch._C._DisableTorchDispatch():
        try:
            shape = tracer.meta(dims, torch.int8)[tuple(selectors)].shape
        except (IndexError, RuntimeError) as error:
            raise tracer.error(ShapeMismatch, f"the index tensors do not broadcast: {error}") from error
    return tuple(elements), tuple(shape)


def _gathers(tracer: Tracer, elements: list[Arg] | tuple[Arg, ...]) -> int:
    """How many elements of an index are tensors of rank 1 or more."""
    return sum(isinstance(e, Ref) and bool(tracer.types[e.id].shape) for e in elements)


def _element(tracer: Tracer, item: Any, size: int) -> tuple[Arg, int | None, Any]:
    """(element of the program, length of the dimension or None if it goes, index for the shape) for one dimension."""
    if isinstance(item, Tile):
        return _tile_element(tracer, item.axis, size)
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
        return position, None, None
    if isinstance(item, TracedTensor):
        return _tensor_element(tracer, item, size)
    if isinstance(item, torch.Tensor):
        tracer.refuse("a tensor from outside of the kernel is used as an index", "pass it as an argument")
    tracer.refuse(f"a {type(item).__name__} in an index", "use tiles, slices, ints or integer tensors")


def _tile_element(tracer: Tracer, axis: int, size: int) -> tuple[Arg, int, Any]:
    """A tile as an index: it must not reach past a dimension of ``size`` elements, or what it reads there would be nothing."""
    info = tracer.axes[tracer.active(axis)]
    end = info.limit if isinstance(info.end, Ref) else info.end
    extent = tracer.hints.decode(size)
    if isinstance(end, int) and isinstance(extent, int) and end > extent:
        message = f"a tile of a loop that ends at {end} indexes a dimension of {extent}"
        raise tracer.error(ShapeMismatch, message, "the dimensions that one loop tiles must agree")
    return TileIndex(axis), tracer.block_hint(axis), slice(None)


def _tensor_element(tracer: Tracer, item: TracedTensor, size: int) -> tuple[Arg, int | None, Any]:
    if item.dtype in (torch.bool, torch.uint8) or item.dtype.is_floating_point:
        hint = "torch.where(mask, value, 0)" if item.dtype is torch.bool else "convert it with .to(torch.int32)"
        raise tracer.error(DTypeError, f"an index of dtype {str(item.dtype).removeprefix('torch.')}; expected integers", hint)
    if item.origin is not None and item.origin[0] == "index":  # x[tile.index] is x[tile]
        return _tile_element(tracer, item.origin[1], size)
    if item.is_host and not item.is_param:
        if item.meta.shape:
            tracer.refuse(f"a whole {tracer.describe(item)} is used as an index in a tile loop", "subscript it first: x[index[tile]]")
        item = load(tracer, item, ())
    ref = tracer.use(item)
    if not item.meta.shape:
        return ref, None, None
    return ref, size, tracer.meta(item.meta.shape, torch.int64)


def _slice(tracer: Tracer, item: slice, size: int) -> tuple[Arg, int, Any]:
    step = 1 if item.step is None else item.step
    if not isinstance(step, int) or isinstance(step, (Dim, Tile)) or step < 1:
        tracer.refuse("the step of a slice must be a positive constant", "torch.flip turns a dimension round")
    tile = _whole_tile(item)
    if tile is not None:
        return _tile_element(tracer, tile, size)
    ends = (item.start, item.stop)
    if any(isinstance(e, (Tile, TracedTensor)) for e in ends):
        tracer.refuse("a slice whose ends are known only at run time", "use a tile: x[tile], or an inner hl.tile(begin, end)")
    if not any(isinstance(e, Dim) for e in ends):
        start, stop, step = item.indices(size)
        length = len(range(start, stop, step))
        return (Span() if length == size else Span(start, start + max(0, stop - start), step)), length, slice(None)
    first, last = (e.expr if isinstance(e, Dim) else e for e in ends)
    if any(isinstance(e, int) and e < 0 for e in (first, last)) or step != 1:
        tracer.refuse("a slice with a block size at one end and a negative position or a step")
    begin: Expr = 0 if first is None else first
    stop_expr: Expr = binary("min", size, last) if last is not None else size
    return Span(begin, stop_expr, 1), tracer.hints.encode(binary("-", stop_expr, begin)), slice(None)


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
