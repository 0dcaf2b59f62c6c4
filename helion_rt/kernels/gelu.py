"""GELU, the exact form (with the error function, as ``torch.nn.functional.gelu`` computes by default)."""

from __future__ import annotations

import math

import torch

import helion_rt as helion
import helion_rt.language as hl

_SQRT_HALF = math.sqrt(0.5)


@helion.kernel
def gelu(x: torch.Tensor) -> torch.Tensor:
    """``x * Phi(x)``, ``Phi`` the distribution function of the standard normal distribution.

    Args:
        x: ``[..., n]``, float32 or bfloat16; computed in float32.

    Returns:
        The shape and dtype of ``x``.
    """
    n = x.size(-1)
    rows = x.reshape(-1, n)
    out = torch.empty_like(rows)
    for tile_m, tile_n in hl.tile([rows.size(0), n]):
        value = rows[tile_m, tile_n].to(torch.float32)
        out[tile_m, tile_n] = (0.5 * value * (1.0 + torch.erf(value * _SQRT_HALF))).to(out.dtype)
    return out.view(x.size())
