"""Loads, stores and atomics: the subscript of a window that an index stands for, and what is done there."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..program.expr import BinExpr, Block, evaluate
from ..program.ir import Arg, Op, Ref, Span, TileIndex, refs_in, walk
from ..program.regions import reads_of
from .layout import Form, phys_shape
from .masks import Tag
from .memory import SCATTERS, Memory, common_shape, memory_of
from .ops import FLOATS, ITEMSIZE, LOW_PRECISION, Operand, dtype_text, literal, reshaped
from .plan import DimKind, WindowDim
from .plan import Operand as WindowOperand
from .unaligned import Shift, slice_text, sliced_tiles, unit_of
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


def subscript(w: KernelWriter, operand: WindowOperand, index: tuple[Arg, ...]) -> Subscript:
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
    for element in index:
        if element is None:
            kept.append(1)
            places.append(None)
            continue
        dim, extent = next(dims)
        if isinstance(element, TileIndex):
            tiles.append((len(kept), element.axis, extent))
        if isinstance(element, Ref) and w.shape(element.id):
            gathers.append((len(kept), element))
            piece, size = (":" if dim.size == extent else f"0:{extent}"), extent
        elif isinstance(element, (TileIndex, Span)):
            piece, size = _range(w, element, dim, extent)
        else:
            piece, size = _position(w, element, dim, extent), 1
            if isinstance(element, Ref) and not _stays_inside(w, element, extent):
                points.append((element, extent))
        if size == 1 and piece.startswith("pl.ds("):
            data = isinstance(element, Ref) and not _stays_inside(w, element, extent)
            singles.append((len(sizes), w.value(element, Form.ROW) if data else piece[len("pl.ds(") : -len(", 1)")], extent))
        if isinstance(element, (TileIndex, Span)) or (gathers and gathers[-1][1] is element):
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


def _stays_inside(w: KernelWriter, position: Ref, extent: int) -> bool:
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
        return ":", size
    begin = _tile_begin(w, element.axis, dim.size)
    if begin.isdigit():
        start = int(begin)
        return (":" if start == 0 and size == dim.size else f"{start}:{start + size}"), size
    return f"pl.ds({begin if w.positions[element.axis].static else _aligned(w, element.axis, begin)}, {size})", size


def _tile_begin(w: KernelWriter, axis: int, held: int) -> str:
    """Where the tile begins in a window of ``held`` elements."""
    begin, size, first = w.positions[axis].begin, w.block(axis), w.program.axes[axis].begin
    if not _may_be_outside(w, axis):
        return begin
    if isinstance(first, Ref):
        return f"jnp.clip({begin}, 0, {held - size})"
    start = evaluate(first, w.plan.blocks)
    last = start + (held - size - start) // size * size
    return str(start) if last == start else f"jnp.clip({begin}, {start}, {last})"


def _shift(w: KernelWriter, operand: WindowOperand, index: tuple[Arg, ...], at: Subscript) -> Shift | None:
    """The slice that a TPU cannot do as it is. Raises ``PlanError`` if there are two, or one beside positions of index tensors."""
    assert operand.window is not None
    found = []
    for dim, axis in sliced_tiles(index, operand.window) if w.plan.target.is_tpu else ():
        unit, place = unit_of(dim, len(at.sizes), operand.dtype), w.positions[axis]
        window = [d for d in operand.window if d.kind is not DimKind.POINT][dim]
        begin = _tile_begin(w, axis, window.size)
        if not place.static and not begin.isdigit() and not w.launch.windows.is_aligned(axis, unit):
            found.append(Shift(dim, begin, w.block(axis), unit))
    if len(found) > 1 or (found and at.one_by_one):
        raise w.error("a tile that begins anywhere along two of the last dimensions at once, or beside single positions")
    return found[0] if found else None


def _held(operand: WindowOperand, at: Subscript, shift: Shift | None) -> str:
    """What is in the window at ``at``."""
    return f"{operand.name}[{at.text}]" if shift is None else f"_cut({shift.arguments(operand.name, at.pieces)})"


def _put_back(operand: WindowOperand, at: Subscript, shift: Shift | None, text: str) -> str:
    """The statement that writes ``text`` there."""
    return f"{operand.name}[{at.text}] = {text}" if shift is None else f"_paste({shift.arguments(operand.name, at.pieces)}, {text})"


def _may_be_outside(w: KernelWriter, axis: int) -> bool:
    """Whether nothing is known of where the tiles of ``axis`` are: data says where it begins or ends."""
    info = w.program.axes[axis]
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
        if not _stays_inside(w, element, extent):
            return f"pl.ds({_wrapped(w.value(element, Form.ROW), extent)}, 1)"
        text = _point(w, element)
        return f"{text}:{int(text) + 1}" if text.isdigit() else f"pl.ds({text}, 1)"
    assert isinstance(element, (int, Block, BinExpr))
    at = evaluate(element, w.plan.blocks)
    at = at + extent if at < 0 else at
    return f"{at}:{at + 1}"


def _point(w: KernelWriter, position: Ref) -> str:
    """The begin, or the number, of a tile."""
    op = w.defs[position.id]
    at = w.positions[w.axis_of(op)]
    return at.begin if op.name == "hl.tile_begin" else at.id


def _wrapped(position: str, extent: int) -> str:
    """A position that data gives, by PyTorch's rule: negative ones count from the end. Never outside of the tensor."""
    return f"jnp.clip(jnp.where({position} < 0, {position} + {extent}, {position}), 0, {extent - 1})"


# ------------------------------------------------------------------------------------------------ loads


def write_load(w: KernelWriter, op: Op) -> None:
    memory, result = _memory(op), op.results[0]
    operand = w.launch.by_access[id(op)]
    dtype = w.type(result).dtype
    if operand.window is None:
        text = f"{operand.name}[{_flat_position(w, memory)}]"
        text = f"({text} != 0)" if dtype == "bool" else text if dtype in ("float32", "int32") else f"{text}.astype({dtype_text(dtype)})"
        _bind_loaded(w, op, memory, "scalar", text, ())
        return
    at = subscript(w, operand, memory.index)
    shift = _shift(w, operand, memory.index, at)
    text, have = _held(operand, at, shift), at.sizes
    if at.one_by_one and w.plan.target.is_tpu:
        text, have = f"_take_each({_each_place(w, operand, at)})", phys_shape(at.shape, Form.ROW)
    elif at.gathers:
        text = text if at.sizes == at.kept else f"{text}.reshape({at.kept})"
        text, have = f"_take({text}, {_dims(at)}, {', '.join(_positions(w, at))})", at.shape
    _bind_loaded(w, op, memory, "load", text, have)


def _flat_position(w: KernelWriter, memory: Memory) -> str:
    """Where an element is in a tensor that is in SMEM, which has one dimension there."""
    shape = w.shape(memory.tensor.id)
    terms = []
    for d, (element, extent) in enumerate(zip(memory.index, shape, strict=True)):
        stride = math.prod(shape[d + 1 :])
        if isinstance(element, Ref):
            text = _point(w, element) if _stays_inside(w, element, extent) else _wrapped(w.value(element, Form.ROW), extent)
            terms.append(text if stride == 1 else f"({text}) * {stride}")
        else:
            assert isinstance(element, (int, Block, BinExpr))
            at = evaluate(element, w.plan.blocks)
            terms.append(str((at + extent if at < 0 else at) * stride))
    return " + ".join(terms) or "0"


def _bind_loaded(w: KernelWriter, op: Op, memory: Memory, stem: str, text: str, have: tuple[int, ...]) -> None:
    """Binds what an access gives, of shape ``have``; 0 where its mask does not hold."""
    result = op.results[0]
    shape = w.shape(result)
    phys = phys_shape(shape, Form.ROW)
    if have != phys:
        text = f"{text}.reshape({phys})"
    if memory.mask is not None:
        dtype = w.type(result).dtype
        text = f"jnp.where({w.operand(memory.mask, Form.ROW).text}, {text}, {literal(False if dtype == 'bool' else 0, dtype)})"
    w.assign((result, Form.ROW), stem, text)


def _memory(op: Op) -> Memory:
    memory = memory_of(op)
    assert memory is not None
    return memory


def _dims(at: Subscript) -> tuple[int, ...]:
    return tuple(d for d, _ in at.gathers)


def _positions(w: KernelWriter, at: Subscript) -> list[str]:
    """Index tensors as text, in their logical shapes."""
    operands: list[Operand] = [w.operand(ref, Form.ROW) for _, ref in at.gathers]
    return [o.text if o.phys == o.shape else f"{o.text}.reshape({o.shape})" for o in operands]


# ------------------------------------------------------------------------------------------------ stores


def write_store(w: KernelWriter, op: Op) -> None:
    memory, operand = _memory(op), w.launch.by_access[id(op)]
    at = subscript(w, operand, memory.index)
    target, shift = f"{operand.name}[{at.text}]", _shift(w, operand, memory.index, at)
    if at.one_by_one and w.plan.target.is_tpu:
        _write_each(w, memory, operand, at, "lambda held, new: new", read=False)
        return
    if at.gathers:
        held = target if at.sizes == at.kept else f"{target}.reshape({at.kept})"
        value = _selected_value(w, memory.value, at, operand.dtype)
        _assign_put(w, target, at, f"_put({held}, {_dims(at)}, {_tuple(_positions(w, at))}, {value}{_keep(w, memory, at, ', ')})")
        return
    text = _stored_value(w, memory.value, at, operand.dtype)
    w.out.add(_put_back(operand, at, shift, _kept(w, memory, at, text, _held(operand, at, shift))))


def _assign_put(w: KernelWriter, target: str, at: Subscript, text: str) -> None:
    w.out.add(f"{target} = {text}" if at.sizes == at.kept else f"{target} = {text}.reshape({at.sizes})")


def _bounds(w: KernelWriter, memory: Memory, at: Subscript) -> list[tuple[int, Tag]]:
    """(dimension of what is selected, what bounds it): where elements that do not exist would reach elements of the tensor.

    A tile's own elements past the end of the tensor are dropped by the window; all others have to be left out: those past
    the end of a tile inside the tensor, and those that an index tensor, the value or the mask does not have.
    """
    own = {(d, Tag(axis)) for d, axis, _ in at.tiles}
    found = {(d, Tag(axis)): None for d, axis, extent in at.tiles if w.plan.ragged(axis) and not _ends_at(w, axis, extent)}
    rank = len(at.shape)
    last = at.gathers[0][0] + len(at.common) if at.gathers else rank
    parts = [(ref, last) for _, ref in at.gathers]
    parts += [(x, rank) for x in (memory.value, memory.mask, memory.expected) if isinstance(x, Ref)]
    for ref, end in parts:
        tags = w.tags.get(ref.id, ())
        for d, bounds in enumerate(tags, end - len(tags)):
            found.update({(d, tag): None for tag in sorted(bounds) if (d, tag) not in own and at.shape[d] > 1})
    return list(found)


def _ends_at(w: KernelWriter, axis: int, extent: int) -> bool:
    end: Any = w.program.axes[axis].end
    return not isinstance(end, Ref) and evaluate(end, w.plan.blocks) == extent


def _inside(w: KernelWriter, at: Subscript) -> list[str]:
    """Tests that single positions which data gives are inside of the tensor."""
    texts = [(w.value(ref, Form.ROW), extent) for ref, extent in at.points]
    tests = [f"({text} >= {-extent}) & ({text} < {extent})" for text, extent in texts]
    begins = [(w.positions[axis].begin, extent) for _, axis, extent in at.tiles if _may_be_outside(w, axis)]
    return tests + [f"({begin} >= 0) & ({begin} < {extent})" for begin, extent in begins]


def _kept(w: KernelWriter, memory: Memory, at: Subscript, text: str, held: str) -> str:
    """``text`` (of physical shape ``at.sizes``), but what the window holds where nothing may be stored."""
    for test in _inside(w, at):
        text = f"jnp.where({test}, {text}, {held})"
    if memory.mask is not None:
        text = f"jnp.where({_stored_value(w, memory.mask, at, 'bool')}, {text}, {held})"
    bounds = [(place, tag) for d, tag in _bounds(w, memory, at) if (place := at.places[d]) is not None]
    return w.mask(text, held, bounds) if bounds else text


def _keep(w: KernelWriter, memory: Memory, at: Subscript, before: str) -> str:
    """Which elements are stored, in the logical shape of what is selected (1 where it makes no difference); empty if all are."""
    rank = len(at.shape)
    tests = [] if w.plan.target.is_tpu else [f"jnp.reshape({test}, {(1,) * rank})" for test in _inside(w, at)]
    if memory.mask is not None:
        mask: Operand = w.operand(memory.mask, Form.ROW)
        shape = (1,) * (rank - len(mask.shape)) + mask.shape
        tests.append(mask.text if mask.phys == shape else reshaped(mask.text, "bool", shape))
    bounds = _bounds(w, memory, at)
    if bounds:
        shape = tuple(n if any(d == dim for dim, _ in bounds) else 1 for d, n in enumerate(at.shape))
        texts = [f"({d}, {', '.join(w.bound(tag))})" for d, tag in bounds]
        tests.append(f"_exist({shape}, {', '.join(texts)})")
    return before + " & ".join(tests if len(tests) == 1 else [f"({t})" for t in tests]) if tests else ""


def _selected_value(w: KernelWriter, value: Arg, at: Subscript, dtype: str) -> str:
    """A value in the logical shape of what is selected."""
    if not isinstance(value, Ref):
        return f"jnp.full({at.shape}, {literal(value, dtype)}, {dtype_text(dtype)})"
    operand: Operand = w.operand(value, Form.ROW)
    text = operand.cast(dtype) if operand.shape == operand.phys else f"{operand.cast(dtype)}.reshape({operand.shape})"
    return text if operand.shape == at.shape else f"jnp.broadcast_to({text}, {at.shape})"


def _stored_value(w: KernelWriter, value: Arg, at: Subscript, dtype: str) -> str:
    """A value in the physical shape of the subscript."""
    if not isinstance(value, Ref):
        return f"jnp.full({at.sizes}, {literal(value, dtype)}, {dtype_text(dtype)})"
    shape = w.shape(value.id)
    own = w.forms.get(value.id, Form.ROW)
    candidates = (Form.ROW, Form.COLUMN) if own is Form.FLEXIBLE else (own, Form.ROW)
    form = next((f for f in candidates if shape and phys_shape(shape, f) == at.sizes), Form.ROW)
    operand: Operand = w.operand(value, form)
    text = operand.cast(dtype)
    if dtype == "bool" and w.plan.target.is_tpu and operand.phys != at.sizes:  # Mosaic moves no masks: they go as integers
        return f"({_laid_out(f'jnp.where({text}, 1, 0)', operand, at, 'int32')} != 0)"
    return _laid_out(text, operand, at, dtype)


def _laid_out(text: str, operand: Operand, at: Subscript, dtype: str) -> str:
    """``text``, of the shape of ``operand``, in the physical shape of the subscript."""
    shape = operand.shape
    if not shape:
        return f"jnp.full({at.sizes}, {text}, {dtype_text(dtype)})"
    if shape != at.kept:
        target = phys_shape(at.kept, Form.ROW)
        text = f"jnp.broadcast_to({text}, {target})"
        return text if target == at.sizes else f"{text}.reshape({at.sizes})"
    return text if operand.phys == at.sizes else f"{text}.reshape({at.sizes})"


# ------------------------------------------------------------------------------------------------ atomics

COMBINE = {
    "add": "{0} + {1}", "max": "jnp.maximum({0}, {1})", "min": "jnp.minimum({0}, {1})", "and": "{0} & {1}", "or": "{0} | {1}",
    "xor": "{0} ^ {1}", "xchg": "{1}", "cas": "jnp.where({0} == {2}, {1}, {0})",
}  # fmt: skip


def write_atomic(w: KernelWriter, op: Op) -> None:
    """A core runs its steps one after the other, so an atomic is a load, a combination and a store."""
    memory, operand = _memory(op), w.launch.by_access[id(op)]
    assert memory.kind is not None
    at = subscript(w, operand, memory.index)
    target, shift = f"{operand.name}[{at.text}]", _shift(w, operand, memory.index, at)
    if at.one_by_one and w.plan.target.is_tpu:
        names = ["a", "b"] if memory.kind == "cas" else ["a"]
        change = f"lambda held, {', '.join(names)}: {COMBINE[memory.kind].format('held', *names)}"
        before = _write_each(w, memory, operand, at, change, read=_is_read(w, op.results[0]))
        if before:
            _bind_loaded(w, op, memory, "before", before, phys_shape(at.shape, Form.ROW))
        return
    held = w.name("held")
    w.out.add(f"{held} = {_held(operand, at, shift)}{'' if at.sizes == at.kept or not at.gathers else f'.reshape({at.kept})'}")
    values = [memory.value] if memory.kind != "cas" else [memory.value, memory.expected]
    if not at.gathers:
        texts = [_stored_value(w, x, at, operand.dtype) for x in values]
        new = COMBINE[memory.kind].format(held, *texts)
        w.out.add(_put_back(operand, at, shift, _kept(w, memory, at, new, held)))
        if _is_read(w, op.results[0]):
            _bind_loaded(w, op, memory, "before", held, at.sizes)
        return
    where = f"{_dims(at)}, {_tuple(_positions(w, at))}"
    if memory.kind in SCATTERS and not _is_read(w, op.results[0]):
        value, keep = _selected_value(w, memory.value, at, operand.dtype), _keep(w, memory, at, ", ") or ", None"
        _assign_put(w, target, at, f'_put({held}, {where}, {value}{keep}, "{SCATTERS[memory.kind]}")')
        return
    # What each position held before its turn is asked for, or JAX has no scatter that combines so: one after the other.
    narrow = memory.kind == "add" and operand.dtype in LOW_PRECISION  # summed in float32, rounded once
    texts = [_selected_value(w, x, at, "float32" if narrow else operand.dtype) for x in values]
    new, before, names = w.name("new"), w.name("before"), ["a", "b"][: len(texts)]
    change = f"lambda held, {', '.join(names)}: {COMBINE[memory.kind].format('held', *names)}"
    held = f"{held}.astype(jnp.float32)" if narrow else held
    w.out.add(f"{new}, {before} = _each({held}, {where}, {_tuple(texts)}, {_keep(w, memory, at, '') or True}, {change})")
    back = f".astype({dtype_text(operand.dtype)})" if narrow else ""
    _assign_put(w, target, at, new + back)
    if _is_read(w, op.results[0]):
        _bind_loaded(w, op, memory, "before", before + back, at.shape)


def _is_read(w: KernelWriter, value: int) -> bool:
    region = w.launch.op.regions[0]
    found = [r for op in walk(region) for r in reads_of(op, w.program.axes)]
    found += [r for op in walk(region) for inner in op.regions for r in refs_in(inner.results)]
    return any(r.id == value for r in found)


def _tuple(items: list[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


# ------------------------------------------------------------------------------------------------ one position after the other


def _each_place(w: KernelWriter, operand: WindowOperand, at: Subscript, values: str = "") -> str:
    """The arguments of ``_take_each`` and ``_put_each`` (see ``memory_tpu_source``); ``values`` come after the positions."""
    phys = phys_shape(at.shape, Form.ROW)
    positions: list[Operand] = [w.operand(ref, Form.ROW) for _, ref in at.gathers]
    where = [(place, at.kept[d], p.text) for (d, _), p in zip(at.gathers, positions, strict=True) if (place := at.places[d]) is not None]
    where += [(d, extent, text) for d, text, extent in at.singles]
    dims, extents, texts = zip(*where, strict=True)
    index = _tuple([slice_text(piece) for piece in at.pieces])
    first = at.gathers[0][0] + len(phys) - len(at.shape) if at.gathers else 0
    return f"{operand.name}, {index}, {dims}, {extents}, {_tuple(list(texts))}{values}, {phys}, {first}, {len(at.common)}"


def _write_each(w: KernelWriter, memory: Memory, operand: WindowOperand, at: Subscript, change: str, *, read: bool) -> str:
    """Writes the elements one after the other; the name of what they held before, if that is ``read``."""
    phys = phys_shape(at.shape, Form.ROW)
    dtype = operand.dtype
    wide = dtype if ITEMSIZE[dtype] == 4 else "float32" if dtype in FLOATS else "int32"

    def spread(x: Arg) -> str:
        if not isinstance(x, Ref):
            return f"jnp.full({phys}, {literal(x, dtype)}, {dtype_text(wide)})"
        value: Operand = w.operand(x, Form.ROW)
        if not value.shape:
            return f"jnp.full({phys}, {value.cast(wide)}, {dtype_text(wide)})"
        text = value.cast(wide) if ITEMSIZE[value.dtype] == 4 else f"{value.cast(dtype)}.astype({dtype_text(wide)})"
        return text if value.phys == phys else f"jnp.broadcast_to({text}, {phys})"

    given = [memory.value] if memory.kind != "cas" else [memory.value, memory.expected]
    keep = _keep(w, memory, at, "")
    if keep:
        keep = f"jnp.broadcast_to(jnp.where({keep}, 1, 0), {at.shape})"
        keep = keep if at.shape == phys else f"{keep}.reshape({phys})"
    values = f", {_tuple([spread(x) for x in given])}, {keep or None}"
    text = f"_put_each({_each_place(w, operand, at, values)}, {change}, {read})"
    if not read:
        w.out.add(text)
        return ""
    before = w.name("before")
    w.out.add(f"{before} = {text}")
    return before
