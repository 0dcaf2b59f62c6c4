"""Operations that capture puts together itself: as functions of plain tensors against torch, and as parts of kernels."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import helion_rt
import helion_rt.language as hl
from helion_rt.capture import compositions as own
from helion_rt.exc import CaptureError

X = torch.tensor([-30.0, -3.0, -1.0, -0.5, -0.0, 0.0, 0.2, 0.5, 1.0, 2.5, 21.0, 30.0], dtype=torch.float64).repeat(2).reshape(4, 6)
Y = torch.flip(X, (1,)) * 0.7 + 0.1
P, Q = torch.sigmoid(X) * 0.98 + 0.01, torch.sigmoid(Y) * 0.98 + 0.01
TARGET = torch.tensor([1, 5, -100, 0])
WEIGHT = torch.arange(1, 7, dtype=torch.float64)

ONE: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "softplus": (own.softplus, F.softplus),
    "softplus beta": (lambda x: own.softplus(x, 2.0, 1.0), lambda x: F.softplus(x, 2.0, 1.0)),
    "elu": (lambda x: own.elu(x, 0.7), lambda x: F.elu(x, 0.7)),
    "celu": (lambda x: own.celu(x, 0.7), lambda x: F.celu(x, 0.7)),
    "leaky_relu": (lambda x: own.leaky_relu(x, 0.2), lambda x: F.leaky_relu(x, 0.2)),
    "hardtanh": (lambda x: own.hardtanh(x, -0.4, 0.7), lambda x: F.hardtanh(x, -0.4, 0.7)),
    "mish": (own.mish, F.mish),
    "hardsigmoid": (own.hardsigmoid, F.hardsigmoid),
    "hardswish": (own.hardswish, F.hardswish),
    "log_sigmoid": (lambda x: own.log_sigmoid_forward(x)[0], F.logsigmoid),
    "softshrink": (own.softshrink, F.softshrink),
    "hardshrink": (own.hardshrink, F.hardshrink),
    "threshold": (lambda x: own.threshold(x, 0.3, 9.0), lambda x: F.threshold(x, 0.3, 9.0)),
    "logit eps": (lambda x: own.logit(x, 0.1), lambda x: torch.logit(x, 0.1)),
    "glu": (lambda x: own.glu(x, 1), lambda x: F.glu(x, 1)),
    "entr": (own.entr, torch.special.entr),
    "sinc": (own.sinc, torch.sinc),
    "nan_to_num": (lambda x: own.nan_to_num(x / x.abs(), 7.0), lambda x: torch.nan_to_num(x / x.abs(), 7.0)),
    "nan_to_num inf": (lambda x: own.nan_to_num(x / 0.0), lambda x: torch.nan_to_num(x / 0.0)),
    "deg2rad": (own.deg2rad, torch.deg2rad),
    "std": (lambda x: own.std(x, [1]), lambda x: torch.std(x, 1)),
    "std all": (lambda x: own.std(x, None, 0), lambda x: torch.std(x, correction=0)),
    "count_nonzero": (lambda x: own.count_nonzero(x, 1), lambda x: torch.count_nonzero(x, 1)),
    "aminmax": (lambda x: own.aminmax(x, dim=0)[1], lambda x: torch.aminmax(x, dim=0).max),
    "roll": (lambda x: own.roll(x, [2], [1]), lambda x: torch.roll(x, 2, 1)),
    "roll back": (lambda x: own.roll(x, [-3, 1], [1, 0]), lambda x: torch.roll(x, (-3, 1), (1, 0))),
    "roll flat": (lambda x: own.roll(x, 5), lambda x: torch.roll(x, 5)),
    "repeat": (lambda x: own.repeat(x, [2, 1, 3]), lambda x: x.repeat(2, 1, 3)),
    "tril": (lambda x: own.tril(x, -1), lambda x: torch.tril(x, -1)),
    "triu": (lambda x: own.triu(x, 1), lambda x: torch.triu(x, 1)),
    "pad": (lambda x: own.constant_pad_nd(x, [1, 2, 3, 0], 4.0), lambda x: F.pad(x, (1, 2, 3, 0), value=4.0)),
    "pad cut": (lambda x: own.constant_pad_nd(x, [-1, 2], 4.0), lambda x: F.pad(x, (-1, 2), value=4.0)),
    "diagonal": (lambda x: own.diagonal(x / 0.0, 1), lambda x: torch.diagonal(x / 0.0, 1)),
    "diagonal below": (lambda x: own.diagonal(x, -2), lambda x: torch.diagonal(x, -2)),
    "diag_embed": (own.diag_embed, torch.diag_embed),
    "diag_embed up": (lambda x: own.diag_embed(x, 2), lambda x: torch.diag_embed(x, 2)),
    "diag_embed down": (lambda x: own.diag_embed(x, -1, 0, 2), lambda x: torch.diag_embed(x, -1, 0, 2)),
    "one_hot": (lambda x: own.one_hot(x.argmax(1), 6), lambda x: F.one_hot(x.argmax(1), 6)),
    "topk": (lambda x: own.topk(x, 3, 1)[0], lambda x: torch.topk(x, 3, 1).values),
    "topk least": (lambda x: own.topk(x, 4, 1, False)[0], lambda x: torch.topk(x, 4, 1, False).values),
    "topk of lowest": (lambda x: own.topk(torch.full_like(x, -torch.inf), 2, 1)[1], lambda x: torch.tensor([[0, 1]] * 4)),
    "sort": (lambda x: own.sort(x, 1)[0], lambda x: torch.sort(x, 1).values),
    "argsort": (lambda x: own.sort(x, 1, True)[1], lambda x: torch.sort(x, stable=True, dim=1, descending=True)[1]),
    "nll": (
        lambda x: own.nll_loss_forward(x.log_softmax(1), TARGET, WEIGHT, 0, -100)[0],
        lambda x: F.nll_loss(x.log_softmax(1), TARGET, WEIGHT, reduction="none"),
    ),
    "nll mean": (
        lambda x: own.nll_loss_forward(x.log_softmax(1), TARGET, None, 1, -100)[0], lambda x: F.nll_loss(x.log_softmax(1), TARGET)
    ),
    "gather": (lambda x: own.gather(x / 0.0, 1, x.argsort(1)), lambda x: torch.gather(x / 0.0, 1, x.argsort(1))),
    "masked_fill": (lambda x: own.masked_fill(x, x > 0, -5.0), lambda x: x.masked_fill(x > 0, -5.0)),
}  # fmt: skip

TWO: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "lerp": (lambda x, y: own.lerp(x, y, 0.3), lambda x, y: torch.lerp(x, y, 0.3)),
    "lerp far": (lambda x, y: own.lerp(x, y, 1.3), lambda x, y: torch.lerp(x, y, 1.3)),
    "lerp tensor": (lambda x, y: own.lerp(x, y, P), lambda x, y: torch.lerp(x, y, P)),
    "xlogy": (lambda x, y: own.xlogy(x, y.abs()), lambda x, y: torch.xlogy(x, y.abs())),
    "logaddexp2": (own.logaddexp2, torch.logaddexp2),
    "heaviside": (own.heaviside, torch.heaviside),
    "ldexp": (lambda x, y: own.ldexp(x, y.int()), lambda x, y: torch.ldexp(x, y.int())),
    "mse": (lambda x, y: own.mse_loss(x, y, 0), lambda x, y: F.mse_loss(x, y, reduction="none")),
    "huber": (lambda x, y: own.huber_loss(x, y, 0, 0.7), lambda x, y: F.huber_loss(x, y, reduction="none", delta=0.7)),
    "smooth_l1": (lambda x, y: own.smooth_l1_loss(x, y, 1, 0.7), lambda x, y: F.smooth_l1_loss(x, y, beta=0.7)),
    "bce": (lambda x, y: own.binary_cross_entropy(P, Q, None, 0), lambda x, y: F.binary_cross_entropy(P, Q, reduction="none")),
    "bce logits": (
        lambda x, y: own.binary_cross_entropy_with_logits(x, Q, None, WEIGHT, 2),
        lambda x, y: F.binary_cross_entropy_with_logits(x, Q, pos_weight=WEIGHT, reduction="sum"),
    ),
}  # fmt: skip


def same(got: Any, want: Any) -> None:
    assert got.shape == want.shape
    torch.testing.assert_close(got.double(), want.double(), rtol=1e-6, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("name", ONE)
def test_of_one_tensor(name: str) -> None:
    ours, torchs = ONE[name]
    same(ours(X), torchs(X))


@pytest.mark.parametrize("name", TWO)
def test_of_two_tensors(name: str) -> None:
    ours, torchs = TWO[name]
    same(ours(X, Y), torchs(X, Y))


@pytest.mark.parametrize("order", [1, 2, 3, 0, torch.inf, -torch.inf])
def test_norms(order: float) -> None:
    same(own.vector_norm(X, order, [1]), torch.linalg.vector_norm(X, order, 1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_floats_are_rounded_once(dtype: torch.dtype) -> None:
    x = X.to(dtype)
    for name in ("softplus", "mish", "elu", "log_sigmoid"):
        ours, torchs = ONE[name]
        got = ours(x)
        assert got.dtype == dtype
        torch.testing.assert_close(got, torchs(x.double()).to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-7)


@helion_rt.kernel(config=helion_rt.Config(block_sizes=[8]))
def apply(x: torch.Tensor, out: torch.Tensor, fn: Callable[..., Any]) -> None:
    for tile in hl.tile(x.size(0)):
        out[tile] = fn(x[tile])


KERNELS: dict[str, Callable[[Any], Any]] = {
    "activations": lambda x: F.mish(x) + F.elu(x) * F.logsigmoid(x),
    "moves": lambda x: (torch.roll(F.pad(x, (1, 2), value=3.0), 2, 1)[:, :, None] * x[:, None, :]).tril(),
    "picks": lambda x: torch.topk(x, 3, 1).values,
    "cross entropy": lambda x: F.cross_entropy(x, torch.argmin(x, 1), reduction="none"),
    "norm": lambda x: F.normalize(x, dim=1) + torch.std(x, 1, keepdim=True),
    "bits": lambda x: x.float().view(torch.int32).to(torch.float32),
    "erfc": lambda x: torch.special.erfc(x) * torch.asinh(x) + torch.copysign(torch.hypot(x, x * 2), x),
}  # fmt: skip


@pytest.mark.parametrize("rows", [16, 13])
@pytest.mark.parametrize("name", KERNELS)
def test_in_a_kernel(name: str, rows: int) -> None:
    fn = KERNELS[name]
    x = torch.randn(rows, 13 if name == "moves" else 16)
    want = fn(x) if name == "bits" else fn(x.double())
    out = torch.full(want.shape, torch.nan)
    apply(x, out, fn)
    torch.testing.assert_close(out.double(), want.double(), rtol=2e-5, atol=2e-5)


EXACT: dict[str, Callable[[Any], Any]] = {
    "sign": lambda x: torch.stack([torch.sign(x), torch.sgn(x)], 1),  # 0 for NaN
    "copysign": lambda x: torch.copysign(x, -1.0),
    "out of the domain": lambda x: torch.acosh(torch.where(x < 0, x * 1000, 1.0)),
    "powers of integers": lambda x: torch.pow(x[:, 8:].int() - 5, (x[:, 8:].int() - 3) * 35).float(),
    "masks": lambda x: torch.add(x > 0, x < 0, alpha=2).float(),
    "poles": lambda x: torch.digamma(torch.where(x == 0, x, 1.0))[:, 2:4],
    "truncated": lambda x: torch.div(x[:, 1:2].int(), x[:, 8:].int(), rounding_mode="trunc").float(),
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_numbers_at_the_edge(name: str) -> None:
    fn = EXACT[name]
    x = torch.tensor([[torch.nan, -7.0, 0.0, -0.0, 5.0, torch.inf, -torch.inf, -1e-30, *range(1, 9)]]).repeat(8, 1)
    want = fn(x)
    out = torch.full(want.shape, 99.0)
    apply(x, out, fn)
    torch.testing.assert_close(out, want, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(torch.signbit(out), torch.signbit(want))


def test_what_cannot_be_picked_is_refused() -> None:
    x = torch.zeros(8, 64)
    with pytest.raises(CaptureError, match="topk or sort of 64"):
        apply(x, torch.zeros(8, 64), lambda x: torch.sort(x, 1).values)
    with pytest.raises(CaptureError):
        apply(x, torch.zeros(8, 3), lambda x: x[:, :4].float().view(torch.int16)[:, :3])


def test_capture_needs_neither_dynamo_nor_sympy() -> None:
    program = """
import sys, torch, torch.nn.functional as F
from tests.capture.test_compositions import KERNELS, apply
for fn in KERNELS.values():
    x = torch.ones(16, 16)
    apply.lower(x, fn(x), fn)
assert not {"torch._dynamo", "sympy"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
