"""The subscript of a window that an index stands for."""

from __future__ import annotations

from dataclasses import dataclass

from ..program.expr import BinExpr, Block, evaluate
from ..program.ir import Arg, Ref, Span, TileIndex
from .layout import Form
from .memory import Memory, common_shape
from .plan import DimKind, WindowDim
from .plan import Operand as WindowOperand
from .scaled import ScaledTile
from .unaligned import Shift, sliced_tiles, unit_of
from .writer import KernelWriter


@dataclass(frozen=True)
class Subscript:
    """The text of a subscript of a window, and what it selects.

    ``kept`` is the logical shape before index tensors are applied: dimensions that a position selects are dropped, those that
    index tensors index are whole. ``places`` says for each of them which dimension of ``sizes`` it is (None: a new one).
    """

    text: str
    pieces: tuple[str, ...]  # the text of each of its dimensions
    sizes: tuple[int, ...]  # physical shape
    kept: tuple[int, ...]
    places: tuple[int | None, ...]
    tiles: tuple[tuple[int, int, int], ...]  # (dimension of what is selected, axis, extent of the tensor there)
    gathers: tuple[tuple[int, Ref], ...]  # (dimension of ``kept``, positions), in order
    common: tuple[int, ...]  # the shape of all positions
    points: tuple[tuple[Ref, int], ...]  # single positions that may be outside, and the extent of the tensor there
    singles: tuple[tuple[int, str, int], ...]  # (dimension of ``sizes``, position known only at run time, extent)

    @property
    def one_by_one(self) -> bool:
        """Whether Mosaic has no instruction for this: positions that data gives, along the lanes or sublanes or in a vector."""
        return bool(self.gathers) or any(d >= len(self.sizes) - 2 for d, _, _ in self.singles)

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape of what is selected: the common shape takes the place of the first dimension that is indexed."""
        dims = [d for d, _ in self.gathers]
        if not dims:
            return self.kept
        rest = [n for d, n in enumerate(self.kept) if d > dims[0] and d not in dims]
        return (*self.kept[: dims[0]], *self.common, *rest)


def subscript(w: KernelWriter, operand: WindowOperand, memory: Memory) -> Subscript:
    index, scaled = memory.index, w.launch.windows.scaled(memory)
    pieces: list[str] = []
    sizes: list[int] = []
    kept: list[int] = []
    places: list[int | None] = []
    tiles: list[tuple[int, int, int]] = []
    gathers: list[tuple[int, Ref]] = []
    points: list[tuple[Ref, int]] = []
    singles: list[tuple[int, str, int]] = []
    assert operand.window is not None
    window = operand.window[len(operand.window) - sum(e is not None for e in index) :]
    added = len(operand.window) - len(window)
    pieces, sizes = [":"] * added, [1] * added
    extents = operand.shape[len(operand.shape) - len(window) :]
    dims = iter(zip(window, extents, strict=True))
    for n, element in enumerate(index):
        if element is None:
            kept.append(1)
            places.append(None)
            continue
        dim, extent = next(dims)
        if isinstance(element, TileIndex):
            tiles.append((len(kept), element.axis, extent))
        if n in scaled:
            piece, size = _scaled(w, scaled[n], dim)
        elif isinstance(element, Ref) and w.shape(element.id):
            gathers.append((len(kept), element))
            piece, size = (":" if dim.size == extent else f"0:{extent}"), extent
        elif isinstance(element, (TileIndex, Span)):
            piece, size = _range(w, element, dim, extent)
        else:
            piece, size = _position(w, element, dim, extent), 1
            if isinstance(element, Ref) and not stays_inside(w, element, extent):
                points.append((element, extent))
        if size == 1 and n not in scaled and piece.startswith("pl.ds("):
            at = piece[len("pl.ds(") : -len(", 1)")]
            if isinstance(element, Ref) and not stays_inside(w, element, extent):
                at = w.value(element, Form.ROW)  # as it is: whether it is inside is for the store to know
            singles.append((len(sizes), at, extent))
        if isinstance(element, (TileIndex, Span)) or n in scaled or (gathers and gathers[-1][1] is element):
            places.append(len(sizes))
            kept.append(size)
        if dim.kind is not DimKind.POINT:
            pieces.append(piece)
            sizes.append(size)
    text = "..." if all(p == ":" for p in pieces) else ", ".join(pieces)
    common = common_shape([w.shape(ref.id) for _, ref in gathers]) if gathers else ()
    first, taken = (gathers[0][0] if gathers else 0), {d for d, _ in gathers}

    def selected(dim: int) -> int:
        """The dimension of what is selected that dimension ``dim`` of ``kept`` becomes."""
        return dim if not gathers or dim < first else dim + len(common) - sum(d < dim for d in taken)

    return Subscript(text, tuple(pieces), tuple(sizes), tuple(kept), tuple(places), tuple((selected(d), a, n) for d, a, n in tiles),
                     tuple(gathers), common, tuple(points), tuple(singles))  # fmt: skip


def _scaled(w: KernelWriter, tile: ScaledTile, dim: WindowDim) -> tuple[str, int]:
    """The slice of a tile made longer, and its size."""
    size, begin = w.block(tile.axis) * tile.factor, w.positions[tile.axis].begin
    if dim.kind is DimKind.BLOCKED or (begin == "0" and dim.size == size):
        return ":", size
    if begin.isdigit():
        start = int(begin) * tile.factor
        return f"{start}:{start + size}", size
    begin = f"({begin}) * {tile.factor}" if tile.factor != 1 else begin
    return f"pl.ds({begin if w.positions[tile.axis].static else f'pl.multiple_of({begin}, {size})'}, {size})", size


def stays_inside(w: KernelWriter, position: Ref, extent: int) -> bool:
    """Whether a position is the begin, or the number, of a tile that is known to be inside."""
    op = w.defs.get(position.id)
    if op is None or op.name not in ("hl.tile_begin", "hl.tile_id"):
        return False
    axis = w.program.axes[w.axis_of(op)]
    if isinstance(axis.begin, Ref) or (isinstance(axis.end, Ref) and axis.limit is None):
        return False
    begin, end = evaluate(axis.begin, w.plan.blocks), axis.limit if isinstance(axis.end, Ref) else evaluate(axis.end, w.plan.blocks)
    assert end is not None
    if op.name == "hl.tile_id":
        begin, end = 0, -(-(end - begin) // w.block(w.axis_of(op)))
    return begin >= 0 and end <= extent


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
        return (":" if dim.size == size else f"pl.ds({w.positions[element.axis].within} * {size}, {size})"), size
    begin = tile_begin(w, element.axis, dim.size)
    if begin.isdigit():
        start = int(begin)
        return (":" if start == 0 and size == dim.size else f"{start}:{start + size}"), size
    return f"pl.ds({begin if w.positions[element.axis].static else _aligned(w, element.axis, begin)}, {size})", size


def tile_begin(w: KernelWriter, axis: int, held: int) -> str:
    """Where the tile begins in a window of ``held`` elements."""
    begin, size, first = w.positions[axis].begin, w.block(axis), w.program.axes[axis].begin
    if not may_be_outside(w, axis):
        return begin
    if isinstance(first, Ref):
        return f"jnp.clip({begin}, 0, {held - size})"
    start = evaluate(first, w.plan.blocks)
    last = start + (held - size - start) // size * size
    return str(start) if last == start else f"jnp.clip({begin}, {start}, {last})"


def may_be_outside(w: KernelWriter, axis: int) -> bool:
    """Whether nothing is known of where the tiles of ``axis`` are: data says where it begins or ends."""
    info, outer = w.program.axes[axis], w.launch.windows.inside_tile(axis)
    if outer is not None:
        return may_be_outside(w, outer)
    return isinstance(info.begin, Ref) or (isinstance(info.end, Ref) and info.limit is None)


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
        if not stays_inside(w, element, extent):
            return f"pl.ds({wrapped_text(w.value(element, Form.ROW), extent)}, 1)"
        text = point_text(w, element)
        return f"{text}:{int(text) + 1}" if text.isdigit() else f"pl.ds({text}, 1)"
    assert isinstance(element, (int, Block, BinExpr))
    at = evaluate(element, w.plan.blocks)
    at = at + extent if at < 0 else at
    return f"{at}:{at + 1}"


def point_text(w: KernelWriter, position: Ref) -> str:
    """The begin, or the number, of a tile."""
    op = w.defs[position.id]
    at = w.positions[w.axis_of(op)]
    return at.begin if op.name == "hl.tile_begin" else at.id


def wrapped_text(position: str, extent: int) -> str:
    """A position that data gives, by PyTorch's rule: negative ones count from the end. Never outside of the tensor."""
    return f"jnp.clip(jnp.where({position} < 0, {position} + {extent}, {position}), 0, {extent - 1})"


def shift_of(w: KernelWriter, operand: WindowOperand, index: tuple[Arg, ...], at: Subscript) -> Shift | None:
    """The slice that a TPU cannot do as it is. Raises ``PlanError`` if there are two, or one beside positions of index tensors."""
    assert operand.window is not None
    found = []
    for dim, axis in sliced_tiles(index, operand.window) if w.plan.target.is_tpu else ():
        unit, place = unit_of(dim, len(at.sizes), operand.dtype), w.positions[axis]
        window = [d for d in operand.window if d.kind is not DimKind.POINT][dim]
        begin = tile_begin(w, axis, window.size)
        single = w.block(axis) == 1  # one position: see ``Subscript.singles``
        if not single and not place.static and not begin.isdigit() and not w.launch.windows.is_aligned(axis, unit):
            found.append(Shift(dim, begin, w.block(axis), unit))
    if len(found) > 1 or (found and at.one_by_one):
        raise w.error("a tile that begins anywhere along two of the last dimensions at once, or beside single positions")
    return found[0] if found else None


def held_text(operand: WindowOperand, at: Subscript, shift: Shift | None) -> str:
    """What is in the window at ``at``."""
    if operand.flat:
        return f"{operand.name}[...].reshape({at.sizes})"
    return f"{operand.name}[{at.text}]" if shift is None else f"_cut({shift.arguments(operand.name, at.pieces)})"


def put_back(operand: WindowOperand, at: Subscript, shift: Shift | None, text: str) -> str:
    """The statement that writes ``text`` there."""
    return f"{operand.name}[{at.text}] = {text}" if shift is None else f"_paste({shift.arguments(operand.name, at.pieces)}, {text})"
