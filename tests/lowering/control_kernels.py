"""Kernels with branches, whiles, and loops whose bounds are data, in the way that people write them for Helion."""

from __future__ import annotations

import torch

import helion_rt.language as hl


def segment_sum(x, offsets):
    out = x.new_empty([offsets.size(0) - 1, x.size(1)])
    for segment in hl.grid(offsets.size(0) - 1):
        acc = hl.zeros([x.size(1)])
        for tile in hl.tile(offsets[segment], offsets[segment + 1]):
            acc = acc + x[tile, :].to(torch.float32).sum(0)
        out[segment, :] = acc.to(x.dtype)
    return out


def segment_softmax(x, offsets):
    """Stores tiles that begin anywhere, and leaves rows outside of all segments as they were."""
    out = torch.zeros_like(x)
    for segment in hl.grid(offsets.size(0) - 1):
        start, stop = offsets[segment], offsets[segment + 1]
        top = hl.full([x.size(1)], float("-inf"))
        total = hl.zeros([x.size(1)])
        for tile in hl.tile(start, stop):
            rows = x[tile, :].to(torch.float32)
            new = torch.maximum(top, rows.amax(0))
            total = total * torch.exp(top - new) + torch.exp(rows - new[None, :]).sum(0)
            top = new
        for tile in hl.tile(start, stop):
            out[tile, :] = (torch.exp(x[tile, :].to(torch.float32) - top[None, :]) / total[None, :]).to(x.dtype)
    return out


def varlen_attention(q, k, v, offsets):
    """Attention within segments; a tile of queries may begin anywhere."""
    out = torch.zeros_like(q)
    scale = q.size(-1) ** -0.5
    for segment in hl.grid(offsets.size(0) - 1):
        start, stop = offsets[segment], offsets[segment + 1]
        for tile_q in hl.tile(start, stop):
            top = hl.full([tile_q], float("-inf"))
            total = hl.zeros([tile_q])
            acc = hl.zeros([tile_q, v.size(1)])
            for tile_k in hl.tile(start, stop):
                scores = hl.dot(q[tile_q, :], k[tile_k, :].T).to(torch.float32) * scale
                new = torch.maximum(top, scores.amax(-1))
                p = torch.exp(scores - new[:, None])
                alpha = torch.exp(top - new)
                total = total * alpha + p.sum(-1)
                acc = acc * alpha[:, None] + hl.dot(p.to(v.dtype), v[tile_k, :]).to(torch.float32)
                top = new
            out[tile_q, :] = (acc / total[:, None]).to(q.dtype)
    return out


def grouped_matmul(x, weights, offsets):
    """Rows of each group times the group's own matrix."""
    out = x.new_zeros([x.size(0), weights.size(2)])
    for group in hl.grid(weights.size(0)):
        start, stop = offsets[group], offsets[group + 1]
        if stop > start:
            for tile_m, tile_n in hl.tile([0, 0], [x.size(0), weights.size(2)]):
                rows = start + tile_m.index
                acc = hl.zeros([tile_m, tile_n])
                for tile_k in hl.tile(x.size(1)):
                    a = hl.load(x, [rows, tile_k], extra_mask=(rows < stop)[:, None])
                    acc = torch.addmm(acc, a, weights[group, tile_k, tile_n])
                hl.store(out, [rows, tile_n], acc.to(x.dtype), extra_mask=(rows < stop)[:, None])
    return out


def newton_sqrt(x):
    """Each tile goes on until all of its elements have settled."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        value = x[tile].to(torch.float32)
        guess = value * 0.5 + 0.5
        error = (guess * guess - value).abs().amax()
        rounds = 0
        while (error > 1e-6) & (rounds < 40):
            guess = 0.5 * (guess + value / guess)
            error = ((guess * guess - value).abs() / value).amax()
            rounds = rounds + 1
        out[tile] = guess.to(x.dtype)
    return out


def clipped_rows(x, limit):
    """Both sides of a branch give a value, and one of them runs a loop."""
    m, n = x.size()
    out = x.new_empty([m])
    for tile in hl.tile(m):
        biggest = x[tile, :].to(torch.float32).amax()
        if biggest > limit[0]:
            total = hl.zeros([tile])
            for inner in hl.tile(n):
                total = total + torch.clamp(x[tile, inner].to(torch.float32), max=1.0).sum(1)
        else:
            total = x[tile, :].to(torch.float32).sum(1)
        out[tile] = total.to(x.dtype)
    return out


def stored_where(x, flags):
    """A branch that only stores; the tiles that it skips keep what was there."""
    out = torch.ones_like(x)
    for row in hl.grid(x.size(0)):
        if flags[row] > 0:
            out[row, :] = x[row, :] * 2
        elif flags[row] < 0:
            out[row, :] = -x[row, :]
    return out


def counted(counts, x):
    """Loops over as many single steps, or tiles, as data says, nested."""
    out = x.new_zeros([counts.size(0)])
    for row in hl.grid(counts.size(0)):
        acc = hl.zeros([1])
        for step in hl.grid(counts[row]):
            for tile in hl.tile(0, step + 1):
                acc = acc + x[tile].to(torch.float32).sum()
        out[row] = acc.sum().to(x.dtype)
    return out


def scaled_segments(x, offsets):
    """Tiles along the last dimension that begin anywhere; what is in no segment stays."""
    out = torch.ones_like(x)
    for segment in hl.grid(offsets.size(0) - 1):
        for tile in hl.tile(offsets[segment], offsets[segment + 1]):
            out[tile] = x[tile] * (segment + 2)
    return out


def row_sums(x):
    out = x.new_zeros([x.size(0)])
    for tile in hl.tile(x.size(0)):
        acc = hl.zeros([tile])
        for inner in hl.tile(x.size(1)):
            acc = acc + x[tile, inner].sum(1)
        out[tile] = acc + 1
    return out


def skipped_rows(x):
    """An inner loop that is known to have no tiles."""
    out = torch.ones_like(x)
    for tile in hl.tile(x.size(0)):
        for inner in hl.tile(x.size(1), x.size(1)):
            out[tile, inner] = x[tile, inner]
    return out


def tile_sums(x, offsets):
    out = x.new_zeros([offsets.size(0) - 1, 4])
    for segment in hl.grid(offsets.size(0) - 1):
        for tile in hl.tile(offsets[segment], offsets[segment + 1], block_size=4):
            out[segment, tile.id] = x[tile].to(torch.float32).sum()
    return out


def softmax_of_tiles(x, offsets):
    out = torch.zeros_like(x)
    for segment in hl.grid(offsets.size(0) - 1):
        for tile in hl.tile(offsets[segment], offsets[segment + 1], block_size=8):
            out[tile] = torch.softmax(x[tile], 0)
    return out


def chunk_products(x, y):
    """``x @ y`` for each chunk of the shared dimension by itself, stored at the number of the chunk: ``[m, n, chunks]``."""
    m, k = x.size()
    out = x.new_zeros([m, y.size(1), 4])
    for tile_m, tile_n, tile_k in hl.tile([m, y.size(1), k], block_size=[None, None, 16]):
        acc = hl.zeros([tile_m, tile_n])
        for inner in hl.tile(tile_k.begin, tile_k.end):
            acc = torch.addmm(acc, x[tile_m, inner], y[inner, tile_n])
        out[tile_m, tile_n, tile_k.id] = acc.to(out.dtype)
    return out
