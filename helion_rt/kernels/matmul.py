"""Matrix product, with an optional bias and an optional epilogue fused into it."""

from __future__ import annotations

from collections.abc import Callable

import torch

import helion_rt as helion
import helion_rt.language as hl


@helion.kernel
def matmul(
    x: torch.Tensor,
    y: torch.Tensor,
    bias: torch.Tensor | None = None,
    epilogue: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> torch.Tensor:
    """``epilogue(x @ y + bias)``, accumulated in float32.

    Args:
        x: ``[m, k]``, float32 or bfloat16.
        y: ``[k, n]``.
        bias: ``[n]``, or None for none.
        epilogue: applied to the float32 tile of the result before it is written, e.g. ``torch.relu``; it must be elementwise.

    Returns:
        ``[m, n]`` in PyTorch's promoted dtype of ``x`` and ``y``.
    """
    m, k = x.size()
    n = y.size(1)
    assert y.size(0) == k, f"x has {k} columns, y has {y.size(0)} rows"
    out = torch.empty([m, n], dtype=torch.promote_types(x.dtype, y.dtype), device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        if bias is not None:
            acc = acc + bias[tile_n].to(torch.float32)[None, :]
        if epilogue is not None:
            acc = epilogue(acc)
        out[tile_m, tile_n] = acc.to(out.dtype)
    return out
