"""Shapes and dtypes of common operations without PyTorch's meta kernels.

Those are Python since long, and the first of them imports ``torch._dynamo`` or sympy: one to four seconds in a process that
would need neither. So the shape comes from a rule, and the dtype from PyTorch itself, which runs the operation on the CPU
with two elements in each dimension. Operations without a rule here go to the meta kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

_aten = torch.ops.aten
_OF_INTEGERS = ("aten::bitwise_", "aten::__lshift__", "aten::__rshift__")
Shape = tuple[int, ...]


def broadcast(*shapes: Sequence[int]) -> Shape:
    """The common shape. Raises ``ValueError``. (``torch.broadcast_shapes`` imports sympy.)"""
    result = [1] * max(map(len, shapes), default=0)
    for shape in shapes:
        for i, size in enumerate(shape, len(result) - len(shape)):
            if size != 1 and result[i] not in (1, size):
                raise ValueError(f"sizes {result[i]} and {size} do not go together")
            result[i] = size if result[i] == 1 else result[i]
    return tuple(result)


def infer(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of ``func`` on meta tensors, as meta tensors; NotImplemented if there is no rule for it.

    Raises ``ValueError`` where shapes do not go together, and what PyTorch raises for dtypes.
    """
    rule = _RULES.get(func) or (_elementwise if torch.Tag.pointwise in func.tags else None)
    if rule is None:
        return NotImplemented
    bound = _bind(func, args, kwargs)
    tensors = _tensors(list(bound.values()))
    if not tensors:
        return NotImplemented
    # Rules first: they see the true shapes, and complain in their terms.
    shape = rule(bound, tensors)
    if func in _TYPED_PRODUCTS:  # the CPU has none of them; their dtype is an argument
        return torch.empty(shape, dtype=bound["out_dtype"], device="meta")
    size = 1 if rule is _elementwise else 2
    try:
        out = func(*_small(args, size), **{k: _small(v, size) for k, v in kwargs.items()})
    except NotImplementedError:  # the CPU does not have it for this dtype
        if func._schema.name.startswith(_OF_INTEGERS) and any(t.is_floating_point() for t in tensors):
            raise TypeError(f"dtype {', '.join(str(t.dtype) for t in tensors)}; expected integers or bool") from None
        return NotImplemented
    if isinstance(out, torch.Tensor):
        return torch.empty(shape, dtype=out.dtype, device="meta")
    return tuple(torch.empty(shape, dtype=o.dtype, device="meta") for o in out)


def _bind(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    names = [a.name for a in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    return [t for item in tree for t in _tensors(item)] if isinstance(tree, (list, tuple)) else []


def _small(tree: Any, size: int) -> Any:
    if isinstance(tree, torch.Tensor):
        return torch.ones((size,) * tree.dim(), dtype=tree.dtype)
    return [_small(item, size) for item in tree] if isinstance(tree, (list, tuple)) else tree


def _elementwise(bound: dict[str, Any], tensors: list[torch.Tensor]) -> Shape:
    return broadcast(*(t.shape for t in tensors))


def _same(bound: dict[str, Any], tensors: list[torch.Tensor]) -> Shape:
    source, dim = tensors[0], bound.get("dim")
    if isinstance(dim, int):
        _at(source, dim)
    return tuple(source.shape)


def _at(source: torch.Tensor, dim: int) -> int:
    rank = max(source.dim(), 1)
    if not -rank <= dim < rank:
        raise IndexError(f"dimension {dim} of a tensor of rank {source.dim()}")
    return dim % rank


def _reduced(bound: dict[str, Any], tensors: list[torch.Tensor]) -> Shape:
    source, dim = tensors[0], bound.get("dim")
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        dims = set(range(source.dim()))
    else:
        dims = {_at(source, d) for d in (dim if isinstance(dim, (list, tuple)) else [dim])}
    if bound.get("keepdim"):
        return tuple(1 if i in dims else n for i, n in enumerate(source.shape))
    return tuple(n for i, n in enumerate(source.shape) if i not in dims)


def _scalar(bound: dict[str, Any], tensors: list[torch.Tensor]) -> Shape:
    return ()


def _product(bound: dict[str, Any], tensors: list[torch.Tensor]) -> Shape:
    """``mm``, ``bmm``, and those with something added first."""
    *added, a, b = tensors
    if a.dim() != b.dim() or a.dim() not in (2, 3) or a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        raise ValueError(f"a product of {list(a.shape)} and {list(b.shape)}; expected [m, k] @ [k, n], or both with a batch first")
    shape = (*a.shape[:-1], b.shape[-1])
    if added and broadcast(added[0].shape, shape) != shape:
        raise ValueError(f"{list(added[0].shape)} is added to a product of shape {list(shape)}")
    return shape


def _concatenated(bound: dict[str, Any], tensors: list[torch.Tensor]) -> Shape:
    dim = _at(tensors[0], bound.get("dim", 0))
    shapes = [list(t.shape) for t in tensors]
    for shape in shapes:
        if len(shape) != len(shapes[0]) or any(n != m for i, (n, m) in enumerate(zip(shape, shapes[0], strict=True)) if i != dim):
            raise ValueError(f"tensors of shapes {shapes} are put together along dimension {dim}")
    return tuple(sum(s[dim] for s in shapes) if i == dim else n for i, n in enumerate(shapes[0]))


def _stacked(bound: dict[str, Any], tensors: list[torch.Tensor]) -> Shape:
    shape = list(tensors[0].shape)
    if any(list(t.shape) != shape for t in tensors):
        raise ValueError(f"tensors of shapes {[list(t.shape) for t in tensors]} are stacked")
    at = bound.get("dim", 0)
    shape.insert(at if at >= 0 else at + len(shape) + 1, len(tensors))
    return tuple(shape)


_REDUCTIONS = (
    _aten.sum.dim_IntList, _aten.mean.dim, _aten.amax.default, _aten.amin.default, _aten.max.dim, _aten.min.dim, _aten.prod.dim_int,
    _aten.any.dim, _aten.all.dim, _aten.argmax.default, _aten.argmin.default, _aten.var.correction, _aten.std.correction,
    _aten.var_mean.correction, _aten.logsumexp.default, _aten.any.dims, _aten.all.dims, _aten.var.dim, _aten.std.dim, _aten.var_mean.dim,
)  # fmt: skip
_FULL = (
    _aten.sum.default, _aten.mean.default, _aten.max.default, _aten.min.default, _aten.prod.default, _aten.any.default,
    _aten.all.default, _aten.var.default, _aten.std.default, _aten.var_mean.default,
)  # fmt: skip
# Elementwise, but PyTorch does not tag them so.
_UNTAGGED = (
    _aten.floor_divide.default, _aten.floor_divide.Scalar, _aten.rsub.Tensor, _aten.rsub.Scalar, _aten.where.Scalar,
    _aten.where.ScalarSelf, _aten.where.ScalarOther,
)  # fmt: skip
_SAME = (
    _aten._softmax.default, _aten._log_softmax.default, _aten.cumsum.default, _aten.cumprod.default, _aten.flip.default,
    _aten.tril.default, _aten.triu.default, _aten._to_copy.default, _aten.clone.default,
)  # fmt: skip
_TYPED_PRODUCTS = (_aten.mm.dtype, _aten.bmm.dtype, _aten.addmm.dtype, _aten.baddbmm.dtype)
_PRODUCTS = (*_TYPED_PRODUCTS, _aten.mm.default, _aten.bmm.default, _aten.addmm.default, _aten.baddbmm.default)
_RULES: dict[Any, Callable[[dict[str, Any], list[torch.Tensor]], Shape]] = {
    **dict.fromkeys(_UNTAGGED, _elementwise),
    **dict.fromkeys(_REDUCTIONS, _reduced),
    **dict.fromkeys(_FULL, _scalar),
    **dict.fromkeys(_SAME, _same),
    **dict.fromkeys(_PRODUCTS, _product),
    _aten.cat.default: _concatenated,
    _aten.stack.default: _stacked,
}


def layer_norm(source: torch.Tensor, sizes: Sequence[int], weight: Any, bias: Any, eps: float) -> tuple[torch.Tensor, ...]:
    """``native_layer_norm``: the result, mean and reciprocal standard deviation."""
    tail = list(source.shape[source.dim() - len(sizes) :])
    if not source.dtype.is_floating_point:
        raise TypeError(f"layer_norm of dtype {source.dtype}; expected floating point")
    if tail != list(sizes) or any(p is not None and list(p.shape) != tail for p in (weight, bias)):
        raise ValueError(f"layer_norm over {list(sizes)} of a tensor whose last sizes are {tail}, or weight and bias of other shapes")
    kept = [*source.shape[: source.dim() - len(sizes)], *[1] * len(sizes)]
    statistics = torch.empty(kept, dtype=torch.float32 if source.dtype.itemsize < 4 else source.dtype, device="meta")
    return torch.empty(source.shape, dtype=source.dtype, device="meta"), statistics, statistics


def arange(start: float, end: float, step: float = 1, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """``arange``: one dimension; int64 of integers, else PyTorch's default dtype."""
    if step == 0:
        raise ValueError("arange with step 0")
    whole = all(isinstance(n, int) for n in (start, end, step))
    length = int(max(0, -(-(end - start) // step)))
    return torch.empty((length,), dtype=dtype or (torch.int64 if whole else torch.get_default_dtype()), device="meta")
