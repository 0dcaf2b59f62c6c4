"""Inputs and checks that the lowering's tests share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import torch

from helion_rt.capture import capture
from helion_rt.program.ir import Program
from helion_rt.program.signature import ScalarFact, TensorFact

TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2, "int32": 0.0}
TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int32": torch.int32}


@dataclass(frozen=True)
class Case:
    """A kernel, its shapes, and what torch says in float64."""

    kernel: str
    shapes: tuple[tuple[int, ...], ...]
    expected: Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    # JAX 0.10's TPU interpreter gives an aliased output of ragged blocks back in its padded shape, which JAX itself then refuses.
    interpretable: bool = True

    @property
    def id(self) -> str:
        return f"{self.kernel}-{'_'.join('x'.join(map(str, s)) for s in self.shapes)}"


def inputs(case: Case, dtype: str) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    if dtype == "int32":
        return [torch.randint(-9, 9, shape, generator=generator, dtype=torch.int32) for shape in case.shapes]
    return [torch.randn(shape, generator=generator).to(TORCH[dtype]) for shape in case.shapes]


def to_jax(tensor: torch.Tensor) -> jnp.ndarray:
    if tensor.dtype is torch.bfloat16:
        return jnp.asarray(tensor.float().numpy()).astype(jnp.bfloat16)
    return jnp.asarray(tensor.numpy())


def program_of(fn: Callable[..., object], case: Case, dtype: str) -> Program:
    defaults = [p.default for p in list(inspect.signature(fn).parameters.values())[len(case.shapes) :]]
    facts = (*(TensorFact(shape, dtype) for shape in case.shapes), *(ScalarFact("float") for _ in defaults))
    return capture(fn, facts, (*(None for _ in case.shapes), *defaults))


def check(outputs: Sequence[object], case: Case, tensors: Sequence[torch.Tensor], dtype: str) -> None:
    """Every output against torch in float64, relative to the size of the result."""
    wanted = case.expected(*(t.double() if t.is_floating_point() else t for t in tensors))
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    assert len(outputs) >= len(wanted)
    for got, want in zip(outputs, wanted, strict=False):
        array = np.asarray(got, dtype=np.float64)
        assert array.shape == tuple(want.shape)
        scale = max(1.0, float(want.abs().max())) if want.numel() else 1.0
        np.testing.assert_allclose(array, want.double().numpy(), rtol=TOLERANCE[dtype] * 10, atol=TOLERANCE[dtype] * scale)
