"""``grid``: inner loops folded into the grid as its last, ``arbitrary`` axis.

The loops directly inside the outer loop follow one another on that axis; what stands before, between and after them runs
under ``pl.when`` in the step where it is due, and what is carried lives in VMEM scratch. The compiler's own pipeline then
runs across outer steps, so there is no bubble between them.
"""

from __future__ import annotations

from ...program.ir import Op, Ref, refs_in
from ..plan import reads
from ..windows import Loop
from ..writer import KernelWriter, Scratch
from . import write_op
from .resident import bind_positions, dynamic_steps
from .tiles import write_turn


def segments(w: KernelWriter) -> list[list[Op]]:
    """The operations before, between and after the folded loops."""
    parts: list[list[Op]] = [[]]
    folded = {id(loop.op) for loop in w.launch.folded}
    for op in w.launch.op.regions[0].ops:
        if id(op) in folded:
            parts.append([])
        else:
            parts[-1].append(op)
    return parts


def plan_scratch(w: KernelWriter, parts: list[list[Op]]) -> None:
    """Decides for every value that a later step needs whether it is kept in scratch or written again."""
    home = {r: i for i, part in enumerate(parts) for op in part for r in op.results}
    needed: set[int] = set()
    for i, part in enumerate(parts):
        for op in part:
            needed |= {v for v in reads(w.program, op) if home.get(v, i) != i}
    for i, loop in enumerate(w.launch.folded):
        region = loop.op.regions[0]
        inside = {v for op in region.ops for v in reads(w.program, op)} | {r.id for r in refs_in(region.results)}
        ends = {r.id for a in loop.axes for r in refs_in((w.program.axes[a].begin, w.program.axes[a].end))}
        needed |= {v for v in inside | ends if v in home}
        needed |= {v for r in refs_in(loop.op.args[1]) if (v := r.id) in home and home[v] != i}
    written = {o.tensor for o in w.launch.operands if o.written}
    for value in sorted(needed):
        op = w.defs[value]
        if w.is_free(op):
            continue
        if op.name == "hl.load" and isinstance(op.args[0], Ref) and op.args[0].id not in written and _only_positions(w, op):
            w.again.add(value)  # the window is still there: reading it again is cheaper than keeping a copy
        else:
            keep(w, value, "kept")


def _only_positions(w: KernelWriter, op: Op) -> bool:
    return all(w.is_free(w.defs[r.id]) for r in refs_in(op.args[1:]) if r.id in w.defs)


def keep(w: KernelWriter, value: int, stem: str) -> None:
    from ..layout import phys_shape

    form = w.form(value)
    w.scratch[value] = Scratch(w.name(f"{stem}_ref"), phys_shape(w.shape(value), form), w.type(value).dtype, form)


def write_folded(w: KernelWriter, step: str) -> None:
    """Writes the body of a launch that has folded loops; ``step`` is the position on the last grid axis."""
    parts = segments(w)
    plan_scratch(w, parts)
    total = w.launch.folded_steps
    for part, loop in zip(parts, w.launch.folded, strict=False):
        _write_part(w, part, f"{step} == {w.launch.offset(loop)}", loop)
        _write_loop(w, loop, step, total)
    _write_part(w, parts[-1], f"{step} == {total - 1}", None)


def _write_part(w: KernelWriter, part: list[Op], condition: str, following: Loop | None) -> None:
    inits = following.op.args[1] if following else ()
    assert isinstance(inits, tuple)
    if not any(not w.is_free(op) for op in part) and not inits:
        return
    with w.when(condition):
        for op in part:
            if any(r in w.again for r in op.results):
                continue
            write_op(w, op)
            for result in op.results:
                if result in w.scratch:
                    w.out.add(w.scratch[result].write(w.value(Ref(result), w.form(result))))
        if following:
            for param, init in zip(following.op.regions[0].params, inits, strict=True):
                w.out.add(w.scratch[param].write(w.carried(init, param)))


def _write_loop(w: KernelWriter, loop: Loop, step: str, total: int) -> None:
    offset = w.launch.offset(loop)
    tests = []
    if offset > 0:
        tests.append(f"({step} >= {offset})")
    if offset + loop.steps < total:
        tests.append(f"({step} < {offset + loop.steps})")
    at = step if offset == 0 else f"({step} - {offset})"
    if loop.dynamic:
        tests.append(f"({at} < {dynamic_steps(w, loop)})")
    with w.when(" & ".join(tests) or None):
        if loop.tiles == 1:
            bind_positions(w, loop, at)
        write_turn(w, loop, at)


__all__ = ["keep", "write_folded"]
