"""Reference mode: the kernel's own source, eagerly, tile by tile."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import helion_rt as helion
import helion_rt.language as hl
from helion_rt.eager import rng
from helion_rt.eager.session import default_block
from helion_rt.exc import ShapeMismatch, Unsupported
from helion_rt.runtime.counters import counters


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HELION_RT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("HELION_RT_TUNE", "off")


@helion.kernel
def matmul(x: torch.Tensor, y: torch.Tensor, epilogue=lambda acc, tile: acc) -> torch.Tensor:
    m, k = x.size()
    _, n = y.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile in hl.tile([m, n]):
        acc = hl.zeros(tile, dtype=torch.float32)
        for inner in hl.tile(k):
            acc = torch.addmm(acc, x[tile[0], inner], y[inner, tile[1]])
        out[tile] = epilogue(acc, tile)
    return out


@helion.kernel(config=helion.Config(block_sizes=[4]))
def bump(x: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        print(f"{tile.id} {tile.begin} {tile.end} {tile.block_size} {tile.index.tolist()} {x[tile].sum()}")
        x[tile] += 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("m, n, k", [(64, 64, 64), (37, 41, 67)])
def test_matmul_with_a_closure(m, n, k, dtype):
    x, y, bias = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype), torch.randn(n)
    out = matmul.reference(x, y, lambda acc, tile: torch.relu(acc + bias[tile[1]]))
    expected = torch.relu(x.double() @ y.double() + bias.double())
    assert out.dtype is dtype and torch.allclose(out.double(), expected, atol=1e-4 if dtype is torch.float32 else 0.2)


def test_tiles_have_numbers_and_their_true_size(capsys):
    x = torch.arange(10.0)
    assert bump.reference(x) is None and torch.equal(x, torch.arange(10.0) + 1)
    assert capsys.readouterr().out.splitlines() == [
        "0 0 4 4 [0, 1, 2, 3] 6.0", "1 4 8 4 [4, 5, 6, 7] 22.0", "2 8 10 4 [8, 9] 17.0",
    ]  # fmt: skip


def test_the_variable_turns_it_on(monkeypatch):
    monkeypatch.setenv("HELION_RT_REFERENCE", "1")
    captures = counters.captures
    x = torch.randn(33, 5)
    assert torch.allclose(matmul(x, torch.eye(5)), x) and counters.captures == captures
    out = matmul(jnp.asarray(x.numpy()), jnp.eye(5))
    assert not isinstance(out, torch.Tensor) and np.allclose(out, x.numpy())
    assert np.array_equal(bump(jnp.zeros(6)), np.ones(6))


def test_a_breakpoint_sees_tensors_with_data():
    seen = []

    @helion.kernel
    def peek(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            value = x[tile] * 2
            seen.append(value.tolist())
            if value.max() > 100:
                value = value - 100
            out[tile] = value
        return out

    x = torch.arange(70.0)
    out = peek.reference(x)
    assert len(seen) > 1 and [v for values in seen for v in values] == (x * 2).tolist()
    assert torch.equal(out[:35], x[:35] * 2) and out[69] == 38


@helion.kernel
def everything(x: torch.Tensor, index: torch.Tensor, total: torch.Tensor, seed: int):
    m, n = x.size()
    block = hl.register_block_size(n)
    gathered, scanned = torch.zeros_like(x), torch.zeros_like(x)
    noise, sums = torch.zeros_like(x), torch.zeros([m], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n, block_size=block):
            gathered[tile_m, tile_n] = x[index[tile_m], tile_n]
            masked = hl.load(x, [tile_m, tile_n], extra_mask=(tile_n.index < 5)[None, :])
            acc = acc + hl.reduce(lambda a, b: a + b, masked, dim=1)
            noise[tile_m, tile_n] = hl.rand([tile_m, tile_n], seed)
        scanned[tile_m, :] = hl.associative_scan(lambda a, b: torch.maximum(a, b), x[tile_m, :], dim=1)
        sums[tile_m] = acc
        hl.atomic_add(total, [index[tile_m]], acc)
    for i in hl.grid(m):
        sums[i] = sums[i] * 2
    return gathered, scanned, noise, sums


@pytest.mark.parametrize("m, n", [(16, 24), (13, 37)])
def test_the_rest_of_the_language(m, n):
    x, index = torch.randn(m, n), torch.randint(0, m, (m,))
    total = torch.zeros(m)
    gathered, scanned, noise, sums = everything.reference(x, index, total, 7)
    assert torch.equal(gathered, x[index]) and torch.equal(scanned, x.cummax(1).values)
    assert torch.allclose(sums, 2 * x[:, :5].sum(1), atol=1e-5)
    assert torch.allclose(total, torch.zeros(m).index_add(0, index, x[:, :5].sum(1)), atol=1e-5)
    assert noise.min() >= 0 and noise.max() < 1 and noise.unique().numel() > m * n // 2


def test_random_numbers_are_those_of_compiled_kernels_whatever_the_blocks():
    @helion.kernel
    def noise(x: torch.Tensor, seed: int) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size()):
            out[tile] = hl.rand([*tile], seed)
        return out

    x = torch.zeros(21, 37)
    assert torch.equal(noise.reference(x, 5), noise(x, 5))
    other = helion.kernel(noise.fn, config=helion.Config(block_sizes=[8, 16]))
    assert torch.equal(noise.reference(x, 5), other.reference(x, 5))
    # Random123's own known answers.
    words = rng.words(0, torch.zeros((), dtype=torch.int64))
    assert [w.item() & 0xFFFFFFFF for w in words] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_jagged_rows():
    @helion.kernel
    def jagged_sum(values: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        rows = starts.size(0) - 1
        out = torch.zeros([rows], dtype=values.dtype, device=values.device)
        for tile in hl.tile(rows):
            begin = starts[tile]
            length = starts[tile.index + 1] - begin
            acc = hl.zeros([tile], dtype=torch.float32)
            for inner in hl.jagged_tile(length):
                acc = acc + values[begin[:, None] + inner.index[None, :]].sum(1)
            out[tile] = acc
        return out

    lengths = torch.tensor([3, 0, 50, 7])
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).int()
    values = torch.randn(60)
    expected = torch.stack([part.sum() for part in values.split(lengths.tolist())])
    assert torch.allclose(jagged_sum.reference(values, starts), expected, atol=1e-5)


def test_refusals_name_the_line():
    @helion.kernel
    def as_number(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = torch.clamp(x[tile], max=tile)
        return out

    @helion.kernel
    def too_far(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = y[tile]
        return out

    with pytest.raises(Unsupported, match="a tile is used as a number") as caught:
        as_number.reference(torch.ones(5))
    assert "torch.clamp(x[tile], max=tile)" in str(caught.value)
    with pytest.raises(ShapeMismatch, match="indexes a dimension of 4") as caught:
        too_far.reference(torch.ones(50), torch.ones(4))
    assert "out[tile] = y[tile]" in str(caught.value)


def test_blocks_that_nobody_chose():
    assert default_block(300, False) == 60 and default_block(64, False) == 32 and default_block(37, False) == 32
    assert default_block(37, True) == 37 and default_block(5, False) == 5 and default_block(1, True) == 1


def test_an_atomic_gives_what_the_one_before_it_left():
    @helion.kernel(config=helion.Config(block_sizes=[4]))
    def tickets(index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        counts = torch.zeros([4], dtype=torch.int32)
        out = torch.empty([index.size(0)], dtype=torch.int32)
        for tile in hl.tile(index.size(0)):
            out[tile] = hl.atomic_add(counts, [index[tile]], 1)
        return counts, out

    index = torch.tensor([3, 3, 0, 3, 0, 3, 1], dtype=torch.int32)
    for counts, out in (tickets.reference(index), tickets(index)):
        assert counts.tolist() == [2, 1, 0, 4] and out.tolist() == [0, 1, 0, 2, 1, 3, 0]
