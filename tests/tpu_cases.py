"""Kernels for which ``python -m scripts.tpu_support`` says what TPUs make of them: the ready-made ones, those of the tests, the examples.

A test module adds its own by a list ``TPU_CASES`` of ``TpuCase`` and its name in ``MODULES``.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

import helion_rt
from docs.language_examples import EXAMPLES
from helion_rt import kernels
from tests.lowering import control_kernels, sample_kernels

MODULES: tuple[str, ...] = ()


@dataclass(frozen=True)
class TpuCase:
    """``expected`` gets the arguments, floats in float64; it may give a predicate on the result instead of the result."""

    name: str
    kernel: Any
    arguments: Callable[[], tuple[Any, ...]]
    expected: Callable[..., Any]
    tolerance: float = 2e-3


def _rand(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Callable[[], tuple[torch.Tensor, ...]]:
    def make() -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(5)
        return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)

    return make


def _norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, [x.size(-1)], w, b)


_sdpa = torch.nn.functional.scaled_dot_product_attention
READY: tuple[tuple[str, Callable[..., Any], tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]], ...] = (
    ("add", torch.add, ((128, 256),) * 2, ((50, 130),) * 2),
    ("gelu", torch.nn.functional.gelu, ((128, 256),), ((50, 130),)),
    ("softmax", lambda x: x.softmax(-1), ((64, 256),), ((50, 130),)),
    ("softmax_two_pass", lambda x: x.softmax(-1), ((64, 256),), ((50, 130),)),
    ("layer_norm", _norm, ((64, 256), (256,), (256,)), ((50, 130), (130,), (130,))),
    ("rms_norm", lambda x, w: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * w, ((64, 256), (256,)), ((50, 130), (130,))),
    ("matmul", torch.matmul, ((128, 256), (256, 128)), ((50, 130), (130, 72))),
    ("attention", _sdpa, ((1, 2, 128, 64),) * 3, ((1, 2, 130, 64),) * 3),
)
SAMPLES: tuple[tuple[str, Callable[..., Any], tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]], ...] = (
    ("add_bias", torch.add, ((64, 256), (256,)), ((50, 130), (130,))),
    ("matmul_dot", lambda x, y: torch.relu(x @ y), ((128, 256), (256, 128)), ((50, 130), (130, 72))),
    ("column_sum", lambda x: x.sum(0), ((64, 256),), ((50, 130),)),
    ("lane_max", lambda x: x.amax(-1), ((64, 256),), ((50, 130),)),
    ("accumulate", lambda x: torch.cat([1 + x[: len(x) // 2], torch.ones_like(x[len(x) // 2 :])]), ((64, 256),), ((50, 130),)),
    ("causal_attention", lambda q, k, v: _sdpa(q, k, v, is_causal=True), ((2, 128, 64),) * 3, ((2, 130, 64),) * 3),
)


def _segments(rows: int, *ends: int) -> tuple[list[tuple[int, int]], torch.Tensor]:
    offsets = [0, *ends, rows]
    return list(itertools.pairwise(offsets)), torch.tensor(offsets, dtype=torch.int32)


def _control(rows: int, columns: int, *ends: int) -> Iterator[TpuCase]:
    """Loops over segments, a while, a branch."""
    parts, offsets = _segments(rows, *ends)
    kind = "round" if rows % 8 == 0 and not any(e % 8 for e in ends) else "ragged"

    def case(name: str, make: Callable[[], tuple[Any, ...]], expected: Callable[..., Any]) -> TpuCase:
        return TpuCase(f"control_kernels.{name} {kind}", helion_rt.kernel(getattr(control_kernels, name)), make, expected)

    def segmented() -> tuple[Any, ...]:
        return (*_rand((rows, columns))(), offsets)

    yield case("segment_sum", segmented, lambda x, _: torch.stack([x[s:e].sum(0) for s, e in parts]))
    yield case("segment_softmax", segmented, lambda x, _: torch.cat([x[s:e].softmax(0) for s, e in parts]))
    yield case(
        "varlen_attention",
        lambda: (*_rand(*((rows, 64),) * 3)(), offsets),
        lambda q, k, v, _: torch.cat([_sdpa(q[None, s:e], k[None, s:e], v[None, s:e])[0] for s, e in parts]),
    )
    yield case("newton_sqrt", lambda: (_rand((rows,))()[0].abs() + 0.5,), torch.sqrt)


def all_cases() -> Iterator[TpuCase]:
    """Every case, each name once."""
    for home, prefix, table in ((kernels, "kernels", READY), (sample_kernels, "sample_kernels", SAMPLES)):
        for name, expected, *both in table:
            for kind, shapes in zip(("round", "ragged"), both, strict=True):
                yield TpuCase(f"{prefix}.{name} {kind}", getattr(home, name), _rand(*shapes), expected)
    yield from _control(64, 128, 16, 40)
    yield from _control(50, 130, 3, 3, 37)
    for example in EXAMPLES:
        yield TpuCase(f"language.{example.names[0]}", example.kernel, example.arguments, example.expected)
    for module in MODULES:
        yield from importlib.import_module(module).TPU_CASES
