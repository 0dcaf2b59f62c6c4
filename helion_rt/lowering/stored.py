"""What a store writes: the value in the shape of its place, and which elements of it."""

from __future__ import annotations

from typing import Any

from ..program.expr import evaluate
from ..program.ir import Arg, Ref
from .layout import Form, phys_shape
from .masks import Tag
from .memory import Memory
from .ops import Operand, dtype_text, literal, reshaped
from .subscript import Subscript, may_be_outside
from .writer import KernelWriter


def _bounds(w: KernelWriter, memory: Memory, at: Subscript) -> list[tuple[int, Tag]]:
    """(dimension of what is selected, what bounds it): where elements that do not exist would reach elements of the tensor.

    A tile's own elements past the end of the tensor are dropped by the window; all others have to be left out: those past
    the end of a tile inside the tensor, and those that an index tensor, the value or the mask does not have.
    """
    own = {(d, Tag(axis)) for d, axis, _ in at.tiles}
    found = {(d, Tag(axis)): None for d, axis, extent in at.tiles if w.launch.windows.ragged(axis) and not _ends_at(w, axis, extent)}
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
    begins = [(w.positions[axis].begin, extent) for _, axis, extent in at.tiles if may_be_outside(w, axis)]
    return tests + [f"({begin} >= 0) & ({begin} < {extent})" for begin, extent in begins]


def kept_text(w: KernelWriter, memory: Memory, at: Subscript, text: str, held: str) -> str:
    """``text`` (of physical shape ``at.sizes``), but what the window holds where nothing may be stored."""
    for test in _inside(w, at):
        text = f"jnp.where({test}, {text}, {held})"
    if memory.mask is not None:
        text = f"jnp.where({stored_value(w, memory.mask, at, 'bool')}, {text}, {held})"
    bounds = [(place, tag) for d, tag in _bounds(w, memory, at) if (place := at.places[d]) is not None]
    return w.mask(text, held, bounds) if bounds else text


def keep_text(w: KernelWriter, memory: Memory, at: Subscript) -> str:
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
    return " & ".join(tests if len(tests) == 1 else [f"({t})" for t in tests])


def selected_value(w: KernelWriter, value: Arg, at: Subscript, dtype: str) -> str:
    """A value in the logical shape of what is selected."""
    if not isinstance(value, Ref):
        return f"jnp.full({at.shape}, {literal(value, dtype)}, {dtype_text(dtype)})"
    operand: Operand = w.operand(value, Form.ROW)
    text = operand.cast(dtype) if operand.shape == operand.phys else f"{operand.cast(dtype)}.reshape({operand.shape})"
    return text if operand.shape == at.shape else f"jnp.broadcast_to({text}, {at.shape})"


def stored_value(w: KernelWriter, value: Arg, at: Subscript, dtype: str) -> str:
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
