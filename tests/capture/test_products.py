"""Products of every rank against torch in float64, on ragged tiles too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import helion_rt
import helion_rt.language as hl


@helion_rt.kernel(config=helion_rt.Config(block_sizes=[8]))
def with_weights(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor, fn: Callable[..., Any]) -> None:
    for tile in hl.tile(x.size(0)):
        out[tile] = fn(x[tile], w[...])


@helion_rt.kernel(config=helion_rt.Config(block_sizes=[8]))
def batched(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, fn: Callable[..., Any]) -> None:
    for tile in hl.tile(x.size(0)):
        out[tile] = fn(x[tile], y[tile])


WEIGHTS = {
    "matrix": (lambda x, w: x @ w, (16,), (16, 24)),
    "three": (lambda x, w: x @ w, (5, 16), (16, 24)),
    "four": (lambda x, w: torch.matmul(x, w), (2, 5, 16), (16, 24)),
    "from the left": (lambda x, w: torch.matmul(w, x), (16, 24), (5, 16)),
    "vector": (lambda x, w: x @ w, (16,), (16,)),
    "vector of three": (lambda x, w: x @ w, (5, 16), (16,)),
    "linear": (lambda x, w: F.linear(x, w, w[:, 0]), (16,), (24, 16)),
    "linear of three": (lambda x, w: F.linear(x, w, w[:, 0]), (5, 16), (24, 16)),
    "addmm": (lambda x, w: torch.addmm(w[0, :], x, w, beta=0.5, alpha=2.0), (16,), (16, 24)),
    "einsum": (lambda x, w: torch.einsum("bmk,kn->bnm", x, w), (5, 16), (16, 24)),
    "einsum of the left": (lambda x, w: torch.einsum("kn,bmk->bnm", w, x), (5, 16), (16, 24)),
    "einsum of many rows and columns": (lambda x, w: torch.einsum("bijk,klm->bilmj", x, w), (2, 5, 16), (16, 3, 4)),
}  # fmt: skip
BATCHED = {
    "bmm": (lambda x, y: torch.bmm(x, y), (5, 16), (16, 24)),
    "four": (lambda x, y: x @ y.transpose(-1, -2), (2, 5, 16), (2, 24, 16)),
    "broadcast": (lambda x, y: x @ y, (2, 5, 16), (1, 16, 24)),
    "heads": (lambda x, y: torch.einsum("bhik,bhjk->bhij", x, y), (2, 5, 16), (2, 6, 16)),
    "vectors": (lambda x, y: torch.einsum("bmk,bk->bm", x, y), (5, 16), (16,)),
    "outer": (lambda x, y: torch.einsum("bi,bj->bij", x, y), (5,), (6,)),
    "baddbmm": (lambda x, y: torch.baddbmm(x[:, :, :1], x, y, alpha=2.0), (5, 16), (16, 24)),
}  # fmt: skip


def check(kernel: Any, fn: Callable[..., Any], x: torch.Tensor, y: torch.Tensor, tolerance: float = 1e-5) -> None:
    want = fn(x.double(), y.double())
    out = torch.full(want.shape, torch.nan, dtype=x.dtype)
    kernel(x, y, out, fn)
    torch.testing.assert_close(out.double(), want, rtol=tolerance, atol=tolerance * float(want.abs().max()))


@pytest.mark.parametrize("rows", [16, 13])
@pytest.mark.parametrize("name", WEIGHTS)
def test_with_weights(name: str, rows: int) -> None:
    fn, shape, weights = WEIGHTS[name]
    check(with_weights, fn, torch.randn(rows, *shape), torch.randn(weights))


@pytest.mark.parametrize("rows", [16, 13])
@pytest.mark.parametrize("name", BATCHED)
def test_batched(name: str, rows: int) -> None:
    fn, left, right = BATCHED[name]
    check(batched, fn, torch.randn(rows, *left), torch.randn(rows, *right))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_floats(dtype: torch.dtype) -> None:
    fn = WEIGHTS["three"][0]
    check(with_weights, fn, torch.randn(13, 5, 16).to(dtype), torch.randn(16, 24).to(dtype), 1e-2)


def dots(x: Any, w: Any) -> Any:
    return hl.dot(x, w)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8])
def test_hl_dot_of_bytes(dtype: torch.dtype) -> None:
    x = torch.randint(-3, 4, (13, 16)).float().to(dtype)
    w = torch.randint(-3, 4, (16, 24)).float().to(dtype)
    want = x.double() @ w.double()
    out = torch.full(want.shape, -99, dtype=torch.int32 if dtype is torch.int8 else torch.float32)
    with_weights(x, w, out, dots)
    assert torch.equal(out.double(), want)


def test_out_dtype() -> None:
    x, w = torch.randn(13, 16).bfloat16(), torch.randn(16, 24).bfloat16()
    out = torch.empty(13, 24)
    with_weights(x, w, out, lambda x, w: torch.mm(x, w, out_dtype=torch.float32))
    torch.testing.assert_close(out.double(), x.double() @ w.double(), rtol=1e-5, atol=1e-5)
