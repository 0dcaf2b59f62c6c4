"""Layer normalisation over the last dimension."""

from __future__ import annotations

import torch

import helion_rt as helion
import helion_rt.language as hl


@helion.kernel
def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, eps: float = 1e-5) -> torch.Tensor:
    """``(x - mean) / sqrt(variance + eps) * weight + bias``, mean and (biased) variance over the last dimension.

    Args:
        x: ``[..., n]``, float32 or bfloat16; computed in float32.
        weight: ``[n]``.
        bias: ``[n]``, or None for none.
        eps: added to the variance.

    Returns:
        The shape and dtype of ``x``.
    """
    n = x.size(-1)
    eps = hl.specialize(eps)
    rows = x.reshape(-1, n)
    out = torch.empty_like(rows)
    for tile in hl.tile(rows.size(0)):
        row = rows[tile, :].to(torch.float32)
        centred = row - torch.mean(row, dim=-1, keepdim=True)
        # The variance of the centred row, not E[x^2] - E[x]^2: that loses every digit when the mean is large.
        variance = torch.mean(centred * centred, dim=-1, keepdim=True)
        normed = centred * torch.rsqrt(variance + eps) * weight[:].to(torch.float32)[None, :]
        if bias is not None:
            normed = normed + bias[:].to(torch.float32)[None, :]
        out[tile, :] = normed.to(out.dtype)
    return out.view(x.size())
