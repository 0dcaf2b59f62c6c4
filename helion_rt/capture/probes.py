"""Probes: values of arguments that Python code of the kernel reads before its tile loops, such as ``int(offsets[-1])``.

The operations that made the value are cut out of the host part and run on the arguments of the call. The value becomes
part of the program, which is right only for calls where it is the same (``Program.probes``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ..exc import ValueNeeded
from ..program.expr import blocks_in
from ..program.fingerprint import simplify
from ..program.ir import ArgKind, Op, Param, Probe, Program, Ref, Region, inputs_of
from .host import MAX_ELEMENTS, HostProgram, is_runnable

if TYPE_CHECKING:
    from .tensors import TracedTensor
    from .tracer import Tracer

Read = Callable[[Program], Any]


class Probes:
    """The probes of one capture. ``read`` runs a host program on the arguments of the call; None: there are none."""

    def __init__(self, read: Read | None, params: Sequence[Param]) -> None:
        self._read, self._params = read, params
        self.found: dict[Program, Probe] = {}

    def can_read(self, tracer: Tracer, tensor: TracedTensor) -> bool:
        """Is it a host tensor that depends on tensors of the call, or on no argument at all?"""
        if not tensor.is_host:
            return False
        kinds = {p.kind for p in self._inputs(_slice(tracer, tensor.value)[1])}
        return not kinds or ArgKind.TENSOR in kinds

    def _inputs(self, values: set[int]) -> list[Param]:
        return [p for p in self._params if p.value in values]

    def value(self, tracer: Tracer, tensor: TracedTensor) -> Any:
        """The value of ``tensor`` in this call: a number or nested tuples. Refuses what no argument can tell."""
        ops, values = _slice(tracer, tensor.value)
        for op in ops:
            if op.name == "hl.launch":
                tracer.refuse("Python code needs a value that a tile loop computes", "make two kernels of it, and read between them")
            if not is_runnable(op.name) or any(blocks_in(d) for r in op.results for d in tracer.types[r].shape):
                tracer.refuse(f"Python code needs the value of a {tracer.describe(tensor)}", "keep it a tensor")
        count = 1
        for size in tensor.meta.shape:
            count *= size
        if count > MAX_ELEMENTS:
            hint = f"at most {MAX_ELEMENTS} elements can be: the kernel is compiled for their values"
            tracer.refuse(f"a {tracer.describe(tensor)} is read into Python", hint)
        program = self._program(tracer, ops, values, tensor)
        key = replace(program, first_line=0)
        if key not in self.found:
            with torch._C._DisableTorchDispatch():  # it is run, not traced
                self.found[key] = Probe(program, self._evaluated(tracer, program))
        return self.found[key].value

    def _program(self, tracer: Tracer, ops: list[Op], values: set[int], tensor: TracedTensor) -> Program:
        return simplify(Program(
            name=tracer.name, file=tracer.source.file, first_line=tracer.line(), source="", params=tuple(self._inputs(values)),
            types=tuple(tracer.types), blocks=(), axes=(), host=Region(tuple(ops)), outputs=Ref(tensor.value),
        ))  # fmt: skip

    def _evaluated(self, tracer: Tracer, program: Program) -> Any:
        names = ", ".join(f"'{p.name}'" for p in program.params)
        hint = "call the kernel with values, outside of jax.jit; or pass what it reads as a number"
        if not program.params:
            return HostProgram(program)(())
        if self._read is None:
            raise tracer.error(ValueNeeded, f"Python code of the kernel needs values of {names}, and there are none", hint)
        try:
            return self._read(program)
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            raise tracer.error(ValueNeeded, f"Python code of the kernel needs values of {names}: {error}") from error

    def result(self) -> tuple[Probe, ...]:
        """What the program is specialised to (constants are no probes)."""
        return tuple(probe for probe in self.found.values() if probe.program.params)


def _slice(tracer: Tracer, value: int) -> tuple[list[Op], set[int]]:
    """The operations that ``value`` is made of, in order, and every value that they read or make."""
    ops: dict[int, Op] = {}  # by id
    seen: set[int] = set()
    stack: list[tuple[int, bool]] = [(value, False)]
    while stack:
        current, is_done = stack.pop()
        op = tracer.made_by.get(current)
        if is_done:
            if op is not None:
                ops[id(op)] = op
            continue
        if current in seen:
            continue
        seen.add(current)
        stack.append((current, True))
        if op is not None:
            stack.extend((ref.id, False) for ref in inputs_of(op))
    return list(ops.values()), seen


__all__ = ["Probes", "Read"]
