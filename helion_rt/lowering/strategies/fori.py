"""``fori``: operands wholly in VMEM and a rolled loop: small code, any number of steps that VMEM has room for."""

from __future__ import annotations

from ..windows import Loop
from ..writer import KernelWriter
from .resident import bind_results, dynamic_steps, first_carry, write_body
from .tiles import write_tiles


def write_loop(w: KernelWriter, loop: Loop) -> None:
    steps, first = dynamic_steps(w, loop) if loop.dynamic else str(loop.steps), first_carry(w, loop)
    if loop.tiles == 1:
        body = write_body(w, loop, static=False)
    else:
        body, turn = w.name(f"turn_{loop.number}"), w.name("k")
        with w.function(f"def {body}({turn}, carry):"):
            w.out.add(f"return {write_tiles(w, loop, 'carry', turn=turn)}")
    bind_results(w, loop.op, f"lax.fori_loop(0, {steps}, {body}, {first})")
