"""Softmax over the last dimension, in two forms."""

from __future__ import annotations

import torch

import helion_rt as helion
import helion_rt.language as hl


@helion.kernel
def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax over the last dimension; a tile holds whole rows, so each element is read once.

    Args:
        x: ``[..., n]``, float32 or bfloat16; computed in float32.

    Returns:
        The shape and dtype of ``x``.
    """
    n = x.size(-1)
    rows = x.reshape(-1, n)
    out = torch.empty_like(rows)
    for tile in hl.tile(rows.size(0)):
        row = rows[tile, :].to(torch.float32)
        numerator = torch.exp(row - torch.amax(row, dim=-1, keepdim=True))
        out[tile, :] = (numerator / torch.sum(numerator, dim=-1, keepdim=True)).to(out.dtype)
    return out.view(x.size())


@helion.kernel
def softmax_two_pass(x: torch.Tensor) -> torch.Tensor:
    """Softmax over the last dimension for rows too long to hold: one pass for maximum and sum, one to write.

    Args:
        x: ``[..., n]``, float32 or bfloat16; computed in float32.

    Returns:
        The shape and dtype of ``x``.
    """
    n = x.size(-1)
    rows = x.reshape(-1, n)
    out = torch.empty_like(rows)
    for tile_m in hl.tile(rows.size(0)):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            values = rows[tile_m, tile_n].to(torch.float32)
            higher = torch.maximum(highest, torch.amax(values, dim=1))
            # What was summed so far was relative to the old maximum.
            total = total * torch.exp(highest - higher) + torch.sum(torch.exp(values - higher[:, None]), dim=1)
            highest = higher
        for tile_n in hl.tile(n):
            values = rows[tile_m, tile_n].to(torch.float32)
            out[tile_m, tile_n] = (torch.exp(values - highest[:, None]) / total[:, None]).to(out.dtype)
    return out.view(x.size())
