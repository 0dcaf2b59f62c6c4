"""Positions one after the other: gathers, scatters and atomics on a TPU (see ``memory_tpu_source``)."""

from __future__ import annotations

from ..program.ir import Arg, Ref
from .gather import tuple_text
from .layout import Form, phys_shape
from .memory import Memory
from .ops import FLOATS, ITEMSIZE, Operand, dtype_text, literal
from .plan import Operand as WindowOperand
from .stored import keep_text
from .subscript import Subscript
from .unaligned import slice_text
from .writer import KernelWriter


def each_place(w: KernelWriter, operand: WindowOperand, at: Subscript, values: str = "") -> str:
    """The arguments of ``_take_each`` and ``_put_each`` (see ``memory_tpu_source``); ``values`` come after the positions."""
    phys = phys_shape(at.shape, Form.ROW)
    positions: list[Operand] = [w.operand(ref, Form.ROW) for _, ref in at.gathers]
    where = [(place, at.kept[d], p.text) for (d, _), p in zip(at.gathers, positions, strict=True) if (place := at.places[d]) is not None]
    where += [(d, extent, text) for d, text, extent in at.singles]
    dims, extents, texts = zip(*where, strict=True)
    index = tuple_text([slice_text(piece) for piece in at.pieces])
    first = at.gathers[0][0] + len(phys) - len(at.shape) if at.gathers else 0
    return f"{operand.name}, {index}, {dims}, {extents}, {tuple_text(list(texts))}{values}, {phys}, {first}, {len(at.common)}"


def write_each(w: KernelWriter, memory: Memory, operand: WindowOperand, at: Subscript, change: str, *, read: bool) -> str:
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
    keep = keep_text(w, memory, at)
    if keep:
        keep = f"jnp.broadcast_to(jnp.where({keep}, 1, 0), {at.shape})"
        keep = keep if at.shape == phys else f"{keep}.reshape({phys})"
    values = f", {tuple_text([spread(x) for x in given])}, {keep or None}"
    text = f"_put_each({each_place(w, operand, at, values)}, {change}, {read})"
    if not read:
        w.out.add(text)
        return ""
    before = w.name("before")
    w.out.add(f"{before} = {text}")
    return before
