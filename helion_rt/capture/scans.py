"""Scans and reductions with a combine function: the function is run once on tensors, which makes the region of ``hl.scan``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..exc import ShapeMismatch
from ..program.ir import Region, refs_in
from . import jagged
from . import tracer as tracing
from .source import plain_function
from .tensors import TracedTensor

if TYPE_CHECKING:
    from .tracer import Tracer

_aten = torch.ops.aten


def associative_scan(tracer: Tracer, combine: Any, inputs: Any, dim: int, reverse: bool) -> Any:
    """``hl.associative_scan``: the inclusive scans of a tensor or a tuple of tensors."""
    tensors, is_tuple = _inputs(tracer, "hl.associative_scan", inputs)
    results = _scan(tracer, combine, tensors, is_tuple, _dim(tracer, tensors[0], dim), bool(reverse))
    return tuple(results) if is_tuple else results[0]


def reduce(tracer: Tracer, combine: Any, inputs: Any, dim: int | None, keep_dims: bool) -> Any:
    """``hl.reduce``: the last elements of the scans. No identity is needed: what does not exist is not combined."""
    tensors, is_tuple = _inputs(tracer, "hl.reduce", inputs)
    rank = tensors[0].dim()
    dims = range(rank - 1, -1, -1) if dim is None else (_dim(tracer, tensors[0], dim),)
    for d in dims:
        jagged.check_order(tracer, tensors, d, "hl.reduce")
        tensors = [_last(tracer, t, d) for t in _scan(tracer, combine, tensors, is_tuple, d, False)]
    if not keep_dims:
        tensors = [t.reshape([]) if dim is None else t.squeeze(dims[0]) for t in tensors]
    return tuple(tensors) if is_tuple else tensors[0]


def cumulative(tracer: Tracer, name: str, x: Any, dim: int, reverse: bool) -> Any:
    """``hl.cumsum`` and ``hl.cumprod``, in the dtype of ``x``; narrow floats are summed in float32."""
    (tensor,), _ = _inputs(tracer, f"hl.{name}", x)
    dim = _dim(tracer, tensor, dim)
    function = torch.cumsum if name == "cumsum" else torch.cumprod
    if not reverse:
        return function(tensor, dim, dtype=tensor.dtype)
    wide: Any = tensor.float() if tensor.is_floating_point() and tensor.dtype.itemsize < 4 else tensor
    combine: Callable[..., Any] = torch.add if name == "cumsum" else torch.mul
    return _scan(tracer, lambda a, b: combine(a, b), [wide], False, dim, True)[0].to(tensor.dtype)


def _inputs(tracer: Tracer, name: str, inputs: Any) -> tuple[list[TracedTensor], bool]:
    is_tuple = isinstance(inputs, (tuple, list))
    tensors = list(inputs) if is_tuple else [inputs]
    if not tensors or not all(isinstance(t, TracedTensor) for t in tensors):
        tracer.refuse(f"{name} takes a tensor, or a tuple of tensors")
    if not tracer.in_device or any(t.is_host for t in tensors):
        tracer.refuse(f"{name} takes tiles, not whole tensors", "use it in a tile loop, on x[tile]")
    if not tensors[0].dim() or any(t.meta.shape != tensors[0].meta.shape for t in tensors):
        given = ", ".join(tracer.describe(t) for t in tensors)
        raise tracer.error(ShapeMismatch, f"{name} of {given}", "expected tensors of one shape, with at least one dimension")
    return tensors, is_tuple


def _dim(tracer: Tracer, tensor: TracedTensor, dim: Any) -> int:
    rank = tensor.dim()
    if not isinstance(dim, int) or isinstance(dim, bool) or not -rank <= dim < rank:
        raise tracer.error(ShapeMismatch, f"dimension {dim} of a {tracer.describe(tensor)}", f"expected {-rank} to {rank - 1}")
    return dim % rank


def _last(tracer: Tracer, tensor: TracedTensor, dim: int) -> TracedTensor:
    result = tracer.wrap(tracer.meta([1 if d == dim else n for d, n in enumerate(tensor.meta.shape)], tensor.dtype))
    tracer.emit("hl.last", (tracer.use(tensor), dim), [result])
    return result


def _scan(
    tracer: Tracer, combine: Any, tensors: Sequence[TracedTensor], is_tuple: bool, dim: int, reverse: bool
) -> list[TracedTensor]:
    if reverse:
        jagged.check_order(tracer, tensors, dim, "a reverse scan")
    inputs = tuple(tracer.use(t) for t in tensors)
    region = _combine_region(tracer, combine, tensors, is_tuple)
    results = [tracer.wrap(tracer.meta(t.meta.shape, t.dtype)) for t in tensors]
    tracer.emit("hl.scan", (inputs, dim, reverse), results, regions=(region,))
    return results


def _combine_region(tracer: Tracer, combine: Any, tensors: Sequence[TracedTensor], is_tuple: bool) -> Region:
    """``combine`` as a region whose parameters are the left elements of ``tensors``, then the right ones."""
    frame = tracing.Frame(tracing.FrameKind.COMBINE)
    tracer.stack.append(frame)
    try:
        sides = [[tracer.wrap(tracer.meta(t.meta.shape, t.dtype)) for t in tensors] for _ in range(2)]
        params = [p.value for side in sides for p in side]
        combined = _call(combine, sides[0], sides[1], is_tuple)
        if len(combined) != len(tensors):
            tracer.refuse(f"the combine function gives {len(combined)} results for {len(tensors)} tensors")
        results = [_as_type(tracer, value, tensor) for value, tensor in zip(combined, tensors, strict=True)]
        refs = tuple(tracer.use(r) for r in results)
    finally:
        tracer.stack.pop()
    region = Region(tuple(frame.ops), tuple(params), refs)
    _check(tracer, region)
    return region


def _call(combine: Any, left: list[Any], right: list[Any], is_tuple: bool) -> list[Any]:
    """Calls the combine function as Helion does: ``f(a, b)`` of tensors or tuples, or ``f(a0, a1, ..., b0, b1, ...)``."""
    combine = plain_function(combine) if not inspect.isbuiltin(combine) else combine
    if not is_tuple:
        result = combine(left[0], right[0])
        return list(result) if isinstance(result, (tuple, list)) else [result]
    try:
        parameters = list(inspect.signature(combine).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    spread = len(parameters) != 2 or any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    result = combine(*left, *right) if spread else combine(tuple(left), tuple(right))
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _as_type(tracer: Tracer, value: Any, like: TracedTensor) -> TracedTensor:
    if type(value) in (bool, int, float):
        return tracer.record(_aten.full.default, (list(like.meta.shape), value), {"dtype": like.dtype})
    if not isinstance(value, TracedTensor):
        tracer.refuse(f"the combine function gives a {type(value).__name__}", "return tensors")
    if value.dtype != like.dtype:
        value = tracer.cast(value, like.dtype)
    if value.meta.shape != like.meta.shape:
        value = tracer.record(_aten.expand.default, (value, list(like.meta.shape)), {})
    return value


def _check(tracer: Tracer, region: Region) -> None:
    """Refuses a combine function that is not elementwise, or that looks at tiles other than its parameters."""
    from ..lowering.legalize import is_elementwise  # late, as in ``tracer``

    inside = set(region.params)
    for op in region.ops:
        if not is_elementwise(op.name):
            tracer.refuse(f"{op.name} in a combine function, which must be elementwise", "compute it before, on the whole tile", op.line)
        outside = [r for r in refs_in(op.args) if r.id not in inside and tracer.types[r.id].shape]
        if outside:
            tracer.refuse("a combine function uses a tile that is no parameter of it", "pass it as one more tensor of the tuple", op.line)
        inside.update(op.results)
