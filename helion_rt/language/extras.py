"""Pairs, printing, tunable values, and the way out to JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ._active import tracer


def split(tensor: Any) -> Any:
    """The two halves of a tensor whose last dimension is 2: [..., 2] gives two of [...], in its dtype."""
    active = tracer("split")
    if not tensor.dim() or tensor.shape[-1] != 2:
        active.refuse("hl.split of a tensor whose last dimension is not 2", "reshape it first: x.reshape([..., n, 2])")
    return tensor.select(-1, 0), tensor.select(-1, 1)


def join(tensor0: Any, tensor1: Any) -> Any:
    """Two tensors of one dtype, broadcast to one shape [...], side by side along a new last dimension: [..., 2]."""
    import torch

    active = tracer("join")
    if tensor0.dtype != tensor1.dtype:
        active.refuse(f"hl.join of {tensor0.dtype} and {tensor1.dtype}", "convert one with .to(dtype)")
    return torch.stack(torch.broadcast_tensors(tensor0, tensor1), dim=-1)


def device_print(prefix: str, *values: Any) -> None:
    """Prints ``prefix`` and the values of tiles or scalars when the kernel runs."""
    tracer("device_print").device_print(prefix, values)


def register_tunable(name: str, fragment: Any) -> Any:
    """The value of the kernel's own ``Config(name=...)``, else ``fragment.default()``: a Python number."""
    return tracer("register_tunable").register_tunable(name, fragment)


def inline_pallas(fn: Callable[..., Any], args: Sequence[Any], output_like: Any, elementwise: bool = False) -> Any:
    """Calls ``fn``, a JAX function at the top of a module, on tiles: the way out of this language.

    ``args`` are tiles, which ``fn`` sees as JAX arrays, and numbers. ``output_like``: a tensor, or a tuple of tensors, whose shapes
    and dtypes the results have. ``fn`` gets whole blocks only, so ragged tiles are refused, unless it is declared ``elementwise``
    (then it may see arrays with a unit dimension more).
    """
    return tracer("inline_pallas").inline(fn, tuple(args), output_like, elementwise)
