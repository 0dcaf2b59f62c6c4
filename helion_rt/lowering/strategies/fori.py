"""``fori``: operands wholly in VMEM and a rolled loop: small code, any number of steps that VMEM has room for."""

from __future__ import annotations

from ..windows import Loop
from ..writer import KernelWriter
from .resident import bind_results, dynamic_steps, write_body


def write_loop(w: KernelWriter, loop: Loop) -> None:
    steps = dynamic_steps(w, loop) if loop.dynamic else str(loop.steps)
    body, first = write_body(w, loop, static=False)
    bind_results(w, loop.op, f"lax.fori_loop(0, {steps}, {body}, {first})")
