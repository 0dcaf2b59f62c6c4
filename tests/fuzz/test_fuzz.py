"""Random kernels: the reference path and the planned Pallas code under a random config give what torch gives on whole arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, event, given, note, settings
from hypothesis import strategies as st

from helion_rt import lowering, targets
from helion_rt.capture import capture
from helion_rt.config import Config, LoopStrategy
from helion_rt.exc import PlanError
from helion_rt.program.ir import Program
from helion_rt.program.signature import TensorFact
from tests.fuzz.compose import DTYPES, Composed, forget_sources
from tests.fuzz.programs import composed

CPU = targets.get("cpu")
EPSILON = {"F32": 2.0**-23, "F16": 2.0**-10, "BF16": 2.0**-7}
# What XLA would win by optimizing arrays this small it loses many times over by compiling.
COMPILER = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}


def program_of(kernel: Composed) -> Program:
    facts = tuple(TensorFact(a.shape, str(DTYPES[a.dtype]).removeprefix("torch.")) for a in kernel.arguments)
    return capture(kernel.kernel_function(), facts)


def to_jax(tensor: torch.Tensor) -> jax.Array:
    return jnp.asarray(tensor.float().numpy(), jnp.bfloat16) if tensor.dtype is torch.bfloat16 else jnp.asarray(tensor.numpy())


def run(function: Any, tensors: Sequence[torch.Tensor]) -> list[np.ndarray]:
    outputs = jax.jit(function, compiler_options=COMPILER)(*map(to_jax, tensors))
    return [np.asarray(x, np.float64) for x in outputs]


def random_config(draw: Any, program: Program) -> Config:
    """Blocks of any size, and any strategies of the CPU; not every such config is legal."""
    blocks = []
    for i in program.tunable_blocks:
        info = program.blocks[i]
        high = min(info.high or info.extent, info.extent)
        blocks.append(min(draw(st.sampled_from((1, 2, 3, 4, 8, 16, 32))), max(high, 1)))
    loops = len(lowering.loops(program))
    strategies = [draw(st.sampled_from((LoopStrategy.UNROLL, LoopStrategy.FORI, LoopStrategy.GRID))) for _ in range(loops)]
    return Config(block_sizes=blocks, loop_strategies=strategies)


def check(kernel: Composed, outputs: Sequence[np.ndarray], tensors: Sequence[torch.Tensor]) -> None:
    """Against float64, with as much error as the kernel's own dtypes have in eager torch."""
    wanted = kernel.reference_function(wide=True)(*(t.double() if t.is_floating_point() else t for t in tensors))
    narrow = kernel.reference_function(wide=False)(*tensors)
    assert len(outputs) == len(wanted)
    for got, want, like in zip(outputs, wanted, narrow, strict=True):
        want = want.double()
        assert got.shape == tuple(want.shape)
        scale = max(1.0, float(want.abs().max()))
        allowed = 8 * float((like.double() - want).abs().max()) + 32 * EPSILON[kernel.lowest] * scale
        np.testing.assert_allclose(got, want.numpy(), rtol=0, atol=allowed)


def _examine(kernel: Composed, data: st.DataObject) -> None:
    note(kernel.kernel)
    note(kernel.reference)
    note("arguments: " + ", ".join(f"{a.name} {a.dtype}{list(a.shape)}" for a in kernel.arguments))
    tensors = kernel.tensors()
    program = program_of(kernel)
    config = random_config(data.draw, program)
    note(f"{config!r}")
    blocks = list(config["block_sizes"])
    try:
        by_reference = run(lowering.reference(program, blocks), tensors)
        check(kernel, by_reference, tensors)
    except PlanError as error:
        event(f"reference refused: {error.reason}")
    try:
        function = lowering.build(program, config, CPU)
    except PlanError as error:
        event(f"refused: {error.reason}")
    else:
        check(kernel, run(function, tensors), tensors)
    forget_sources()


SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
QUICK = settings(max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=SLOW)
LONG = settings(QUICK, max_examples=2000)


@QUICK
@given(composed(), st.data())
def test_random_kernels(kernel: Composed, data: st.DataObject) -> None:
    _examine(kernel, data)


@pytest.mark.long
@pytest.mark.timeout(3600)
@LONG
@given(composed(), st.data())
def test_many_random_kernels(kernel: Composed, data: st.DataObject) -> None:
    _examine(kernel, data)
