"""Flops of matrix products and bytes of arguments and results."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from helion_rt.schedule.floors import floors

F32 = jnp.float32


def shape(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, F32)


def test_products_and_bytes() -> None:
    flops, size = floors(lambda x, y: x @ y, [shape(4, 8), shape(8, 16)])
    assert flops == 2 * 4 * 8 * 16 and size == 4 * (4 * 8 + 8 * 16 + 4 * 16)


def test_loops_branches_and_batches() -> None:
    def function(x: jax.Array) -> jax.Array:
        x = jax.lax.fori_loop(0, 3, lambda _, v: v @ v, x)
        return jax.lax.cond(x[0, 0] > 0, lambda v: v @ v @ v, lambda v: v @ v, x)

    assert floors(function, [shape(8, 8)])[0] == 2 * 8**3 * (3 + 2)
    assert floors(lambda x: jnp.einsum("bij,bjk->bik", x, x), [shape(5, 8, 8)])[0] == 5 * 2 * 8**3


def test_a_pallas_kernel_counts_its_grid() -> None:
    def kernel(x: object, y: object) -> None:
        y[...] = jnp.dot(x[...], x[...])  # type: ignore[index]

    block = pl.BlockSpec((128, 128), lambda i: (i, 0))
    call = pl.pallas_call(kernel, grid=(4,), in_specs=[block], out_specs=block, out_shape=shape(512, 128))
    assert floors(call, [shape(512, 128)])[0] == 4 * 2 * 128**3
