"""Kernels in Helion's style that the tests of capture use."""

from __future__ import annotations

import math
from typing import Any

import torch

import helion_rt.language as hl


def add(x, y):
    out = torch.empty_like(x)
    for tile in hl.tile(out.size()):
        out[tile] = x[tile] + y[tile]
    return out


def matmul(x: torch.Tensor, y: torch.Tensor, epilogue: Any = lambda acc, tile: acc) -> torch.Tensor:
    m, k = x.size()
    k2, n = y.size()
    assert k == k2, f"size mismatch {k} != {k2}"
    out = torch.empty([m, n], dtype=torch.promote_types(x.dtype, y.dtype), device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = epilogue(acc, (tile_m, tile_n))
    return out


def matmul_dot(x, y):
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n])
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc
    return out


def matmul_in_place(x, y):
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n])
        for tile_k in hl.tile(k):
            acc += x[tile_m, tile_k] @ y[tile_k, tile_n]
        out[tile_m, tile_n] = acc
    return out


def softmax(x):
    n, _m = x.size()
    out = torch.empty_like(x)
    for tile_n in hl.tile(n):
        out[tile_n, :] = torch.nn.functional.softmax(x[tile_n, :], dim=1)
    return out


def softmax_two_pass(x):
    m, n = x.size()
    out = torch.empty_like(x)
    block_size_m = hl.register_block_size(m)
    block_size_n = hl.register_block_size(n)
    for tile_m in hl.tile(m, block_size=block_size_m):
        mi = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        di = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n, block_size=block_size_n):
            values = x[tile_m, tile_n]
            local_amax = torch.amax(values, dim=1)
            mi_next = torch.maximum(mi, local_amax)
            di = di * torch.exp(mi - mi_next) + torch.exp(values - mi_next[:, None]).sum(dim=1)
            mi = mi_next
        for tile_n in hl.tile(n, block_size=block_size_n):
            values = x[tile_m, tile_n]
            out[tile_m, tile_n] = torch.exp(values - mi[:, None]) / di[:, None]
    return out


def layer_norm(x, weight, bias, eps: float):
    m, _n = x.size()
    out = torch.empty_like(x)
    for tile_m in hl.tile(m):
        acc = x[tile_m, :].to(torch.float32)
        var, mean = torch.var_mean(acc, dim=-1, keepdim=True, correction=0)
        normalized = (acc - mean) * torch.rsqrt(var + eps)
        out[tile_m, :] = normalized * weight[:].to(torch.float32) + bias[:].to(torch.float32)
    return out


def attention(q_in, k_in, v_in):
    m_dim, n_dim, head_dim = q_in.size(-2), k_in.size(-2), hl.specialize(q_in.size(-1))
    q_view = q_in.reshape([-1, m_dim, head_dim])
    v_view = v_in.reshape([-1, n_dim, head_dim])
    k_view = k_in.reshape([-1, n_dim, head_dim]).transpose(1, 2)
    out = torch.empty_like(q_view)
    sm_scale = 1.0 / math.sqrt(head_dim)
    qk_scale = sm_scale * 1.44269504
    for tile_b, tile_m in hl.tile([q_view.size(0), m_dim]):
        m_i = hl.full([tile_b, tile_m], float("-inf"), dtype=torch.float32)
        l_i = torch.full_like(m_i, 1.0)
        acc = hl.zeros([tile_b, tile_m, head_dim], dtype=torch.float32)
        q = q_view[tile_b, tile_m, :]
        for tile_n in hl.tile(v_view.size(1)):
            k = k_view[tile_b, :, tile_n]
            qk = torch.bmm(q, k)
            m_ij = torch.maximum(m_i, torch.amax(qk, -1) * qk_scale)
            qk = qk * qk_scale - m_ij[:, :, None]
            p = torch.exp2(qk)
            l_ij = torch.sum(p, -1)
            alpha = torch.exp2(m_i - m_ij)
            l_i = l_i * alpha + l_ij
            acc = acc * alpha[:, :, None]
            v = v_view[tile_b, tile_n, :]
            p = p.to(v.dtype)
            acc = torch.baddbmm(acc, p, v)
            m_i = m_ij
        m_i += torch.log2(l_i)
        acc = acc / l_i[:, :, None]
        out[tile_b, tile_m, :] = acc.to(out.dtype)
    return out.view(q_in.size())


def causal_sums(x):
    """out[i] = sum of x[j] for j <= i, tile by tile, the inner loop bounded by the outer tile's end."""
    n = x.size(0)
    out = torch.empty_like(x)
    for tile_m in hl.tile(n):
        acc = hl.zeros([tile_m], dtype=x.dtype)
        for tile_n in hl.tile(0, tile_m.end):
            seen = tile_m.index[:, None] >= tile_n.index[None, :]
            acc = acc + torch.where(seen, x[tile_n][None, :], 0).sum(-1)
        out[tile_m] = acc
    return out


def two_outputs(x, scale: float):
    low = torch.empty([x.size(0)], dtype=x.dtype)
    scaled = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :]
        low[tile] = row.amin(-1)
        scaled[tile, :] = row * scale
    return scaled, (low, x.size(0))


def rms_by_rows(x):
    out = torch.empty_like(x)
    for i in hl.grid(x.size(0)):
        row = x[i, :].to(torch.float32)
        out[i, :] = row * torch.rsqrt((row * row).mean() + 1e-6)
    return out


def unrolled(x, taps: int):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        acc = x[tile]
        for i in range(taps):
            if i == 3:
                break
            acc = acc * 2 + i
        for j in hl.static_range(2):
            acc = acc + j
        out[tile] = acc
    return out


def gelu(x):
    out = torch.empty_like(x)
    flat, out_flat = x.view(-1), out.view(-1)
    for tile in hl.tile(flat.size(0)):
        out_flat[tile] = torch.nn.functional.gelu(flat[tile])
    return out


def scale_in_place(x, scale: float):
    for tile in hl.tile(x.size(0)):
        x[tile] *= scale
