"""The subjects of ``benchmarks.exhaustive``: usual kernels at three shapes each, of about a millisecond on a small CPU."""

from __future__ import annotations

import math

import torch

import helion_rt as helion
import helion_rt.language as hl
from helion_rt import kernels

from .subjects import Subject, compiled

_SQRT_HALF = math.sqrt(0.5)


@helion.kernel
def geglu(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``gelu(a) * b``, both ``[m, n]``."""
    out = torch.empty_like(a)
    for tile_m, tile_n in hl.tile(a.size()):
        gate = a[tile_m, tile_n].to(torch.float32)
        gate = 0.5 * gate * (1.0 + torch.erf(gate * _SQRT_HALF))
        out[tile_m, tile_n] = (gate * b[tile_m, tile_n]).to(out.dtype)
    return out


@helion.kernel
def log_sum_exp(logits: torch.Tensor) -> torch.Tensor:
    """``log(sum(exp(logits)))`` of each row of ``[m, n]`` in one pass: what cross entropy spends its time on."""
    m, n = logits.size()
    out = torch.empty([m], dtype=torch.float32, device=logits.device)
    for tile_m in hl.tile(m):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            values = logits[tile_m, tile_n].to(torch.float32)
            higher = torch.maximum(highest, torch.amax(values, dim=1))
            total = total * torch.exp(highest - higher) + torch.sum(torch.exp(values - higher[:, None]), dim=1)
            highest = higher
        out[tile_m] = highest + torch.log(total)
    return out


def _none(*arrays):  # no comparison with jax.numpy here
    raise NotImplementedError


SUBJECTS = tuple(
    Subject(f"{name} {' x '.join(map(str, (*shapes[0], *(shapes[-1][1:] if name == 'matmul' else ()))))}", kernel, shapes, _none)
    for name, kernel, every in (
        ("gelu", kernels.gelu, (((256, 512),), ((300, 350),), ((1024, 128),))),
        ("geglu", geglu, (((256, 384),) * 2, ((500, 250),) * 2, ((128, 1024),) * 2)),
        ("log sum exp", log_sum_exp, (((256, 1024),), ((1000, 500),), ((2048, 256),))),
        ("matmul", kernels.matmul, (((128, 256), (256, 64)), ((64, 128), (128, 512)), ((32, 1024), (1024, 128)))),
        ("attention", kernels.attention, (((1, 2, 512, 64),) * 3, ((2, 4, 128, 64),) * 3, ((1, 4, 256, 32),) * 3)),
        ("layer norm", kernels.layer_norm, (((16384, 64), (64,), (64,)), ((12000, 96), (96,), (96,)), ((30000, 32), (32,), (32,)))),
        ("softmax", kernels.softmax, (((16384, 64),), ((12000, 100),), ((40000, 16),))),
    )
    for shapes in every
)

__all__ = ["SUBJECTS", "compiled", "geglu", "log_sum_exp"]
