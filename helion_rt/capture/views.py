"""Views of host tensors: when one is written, the others that share its elements follow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .tensors import TracedTensor

if TYPE_CHECKING:
    from .tracer import Tracer

_aten = torch.ops.aten


def root(tensor: TracedTensor) -> TracedTensor:
    """The tensor that owns the elements."""
    while tensor.parent is not None:
        tensor = tensor.parent
    return tensor


def propagate(tracer: Tracer, tensor: TracedTensor) -> None:
    """``tensor`` has new contents: gives its base and every other view of it theirs, as operations of the host part."""
    _refresh_children(tracer, tensor, but=None)
    child = tensor
    while child.parent is not None:
        parent = child.parent
        parent.value = _into(tracer, child, parent).value
        parent.mutated = True
        _refresh_children(tracer, parent, but=child)
        child = parent


def _refresh_children(tracer: Tracer, tensor: TracedTensor, but: TracedTensor | None) -> None:
    for reference in tensor.children:
        child = reference()
        if child is None or child is but:
            continue
        assert child.view_call is not None
        func, args, kwargs = child.view_call
        if func is None:
            child.value = tensor.value
        else:
            result = tracer.record(func, (tensor, *args), kwargs)
            tensor.children.pop()  # the temporary is no view that a kernel holds
            if not isinstance(result, TracedTensor):
                tracer.refuse(f"writing to a tensor that was split by {func}", "use slices: t[:n], t[n:]")
            child.value = result.value
        _refresh_children(tracer, child, but=None)


def _into(tracer: Tracer, child: TracedTensor, parent: TracedTensor) -> TracedTensor:
    """The contents of ``parent``, given the new ones of its view ``child``."""
    assert child.view_call is not None
    func, args, _ = child.view_call
    shape = list(parent.meta.shape)

    def call(function: Any, *rest: Any, **more: Any) -> TracedTensor:
        result = tracer.record(function, (child, *rest), more)
        if child.children and child.children[-1]() is result:
            child.children.pop()
        return result

    name = "alias" if func is None else func._schema.name.split("::")[1]
    if name == "alias" or (name == "expand" and parent.meta.shape == child.meta.shape):
        return child
    if func is _aten.view.dtype:
        return call(func, parent.dtype)
    if name in ("view", "_unsafe_view", "_reshape_alias", "squeeze", "unsqueeze", "unflatten"):
        return call(_aten.view.default, shape)
    if name in ("t", "transpose"):
        return call(func, *args)
    if name == "permute":
        order = [d % len(shape) for d in args[0]]
        return call(_aten.permute.default, [order.index(i) for i in range(len(order))])
    if name == "slice":
        given: list[Any] = [*args, *(0, None, None, 1)[len(args) :]]
        dim, start, stop, step = given
        start, stop, step = slice(start, stop, step).indices(shape[dim])
        if step == 1:
            return _around(tracer, parent, child, dim, start, max(start, stop))
    if name == "select":
        dim, at = args[0], args[1] % shape[args[0]]
        return _around(tracer, parent, call(_aten.unsqueeze.default, dim % len(shape)), dim, at, at + 1)
    tracer.refuse(f"writing through the view that '{name}' gives", "write to the tensor itself")


def _around(tracer: Tracer, parent: TracedTensor, middle: TracedTensor, dim: int, start: int, stop: int) -> TracedTensor:
    """``parent`` with ``middle`` in place of its elements ``start:stop`` along ``dim``."""
    size = parent.meta.shape[dim]
    pieces = [_cut(tracer, parent, dim, 0, start), middle, _cut(tracer, parent, dim, stop, size)]
    pieces = [p for p in pieces if p is not None]
    return pieces[0] if len(pieces) == 1 else tracer.record(_aten.cat.default, (pieces, dim), {})


def _cut(tracer: Tracer, source: TracedTensor, dim: int, start: int, stop: int) -> TracedTensor | None:
    if start == stop:
        return None
    result = tracer.record(_aten.slice.Tensor, (source, dim, start, stop), {})
    source.children.pop()  # a temporary, not a view that the kernel holds
    return result
