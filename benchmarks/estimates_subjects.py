"""The kernels whose times were measured on real TPUs, rebuilt: from a record of the data to a JAX function, its arguments and its work."""

from __future__ import annotations

import functools
import math
import re
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

_DTYPES = {"bf16": jnp.bfloat16, "f32": jnp.float32}


@dataclass(frozen=True, slots=True)
class Subject:
    """A function, its arguments (an array where its values count), and matmul flops and bytes that it cannot do without."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    flops: float
    size: float


def subject(record: dict[str, Any]) -> Subject:
    """The kernel of a record. Raises ``KeyError`` for a family that is not rebuilt here."""
    return {
        "docs_matmul": _docs_matmul,
        "pf_matmul": _pf_matmul,
        "pallas_mosaic_tpu_ragged_dot": _ragged_dot,
        "pallas_mosaic_tpu_flash_attention": _attention,
    }[record["kernel"]](record)


def _spec(text: str) -> jax.ShapeDtypeStruct:
    """``bf16[32,4096,8,128]`` as a shape."""
    found = re.fullmatch(r"(\w+)\[([\d,]+)\]", text)
    assert found is not None, text
    return jax.ShapeDtypeStruct(tuple(map(int, found.group(2).split(","))), _DTYPES[found.group(1)])


def _matmul_work(m: int, k: int, n: int, itemsize: int) -> tuple[float, float]:
    return 2.0 * m * k * n, float(itemsize * (m * k + k * n + m * n))


def _docs_matmul(record: dict[str, Any]) -> Subject:
    """The JAX documentation's matmul: float32 accumulator in scratch, grid (m, n, k)."""
    (m, k, n), config, dtype = record["shape"], record["config"], _DTYPES[record["dtype"]]
    bm, bk, bn = (min(size, config[name]) for size, name in ((m, "block_m"), (k, "block_k"), (n, "block_n")))

    def kernel(x: Any, y: Any, z: Any, acc: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            acc[...] = jnp.zeros_like(acc)

        acc[...] += jnp.dot(x[...], y[...], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(2) == k // bk - 1)
        def _() -> None:
            z[...] = acc[...].astype(z.dtype)

    call = pl.pallas_call(
        kernel,
        grid=(m // bm, n // bn, k // bk),
        in_specs=[pl.BlockSpec((bm, bk), lambda i, j, s: (i, s)), pl.BlockSpec((bk, bn), lambda i, j, s: (s, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, s: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), dtype),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
    )
    specs = (jax.ShapeDtypeStruct((m, k), dtype), jax.ShapeDtypeStruct((k, n), dtype))
    return Subject(call, specs, *_matmul_work(m, k, n, specs[0].dtype.itemsize))


def _pf_matmul(record: dict[str, Any]) -> Subject:
    """The same loop, accumulating in its float32 output."""
    (m, k, n), config, dtype = record["shape"], record["config"], _DTYPES[record["dtype"]]
    bm, bk, bn = config["block_m"], config["block_k"], config["block_n"]

    def kernel(x: Any, y: Any, z: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            z[...] = jnp.zeros_like(z)

        z[...] += jnp.dot(x[...], y[...], preferred_element_type=jnp.float32)

    call = pl.pallas_call(
        kernel,
        grid=(m // bm, n // bn, k // bk),
        in_specs=[pl.BlockSpec((bm, bk), lambda i, j, s: (i, s)), pl.BlockSpec((bk, bn), lambda i, j, s: (s, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, s: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32),
    )

    def function(x: Any, y: Any) -> Any:
        return call(x, y).astype(dtype)

    specs = (jax.ShapeDtypeStruct((m, k), dtype), jax.ShapeDtypeStruct((k, n), dtype))
    return Subject(function, specs, *_matmul_work(m, k, n, specs[0].dtype.itemsize))


def _ragged_dot(record: dict[str, Any]) -> Subject:
    """JAX's grouped matmul, megablox. Groups of unknown sizes are taken to be equal."""
    import importlib

    backend: Any = importlib.import_module("jax.experimental.pallas.ops.tpu.megablox.gmm")
    shape, config = record["shape"], record["config"]
    lhs, rhs = _spec(shape["lhs"]), _spec(shape["rhs"])
    transposed = shape["ragged_dot_dimension_numbers"]["dot_dimension_numbers"][0][1] == [2]
    groups, (m, k) = rhs.shape[0], lhs.shape
    n = rhs.shape[1] if transposed else rhs.shape[2]
    # The product with a transposed right side is the gradient's. The library's later version (its records tell whether the result is
    # set to zero before) names the tiles as in the forward product, whose k is the gradient's n.
    swapped = transposed and shape.get("zero_initialize") is not None
    tile_k, tile_n = (config["tile_n"], config["tile_k"]) if swapped else (config["tile_k"], config["tile_n"])
    listed = shape["group_sizes"]
    sizes = np.asarray(listed if isinstance(listed, list) else np.full(groups, m // groups), np.int32)

    # The measured operation is the grouped matmul alone: the tables that it walks by are made beforehand, as constants.
    make = backend.make_group_metadata
    tables = make(
        group_sizes=jnp.asarray(sizes), m=m, tm=min(m, config["tile_m"]), start_group=jnp.int32(0), num_nonzero_groups=groups,
        visit_empty_groups=False,
    )  # fmt: skip

    # It also walks its grid inside of the kernel, so that the two cores of a v5p do not share it: no dimension is parallel.
    serial = types.SimpleNamespace(**vars(pltpu))
    serial.CompilerParams = lambda dimension_semantics, **more: pltpu.CompilerParams(**more)

    def function(a: Any, b: Any) -> Any:
        backend.make_group_metadata, backend.pltpu = (lambda **_: tables), serial
        try:
            return backend.gmm(
                a, b, jnp.asarray(sizes), preferred_element_type=lhs.dtype, transpose_rhs=transposed,
                tiling=(min(m, config["tile_m"]), min(k, tile_k), min(n, tile_n)),
            )  # fmt: skip
        finally:
            backend.make_group_metadata, backend.pltpu = make, pltpu

    rows, used = float(sizes.sum()), int((sizes > 0).sum())
    return Subject(function, (lhs, rhs), 2.0 * rows * k * n, 2.0 * (rows * k + rows * n + used * k * n))


def _attention(record: dict[str, Any]) -> Subject:
    """JAX's splash attention under the transposes of the measured operation, whose arrays are [batch, sequence, heads, head size]."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    shape, config = record["shape"], record["config"]
    q, k, v = (_spec(shape[name]) for name in "qkv")
    batch, queries, heads, _ = q.shape
    keys, causal = k.shape[1], bool(shape["mask"]["is_causal"])
    layout = splash.QKVLayout
    blocks = splash.BlockSizes(
        block_q=config["block_q"], block_kv=config["block_kv"], block_kv_compute=config["block_kv_compute"],
        q_layout=layout(config["q_layout"]), k_layout=layout(config["k_layout"]), v_layout=layout(config["v_layout"]),
    )  # fmt: skip
    mask = masks.CausalMask((queries, keys)) if causal else masks.FullMask((queries, keys))
    scale, residuals = shape["logits_scale"], bool(shape["return_residuals"])
    kernel = splash.make_splash_mha(
        masks.MultiHeadMask([mask] * heads), block_sizes=blocks, head_shards=1, q_seq_shards=1, save_residuals=residuals
    )
    # Which of libtpu's schedulers the measured kernel asked for.
    flags = {"XLA_TPU_FORCE_LP_LLO_SCHEDULER": bool(config["use_experimental_scheduler"])}
    asking = types.SimpleNamespace(**vars(pltpu))
    asking.CompilerParams = functools.partial(pltpu.CompilerParams, flags=flags)
    module: Any = splash

    def function(q: Any, k: Any, v: Any) -> Any:
        module.pltpu = asking
        try:
            return attention(q, k, v)
        finally:
            module.pltpu = pltpu

    def attention(q: Any, k: Any, v: Any) -> Any:
        out: Any = jax.vmap(kernel)(*(jnp.swapaxes(x, 1, 2) for x in (q * jnp.asarray(scale, q.dtype), k, v)))
        if residuals:
            return jnp.swapaxes(out[0], 1, 2), out[1]
        return jnp.swapaxes(out, 1, 2)

    share = (1 + 1 / max(1, queries)) / 2 if causal else 1.0
    flops = 2.0 * batch * heads * queries * keys * (q.shape[3] + v.shape[3]) * share
    size = sum(math.prod(x.shape) * x.dtype.itemsize for x in (q, k, v)) + 2.0 * batch * queries * heads * v.shape[3]
    return Subject(function, (q, k, v), flops, size)
