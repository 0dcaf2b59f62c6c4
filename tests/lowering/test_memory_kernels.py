"""Kernels that gather, scatter and add atomically, against torch in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import memory_kernels as kernels
import numpy as np
import pytest
import torch
from lowering_support import TOLERANCE, to_jax

from helion_rt import lowering, targets
from helion_rt.capture import capture
from helion_rt.config import Config, LoopStrategy
from helion_rt.program.ir import Program
from helion_rt.program.signature import TensorFact
from helion_rt.tuning.space import Space

Tensors = tuple[torch.Tensor, ...]


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def ids(below: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(5), dtype=torch.int32)


def some(count: int, of: int) -> torch.Tensor:
    """Positions that differ; every fifth is -1."""
    found = torch.randperm(of, generator=torch.Generator().manual_seed(5))[:count].to(torch.int32)
    found[::5] = -1
    return found


def _slots(at: torch.Tensor, counts: torch.Tensor) -> Tensors:
    before = torch.tensor([(at[:i] == at[i]).sum() for i in range(len(at))])
    return before, torch.bincount(at, minlength=len(counts))


def _routed(x: torch.Tensor, order: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    out, rows = torch.zeros(x.shape[0], weight.shape[1], dtype=x.dtype), order[order >= 0].long()
    out[rows] = x[rows] @ weight
    return out


def _diagonal(x: torch.Tensor) -> torch.Tensor:
    flat, i = torch.cat([x.flatten(), torch.zeros(1, dtype=x.dtype)]), torch.arange(len(x))
    return x.diagonal() + torch.where(i + 1 < len(x), flat[i * len(x) + i + 1], 0)


def _corners(x: torch.Tensor) -> torch.Tensor:
    out = x.new_zeros(len(x), x.shape[1], x.shape[1])
    out[:, 1:5, :2] = x[:, 1:5] @ x[:, :2].transpose(1, 2)
    return out


@dataclass(frozen=True)
class Case:
    kernel: Callable[..., Any]
    args: Callable[[int], Tensors]  # of a size
    expected: Callable[..., Any]
    blocks: tuple[int, ...]  # for the ragged size on the CPU
    floats: bool = True


CASES = [
    Case(kernels.look_up, lambda n: (ids(50, n), rand(50, 2 * n)), lambda i, t: t[i.long()], (8, 16)),
    Case(kernels.histogram, lambda n: (ids(9, n), rand(n), rand(9)), lambda i, w, b: b.index_add(0, i.long(), w), (8,)),
    Case(kernels.segment_sum, lambda n: (ids(7, n), rand(n, 2 * n), rand(7, 2 * n)),
         lambda i, x, like: torch.zeros_like(like).index_add(0, i.long(), x), (8, 16)),
    Case(kernels.slots, lambda n: (ids(5, n), ids(1, 5)), _slots, (8,), floats=False),
    Case(kernels.routed, lambda n: (rand(n, 2 * n), some(n - 2, n), rand(2 * n, n)), _routed, (8, 16, 16)),
    Case(kernels.paged, lambda n: (rand(3, 24), rand(40, 4, 24), ids(40, 3, n)),
         lambda q, p, t: torch.einsum("bd,bnsd->bns", q, p[t.long()]), (8,)),
    Case(kernels.packed_product, lambda n: (rand(n, 4 * n), rand(2 * n, n)),
         lambda x, p: x @ torch.stack([p, p + 1], 1).reshape(x.shape[1], -1), (8, 16, 8)),
    Case(kernels.diagonal, lambda n: (rand(n, n),), _diagonal, (8,)),
    Case(kernels.corners, lambda n: (rand(3, n, 8),), _corners, ()),
]  # fmt: skip
SIZES = {"round": 16, "ragged": 21}
EVERY = pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel.__name__)


def program_of(case: Case, args: Tensors) -> Program:
    return capture(case.kernel, tuple(TensorFact(tuple(a.shape), str(a.dtype).removeprefix("torch.")) for a in args))


def arguments(case: Case, size: int, dtype: torch.dtype) -> Tensors:
    return tuple(a.to(dtype) if a.is_floating_point() else a for a in case.args(size))


def check(case: Case, args: Tensors, outputs: tuple[Any, ...], dtype: torch.dtype) -> None:
    wanted = case.expected(*(a.double() if a.is_floating_point() else a for a in args))
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    tolerance = TOLERANCE[str(dtype).removeprefix("torch.")] if case.floats else 0.0
    for got, want in zip(outputs, wanted, strict=True):
        scale = max(1.0, float(want.abs().max()))
        np.testing.assert_allclose(np.asarray(got, np.float64), want.double().numpy(), rtol=10 * tolerance, atol=3 * tolerance * scale)


def fori(program: Program, blocks: tuple[int, ...]) -> Config:
    return Config(block_sizes=list(blocks), loop_strategies=[LoopStrategy.FORI] * len(lowering.loops(program)))


@EVERY
@pytest.mark.parametrize("size", list(SIZES))
def test_on_the_cpu(case: Case, size: str) -> None:
    args = arguments(case, SIZES[size], torch.float32)
    program, cpu = program_of(case, args), targets.get("cpu")
    paths = [lowering.build(program, fori(program, case.blocks), cpu)]
    if size == "ragged":
        paths += [lowering.reference(program, case.blocks), lowering.build(program, Space(program, cpu).default(), cpu)]
    for path in paths:
        check(case, args, jax.jit(path)(*map(to_jax, args)), torch.float32)


@pytest.mark.parametrize("target", ["cpu", "tpu7x"])
def test_a_tile_made_longer_is_sliced_not_gathered(target: str) -> None:
    case = next(c for c in CASES if c.kernel is kernels.packed_product)
    program = program_of(case, arguments(case, 128, torch.float32))
    source = lowering.generate(program, fori(program, (128, 128, 128)), targets.get(target))
    assert "_take" not in source and "iota" not in source  # nor are the positions computed


@EVERY
def test_in_bfloat16(case: Case) -> None:
    if not case.floats:
        pytest.skip("a kernel of integers")
    args = arguments(case, SIZES["ragged"], torch.bfloat16)
    program = program_of(case, args)
    check(case, args, jax.jit(lowering.build(program, fori(program, case.blocks), targets.get("cpu")))(*map(to_jax, args)), torch.bfloat16)


@pytest.mark.slow
@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_in_the_tpu_interpreter(case: Case, dtype: torch.dtype) -> None:
    args = arguments(case, 5, dtype)
    program = program_of(case, args)
    lowered = lowering.lower(program, Space(program, targets.get("tpu7x")).default(), targets.get("tpu7x"))
    check(case, args, lowered.interpret(*map(to_jax, args)), dtype)


@pytest.mark.slow
@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("target", ["v5e", "v6e", "tpu7x"])
@pytest.mark.parametrize("size", [128, 200])
def test_it_compiles_for_tpus(case: Case, size: int, target: str, dtype: torch.dtype) -> None:
    program = program_of(case, arguments(case, size, dtype))
    aimed = targets.get(target)
    assert lowering.lower(program, Space(program, aimed).default(), aimed).compile().tpu_custom_calls >= 1
