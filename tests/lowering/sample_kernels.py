"""Kernels that the lowering's tests share, in the way that people write them for Helion."""

from __future__ import annotations

import math

import torch

import helion_rt as helion
import helion_rt.language as hl


@helion.kernel
def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(out.size()):
        out[tile] = x[tile] + y[tile]
    return out


@helion.kernel
def add_bias(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile([m, n]):
        out[tile_m, tile_n] = x[tile_m, tile_n] + bias[tile_n]
    return out


@helion.kernel
def matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    _, n = y.size()
    out = torch.empty([m, n], dtype=torch.promote_types(x.dtype, y.dtype), device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


@helion.kernel
def matmul_int(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    _, n = y.size()
    out = torch.empty([m, n], dtype=torch.int32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.int32)
        for tile_k in hl.tile(k):
            acc += (x[tile_m, tile_k][:, :, None] * y[tile_k, tile_n][None, :, :]).sum(1, dtype=torch.int32)
        out[tile_m, tile_n] = acc
    return out


@helion.kernel
def matmul_dot(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    _, n = y.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = torch.relu(acc).to(x.dtype)
    return out


@helion.kernel
def softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows in hl.tile(x.size(0)):
        out[rows, :] = torch.softmax(x[rows, :], -1)
    return out


@helion.kernel
def softmax_two_pass(x: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty_like(x)
    row_block = hl.register_block_size(m)
    column_block = hl.register_block_size(n)
    for rows in hl.tile(m, block_size=row_block):
        top = hl.full([rows], -math.inf)
        total = hl.zeros([rows])
        for columns in hl.tile(n, block_size=column_block):
            seen = x[rows, columns].to(torch.float32)
            higher = torch.maximum(top, seen.amax(1))
            total = total * torch.exp(top - higher) + torch.exp(seen - higher[:, None]).sum(1)
            top = higher
        for columns in hl.tile(n, block_size=column_block):
            seen = x[rows, columns].to(torch.float32)
            out[rows, columns] = (torch.exp(seen - top[:, None]) / total[:, None]).to(x.dtype)
    return out


@helion.kernel
def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5):
    m, n = x.size()
    out = torch.empty_like(x)
    means = torch.empty([m], dtype=torch.float32)
    scales = torch.empty([m], dtype=torch.float32)
    for rows in hl.tile(m):
        wide = x[rows, :].to(torch.float32)
        mean = wide.sum(-1) / n
        apart = wide - mean[:, None]
        scale = torch.rsqrt((apart * apart).sum(-1) / n + eps)
        means[rows], scales[rows] = mean, scale
        out[rows, :] = (apart * scale[:, None] * weight[:].to(torch.float32) + bias[:].to(torch.float32)).to(x.dtype)
    return out, means, scales


@helion.kernel
def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    m, n, width = query.size(-2), key.size(-2), hl.specialize(query.size(-1))
    assert value.size(-2) == n
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
            scores = torch.bmm(mine, keys[head, :, columns])
            higher = torch.maximum(top, scores.amax(-1) * scale)
            weights = torch.exp2(scores * scale - higher[:, :, None])
            kept = torch.exp2(top - higher)
            total = total * kept + weights.sum(-1)
            mixed = torch.baddbmm(mixed * kept[:, :, None], weights.to(values.dtype), values[head, columns, :])
            top = higher
        top += torch.log2(total)
        out[head, rows, :] = (mixed / total[:, :, None]).to(out.dtype)
    return out.view(query.size())


@helion.kernel
def causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    heads, m, width = q.size()
    out = torch.empty_like(q)
    scale = 1.0 / math.sqrt(width)
    for head, rows in hl.tile([heads, m], block_size=[1, None]):
        top = hl.full([head, rows], -math.inf)
        total = hl.zeros([head, rows])
        mixed = hl.zeros([head, rows, width])
        for columns in hl.tile(0, rows.end):
            scores = torch.bmm(q[head, rows, :], k[head, columns, :].transpose(1, 2)).to(torch.float32) * scale
            seen = rows.index[:, None] >= columns.index[None, :]
            scores = torch.where(seen[None, :, :], scores, -math.inf)
            higher = torch.maximum(top, scores.amax(-1))
            weights = torch.exp(scores - higher[:, :, None])
            kept = torch.exp(top - higher)
            total = total * kept + weights.sum(-1)
            mixed = mixed * kept[:, :, None] + torch.bmm(weights.to(v.dtype), v[head, columns, :]).to(torch.float32)
            top = higher
        out[head, rows, :] = (mixed / total[:, :, None]).to(q.dtype)
    return out


@helion.kernel
def column_sum(x: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty([n], dtype=x.dtype, device=x.device)
    for tile_n in hl.tile(n):
        acc = hl.zeros([tile_n], dtype=torch.float32)
        for tile_m in hl.tile(m):
            acc += x[tile_m, tile_n].to(torch.float32).sum(0)
        out[tile_n] = acc.to(x.dtype)
    return out


@helion.kernel
def lane_max(x: torch.Tensor) -> torch.Tensor:
    """A carried tile whose own axis is ragged: elements that do not exist must not reach it."""
    m, n = x.size()
    out = torch.empty([m], dtype=x.dtype, device=x.device)
    block_n = hl.register_block_size(n)
    for tile_m in hl.tile(m):
        acc = hl.full([tile_m, block_n], float("-inf"), dtype=torch.float32)
        for tile_n in hl.tile(n, block_size=block_n):
            acc = torch.maximum(acc, x[tile_m, tile_n].to(torch.float32))
        out[tile_m] = acc.amax(-1).to(x.dtype)
    return out


@helion.kernel
def accumulate(x: torch.Tensor) -> torch.Tensor:
    """A tensor that is read and written in the loop, and rows that are left as they were."""
    m, n = x.size()
    out = torch.ones_like(x)
    for tile_m in hl.tile(0, m // 2):
        for tile_n in hl.tile(n):
            out[tile_m, tile_n] += x[tile_m, tile_n]
    return out
