"""Gathers and scatters where XLA does them: out of, and into, a whole window (see ``memory_source``)."""

from __future__ import annotations

from ..program.expr import evaluate
from ..program.ir import Arg, Ref, TileIndex
from .layout import Form
from .memory import Memory
from .ops import Operand
from .plan import DimKind
from .plan import Operand as WindowOperand
from .stored import keep_text, selected_value
from .subscript import Subscript, may_be_outside
from .writer import KernelWriter


def gathered(w: KernelWriter, operand: WindowOperand, index: tuple[Arg, ...], at: Subscript) -> tuple[str, tuple[int, ...]]:
    """A gather out of a whole window, and its shape: what a tile or a number selects is cut out on the way, not before."""
    dims = tuple(place for d, _ in at.gathers if (place := at.places[d]) is not None)
    first, stepped = dims[0], [piece.count(":") == 2 for piece in at.pieces]
    starts = ["0" if stepped[d] else _start(piece) for d, piece in enumerate(at.pieces)]
    cut = [piece if d in dims else ":" for d, piece in enumerate(at.pieces)]  # room for tiles is none for positions
    window = [at.sizes[d] if d in dims else n for d, n in enumerate(_window_sizes(operand))]
    sizes = tuple(window[d] if stepped[d] else n for d, n in enumerate(at.sizes))
    elements = [e for e in index if e is not None]
    tiles = dict(zip(range(len(window) - len(elements), len(window)), elements, strict=True))
    over = tuple(d for d, e in tiles.items() if isinstance(e, TileIndex) and _reaches(w, e.axis, window[d]))
    where = f", {tuple_text(starts)}, {sizes}, {over}" if sizes != tuple(window) or over else ""
    held = f"{operand.name}[{'...' if set(cut) == {':'} else ', '.join(cut)}]"
    text = f"_take({held}, {dims}, {tuple_text(position_texts(w, at))}{where})"
    rest = [(n, at.pieces[d] if stepped[d] else ":") for d, n in enumerate(at.sizes) if d not in dims]
    lead = sum(d < first for d in range(len(at.sizes)) if d not in dims)
    if any(stepped):
        pieces = [*(p for _, p in rest[:lead]), *(":" for _ in at.common), *(p for _, p in rest[lead:])]
        text = f"{text}[{', '.join(pieces)}]"
    return text, (*(n for n, _ in rest[:lead]), *at.common, *(n for n, _ in rest[lead:]))


def write_scatter(w: KernelWriter, memory: Memory, operand: WindowOperand, at: Subscript, how: str) -> None:
    """A scatter."""
    value, keep = selected_value(w, memory.value, at, operand.dtype), keep_text(w, memory, at) or None
    positions = tuple_text(position_texts(w, at))
    window = _window_sizes(operand)
    lead = len(window) - len(at.kept)  # dimensions that a position selects
    alone = all(n == 1 for n in window[:lead])  # and the window holds nothing else of
    gathered = all(at.pieces[place] == ":" for d, _ in at.gathers if (place := at.places[d]) is not None)
    if alone and gathered and at.places == tuple(range(lead, len(window))) and not any(piece.count(":") == 2 for piece in at.pieces):
        # Into the whole window: a part that is cut out and put back would be copied twice.
        held = f"{operand.name}[...]" if not lead else f"{operand.name}[...].reshape({tuple(window[lead:])})"
        starts = tuple_text([_start(piece) for piece in at.pieces[lead:]])
        text = f'_put({held}, {gathered_dims(at)}, {positions}, {value}, {keep}, "{how}", {starts})'
        w.out.add(f"{operand.name}[...] = {text}" if not lead else f"{operand.name}[...] = {text}.reshape({tuple(window)})")
        return
    target = f"{operand.name}[{at.text}]"
    held = target if at.sizes == at.kept else f"{target}.reshape({at.kept})"
    assign(w, target, at, f'_put({held}, {gathered_dims(at)}, {positions}, {value}, {keep}, "{how}")')


def assign(w: KernelWriter, target: str, at: Subscript, text: str) -> None:
    w.out.add(f"{target} = {text}" if at.sizes == at.kept else f"{target} = {text}.reshape({at.sizes})")


def _window_sizes(operand: WindowOperand) -> list[int]:
    return [d.size for d in operand.window or () if d.kind is not DimKind.POINT]


def _start(piece: str) -> str:
    """Where a piece of a subscript begins."""
    if piece.startswith("pl.ds("):
        return piece[len("pl.ds(") : piece.rindex(",")]
    return piece.split(":")[0] or "0"


def _reaches(w: KernelWriter, axis: int, extent: int) -> bool:
    """Whether a tile of ``axis`` may reach past ``extent``."""
    info, (trips, _) = w.program.axes[axis], w.launch.windows.trips(axis)
    return may_be_outside(w, axis) or isinstance(info.begin, Ref) or evaluate(info.begin, w.plan.blocks) + trips * w.block(axis) > extent


def gathered_dims(at: Subscript) -> tuple[int, ...]:
    return tuple(d for d, _ in at.gathers)


def position_texts(w: KernelWriter, at: Subscript) -> list[str]:
    """Index tensors as text, in their logical shapes."""
    operands: list[Operand] = [w.operand(ref, Form.ROW) for _, ref in at.gathers]
    return [o.text if o.phys == o.shape else f"{o.text}.reshape({o.shape})" for o in operands]


def tuple_text(items: list[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
