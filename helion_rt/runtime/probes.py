"""Probes on the way in: values of tensors that a program is specialised to are read from the arguments of every call."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from helion_rt.capture.host import HostProgram
from helion_rt.exc import ValueNeeded
from helion_rt.program.ir import ArgKind, Param, Program

from . import door
from . import facts as facts_of_call

# Slots of one tuple of facts that differ in what their probes read; the least recently used go.
SLOTS_BY_VALUE = 64


class Reader:
    """A probe's program, ready to be run on the arguments of a call."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._run = HostProgram(program)
        self._params = program.array_params

    def value(self, args: Sequence[Any]) -> Any:
        """What the probe reads: a number or nested tuples. Raises ``ValueNeeded`` where there are no values, and what torch raises."""
        return self._run([_tensor(self.program, p, facts_of_call.at(args, p.path)) for p in self._params])

    def key(self, args: Sequence[Any]) -> Any:
        """The value as a key (0.0 is not -0.0, and NaN is NaN). Also where it cannot be read: then the key says why."""
        try:
            value = self.value(args)
        except ValueNeeded:
            raise
        except (RuntimeError, LookupError, TypeError, ValueError) as error:  # e.g. past the end: of a branch that is not taken
            return type(error).__name__
        return key_of(value)


def key_of(value: Any) -> Any:
    """A value that was read, as a key."""
    return value if value.__class__ is int or value.__class__ is bool else repr(value)


@functools.lru_cache(maxsize=1024)
def reader(program: Program) -> Reader:
    return Reader(program)


def read(args: Sequence[Any], program: Program) -> Any:
    """The value of one probe for bound arguments (see ``Reader.value``)."""
    return reader(program).value(args)


def _tensor(program: Program, param: Param, value: Any) -> Any:
    """The argument as a torch tensor, without a copy where it can be."""
    torch = sys.modules["torch"]
    if param.kind is ArgKind.SCALAR:
        assert param.value is not None
        return torch.tensor(value, dtype=getattr(torch, program.types[param.value].dtype))
    if isinstance(value, (Tracer, jax.ShapeDtypeStruct)):
        raise _needed(program, param, "here it is a JAX tracer" if isinstance(value, Tracer) else "here it is only a shape")
    if isinstance(value, jax.Array):
        return door.as_torch(value)
    if isinstance(value, np.ndarray):
        return door.as_torch(door.from_numpy(value, param.name))
    if value.device.type == "meta":
        raise _needed(program, param, "here it is a meta tensor")
    return value


def _needed(program: Program, param: Param, what: str) -> ValueNeeded:
    return ValueNeeded(
        f"Python code of the kernel reads values of argument '{param.name}', and {what}",
        kernel=program.name, file=program.file, line=program.first_line,
        hint="call the kernel with values, outside of jax.jit; or pass what it reads as a number",
    )  # fmt: skip


__all__ = ["SLOTS_BY_VALUE", "Reader", "read", "reader"]
