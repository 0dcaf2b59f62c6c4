"""Matrix products of more than two dimensions: recorded as one ``hl.dot``, where PyTorch would fold dimensions together.

Folding a tile into another dimension mixes elements that exist with some that do not, so ``torch.matmul``, ``einsum`` and ``linear``
are caught before PyTorch takes them apart. What is not caught (host tensors, plain matrices) is left to PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from . import draws
from .shapes import broadcast
from .tensors import TracedTensor

if TYPE_CHECKING:
    from .tracer import Tracer


def dot_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a batched product, batch dimensions broadcast. Raises ``ValueError``."""
    if min(len(a), len(b)) < 2 or a[-1] != b[-2]:
        raise ValueError("the inner dimensions do not go together")
    return (*broadcast(a[:-2], b[:-2]), a[-2], b[-1])


class Products(TorchFunctionMode):
    """Catches the products of the kernel, and what draws random numbers in several steps."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        own = _CAUGHT.get(func) or draws.CAUGHT.get(func)
        result = own(self.tracer, *args, **kwargs) if own is not None else NotImplemented
        return func(*args, **kwargs) if result is NotImplemented else result


def _tiles(*tensors: Any) -> bool:
    return all(isinstance(t, TracedTensor) and not t.is_host for t in tensors)


def matmul(tracer: Tracer, a: Any, b: Any, *, out: Any = None) -> Any:
    """``torch.matmul`` where a dimension would be folded; NotImplemented elsewhere."""
    if out is not None or not _tiles(a, b) or a.dtype != b.dtype or min(a.dim(), b.dim()) == 0 or max(a.dim(), b.dim()) < 3:
        return NotImplemented
    left, right = a.unsqueeze(0) if a.dim() == 1 else a, b.unsqueeze(1) if b.dim() == 1 else b
    result = tracer.dot(left, right, None, a.dtype)
    result = result.squeeze(-2) if a.dim() == 1 else result
    return result.squeeze(-1) if b.dim() == 1 else result


def _rmatmul(tracer: Tracer, a: Any, b: Any) -> Any:
    return matmul(tracer, b, a)


def linear(tracer: Tracer, x: Any, weight: Any, bias: Any = None) -> Any:
    """``F.linear`` of tiles of more than two dimensions; the bias is added before the one rounding."""
    if not _tiles(x, weight) or x.dim() < 3 or weight.dim() != 2 or x.dtype != weight.dtype:
        return NotImplemented
    narrow = bias is not None and x.dtype.is_floating_point and x.dtype.itemsize < 4
    product = tracer.dot(x, weight.t(), None, torch.float32 if narrow else x.dtype)
    return product if bias is None else (product + bias).to(x.dtype)


def einsum(tracer: Tracer, equation: Any, *operands: Any) -> Any:
    """``torch.einsum`` of two tiles with at most one dimension to sum over; NotImplemented elsewhere.

    Rows and columns beyond one of each become batch dimensions, which the other operand broadcasts along.
    """
    given = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else list(operands)
    if not isinstance(equation, str) or "..." in equation or len(given) != 2 or not _tiles(*given) or given[0].dtype != given[1].dtype:
        return NotImplemented
    inputs, arrow, out = equation.replace(" ", "").partition("->")
    names = inputs.split(",")
    if len(names) != 2 or not arrow or any(len(set(n)) != len(n) or len(n) != t.dim() for n, t in zip(names, given, strict=True)):
        return NotImplemented
    a, b = names
    batch = [c for c in a if c in b and c in out]
    inner = [c for c in a if c in b and c not in out]
    rows, columns = [c for c in a if c not in b], [c for c in b if c not in a]
    if len(inner) != 1 or sorted(out) != sorted(batch + rows + columns):
        return NotImplemented
    batch += [*rows[:-1], *columns[:-1]]
    rows, columns = rows[-1:], columns[-1:]
    left = _arranged(given[0], a, batch, [*(rows or [None]), *inner])
    right = _arranged(given[1], b, batch, [*inner, *(columns or [None])])
    product = tracer.dot(left, right, None, given[0].dtype)
    product = product if columns else product.squeeze(-1)
    product = product if rows else product.squeeze(-1 if not columns else -2)
    found = [*batch, *rows, *columns]
    return product if found == list(out) else product.permute([found.index(c) for c in out])


def _arranged(x: Any, names: str, batch: Sequence[str], matrix: Sequence[str | None]) -> Any:
    """``x`` with its dimensions in the order ``batch``, ``matrix``; those that it does not have are of size 1."""
    wanted = [*batch, *matrix]
    order = [names.index(c) for c in wanted if c is not None and c in names]
    x = x if order == sorted(order) else x.permute(order)
    for dim, c in enumerate(wanted):
        x = x.unsqueeze(dim) if c is None or c not in names else x
    return x


_CAUGHT: dict[Any, Callable[..., Any]] = {
    torch.matmul: matmul, torch.Tensor.matmul: matmul, torch.Tensor.__matmul__: matmul, torch.Tensor.__rmatmul__: _rmatmul,
    torch.nn.functional.linear: linear, torch.einsum: einsum, torch.functional.einsum: einsum,
}  # fmt: skip
