"""Temporaries of the host part whose dimensions are put in another order on the CPU."""

import pytest
import torch

import helion_rt as helion
import helion_rt.language as hl
from helion_rt import targets
from helion_rt.config import Config
from helion_rt.lowering.plan import make_plan


@helion.kernel
def partial_products(a: torch.Tensor, b: torch.Tensor, chunk: int) -> torch.Tensor:
    m, k = a.shape
    n = b.size(1)
    tmp = torch.zeros((m, n, (k + chunk - 1) // chunk), dtype=a.dtype, device=a.device)
    out = torch.empty((m, n), dtype=a.dtype, device=a.device)
    for tile_m, tile_n, tile_k in hl.tile([m, n, k], block_size=[None, None, chunk]):
        tmp[tile_m, tile_n, tile_k.id] = torch.matmul(a[tile_m, tile_k], b[tile_k, tile_n])
    for tile_m, tile_n in hl.tile([m, n]):
        out[tile_m, tile_n] = torch.sum(tmp[tile_m, tile_n, :], dim=-1)
    return out


@helion.kernel
def moments(x: torch.Tensor) -> torch.Tensor:
    """Two points, one after the other, read together, one by one and as a slice; the middle dimension goes first."""
    rows, columns = x.shape
    tmp = torch.empty((rows, 3, columns), dtype=x.dtype, device=x.device)
    out = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
    for tile in hl.tile(rows):
        tmp[tile, 0, :] = x[tile, :]
        tmp[tile, 1, :] = x[tile, :] * x[tile, :]
        tmp[tile, -1, :] = x[tile, :] + 1
    for tile_r, tile_c in hl.tile([rows, columns]):
        both = tmp[tile_r, 0:2, tile_c]
        out[tile_r, tile_c] = both.sum(1) + tmp[tile_r, 2, tile_c] - torch.amax(tmp[tile_r, :, tile_c], dim=1)
    return out


@helion.kernel
def counted(x: torch.Tensor) -> torch.Tensor:
    """Atomics, and three versions of one temporary."""
    rows, columns = x.shape
    tmp = torch.zeros((rows, 2), dtype=x.dtype, device=x.device)
    out = torch.empty((rows,), dtype=x.dtype, device=x.device)
    for tile_r, tile_c in hl.tile([rows, columns]):
        hl.atomic_add(tmp, [tile_r, 1], x[tile_r, tile_c].sum(1))
    for tile in hl.tile(rows):
        tmp[tile, 0] = tmp[tile, 1] * 2
    for tile in hl.tile(rows):
        out[tile] = tmp[tile, :].sum(1)
    return out


@helion.kernel
def returned(x: torch.Tensor) -> torch.Tensor:
    tmp = torch.zeros((x.size(0), 2), dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        tmp[tile, 1] = x[tile, :].sum(1)
    return tmp


@helion.kernel
def viewed(x: torch.Tensor) -> torch.Tensor:
    tmp = torch.zeros((x.size(0), 2), dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        tmp[tile, 1] = x[tile, :].sum(1)
    return tmp.transpose(0, 1)


@helion.kernel
def gathered(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    tmp = torch.zeros((x.size(0), 2), dtype=x.dtype, device=x.device)
    out = torch.empty((x.size(0),), dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        tmp[tile, 1] = x[tile, :].sum(1)
    for tile in hl.tile(x.size(0)):
        out[tile] = tmp[at[tile], 1]
    return out


def shape_in(kernel, target, *args):
    """The shape of the only temporary, as the plan has it."""
    lowered = kernel.lower(*args)
    plan = make_plan(lowered.program, lowered.config, targets.get(target))
    return plan.program.types[next(op for op in plan.program.host.ops if op.name != "hl.launch").results[0]].shape


@pytest.mark.parametrize("m, k, n, chunk", [(32, 64, 16, 16), (37, 100, 29, 16), (5, 7, 3, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_partial_products(m, k, n, chunk, dtype):
    a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
    expected = a.double() @ b.double()
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 0.05}[dtype] * k**0.5
    assert (partial_products(a, b, chunk).double() - expected).abs().max() < tolerance
    assert shape_in(partial_products, "cpu", a, b, chunk) == (-(-k // chunk), m, n)


@pytest.mark.parametrize("rows, columns", [(16, 128), (13, 31)])
def test_a_dimension_in_the_middle(rows, columns):
    x = torch.randn(rows, columns)
    stacked = torch.stack([x, x * x, x + 1], 1).double()
    expected = stacked[:, :2].sum(1) + stacked[:, 2] - stacked.amax(1)
    assert torch.allclose(moments(x).double(), expected, atol=1e-5)
    assert shape_in(moments, "cpu", x) == (3, rows, columns)
    assert shape_in(moments, "tpu7x", x) == (rows, 3, columns)


@pytest.mark.parametrize("blocks", [None, [4, 8, 4, 4]])
@pytest.mark.parametrize("rows, columns", [(16, 128), (13, 31)])
def test_atomics_and_versions(rows, columns, blocks):
    x = torch.randn(rows, columns)
    kernel = counted if blocks is None else helion.kernel(counted.fn, config=Config(block_sizes=blocks))
    assert torch.allclose(kernel(x).double(), x.double().sum(1) * 3, atol=1e-4)
    assert shape_in(kernel, "cpu", x) == (2, rows)


@pytest.mark.parametrize("kernel", [returned, viewed])
def test_what_others_see_stays_as_it_is(kernel):
    x = torch.randn(13, 31)
    expected = torch.stack([torch.zeros(13).double(), x.double().sum(1)], 1)
    got = kernel(x).double()
    assert torch.allclose(got if kernel is returned else got.T, expected, atol=1e-5)
    assert shape_in(kernel, "cpu", x) == (13, 2)


def test_index_tensors_leave_it_as_it_is():
    x, at = torch.randn(13, 31), torch.randint(0, 13, (13,))
    assert torch.allclose(gathered(x, at).double(), x.double().sum(1)[at], atol=1e-5)
    assert shape_in(gathered, "cpu", x, at) == (13, 2)
