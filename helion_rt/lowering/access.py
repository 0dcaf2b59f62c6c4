"""Loads and stores: the subscript of a window that an index stands for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..program.expr import BinExpr, Block, evaluate
from ..program.ir import Arg, Op, Ref, Span, TileIndex
from .layout import Form, phys_shape
from .ops import Operand, dtype_text, literal
from .plan import DimKind, WindowDim
from .plan import Operand as WindowOperand
from .writer import KernelWriter


@dataclass(frozen=True)
class Subscript:
    """The text of a subscript, the physical shape it gives, and the axis of each of its dimensions that is a tile."""

    text: str
    sizes: tuple[int, ...]
    tiles: tuple[tuple[int, int, int], ...]  # (physical dimension, axis, extent of the tensor there)
    gather: tuple[int, Ref] | None  # (dimension among those that are kept, indices)
    kept: tuple[int, ...]  # logical shape before the gather


def subscript(w: KernelWriter, operand: WindowOperand, index: tuple[Arg, ...]) -> Subscript:
    pieces: list[str] = []
    sizes: list[int] = []
    kept: list[int] = []
    tiles: list[tuple[int, int, int]] = []
    gather = None
    assert operand.window is not None
    window = operand.window[len(operand.window) - sum(e is not None for e in index) :]
    if len(window) < len(operand.window):
        pieces, sizes = [":"], [1]
    extents = operand.shape[len(operand.shape) - len(window) :]
    dims = iter(zip(window, extents, strict=True))
    for element in index:
        if element is None:
            kept.append(1)
            continue
        dim, extent = next(dims)
        if isinstance(element, TileIndex):
            tiles.append((len(sizes), element.axis, extent))
        if isinstance(element, Ref) and w.shape(element.id):
            gather = (len(kept), element)
            kept.append(extent)
            pieces.append(":" if dim.size == extent else f"0:{extent}")
            sizes.append(extent)
            continue
        if isinstance(element, (TileIndex, Span)):
            piece, size = _range(w, element, dim, extent)
            kept.append(size)
        else:
            piece, size = _position(w, element, dim, extent), 1
        if dim.kind is not DimKind.POINT:
            pieces.append(piece)
            sizes.append(size)
    text = "..." if all(p == ":" for p in pieces) else ", ".join(pieces)
    return Subscript(text, tuple(sizes), tuple(tiles), gather, tuple(kept))


def _range(w: KernelWriter, element: TileIndex | Span, dim: WindowDim, extent: int) -> tuple[str, int]:
    if isinstance(element, Span):
        if element == Span():
            return ":" if dim.size == extent else f"0:{extent}", extent
        first, last = (None if x is None else evaluate(x, w.plan.blocks) for x in (element.start, element.stop))
        start, stop, step = slice(first, last, element.step).indices(extent)
        stop = max(start, stop)
        return f"{start}:{stop}" + (f":{step}" if step != 1 else ""), -(-(stop - start) // step)
    size = w.block(element.axis)
    if dim.kind is DimKind.BLOCKED:
        return ":", size
    at = w.positions[element.axis]
    if at.begin.isdigit():
        start = int(at.begin)
        return (":" if start == 0 and size == dim.size else f"{start}:{start + size}"), size
    return f"pl.ds({at.begin if at.static else _aligned(w, element.axis, at.begin)}, {size})", size


def _aligned(w: KernelWriter, axis: int, begin: str) -> str:
    """A traced start, with what is known of its divisibility: the compiler needs it to slice tiles."""
    size, first = w.block(axis), w.program.axes[axis].begin
    if size > 1 and not isinstance(first, Ref) and evaluate(first, w.plan.blocks) % size == 0:
        return f"pl.multiple_of({begin}, {size})"
    return begin


def _position(w: KernelWriter, element: Arg, dim: WindowDim, extent: int) -> str:
    if dim.size == 1 and dim.kind is not DimKind.WHOLE:
        return ":"
    if isinstance(element, Ref):
        op = w.defs.get(element.id)
        if op is None or op.name not in ("hl.tile_begin", "hl.tile_id"):
            return f"pl.ds({_wrapped(w.value(element, Form.ROW), extent)}, 1)"
        at = w.positions[w.axis_of(op)]
        text = at.begin if op.name == "hl.tile_begin" else at.id
        return f"{text}:{int(text) + 1}" if text.isdigit() else f"pl.ds({text}, 1)"
    assert isinstance(element, (int, Block, BinExpr))
    at = evaluate(element, w.plan.blocks)
    at = at + extent if at < 0 else at
    return f"{at}:{at + 1}"


def _wrapped(position: str, extent: int) -> str:
    """A position that data gives, by PyTorch's rule: negative ones count from the end. Never outside of the tensor."""
    return f"jnp.clip(jnp.where({position} < 0, {position} + {extent}, {position}), 0, {extent - 1})"


def write_load(w: KernelWriter, op: Op) -> None:
    tensor, index = op.args[0], op.args[1]
    assert isinstance(tensor, Ref) and isinstance(index, tuple)
    operand, result = w.launch.by_access[id(op)], op.results[0]
    dtype = w.type(result).dtype
    if operand.window is None:
        text = f"{operand.name}[0]"
        wide = dtype in ("float32", "int32")
        w.assign((result, Form.ROW), "scalar", text if wide else f"{text}.astype({dtype_text(dtype)})")
        return
    at = subscript(w, operand, index)
    shape = w.shape(result)
    phys = phys_shape(shape, Form.ROW)
    text = f"{operand.name}[{at.text}]"
    if at.gather is not None:
        dim, ref = at.gather
        indices: Operand = w.masked(ref, Form.ROW, range(len(w.shape(ref.id))), "0")
        text = f"{text}.reshape({at.kept})" if at.sizes != at.kept else text
        positions = _wrapped(indices.text, at.kept[dim])
        text = f"jnp.take({text}, {positions}.reshape({indices.shape}), axis={dim}, mode='clip').reshape({phys})"
    elif at.sizes != phys:
        text = f"{text}.reshape({phys})"
    w.assign((result, Form.ROW), "load", text)


def write_store(w: KernelWriter, op: Op) -> None:
    tensor, index, value = op.args[:3]
    assert isinstance(tensor, Ref) and isinstance(index, tuple)
    operand = w.launch.by_access[id(op)]
    at = subscript(w, operand, index)
    if at.gather is not None:
        raise w.error("storing through an index tensor is not supported yet", op)
    dtype = operand.dtype
    if isinstance(value, Ref):
        _check_same_tiles(w, op, value, at)
    text = _stored_value(w, value, at, dtype)
    partial = [(d, axis) for d, axis, extent in at.tiles if w.plan.ragged(axis) and not _ends_at(w, axis, extent)]
    if partial:
        text = w.mask(text, f"{operand.name}[{at.text}]", partial)
    w.out.add(f"{operand.name}[{at.text}] = {text}")


def _check_same_tiles(w: KernelWriter, op: Op, value: Ref, at: Subscript) -> None:
    """Raises ``PlanError`` if elements that ``value`` does not have would be stored: the ragged tile of another axis."""
    own = {axis for _, axis, _ in at.tiles}
    if any(axis not in own for axes in w.tags.get(value.id, ()) for axis in axes):
        raise w.error("a ragged tile of one axis is stored at the tile of another, or at a slice", op)


def _ends_at(w: KernelWriter, axis: int, extent: int) -> bool:
    end: Any = w.program.axes[axis].end
    return not isinstance(end, Ref) and evaluate(end, w.plan.blocks) == extent


def _stored_value(w: KernelWriter, value: Arg, at: Subscript, dtype: str) -> str:
    if not isinstance(value, Ref):
        return f"jnp.full({at.sizes}, {literal(value, dtype)}, {dtype_text(dtype)})"
    shape = w.shape(value.id)
    own = w.forms.get(value.id, Form.ROW)
    candidates = (Form.ROW, Form.COLUMN) if own is Form.FLEXIBLE else (own, Form.ROW)
    form = next((f for f in candidates if shape and phys_shape(shape, f) == at.sizes), Form.ROW)
    operand: Operand = w.operand(value, form)
    text = operand.cast(dtype)
    if not shape:
        return f"jnp.full({at.sizes}, {text}, {dtype_text(dtype)})"
    if shape != at.kept:
        target = phys_shape(at.kept, Form.ROW)
        text = f"jnp.broadcast_to({text}, {target})"
        return text if target == at.sizes else f"{text}.reshape({at.sizes})"
    return text if operand.phys == at.sizes else f"{text}.reshape({at.sizes})"
