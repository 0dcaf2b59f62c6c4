"""Philox against its published answers, and the random numbers of kernels against a count of them in plain Python."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import helion_rt
import helion_rt.language as hl
from helion_rt.lowering.helpers import functions

M0, M1, W0, W1, MASK = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85, 0xFFFFFFFF


def philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, ...]:
    """Philox-4x32-10 with Python's integers."""
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for _ in range(10):
        left, right = M0 * c0, M1 * c2
        c0, c1, c2, c3 = (right >> 32) ^ c1 ^ k0, right & MASK, (left >> 32) ^ c3 ^ k1, left & MASK
        k0, k1 = (k0 + W0) & MASK, (k1 + W1) & MASK
    return c0, c1, c2, c3


def uniform(word: int) -> float:
    """Triton's way from a word to a float32 in [0, 1)."""
    signed = word - (1 << 32) if word >> 31 else word
    return float(np.float32(-signed - 1 if signed < 0 else signed) * np.float32(4.6566127342e-10))


def expected(seed: int, offset: int) -> float:
    return uniform(philox((seed & MASK, seed >> 32 & MASK), (offset, 0, 0, 0))[0])


# The known answers of Random123: (key, counter, words).
ANSWERS = [
    ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((MASK, MASK), (MASK, MASK, MASK, MASK), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0xA4093822, 0x299F31D0), (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]


@pytest.mark.parametrize(("key", "counter", "words"), ANSWERS)
def test_known_answers(key: tuple[int, int], counter: tuple[int, int, int, int], words: tuple[int, ...]) -> None:
    assert philox(key, counter) == words
    given = [np.uint32(n).astype(np.int32) for n in (*key, *counter)]
    assert tuple(int(np.asarray(w).astype(np.uint32)) for w in functions()["_philox"](*given)) == words


@helion_rt.kernel(config=helion_rt.Config(block_sizes=[16]))
def rows(x: torch.Tensor, seed: int) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = hl.rand([tile, x.size(1)], seed=seed)
    return out


@helion_rt.kernel(config=helion_rt.Config(block_sizes=[8, 16]))
def tiles(x: torch.Tensor, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.empty_like(x)
    integers = torch.empty(x.shape, dtype=torch.int32)
    for tile in hl.tile(x.shape):
        out[tile] = hl.rand(tile, seed)
        integers[tile] = hl.randint(tile, -5, 12, seed)
    return out, integers


@helion_rt.kernel(config=helion_rt.Config(block_sizes=[16]))
def four(offsets: torch.Tensor, seed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    outs = [torch.empty(offsets.shape, dtype=torch.float32) for _ in range(4)]
    for tile in hl.tile(offsets.size(0)):
        words = hl.rand4x(seed[0], offsets[tile])
        for out, word in zip(outs, words):  # noqa: B905
            out[tile] = word
    return outs[0], outs[1], outs[2], outs[3]


@pytest.mark.parametrize("shape", [(32, 32), (37, 21)])
@pytest.mark.parametrize("seed", [0, 123, -7])
def test_rand_is_that_of_triton_whatever_the_blocks(shape: tuple[int, int], seed: int) -> None:
    by_rows = rows(torch.zeros(shape), seed)
    by_tiles, integers = tiles(torch.zeros(shape), seed)
    assert torch.equal(by_rows, by_tiles)
    for i, j in ((0, 0), (1, 3), (20, 20), (shape[0] - 1, shape[1] - 1)):
        offset = i * shape[1] + j
        assert by_rows[i, j].item() == expected(seed, offset)
        word = philox((seed & MASK, seed >> 32 & MASK), (offset, 0, 0, 0))[0]
        signed = word - (1 << 32) if word >> 31 else word
        assert integers[i, j].item() == -5 + abs(signed) % 17


def test_rand4x_has_all_four_words() -> None:
    offsets = torch.arange(3, 40, dtype=torch.int32)
    got = four(offsets, torch.tensor([99], dtype=torch.int32))
    for n in (0, 5, 36):
        assert tuple(g[n].item() for g in got) == tuple(map(uniform, philox((99, 0), (int(offsets[n]), 0, 0, 0))))


def test_statistics() -> None:
    numbers = rows(torch.zeros(200, 100), 5).double()
    assert numbers.min() >= 0 and numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.01
    assert abs(numbers.var() - 1 / 12) < 0.003
    assert abs(torch.corrcoef(torch.stack([numbers[:, :-1].flatten(), numbers[:, 1:].flatten()]))[0, 1]) < 0.03


def test_outside_of_a_tile_loop_it_is_refused() -> None:
    @helion_rt.kernel
    def outside(x: torch.Tensor) -> torch.Tensor:
        noise = hl.rand([4], 1)
        return x + noise

    with pytest.raises(helion_rt.exc.Unsupported, match="outside of a tile loop"):
        outside(torch.zeros(4))
