"""``unroll``: operands wholly in VMEM and one straight line of code. No bubbles; limited by VMEM and code size."""

from __future__ import annotations

from ..windows import Loop
from ..writer import KernelWriter
from .resident import bind_results, dynamic_steps, first_carry, write_body
from .tiles import write_tiles

MAX_STEPS = 256  # more is not a kernel but a compile-time problem


def write_loop(w: KernelWriter, loop: Loop) -> None:
    if loop.steps > MAX_STEPS:
        raise w.error(f"unrolling {loop.steps} steps (at most {MAX_STEPS})", loop.op)
    if not loop.dynamic:
        bind_results(w, loop.op, write_tiles(w, loop, first_carry(w, loop), turn=None))
        return
    body, carry, steps = write_body(w, loop, static=True), w.name("carry"), w.name("steps")
    w.out.add(f"{carry} = {first_carry(w, loop)}")
    w.out.add(f"{steps} = {dynamic_steps(w, loop)}")
    w.out.add(f"for step in range({loop.steps}):")
    with w.out.indented():
        w.out.add(f"{carry} = lax.cond(step < {steps}, functools.partial({body}, step), lambda carry: carry, {carry})")
    bind_results(w, loop.op, carry)
