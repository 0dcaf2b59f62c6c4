"""The kernels of ``benchmarks`` as one writes them by hand: ``pl.pallas_call`` under ``jax.jit``, in interpret mode on the CPU.

They take the same arrays as their namesakes in ``helion_rt.kernels``. Blocks divide the shapes the benchmarks use.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl


def _softmax_kernel(x_ref: Any, out_ref: Any) -> None:
    row = x_ref[...].astype(jnp.float32)
    numerator = jnp.exp(row - jnp.max(row, axis=-1, keepdims=True))
    out_ref[...] = (numerator / jnp.sum(numerator, axis=-1, keepdims=True)).astype(out_ref.dtype)


@jax.jit
def softmax(x: jax.Array) -> jax.Array:
    m, n = x.shape
    block = pl.BlockSpec((min(m, 128), n), lambda i: (i, 0))
    call = pl.pallas_call(_softmax_kernel, grid=(pl.cdiv(m, 128),), in_specs=[block], out_specs=block, out_shape=x, interpret=True)
    return call(x)


def _layer_norm_kernel(x_ref: Any, weight_ref: Any, bias_ref: Any, out_ref: Any, *, eps: float) -> None:
    row = x_ref[...].astype(jnp.float32)
    centred = row - jnp.mean(row, axis=-1, keepdims=True)
    variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
    out_ref[...] = (centred * jax.lax.rsqrt(variance + eps) * weight_ref[...][None, :] + bias_ref[...][None, :]).astype(out_ref.dtype)


@jax.jit
def layer_norm(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    m, n = x.shape
    block, vector = pl.BlockSpec((min(m, 128), n), lambda i: (i, 0)), pl.BlockSpec((n,), lambda i: (0,))
    body = functools.partial(_layer_norm_kernel, eps=1e-5)
    specs = [block, vector, vector]
    return pl.pallas_call(body, grid=(pl.cdiv(m, 128),), in_specs=specs, out_specs=block, out_shape=x, interpret=True)(x, weight, bias)


def _matmul_kernel(x_ref: Any, y_ref: Any, out_ref: Any) -> None:
    @pl.when(pl.program_id(2) == 0)
    def _() -> None:
        out_ref[...] = jnp.zeros_like(out_ref)

    out_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=jnp.float32)


@jax.jit
def matmul(x: jax.Array, y: jax.Array) -> jax.Array:
    (m, k), n = x.shape, y.shape[1]
    bm, bn, bk = min(m, 256), min(n, 256), min(k, 256)
    return pl.pallas_call(
        _matmul_kernel,
        grid=(pl.cdiv(m, bm), pl.cdiv(n, bn), pl.cdiv(k, bk)),
        in_specs=[pl.BlockSpec((bm, bk), lambda i, j, s: (i, s)), pl.BlockSpec((bk, bn), lambda i, j, s: (s, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, s: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32),
        interpret=True,
    )(x, y)


def _gelu_kernel(x_ref: Any, out_ref: Any) -> None:
    value = x_ref[...].astype(jnp.float32)
    out_ref[...] = (0.5 * value * (1.0 + jax.lax.erf(value * 0.7071067811865476))).astype(out_ref.dtype)


@jax.jit
def gelu(x: jax.Array) -> jax.Array:
    m, n = x.shape
    bm, bn = min(m, 256), min(n, 512)
    block = pl.BlockSpec((bm, bn), lambda i, j: (i, j))
    grid = (pl.cdiv(m, bm), pl.cdiv(n, bn))
    return pl.pallas_call(_gelu_kernel, grid=grid, in_specs=[block], out_specs=block, out_shape=x, interpret=True)(x)


KERNELS: dict[str, Callable[..., jax.Array]] = {"softmax": softmax, "layer_norm": layer_norm, "matmul": matmul, "gelu": gelu}


def arguments(name: str) -> tuple[jax.Array, ...]:
    """The arrays, float32, that the benchmarks of first calls give to kernel ``name``."""
    key = jax.random.key(0)
    shapes = {
        "softmax": [(512, 1024)],
        "layer_norm": [(1024, 384), (384,), (384,)],
        "matmul": [(512, 512), (512, 512)],
        "gelu": [(1024, 1536)],
    }[name]
    return tuple(jax.block_until_ready(jax.random.normal(key, shape, jnp.float32)) for shape in shapes)
