"""Root-mean-square normalisation over the last dimension."""

from __future__ import annotations

import torch

import helion_rt as helion
import helion_rt.language as hl


@helion.kernel
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight``, the mean over the last dimension.

    Args:
        x: ``[..., n]``, float32 or bfloat16; computed in float32.
        weight: ``[n]``.
        eps: added to the mean square.

    Returns:
        The shape and dtype of ``x``.
    """
    n = x.size(-1)
    eps = hl.specialize(eps)
    rows = x.reshape(-1, n)
    out = torch.empty_like(rows)
    for tile in hl.tile(rows.size(0)):
        row = rows[tile, :].to(torch.float32)
        scale = torch.rsqrt(torch.mean(row * row, dim=-1, keepdim=True) + eps)
        out[tile, :] = (row * scale * weight[:].to(torch.float32)[None, :]).to(out.dtype)
    return out.view(x.size())
