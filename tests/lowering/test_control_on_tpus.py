"""The control kernels for TPUs: in JAX's TPU interpreter against the reference path, and compiled with libtpu."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import control_kernels as kernels
import jax
import numpy as np
import pytest
import torch
from test_control import ints, program_of, rand, to_jax

from helion_rt import lowering, targets
from helion_rt.config import Config, LoopStrategy
from helion_rt.tuning.space import Space

pytestmark = pytest.mark.slow
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


@dataclass(frozen=True)
class Case:
    kernel: Callable[..., Any]
    args: Callable[[torch.dtype], list[torch.Tensor]]
    blocks: tuple[int, ...] = ()


CASES = [
    Case(kernels.segment_sum, lambda d: [rand(37, 5, dtype=d), ints(0, 3, 3, 20, 37)], (8,)),
    Case(kernels.segment_softmax, lambda d: [rand(37, 5, dtype=d), ints(2, 3, 3, 20, 36)], (8, 16)),
    Case(kernels.varlen_attention, lambda d: [*(rand(37, 16, seed=s, dtype=d) for s in range(3)), ints(0, 9, 37)], (8, 8)),
    Case(kernels.newton_sqrt, lambda d: [rand(50, dtype=d).abs() + 0.5], (50,)),
    Case(kernels.clipped_rows, lambda d: [rand(37, 20, dtype=d), torch.tensor([2.0])], (37, 20)),
    Case(kernels.stored_where, lambda d: [rand(6, 10, dtype=d), ints(1, 0, -1, 2, 0, -3)]),
    Case(kernels.counted, lambda d: [ints(3, 0, 5, 1), rand(7, dtype=d)], (4,)),
    Case(kernels.scaled_segments, lambda d: [rand(300, dtype=d), ints(3, 7, 7, 200, 290)], (40,)),
    Case(kernels.chunk_products, lambda d: [rand(16, 59, dtype=d), rand(59, 128, seed=1, dtype=d)], (16, 128, 16)),
]
EVERY = pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel.__name__)


@DTYPES
@EVERY
def test_the_tpu_interpreter_agrees_with_the_reference(case: Case, dtype: torch.dtype) -> None:
    args = case.args(dtype)
    program = program_of(case.kernel, args)
    config = Config(block_sizes=list(case.blocks), loop_strategies=[LoopStrategy.FORI] * len(lowering.loops(program)))
    (got,) = lowering.lower(program, config, targets.get("tpu7x")).interpret(*map(to_jax, args))
    (want,) = jax.jit(lowering.reference(program, case.blocks))(*map(to_jax, args))
    tolerance = 1e-5 if dtype is torch.float32 else 0.02
    np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("target", ["v5e", "v6e", "tpu7x"])
@DTYPES
@EVERY
def test_the_default_compiles(case: Case, dtype: torch.dtype, target: str) -> None:
    program, aimed = program_of(case.kernel, case.args(dtype)), targets.get(target)
    assert lowering.lower(program, Space(program, aimed).default(), aimed).compile().tpu_custom_calls >= 1
