"""What ``benchmarks`` measure: kernels with their arguments, their programs, and the same in plain jax.numpy."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from helion_rt import kernels, lowering, targets
from helion_rt.capture import capture
from helion_rt.config import Config
from helion_rt.program.ir import Program
from helion_rt.program.signature import Fact, StaticFact, TensorFact
from helion_rt.tuning import ladder
from helion_rt.tuning.space import Space


@dataclass(frozen=True)
class Subject:
    """A kernel, the shapes (float32) of a call, and the function of jax.numpy that computes the same."""

    name: str
    kernel: Any
    shapes: tuple[tuple[int, ...], ...]
    in_jax: Callable[..., jax.Array]

    def arguments(self) -> tuple[jax.Array, ...]:
        """Normal random arrays, ready."""
        keys = jax.random.split(jax.random.key(0), len(self.shapes))
        return tuple(jax.block_until_ready(jax.random.normal(key, shape)) for key, shape in zip(keys, self.shapes, strict=True))

    def program(self) -> Program:
        """The kernel captured for these shapes; its other parameters at their defaults."""
        bound = inspect.signature(self.kernel.fn).bind(*(TensorFact(shape, "float32") for shape in self.shapes))
        bound.apply_defaults()
        facts: tuple[Fact, ...] = tuple(fact if isinstance(fact, TensorFact) else StaticFact(fact) for fact in bound.args)
        return capture(self.kernel.fn, facts)

    def space(self) -> Space:
        return Space(self.program(), targets.get("cpu"))


def compiled(program: Program, config: Config, arrays: tuple[jax.Array, ...]) -> Callable[[], object]:
    """A function that runs the program under ``config`` on ``arrays`` and waits for it; compiled by its first call."""
    jitted = jax.jit(lowering.build(program, config, targets.get("cpu")))
    return lambda: jax.block_until_ready(jitted(*arrays))


def fixed_blocks(space: Space, size: int) -> Config:
    """The default with every block at ``size``, or at the largest size below it that the block may have."""
    sizes = [max(choice for choice in ladder.powers(block) if choice <= size) for block in _tunable(space.program)]
    return space.default().replace(block_sizes=sizes)


def _tunable(program: Program) -> list[Any]:
    return [program.blocks[i] for i in program.tunable_blocks]


def _softmax(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(x, axis=-1)


def _layer_norm(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * weight + bias


def _attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    scores = jnp.einsum("bhmd,bhnd->bhmn", q, k) * q.shape[-1] ** -0.5
    return jnp.einsum("bhmn,bhnd->bhmd", jax.nn.softmax(scores, axis=-1), v)


MATMUL_1024 = Subject("matmul 1024 x 1024 x 1024", kernels.matmul, ((1024, 1024), (1024, 1024)), jnp.dot)

SUBJECTS = (
    MATMUL_1024,
    Subject("matmul 512 x 2048 x 384", kernels.matmul, ((512, 2048), (2048, 384)), jnp.dot),
    Subject("softmax 256 x 8192", kernels.softmax, ((256, 8192),), _softmax),
    Subject("softmax, two passes, 1000 x 8192", kernels.softmax_two_pass, ((1000, 8192),), _softmax),
    Subject("layer norm 1024 x 384", kernels.layer_norm, ((1024, 384), (384,), (384,)), _layer_norm),
    Subject("layer norm 4096 x 1024", kernels.layer_norm, ((4096, 1024), (1024,), (1024,)), _layer_norm),
    Subject("attention 16 x 12 x 64 x 32", kernels.attention, ((16, 12, 64, 32),) * 3, _attention),
    Subject("attention 2 x 8 x 512 x 64", kernels.attention, ((2, 8, 512, 64),) * 3, _attention),
)
