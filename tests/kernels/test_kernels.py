"""Every ready-made kernel against PyTorch in float64, on round and ragged shapes, in float32 and bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from helion_rt import kernels

# Relative to the size of the values: rounding of the result, and of bfloat16 weights before the second product of attention.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
SHAPES = pytest.mark.parametrize("shape", [(128, 256), (130, 257), (3, 1000)], ids=str)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def randn(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


def check(got: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    """``expected`` is float64; ``got`` must have its shape, ``dtype``, and agree within the dtype's tolerance."""
    assert got.dtype == dtype and got.shape == expected.shape
    error = (got.double() - expected).abs()
    allowed = TOLERANCE[dtype] * (expected.abs() + expected.square().mean().sqrt())
    worst = (error - allowed).max().item()
    assert worst <= 0, f"off by up to {error.max().item()}"


def check_rowwise(kernel: Callable[..., torch.Tensor], reference: Callable[..., torch.Tensor], *arrays: torch.Tensor) -> None:
    check(kernel(*arrays), reference(*(a.double() for a in arrays)), arrays[0].dtype)


@DTYPES
@SHAPES
def test_add(shape: tuple[int, int], dtype: torch.dtype) -> None:
    check_rowwise(kernels.add, torch.add, randn(*shape, dtype=dtype), randn(*shape, dtype=dtype))


def test_add_broadcasts_and_promotes() -> None:
    x, y = randn(130, 257, dtype=torch.bfloat16), randn(257, dtype=torch.float32)
    check(kernels.add(x, y), x.double() + y.double(), torch.float32)


@DTYPES
@SHAPES
@pytest.mark.parametrize("kernel", [kernels.softmax, kernels.softmax_two_pass], ids=["whole_row", "two_pass"])
def test_softmax(kernel: Callable[..., torch.Tensor], shape: tuple[int, int], dtype: torch.dtype) -> None:
    check_rowwise(kernel, lambda x: x.softmax(-1), 4 * randn(*shape, dtype=dtype))


@DTYPES
@SHAPES
@pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "no_bias"])
def test_layer_norm(shape: tuple[int, int], dtype: torch.dtype, with_bias: bool) -> None:
    n = shape[-1]
    arrays = [randn(*shape, dtype=dtype) + 3, randn(n, dtype=dtype), *([randn(n, dtype=dtype)] if with_bias else [])]
    check_rowwise(kernels.layer_norm, lambda x, w, b=None: F.layer_norm(x, (n,), w, b), *arrays)


def test_layer_norm_keeps_its_digits_where_the_mean_is_large() -> None:
    x, w = torch.randn(16, 384) + 1000, torch.ones(384)
    # The rows themselves are known to 6e-5 here, so that is what the result can be right to.
    error = (kernels.layer_norm(x, w).double() - F.layer_norm(x.double(), (384,))).abs().max().item()
    assert error < 2e-4


def test_layer_norm_uses_its_eps() -> None:
    x, w = 1e-3 * torch.randn(8, 128), torch.ones(128)
    check(kernels.layer_norm(x, w, None, 1e-2), F.layer_norm(x.double(), (128,), eps=1e-2), torch.float32)


@DTYPES
@SHAPES
def test_rms_norm(shape: tuple[int, int], dtype: torch.dtype) -> None:
    n = shape[-1]
    arrays = (randn(*shape, dtype=dtype), randn(n, dtype=dtype))
    check_rowwise(kernels.rms_norm, lambda x, w: F.rms_norm(x, (n,), w, 1e-5), *arrays)


@DTYPES
@SHAPES
def test_gelu(shape: tuple[int, int], dtype: torch.dtype) -> None:
    check_rowwise(kernels.gelu, F.gelu, 2 * randn(*shape, dtype=dtype))


@pytest.mark.parametrize("kernel", [kernels.gelu, kernels.softmax], ids=["gelu", "softmax"])
def test_leading_dimensions_are_kept(kernel: Callable[..., torch.Tensor]) -> None:
    x = torch.randn(2, 5, 130)
    torch.testing.assert_close(kernel(x), kernel(x.reshape(10, 130)).reshape(2, 5, 130))


@DTYPES
@pytest.mark.parametrize("mkn", [(128, 256, 128), (130, 257, 1000)], ids=str)
def test_matmul(mkn: tuple[int, int, int], dtype: torch.dtype) -> None:
    m, k, n = mkn
    check_rowwise(kernels.matmul, torch.matmul, randn(m, k, dtype=dtype), randn(k, n, dtype=dtype))


def _squared_relu(acc: torch.Tensor) -> torch.Tensor:
    return torch.relu(acc) * torch.relu(acc)


@DTYPES
def test_matmul_bias_and_epilogue(dtype: torch.dtype) -> None:
    x, y, bias = randn(130, 64, dtype=dtype), randn(64, 257, dtype=dtype), randn(257, dtype=dtype)
    expected = (x.double() @ y.double() + bias.double()).relu().square()
    check(kernels.matmul(x, y, bias, _squared_relu), expected, dtype)


def qkv(b: int, h: int, m: int, n: int, d: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return randn(b, h, m, d, dtype=dtype), randn(b, h, n, d, dtype=dtype), randn(b, h, n, d, dtype=dtype)


def attention_in_double(*qkv: torch.Tensor, bias: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
    mask = None if bias is None else bias.double()
    return F.scaled_dot_product_attention(*(t.double() for t in qkv), attn_mask=mask, **options)


@DTYPES
@pytest.mark.parametrize("mn", [(128, 128), (130, 257)], ids=str)
def test_attention(mn: tuple[int, int], dtype: torch.dtype) -> None:
    q, k, v = qkv(2, 2, *mn, 32, dtype)
    check(kernels.attention(q, k, v), attention_in_double(q, k, v), dtype)


@DTYPES
@pytest.mark.parametrize("mn", [(128, 128), (130, 130), (130, 257), (257, 130)], ids=str)
def test_causal_attention(mn: tuple[int, int], dtype: torch.dtype) -> None:
    q, k, v = qkv(1, 2, *mn, 32, dtype)
    check(kernels.attention(q, k, v, causal=True), attention_in_double(q, k, v, is_causal=True), dtype)


def test_attention_scale() -> None:
    q, k, v = qkv(1, 2, 64, 64, 32, torch.float32)
    check(kernels.attention(q, k, v, scale=0.5), attention_in_double(q, k, v, scale=0.5), torch.float32)


@pytest.mark.parametrize("lead", [(2, 3), (2, 1), (1, 1)], ids=str)
def test_attention_bias(lead: tuple[int, int]) -> None:
    q, k, v = qkv(2, 3, 66, 130, 16, torch.float32)
    bias = torch.randn(*lead, 66, 130)
    check(kernels.attention(q, k, v, bias=bias), attention_in_double(q, k, v, bias=bias), torch.float32)


@pytest.mark.parametrize("off", [float("-inf"), torch.finfo(torch.float32).min], ids=["inf", "lowest"])
def test_attention_key_bias_switches_padding_off(off: float) -> None:
    q, k, v = qkv(3, 2, 66, 130, 16, torch.float32)
    key_bias = torch.zeros(3, 130)
    key_bias[0, 40:], key_bias[1, :100] = off, off  # padding on the right, and on the left: whole tiles of it
    got = kernels.attention(q, k, v, key_bias=key_bias)
    check(got, attention_in_double(q, k, v, bias=key_bias[:, None, None, :]), torch.float32)


def test_attention_with_every_key_off_is_the_mean_of_v() -> None:
    q, k, v = qkv(1, 1, 8, 16, 16, torch.float32)
    got = kernels.attention(q, k, v, key_bias=torch.full((1, 16), float("-inf")))
    check(got, v.double().mean(2, keepdim=True).expand(1, 1, 8, 16), torch.float32)
