"""Runs host operations of a program on torch tensors, with torch's own kernels: what a probe's value is for given arguments.

Light: no tracing machinery is imported. Every call of a kernel that is specialised to values of its tensors comes through here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..program.ir import DType, Op, Program, Ref

# The most elements of a tensor that a kernel may read into Python: they are part of its signature.
MAX_ELEMENTS = 4096


class HostProgram:
    """A program of host operations with one output, ready to run again and again. Raises ``ValueError`` if it is none."""

    def __init__(self, program: Program) -> None:
        self.program = program
        if not isinstance(program.outputs, Ref):
            raise ValueError("one output is expected")
        self._output = program.outputs.id
        self._inputs = [param.value for param in program.array_params]
        self._steps = [_step(op) for op in program.host.ops]

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The output for one tensor an array param, as a number or nested tuples of numbers. Raises what torch raises."""
        env: dict[int | None, Any] = dict(zip(self._inputs, tensors, strict=True))
        with torch.no_grad():
            for func, args, kwargs, result in self._steps:
                env[result] = func(*[_value(a, env) for a in args], **{k: _value(v, env) for k, v in kwargs})
        out = env[self._output]
        return out.item() if out.dim() == 0 else _nested(out.tolist())


def _step(op: Op) -> tuple[Callable[..., Any], tuple[Any, ...], tuple[tuple[str, Any], ...], int]:
    if op.regions or len(op.results) != 1:
        raise ValueError(f"{op.name} is no host operation with one result")
    return _function(op.name), tuple(map(_static, op.args)), tuple((k, _static(v)) for k, v in op.kwargs), op.results[0]


def is_runnable(name: str) -> bool:
    """Is it the name of an operation that can be run here?"""
    try:
        _function(name)
    except ValueError:
        return False
    return True


def _function(name: str) -> Callable[..., Any]:
    if name == "aten.view.default":
        return torch.ops.aten.reshape.default  # the tensor of the call may have other strides
    namespace, _, rest = name.partition(".")
    base, _, overload = rest.partition(".")
    found = getattr(getattr(torch.ops.aten, base, None), overload, None) if namespace == "aten" and overload else None
    if not isinstance(found, torch._ops.OpOverload) or found._schema.is_mutable or torch.Tag.nondeterministic_seeded in found.tags:
        raise ValueError(f"{name} is no function of the host")
    return found


def _static(arg: Any) -> Any:
    """An argument as torch takes it; Refs stay."""
    if isinstance(arg, DType):
        return getattr(torch, arg.name)
    if isinstance(arg, tuple):
        return [_static(a) for a in arg]
    if arg is None or isinstance(arg, (bool, int, float, str, Ref)):
        return arg
    raise ValueError(f"a {type(arg).__name__} in a host operation")


def _value(arg: Any, env: dict[int | None, Any]) -> Any:
    if arg.__class__ is Ref:
        return env[arg.id]
    return [_value(a, env) for a in arg] if arg.__class__ is list else arg


def _nested(value: Any) -> Any:
    return tuple(map(_nested, value)) if isinstance(value, list) else value


__all__ = ["MAX_ELEMENTS", "HostProgram", "is_runnable"]
