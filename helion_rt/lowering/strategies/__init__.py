"""Loop strategies: one file each. ``write_region`` writes device code and hands every loop to its strategy."""

from __future__ import annotations

from ...config import LoopStrategy
from ...program.ir import Op, Region
from ...program.regions import inits_of
from ..access import write_atomic, write_load, write_store
from ..inline import write_print
from ..layout import Form
from ..writer import KernelWriter


def write_region(w: KernelWriter, region: Region) -> None:
    """Writes the operations of ``region`` in order (folded loops excepted: ``grid`` writes those itself)."""
    for op in region.ops:
        write_op(w, op)


def write_op(w: KernelWriter, op: Op) -> None:
    from . import branch, emit_pipeline, fori, unroll  # they call back into this module

    if op.name == "hl.loop":
        loop = w.launch.loop_of(op)
        if loop.never:
            for result, param, init in zip(op.results, op.regions[0].params, inits_of(op), strict=True):
                w.assign((result, w.form(param)), "first", w.carried(init, param))
            return
        writers = {
            LoopStrategy.UNROLL: unroll.write_loop,
            LoopStrategy.FORI: fori.write_loop,
            LoopStrategy.EMIT_PIPELINE: emit_pipeline.write_loop,
        }
        writers[loop.strategy](w, loop)
        return
    if op.name in ("hl.if", "hl.while"):
        w.comment(op.line)
        write = branch.write_branch if op.name == "hl.if" else branch.write_while
        write(w, op)
        return
    if op.name == "hl.store":
        w.comment(op.line)
        write_store(w, op)
        return
    if op.name == "hl.atomic":
        w.comment(op.line)
        write_atomic(w, op)
        return
    if op.name == "hl.print":
        w.comment(op.line)
        write_print(w, op)
        return
    if w.is_free(op) or w.needless.issuperset(op.results):
        return  # written where it is used, if at all
    w.comment(op.line)
    if op.name == "hl.load":
        write_load(w, op)
        return
    result = op.results[0]
    w.define(op, result, w.form(result) if w.shape(result) else Form.ROW)
