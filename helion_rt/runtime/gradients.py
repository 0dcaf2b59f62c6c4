"""Gradients: ``@kernel(backward=...)`` for ``jax.grad`` and torch's autograd.

The convention: ``backward(*grads, *args)`` gets one gradient for each array that the kernel returns, in order, and then the
kernel's own arguments; with ``save_outputs=True`` it is ``backward(*grads, *outputs, *args)``. It returns one gradient (or
None) for each floating array among the arguments, in order; for a single one not in a tuple. It may be a kernel, or any
function of arrays that calls kernels.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.custom_batching
import jax.custom_derivatives

from helion_rt.config import Config, LoopStrategy
from helion_rt.exc import DifferentiationError, NoGradient
from helion_rt.program.ir import ArgKind, Program, output_leaves

from . import door
from . import facts as call_facts

if TYPE_CHECKING:
    from helion_rt.targets import Target

    from .kernel import Kernel

Path = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Backward:
    """How the gradients of a kernel are computed."""

    fn: Callable[..., Any]
    save_outputs: bool
    variadic: int | None  # which parameter of the kernel is *args

    def __call__(self, grads: Sequence[Any], outputs: Sequence[Any], args: Sequence[Any], wanted: Sequence[Path]) -> dict[Path, Any]:
        """The gradients of the floating arrays at ``wanted``, by path; None where there is none. Raises ``DifferentiationError``."""
        n = self.variadic
        spread = args if n is None else (*args[:n], *args[n], *args[n + 1 :])
        result = self.fn(*grads, *(outputs if self.save_outputs else ()), *spread)
        found = tuple(result) if isinstance(result, (tuple, list)) else (result,)
        if len(found) != len(wanted):
            name = getattr(self.fn, "__name__", repr(self.fn))
            raise DifferentiationError(
                f"{name} returned {len(found)} gradients for {len(wanted)} floating arguments",
                hint="return one gradient, or None, for each floating array among the arguments, in order",
            )
        for path, grad in zip(wanted, found, strict=True):
            shape = tuple(call_facts.at(args, path).shape)
            if grad is not None and tuple(grad.shape) != shape:
                raise DifferentiationError(f"the gradient of an argument of shape {shape} has shape {tuple(grad.shape)}")
        return dict(zip(wanted, found, strict=True))


def floating(args: Sequence[Any], here: Path = ()) -> list[Path]:
    """Where the floating arrays are in an argument tree, in order. Not those that callables reach."""
    paths: list[Path] = []
    for i, value in enumerate(args):
        if call_facts.is_array(value):
            paths += [(*here, i)] if door.dtype_name(value).startswith(("float", "bfloat")) else []
        elif type(value) in (tuple, list):
            paths += floating(value, (*here, i))
    return paths


def replaced(args: Any, values: dict[Path, Any], here: Path = ()) -> Any:
    """An argument tree with the leaves at the paths of ``values`` replaced."""
    if here in values:
        return values[here]
    if type(args) not in (tuple, list):
        return args
    return type(args)(replaced(value, values, (*here, i)) for i, value in enumerate(args))


def for_jax(kernel: Kernel, program: Program, function: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any]:
    """``function`` of a program (flat arrays to flat outputs) with the derivative that the kernel has, or an error that says it has none.

    Numbers have no gradient. What callables reach has none either, and an error says so if one is asked for.
    """
    backward = kernel.backward
    if backward is None:
        return _without(kernel, function)
    if program.mutated:
        return _without(kernel, function, *_IN_PLACE)
    params = program.array_params
    free = [i for i, p in enumerate(params) if p.kind is ArgKind.TENSOR]
    reached = {i for i in free if params[i].path[:1] == (len(kernel.parameters),) or not _is_given(args, params[i].path)}
    leaves = output_leaves(program.outputs)

    def call(*arrays: Any) -> tuple[Any, ...]:
        def forward(*some: Any) -> tuple[Any, ...]:
            every = list(arrays)
            for i, array in zip(free, some, strict=True):
                every[i] = array
            return tuple(function(*every))

        def save(*primals: Any) -> tuple[Any, Any]:
            for i, primal in zip(free, primals, strict=True):
                if i in reached and primal.perturbed:
                    raise _refusal(kernel, f"'{params[i].name}' is reached by a callable, and no argument", "pass it as an argument")
            some = tuple(primal.value for primal in primals)
            outputs = forward(*some)
            return outputs, (some, outputs if backward.save_outputs else ())

        def pull(saved: Any, cotangents: Any) -> tuple[Any, ...]:
            some, outputs = saved
            values = {params[i].path: array for i, array in zip(free, some, strict=True) if i not in reached}
            given = replaced(args[: len(kernel.parameters)], values)
            grads = [_materialised(c, program.type_of(leaf).dtype) for c, leaf in zip(cotangents, leaves, strict=True)]
            found = backward(grads, outputs, given, floating(given))
            result = [None if i in reached else found.get(params[i].path) for i in free]
            return tuple(None if g is None else g.astype(a.dtype) for g, a in zip(result, some, strict=True))

        derivable = jax.custom_vjp(forward)
        derivable.defvjp(save, pull, symbolic_zeros=True)
        return derivable(*(arrays[i] for i in free))

    return call


def _materialised(cotangent: Any, dtype: str) -> Any:
    """A cotangent as an array; one that is zero, as that of an integer is, as zeros of the output's dtype."""
    if not isinstance(cotangent, jax.custom_derivatives.SymbolicZero):
        return cotangent
    shape = cotangent.aval.shape  # pyright: ignore[reportAttributeAccessIssue]
    return jax.numpy.zeros(shape, "int32" if dtype == door.WIDE else dtype)


def batchable(function: Callable[..., Any], config: Config | None, target: Target) -> Callable[..., Any]:
    """``function`` under ``vmap``: Pallas makes the batch a grid axis of its own, but for operands that stay in HBM (whose part
    of the batch a nested pipeline would not find): there one element of the batch runs after the other."""
    pipelined = config is not None and target.is_tpu and LoopStrategy.EMIT_PIPELINE in config.get("loop_strategies", ())
    return jax.custom_batching.sequential_vmap(function) if pipelined else function


def _is_given(args: Sequence[Any], path: Path) -> bool:
    """Is the leaf an argument, and not what a callable among the arguments reaches?"""
    return not any(isinstance(call_facts.at(args, path[:n]), call_facts.Opened) for n in range(1, len(path)))


_IN_PLACE = ("it writes its arguments in place", "return new tensors, and let backward= be about those")
_NO_BACKWARD = ("it has no backward=", "give it one: @helion_rt.kernel(backward=other), which is called as other(*grads, *args)")


def _refusal(kernel: Kernel, why: str, hint: str) -> DifferentiationError:
    return kernel.error(DifferentiationError, f"kernel '{kernel.name}' cannot be differentiated: {why}", hint)


def _without(kernel: Kernel, function: Callable[..., Any], why: str = _NO_BACKWARD[0], hint: str = _NO_BACKWARD[1]) -> Callable[..., Any]:
    plain = jax.custom_jvp(lambda *arrays: tuple(function(*arrays)))

    @plain.defjvp
    def refuse(primals: Any, tangents: Any) -> Any:
        raise _refusal(kernel, why, hint)

    return plain


def required(args: Sequence[Any]) -> list[tuple[Path, Any]]:
    """The floating torch tensors of a call that autograd is to know of: all of them if one requires grad, else none."""
    leaves = [(path, call_facts.at(args, path)) for path in floating(args)]
    return leaves if any(door.is_torch(leaf) and leaf.requires_grad for _, leaf in leaves) and door.grad_is_enabled() else []


def torch_call(kernel: Kernel, bound: tuple[Any, ...], leaves: Sequence[tuple[Path, Any]]) -> Any:
    """A call whose floating tensors ``leaves`` (some of which require grad) torch's autograd is to know of."""
    import torch  # late: as everywhere in the runtime; a caller with torch tensors has it

    backward = kernel.backward
    assert backward is not None
    bound = kernel.look_inside(bound)
    warn_of_reached(kernel, bound, stacklevel=4)
    holder: list[Any] = []

    class Call(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *tensors: torch.Tensor) -> Any:
            detached = replaced(bound, {path: t.detach() for (path, _), t in zip(leaves, tensors, strict=True)})
            if kernel.program_of(detached).mutated:
                raise _refusal(kernel, *_IN_PLACE)
            result = kernel.serve(detached)
            outputs = _torch_leaves(result)
            holder.append(result)
            ctx.save_for_backward(*tensors, *(outputs if backward.save_outputs else ()))
            ctx.mark_non_differentiable(*(o for o in outputs if not o.is_floating_point()))
            return tuple(outputs)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            saved = [t.detach() for t in ctx.saved_tensors]
            paths = [path for path, _ in leaves]
            given = replaced(bound[: len(kernel.parameters)], dict(zip(paths, saved[: len(paths)], strict=True)))
            found = backward([g.contiguous() for g in grads], saved[len(paths) :], given, paths)
            return tuple(None if (g := found[path]) is None else g.to(t.dtype) for path, t in zip(paths, saved, strict=False))

    outputs = Call.apply(*(tensor for _, tensor in leaves))
    return _refilled(holder[0], iter(outputs))


def reached_and_required(args: Sequence[Any]) -> str | None:
    """The name of a tensor that requires grad and that a callable reaches."""
    if not door.grad_is_enabled():
        return None
    for value in args:
        if isinstance(value, call_facts.Opened):
            for name, array in zip(value.names, value[1:], strict=True):
                if door.is_torch(array) and array.requires_grad:
                    return name
        elif type(value) in (tuple, list) and (name := reached_and_required(value)):
            return name
    return None


def warn_of_reached(kernel: Kernel, bound: tuple[Any, ...], stacklevel: int) -> None:
    """A gradient that is not there must not be taken for one that is zero."""
    if (name := reached_and_required(bound)) and NoGradient not in kernel.settings.ignore_warnings:
        message = f"'{name}', which kernel '{kernel.name}' reaches, requires grad: it gets no gradient"
        warnings.warn(message, NoGradient, stacklevel=stacklevel)


def _torch_leaves(result: Any) -> list[Any]:
    if isinstance(result, (tuple, list)):
        return [leaf for item in result for leaf in _torch_leaves(item)]
    return [result] if door.is_torch(result) else []


def _refilled(result: Any, leaves: Any) -> Any:
    if isinstance(result, (tuple, list)):
        return tuple(_refilled(item, leaves) for item in result)
    return next(leaves) if door.is_torch(result) else result


__all__ = ["Backward", "batchable", "floating", "for_jax", "required", "torch_call", "warn_of_reached"]
