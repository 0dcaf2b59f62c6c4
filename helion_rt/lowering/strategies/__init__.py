"""Loop strategies: one file each. ``write_region`` writes device code and hands every loop to its strategy."""

from __future__ import annotations

from ...config import LoopStrategy
from ...program.ir import Op, Region
from ..access import write_load, write_store
from ..layout import Form
from ..writer import KernelWriter


def write_region(w: KernelWriter, region: Region) -> None:
    """Writes the operations of ``region`` in order (folded loops excepted: ``grid`` writes those itself)."""
    for op in region.ops:
        write_op(w, op)


def write_op(w: KernelWriter, op: Op) -> None:
    from . import emit_pipeline, fori, unroll  # they call back into this module

    if op.name == "hl.loop":
        loop = w.launch.loop_of(op)
        writers = {
            LoopStrategy.UNROLL: unroll.write_loop,
            LoopStrategy.FORI: fori.write_loop,
            LoopStrategy.EMIT_PIPELINE: emit_pipeline.write_loop,
        }
        writers[loop.strategy](w, loop)
        return
    if op.name == "hl.store":
        w.comment(op.line)
        write_store(w, op)
        return
    if w.is_free(op):
        return  # written where it is used
    w.comment(op.line)
    if op.name == "hl.load":
        write_load(w, op)
        return
    result = op.results[0]
    w.define(op, result, w.form(result) if w.shape(result) else Form.ROW)
