"""What ``unroll``, ``fori`` and ``branch`` share: functions over operands that are wholly in VMEM, carrying values."""

from __future__ import annotations

from collections.abc import Sequence

from ...program.ir import Op, Ref, Region
from ...program.regions import bodies_of, inits_of
from ..windows import Loop
from ..writer import KernelWriter, Position
from . import write_region


def first_carry(w: KernelWriter, loop: Loop) -> str:
    """The tuple of what the loop carries before its first step."""
    return tuple_text([pack(w, w.carried(x, p), p) for x, p in zip(inits_of(loop.op), loop.op.regions[0].params, strict=True)])


def write_body(w: KernelWriter, loop: Loop, *, static: bool) -> str:
    """Writes the loop's body as a function of (step, carry); returns its name."""
    region = loop.op.regions[0]
    name, step = w.name(f"loop_{loop.number}"), w.name("k")
    with w.function(f"def {name}({step}, carry):"):
        bind_positions(w, loop, step, static=static)
        bind_carried(w, region)
        write_region(w, region)
        results = [pack(w, w.next_value(x, p, loop.axes), p) for x, p in zip(region.results, region.params, strict=True)]
        w.out.add(f"return {tuple_text(results)}")
    return name


def pack(w: KernelWriter, text: str, param: int) -> str:
    """A carried value as it is passed on. Mosaic carries no masks: they are numbers on the way."""
    return f"({text}).astype(jnp.int32)" if _is_packed(w, param) else text


def unpacked(w: KernelWriter, text: str, param: int) -> str:
    """A carried value as it is used, from what ``pack`` made of it."""
    return f"({text} != 0)" if _is_packed(w, param) else text


def _is_packed(w: KernelWriter, param: int) -> bool:
    return w.plan.target.is_tpu and w.type(param).dtype == "bool"


def bind_carried(w: KernelWriter, region: Region) -> None:
    """Takes ``carry`` apart: the parameters of ``region``."""
    names = []
    for param in region.params:
        names.append(w.name("carried"))
        w.bind((param, w.form(param)), unpacked(w, names[-1], param))
    if names:
        w.out.add(f"{tuple_text(names)} = carry")


def bind_positions(w: KernelWriter, loop: Loop, step: str, *, static: bool = False) -> None:
    """The position of each axis of ``loop`` at flat step ``step``, the last axis fastest."""
    stride = loop.steps
    for axis, trips in zip(loop.axes, loop.turns, strict=True):
        stride //= max(1, trips)
        id = "0" if trips == 1 and not loop.dynamic else step
        if id == step and stride > 1:
            id = f"({step} // {stride})"
        if id != "0" and stride * trips < loop.steps:
            id = f"({id} % {trips})"
        first = w.program.axes[axis].begin
        outer = w.position_of(first) if isinstance(first, Ref) else None
        known = not isinstance(first, Ref) or (outer is not None and (outer.static or outer.begin.isdigit()))
        w.positions[axis] = Position(id, w.begin_of(axis, id), static and known)


def bind_results(w: KernelWriter, op: Op, text: str) -> None:
    """Names the carried values after ``op``, a loop or a branch that ``text`` runs."""
    names = []
    for result, param in zip(op.results, bodies_of(op)[0].params, strict=True):
        names.append(w.name("last"))
        w.bind((result, w.form(param)), unpacked(w, names[-1], param))
    w.out.add(f"{tuple_text(names)} = {text}" if names else text)


def dynamic_steps(w: KernelWriter, loop: Loop) -> str:
    """The number of turns of a loop with a bound that is known only at run time."""
    (axis,) = loop.axes
    begin, size = w.begin_of(axis, "0"), w.block(axis) * loop.tiles
    end = w.end(axis)
    return f"pl.cdiv({end} - ({begin}), {size})" if begin != "0" else f"pl.cdiv({end}, {size})"


def tuple_text(items: Sequence[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


__all__ = ["bind_carried", "bind_positions", "bind_results", "dynamic_steps", "first_carry", "pack", "tuple_text", "unpacked", "write_body"]
