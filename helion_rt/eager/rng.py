"""Philox-4x32-10 on torch tensors, counted as compiled kernels count (see ``capture.rng``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .tiles import EagerTile

_MASK = 0xFFFFFFFF
_UNIFORM = 4.6566127342e-10  # Triton's scale of a 31-bit integer


def words(seed: Any, offset: torch.Tensor) -> list[torch.Tensor]:
    """The four words of Philox, int32 bit patterns of the shape of ``offset`` (int64) broadcast with ``seed``."""
    key = torch.as_tensor(seed.index if isinstance(seed, EagerTile) else seed, dtype=torch.int64)
    key, offset = torch.broadcast_tensors(key, offset)
    counter = [offset & _MASK, (offset >> 32) & _MASK, torch.zeros_like(offset), torch.zeros_like(offset)]
    low, high = key & _MASK, (key >> 32) & _MASK
    for _ in range(10):
        # The product of two 32-bit words has 64: it wraps to the right bits.
        first, second = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        counter = [
            ((second >> 32) & _MASK) ^ counter[1] ^ low, second & _MASK, ((first >> 32) & _MASK) ^ counter[3] ^ high, first & _MASK,
        ]  # fmt: skip
        low, high = (low + 0x9E3779B9) & _MASK, (high + 0xBB67AE85) & _MASK
    return [torch.where(c >> 31 == 1, c - (1 << 32), c).to(torch.int32) for c in counter]


def uniform(word: torch.Tensor) -> torch.Tensor:
    """A word as a float32 in [0, 1)."""
    return torch.where(word < 0, -1 - word, word).to(torch.float32) * _UNIFORM


def integers(word: torch.Tensor, low: int, high: int) -> torch.Tensor:
    """A word as an int32 in [low, high)."""
    return ((word.long().abs() % (high - low)) + low).to(torch.int32)


def offsets(shape: Sequence[Any], active: Sequence[tuple[EagerTile, ...]]) -> torch.Tensor:
    """The position of each element of a tile of ``shape`` in the whole tensor, counted row by row: int64, of that shape."""
    dims = [_positions(size, active) for size in shape]
    result, stride = torch.zeros([1] * len(dims), dtype=torch.int64), 1
    for i, (index, extent) in reversed(list(enumerate(dims))):
        result = result + index.reshape([-1 if d == i else 1 for d in range(len(dims))]) * stride
        stride *= extent
    return result


def _positions(size: Any, active: Sequence[tuple[EagerTile, ...]]) -> tuple[torch.Tensor, int]:
    """(positions along one dimension; the extent of the whole): of a tile, of the loop that a size is the block of, or all."""
    if not isinstance(size, EagerTile):
        having = [tile for tiles in active for tile in tiles if tile.range.block is size and type(size) is not int]
        if len(having) != 1:
            return torch.arange(int(size)), int(size)
        size = having[0]
    return size.index.long(), size.range.end - size.range.begin


__all__ = ["integers", "offsets", "uniform", "words"]
