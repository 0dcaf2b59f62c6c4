"""Flash attention: softmax(q k^T * scale + bias) v without ever holding the matrix of scores."""

from __future__ import annotations

import math

import torch

import helion_rt as helion
import helion_rt.language as hl

_LOG2_E = math.log2(math.e)
_LOWEST = torch.finfo(torch.float32).min
# Bias below this counts as this: times log2(e) it is still finite, and so is its difference to any score.
_LOWEST_BIAS = -1e38


@helion.kernel
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None = None,
    key_bias: torch.Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    """``softmax(q @ k^T * scale + bias) @ v``, accumulated in float32.

    A bias at or below -1e38 (also -inf) switches a key off; a query whose keys are all off gets the mean of ``v``.

    Args:
        q: ``[b, h, m, d]``, float32 or bfloat16.
        k, v: ``[b, h, n, d]``.
        bias: added to the scores, ``[b, h, m, n]``; any of the first three may be 1.
        key_bias: added to the scores of every query and head, ``[b, n]``: what a padding mask is.
        causal: query ``i`` sees keys ``0 .. i`` (as ``torch.nn.functional.scaled_dot_product_attention`` aligns them).
        scale: default ``d ** -0.5``.

    Returns:
        ``[b, h, m, d]`` in the dtype of ``q``.
    """
    b, h, m, d = q.size()
    n = k.size(2)
    scale_log2 = (d**-0.5 if scale is None else hl.specialize(scale)) * _LOG2_E
    q3 = q.reshape(b * h, m, d)
    k3 = k.reshape(b * h, n, d).transpose(1, 2)
    v3 = v.reshape(b * h, n, d)
    if key_bias is not None:
        key_bias = key_bias.unsqueeze(1).expand(b, h, n).reshape(b * h, n)
    if bias is not None:
        bias = bias.expand(b, h, m, n).reshape(b * h, m, n)
    out = torch.empty_like(q3)
    for tile_b, tile_m in hl.tile([b * h, m]):
        query = q3[tile_b, tile_m, :]
        highest = hl.full([tile_b, tile_m], _LOWEST, dtype=torch.float32)
        total = hl.zeros([tile_b, tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_b, tile_m, d], dtype=torch.float32)
        # Keys after the last query of the tile are masked out altogether: do not visit them.
        for tile_n in hl.tile(tile_m.end if causal and m <= n else n):
            # Scores in base 2: exp2 is what the hardware has, and log2(e) folds into the scale.
            scores = hl.dot(query, k3[tile_b, :, tile_n], out_dtype=torch.float32) * scale_log2
            if key_bias is not None:
                scores = scores + (torch.clamp(key_bias[tile_b, tile_n].to(torch.float32), min=_LOWEST_BIAS) * _LOG2_E)[:, None, :]
            if bias is not None:
                scores = scores + torch.clamp(bias[tile_b, tile_m, tile_n].to(torch.float32), min=_LOWEST_BIAS) * _LOG2_E
            if causal:
                scores = torch.where((tile_m.index[:, None] >= tile_n.index[None, :])[None, :, :], scores, _LOWEST)
            higher = torch.maximum(highest, torch.amax(scores, dim=-1))
            weights = torch.exp2(scores - higher[:, :, None])
            rescale = torch.exp2(highest - higher)
            total = total * rescale + torch.sum(weights, dim=-1)
            acc = hl.dot(weights.to(v3.dtype), v3[tile_b, tile_n, :], acc=acc * rescale[:, :, None])
            highest = higher
        out[tile_b, tile_m, :] = (acc / total[:, :, None]).to(out.dtype)
    return out.view(b, h, m, d)
