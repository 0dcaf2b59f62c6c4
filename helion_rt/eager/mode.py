"""What torch does differently in kernel code: tiles in subscripts and in arithmetic, and products of mixed dtypes."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .session import Session
from .tiles import EagerTile, as_value

# Where a tile is its positions, and where it is a size. Anywhere else it means nothing.
_ARITHMETIC = frozenset(
    "add sub mul div truediv floordiv floor_divide mod remainder pow lt le gt ge eq ne less greater less_equal greater_equal"
    " and or xor iadd isub imul radd rsub rmul rtruediv rfloordiv rmod rpow not_equal".split()
)
_SIZES = frozenset(
    "zeros ones full empty rand randn randint arange new_zeros new_ones new_full new_empty expand view reshape unflatten repeat"
    " broadcast_to narrow split".split()
)
_PRODUCTS = frozenset("mm bmm matmul rmatmul addmm baddbmm".split())


class KernelMode(TorchFunctionMode):
    """Every torch function that kernel code calls comes through here."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._session.in_device and func is torch.Tensor.__getitem__:
            return self._session.load(*args)
        if self._session.in_device and func is torch.Tensor.__setitem__:
            return self._session.store(*args)
        name = getattr(func, "__name__", "").strip("_")
        if any(map(_has_tile, args)) or any(map(_has_tile, kwargs.values())):
            if name in _ARITHMETIC:
                args = tuple(map(as_value, args))
            elif name not in _SIZES:
                hint = "use tile.index for its positions, tile.block_size for its size"
                self._session.refuse(f"a tile is used as a number in {name}", hint)
        if name in _SIZES:
            args = tuple(map(self._session.true_size, args))
        if name in _PRODUCTS:
            return product(func, name, args, dict(kwargs))
        return func(*args, **kwargs)


def _has_tile(value: Any) -> bool:
    return any(map(_has_tile, value)) if isinstance(value, (tuple, list)) else isinstance(value, EagerTile)


def product(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """A product as kernels have it: operands of different dtypes are converted, an accumulator's dtype is the result's."""
    out = kwargs.pop("out_dtype", None)
    if args and isinstance(args[-1], torch.dtype):
        *args, out = args  # pyright: ignore[reportAssignmentType]
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    if name in ("addmm", "baddbmm"):
        out = out or tensors[0].dtype
        wide = torch.int32 if not out.is_floating_point else torch.float32
        return func(*(a.to(wide) if isinstance(a, torch.Tensor) else a for a in args), **kwargs).to(out)
    if out is None and len({t.dtype for t in tensors}) == 1:
        return func(*args, **kwargs)
    common = out or torch.promote_types(tensors[0].dtype, tensors[-1].dtype)
    return func(*(a.to(common) if isinstance(a, torch.Tensor) else a for a in args), **kwargs)


__all__ = ["KernelMode", "product"]
