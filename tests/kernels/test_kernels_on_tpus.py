"""Every ready-made kernel for TPUs that are not there: compiled by libtpu, and run small in JAX's TPU interpreter."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from helion_rt import kernels
from helion_rt.config import LoopStrategy
from helion_rt.exc import PlanError
from helion_rt.lowering import Lowered

pytestmark = pytest.mark.slow

TARGETS = ("v5e", "v6e", "tpu7x")
DTYPES = ("float32", "bfloat16")
# kernel, shapes of its array arguments, its other arguments
CASES: list[tuple[Any, tuple[tuple[int, ...], ...], dict[str, Any]]] = [
    (kernels.add, ((256, 512), (256, 512)), {}),
    (kernels.add, ((130, 257), (130, 257)), {}),
    (kernels.gelu, ((256, 1536),), {}),
    (kernels.gelu, ((130, 1000),), {}),
    (kernels.softmax, ((256, 1024),), {}),
    (kernels.softmax, ((130, 257),), {}),
    (kernels.softmax_two_pass, ((256, 2048),), {}),
    (kernels.softmax_two_pass, ((130, 1000),), {}),
    (kernels.layer_norm, ((256, 384), (384,), (384,)), {}),
    (kernels.layer_norm, ((130, 1000), (1000,), (1000,)), {}),
    (kernels.rms_norm, ((130, 1000), (1000,)), {}),
    (kernels.matmul, ((512, 512), (512, 512)), {}),
    (kernels.matmul, ((130, 257), (257, 1000)), {}),
    (kernels.attention, ((1, 2, 256, 128),) * 3, {}),
    (kernels.attention, ((1, 2, 130, 64), (1, 2, 257, 64), (1, 2, 257, 64)), {}),
    (kernels.attention, ((1, 2, 256, 128),) * 3, {"causal": True}),
    (kernels.attention, ((1, 2, 257, 64),) * 3, {"causal": True}),
]
EVERY = [pytest.param(*case, id=f"{case[0].name}-{case[1][0]}-{'-'.join(case[2])}") for case in CASES]


def _stages(kernel: Any, arrays: list[Any], options: dict[str, Any], target: str) -> list[Lowered]:
    """Lowered under the default config, and under each strategy that fits with the default's blocks."""
    default = kernel.lower(*arrays, target=target, **options)
    found = [default]
    for strategy in LoopStrategy:
        config = default.config.replace(loop_strategies=[strategy] * len(default.config.get("loop_strategies", ())))
        if config != default.config:
            try:
                found.append(kernel.lower(*arrays, target=target, config=config, **options))
            except PlanError:
                continue
    return found


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kernel", "shapes", "options"), EVERY)
def test_compiles(kernel: Any, shapes: Any, options: dict[str, Any], dtype: str, target: str) -> None:
    specs = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape in shapes]
    for stage in _stages(kernel, specs, options, target):
        assert stage.compile().tpu_custom_calls >= 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kernel", "shapes", "options"), EVERY)
def test_is_right_in_the_tpu_interpreter(kernel: Any, shapes: Any, options: dict[str, Any], dtype: str) -> None:
    numbers = np.random.default_rng(3)
    arrays = [jnp.asarray(numbers.normal(size=shape), dtype) for shape in shapes]
    expected = kernel(*(torch.from_numpy(np.array(a, np.float32)) for a in arrays), **options).double().numpy()
    for stage in _stages(kernel, arrays, options, "tpu7x"):
        extra = [jnp.float32(1e-5)] * (len(stage.specs) - len(arrays))
        (out,) = stage.interpret(*arrays, *extra)
        tolerance = 1e-4 if dtype == "float32" else 3e-2
        np.testing.assert_allclose(np.asarray(out, np.float64), expected, rtol=tolerance, atol=tolerance * max(1.0, abs(expected).max()))
