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


def matmul(x: torch.Tensor, y: torch.Tensor, epilogue: Any = lambda acc, tiles: acc) -> torch.Tensor:
    (m, k), n = x.size(), y.size(1)
    assert y.size(0) == k, f"x has {k} columns, y has {y.size(0)} rows"
    out = torch.empty([m, n], dtype=torch.promote_types(x.dtype, y.dtype))
    for rows, columns in hl.tile([m, n]):
        acc = hl.zeros([rows, columns])
        for inner in hl.tile(k):
            acc = torch.addmm(acc, x[rows, inner], y[inner, columns])
        out[rows, columns] = epilogue(acc, (rows, columns))
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
    out = torch.empty_like(x)
    for rows in hl.tile(x.size(0)):
        out[rows, :] = torch.softmax(x[rows, :], -1)
    return out


def softmax_two_pass(x):
    m, n = x.size()
    out = torch.empty_like(x)
    row_block = hl.register_block_size(m)
    column_block = hl.register_block_size(n)
    for rows in hl.tile(m, block_size=row_block):
        top = hl.full([rows], -math.inf)
        total = hl.zeros([rows])
        for columns in hl.tile(n, block_size=column_block):
            seen = x[rows, columns]
            highest = seen.amax(1)
            higher = torch.maximum(top, highest)
            total = total * torch.exp(top - higher) + torch.exp(seen - higher[:, None]).sum(1)
            top = higher
        for columns in hl.tile(n, block_size=column_block):
            out[rows, columns] = torch.exp(x[rows, columns] - top[:, None]) / total[:, None]
    return out


def layer_norm(x, weight, bias, eps: float):
    out = torch.empty_like(x)
    for rows in hl.tile(x.size(0)):
        wide = x[rows, :].to(torch.float32)
        variance, mean = torch.var_mean(wide, dim=-1, keepdim=True, correction=0)
        scaled = (wide - mean) * torch.rsqrt(variance + eps)
        out[rows, :] = scaled * weight[:].to(torch.float32) + bias[:].to(torch.float32)
    return out


def attention(query, key, value):
    m, n, width = query.size(-2), key.size(-2), hl.specialize(query.size(-1))
    queries = query.reshape([-1, m, width])
    keys = key.reshape([-1, n, width]).transpose(1, 2)
    values = value.reshape([-1, n, width])
    out = torch.empty_like(queries)
    scale = math.log2(math.e) / math.sqrt(width)
    for head, rows in hl.tile([queries.size(0), m]):
        top = hl.full([head, rows], -math.inf)
        total = torch.full_like(top, 1.0)  # what it begins with is multiplied by 0
        mixed = hl.zeros([head, rows, width])
        mine = queries[head, rows, :]
        for columns in hl.tile(n):
            scores = torch.bmm(mine, keys[head, :, columns]) * scale
            higher = torch.maximum(top, scores.amax(-1))
            weights = torch.exp2(scores - higher[:, :, None])
            kept = torch.exp2(top - higher)
            total = total * kept + weights.sum(-1)
            mixed = torch.baddbmm(mixed * kept[:, :, None], weights.to(values.dtype), values[head, columns, :])
            top = higher
        top += torch.log2(total)
        out[head, rows, :] = (mixed / total[:, :, None]).to(out.dtype)
    return out.view(query.size())


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
