"""Kernels that gather, scatter and add atomically, in the way that people write them for Helion."""

from __future__ import annotations

import torch

import helion_rt.language as hl


def look_up(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Rows of a table."""
    n, d = ids.size(0), table.size(1)
    out = torch.empty([n, d], dtype=table.dtype, device=table.device)
    for tile_n, tile_d in hl.tile([n, d]):
        out[tile_n, tile_d] = table[ids[tile_n], tile_d]
    return out


def histogram(ids: torch.Tensor, weights: torch.Tensor, bins: torch.Tensor) -> torch.Tensor:
    """``bins`` plus the weights of each id."""
    out = bins.clone()
    for tile in hl.tile(ids.size(0)):
        hl.atomic_add(out, [ids[tile]], weights[tile])
    return out


def segment_sum(ids: torch.Tensor, x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Rows summed by the segment that they belong to."""
    out = torch.zeros_like(like)
    for tile_n, tile_d in hl.tile([x.size(0), x.size(1)]):
        hl.atomic_add(out, [ids[tile_n], tile_d], x[tile_n, tile_d])
    return out


def slots(ids: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each id's place among those that are the same, and how many there are: an atomic whose results are used."""
    used = torch.zeros_like(counts)
    out = torch.empty_like(ids)
    for tile in hl.tile(ids.size(0)):
        out[tile] = hl.atomic_add(used, [ids[tile]], 1)
    return out, used


def routed(x: torch.Tensor, order: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Rows gathered, multiplied, and scattered back to where they came from (-1: nowhere)."""
    m, k = x.size()
    n = weight.size(1)
    out = torch.zeros([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([order.size(0), n]):
        rows = order[tile_m]
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            taken = hl.load(x, [rows, tile_k], extra_mask=(rows >= 0)[:, None])
            acc = torch.addmm(acc, taken, weight[tile_k, tile_n])
        hl.store(out, [rows, tile_n], acc, extra_mask=(rows >= 0)[:, None])
    return out


def paged(q: torch.Tensor, pages: torch.Tensor, page_table: torch.Tensor) -> torch.Tensor:
    """Scores of one query against keys that are scattered over pages: [page, slot, dim]."""
    batch = q.size(0)
    size = hl.specialize(pages.size(1))
    count = page_table.size(1)
    out = torch.empty([batch, count, size], dtype=torch.float32, device=q.device)
    for b in hl.grid(batch):
        row = q[b, :].to(torch.float32)
        for tile_p in hl.tile(count):
            keys = pages[page_table[b, tile_p], :, :].to(torch.float32)
            out[b, tile_p, :] = (keys * row[None, None, :]).sum(-1)
    return out


def diagonal(x: torch.Tensor) -> torch.Tensor:
    """Two index tensors, one for each dimension, by a flat index and by a mask."""
    n = x.size(0)
    out = torch.empty([n], dtype=x.dtype, device=x.device)
    for tile in hl.tile(n):
        i = tile.index
        out[tile] = hl.load(x.view(-1), [i * n + i]) + hl.load(x.view(-1), [i * n + i + 1], extra_mask=i + 1 < n)
    return out


def packed_product(x: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    """``x`` [m, 2 k] times two matrices whose rows alternate: that of ``packed`` [k, n], and the same plus one."""
    m, n = x.size(0), packed.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(packed.size(0)):
            start = tile_k.begin * 2
            a = x[tile_m, start : start + tile_k.block_size * 2].to(torch.float32)
            b = packed[tile_k, tile_n].to(torch.float32)
            b = torch.stack([b, b + 1], dim=1).reshape(tile_k.block_size * 2, tile_n.block_size)
            acc = acc + hl.dot(a, b)
        out[tile_m, tile_n] = acc
    return out


def corners(x: torch.Tensor) -> torch.Tensor:
    """The first products of each matrix's rows, stored by two ranges of positions under a number."""
    n = hl.specialize(x.size(1))
    out = torch.zeros([x.size(0), n, n], dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0), block_size=1):
        b = tile.begin
        rows, columns = hl.arange(4), hl.arange(2)
        out[b, 1 + rows, columns] = hl.dot(x[b, 1 + rows, :], x[b, columns, :].transpose(0, 1), out_dtype=torch.float32)
    return out
