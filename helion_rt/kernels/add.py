"""Elementwise addition with broadcasting."""

from __future__ import annotations

import torch

import helion_rt as helion
import helion_rt.language as hl


@helion.kernel
def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``x + y``.

    Args:
        x, y: any shapes that broadcast together, any dtypes.

    Returns:
        The broadcast shape, in PyTorch's promoted dtype of the two.
    """
    x, y = torch.broadcast_tensors(x, y)
    out = torch.empty(x.shape, dtype=torch.promote_types(x.dtype, y.dtype), device=x.device)
    for tile in hl.tile(out.size()):
        out[tile] = x[tile] + y[tile]
    return out
