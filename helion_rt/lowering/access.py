"""Loads, stores and atomics as text."""

from __future__ import annotations

import math

from ..program.expr import BinExpr, Block, evaluate
from ..program.ir import Op, Ref, refs_in, walk
from ..program.regions import reads_of
from .gather import assign, gathered, gathered_dims, position_texts, tuple_text, write_scatter
from .layout import Form, phys_shape
from .memory import SCATTERS, Memory, memory_of
from .one_by_one import each_place, write_each
from .ops import LOW_PRECISION, dtype_text, literal
from .stored import keep_text, kept_text, selected_value, stored_value
from .subscript import held_text, point_text, put_back, shift_of, stays_inside, subscript, wrapped_text
from .writer import KernelWriter


def write_load(w: KernelWriter, op: Op) -> None:
    memory, result = _memory(op), op.results[0]
    operand = w.launch.by_access[id(op)]
    dtype = w.type(result).dtype
    if operand.window is None:
        text = f"{operand.name}[{_flat_position(w, memory)}]"
        text = f"({text} != 0)" if dtype == "bool" else text if dtype in ("float32", "int32") else f"{text}.astype({dtype_text(dtype)})"
        _bind_loaded(w, op, memory, "scalar", text, ())
        return
    at = subscript(w, operand, memory)
    shift = shift_of(w, operand, memory.index, at)
    text, have = held_text(operand, at, shift), at.sizes
    if at.one_by_one and w.plan.target.is_tpu:
        text, have = f"_take_each({each_place(w, operand, at)})", phys_shape(at.shape, Form.ROW)
    elif at.gathers:
        text, have = gathered(w, operand, memory.index, at)
    _bind_loaded(w, op, memory, "load", text, have)


def _flat_position(w: KernelWriter, memory: Memory) -> str:
    """Where an element is in a tensor that is in SMEM, which has one dimension there."""
    shape = w.shape(memory.tensor.id)
    terms = []
    for d, (element, extent) in enumerate(zip(memory.index, shape, strict=True)):
        stride = math.prod(shape[d + 1 :])
        if isinstance(element, Ref):
            text = point_text(w, element) if stays_inside(w, element, extent) else wrapped_text(w.value(element, Form.ROW), extent)
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


def write_store(w: KernelWriter, op: Op) -> None:
    memory, operand = _memory(op), w.launch.by_access[id(op)]
    at = subscript(w, operand, memory)
    shift = shift_of(w, operand, memory.index, at)
    if at.one_by_one and w.plan.target.is_tpu:
        write_each(w, memory, operand, at, "lambda held, new: new", read=False)
        return
    if at.gathers:
        write_scatter(w, memory, operand, at, "set")
        return
    text = stored_value(w, memory.value, at, operand.dtype)
    w.out.add(put_back(operand, at, shift, kept_text(w, memory, at, text, held_text(operand, at, shift))))


COMBINE = {
    "add": "{0} + {1}", "max": "jnp.maximum({0}, {1})", "min": "jnp.minimum({0}, {1})", "and": "{0} & {1}", "or": "{0} | {1}",
    "xor": "{0} ^ {1}", "xchg": "{1}", "cas": "jnp.where({0} == {2}, {1}, {0})",
}  # fmt: skip


def write_atomic(w: KernelWriter, op: Op) -> None:
    """A core runs its steps one after the other, so an atomic is a load, a combination and a store."""
    memory, operand = _memory(op), w.launch.by_access[id(op)]
    assert memory.kind is not None
    at = subscript(w, operand, memory)
    target, shift = f"{operand.name}[{at.text}]", shift_of(w, operand, memory.index, at)
    if at.one_by_one and w.plan.target.is_tpu:
        names = ["a", "b"] if memory.kind == "cas" else ["a"]
        change = f"lambda held, {', '.join(names)}: {COMBINE[memory.kind].format('held', *names)}"
        before = write_each(w, memory, operand, at, change, read=_is_read(w, op.results[0]))
        if before:
            _bind_loaded(w, op, memory, "before", before, phys_shape(at.shape, Form.ROW))
        return
    if at.gathers and memory.kind in SCATTERS and not _is_read(w, op.results[0]):
        write_scatter(w, memory, operand, at, SCATTERS[memory.kind])
        return
    held = w.name("held")
    w.out.add(f"{held} = {held_text(operand, at, shift)}{'' if at.sizes == at.kept or not at.gathers else f'.reshape({at.kept})'}")
    values = [memory.value] if memory.kind != "cas" else [memory.value, memory.expected]
    if not at.gathers:
        texts = [stored_value(w, x, at, operand.dtype) for x in values]
        new = COMBINE[memory.kind].format(held, *texts)
        w.out.add(put_back(operand, at, shift, kept_text(w, memory, at, new, held)))
        if _is_read(w, op.results[0]):
            _bind_loaded(w, op, memory, "before", held, at.sizes)
        return
    where = f"{gathered_dims(at)}, {tuple_text(position_texts(w, at))}"
    # What each position held before its turn is asked for, or JAX has no scatter that combines so: one after the other.
    narrow = memory.kind == "add" and operand.dtype in LOW_PRECISION  # summed in float32, rounded once
    texts = [selected_value(w, x, at, "float32" if narrow else operand.dtype) for x in values]
    new, before, names = w.name("new"), w.name("before"), ["a", "b"][: len(texts)]
    change = f"lambda held, {', '.join(names)}: {COMBINE[memory.kind].format('held', *names)}"
    held = f"{held}.astype(jnp.float32)" if narrow else held
    w.out.add(f"{new}, {before} = _each({held}, {where}, {tuple_text(texts)}, {keep_text(w, memory, at) or True}, {change})")
    back = f".astype({dtype_text(operand.dtype)})" if narrow else ""
    assign(w, target, at, new + back)
    if _is_read(w, op.results[0]):
        _bind_loaded(w, op, memory, "before", before + back, at.shape)


def _is_read(w: KernelWriter, value: int) -> bool:
    region = w.launch.op.regions[0]
    found = [r for op in walk(region) for r in reads_of(op, w.program.axes)]
    found += [r for op in walk(region) for inner in op.regions for r in refs_in(inner.results)]
    return any(r.id == value for r in found)
