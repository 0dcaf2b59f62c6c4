"""Reference mode at the door: arguments as torch tensors, the kernel's own source run on them, results as the caller has them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.core import Tracer

from helion_rt.capture import reach
from helion_rt.exc import InputError

from . import door
from . import facts as call_facts

if TYPE_CHECKING:
    from .kernel import Kernel


def call(kernel: Kernel, signature: inspect.Signature, bound: Sequence[Any]) -> Any:
    """``kernel`` called with one value a parameter. Raises ``InputError`` for arguments that have no values."""
    if any(map(call_facts.is_traced, bound)):
        hint = "call the kernel outside of jit, grad and vmap"
        raise InputError("reference mode under a JAX transformation: there are no values yet", hint=hint)
    from helion_rt import eager  # late: it imports torch

    made: dict[int, Any] = {}  # the tensors that stand for arrays of other kinds, by the id of the array
    args, kwargs = _spread(signature, [convert(value, made) for value in bound])
    versions = {key: tensor._version for key, tensor in made.items()}
    config = kernel.config or (kernel.configs[0] if kernel.configs else None)
    result = eager.run(_callable(inspect.unwrap(kernel.fn), made), args, kwargs, config)
    if not made or any(map(door.is_torch, call_facts.leaves_of(tuple(bound)))):
        return result
    if result is None:  # as for a compiled kernel: the new contents of what was written
        written = [made[key] for key, version in versions.items() if made[key]._version != version]
        result = written[0] if len(written) == 1 else tuple(written) or None
    return to_jax(result)


def _spread(signature: inspect.Signature, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """The positional and the keyword arguments of a call with one value a parameter."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for parameter, value in zip(signature.parameters.values(), values, strict=True):
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            args.extend(value)
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            kwargs[parameter.name] = value
        else:
            args.append(value)
    return args, kwargs


def convert(value: Any, made: dict[int, Any]) -> Any:
    """``value`` with every array of JAX or NumPy as a torch tensor of its own; those are noted in ``made``."""
    if isinstance(value, (tuple, list)):
        return type(value)(convert(item, made) for item in value)
    if reach.is_callable_argument(value):
        return _callable(value, made)
    if not isinstance(value, (jax.Array, np.ndarray)) or isinstance(value, Tracer):
        return value
    if id(value) not in made:
        made[id(value)] = door.to_torch([jax.numpy.asarray(value)], [], [value.dtype.name])[0].clone()
    return made[id(value)]


def _callable(fn: Callable[..., Any], made: dict[int, Any]) -> Callable[..., Any]:
    arrays = {id(array): convert(array, made) for array in reach.opened(fn)[1:]}
    return reach.replaced(fn, arrays)


def to_jax(value: Any) -> Any:
    """``value`` with torch tensors as JAX arrays (64-bit numbers as JAX holds them)."""
    if isinstance(value, (tuple, list)):
        return type(value)(map(to_jax, value))
    return jax.numpy.asarray(jax.dlpack.from_dlpack(value.contiguous())) if door.is_torch(value) else value


__all__ = ["call"]
