"""The mathematics of kernels of a folder written for Helion, in ``jax.numpy``: what ``acceptance_speed`` holds second calls against.

By the id of the case. A form takes what the kernel takes; arguments that are no tensors are constants of the jitted function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

FORMS: dict[str, Callable[..., Any]] = {}


def form(*ids: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        FORMS.update(dict.fromkeys(ids, function))
        return function

    return register


form("add.add#1", "add.add#2", "aot_compile_example.add_2d#1")(lambda x, y: x + y)
form("exp.exp_fwd#1")(lambda x: jnp.exp(x))
form("exp.exp_bwd#1")(lambda x, y: x * y)
form("aot_example.vector_scale#1")(lambda x, scale: x * scale)
form("concatenate.concat2d_dim1_simple#1")(lambda x, y: jnp.concatenate([x, y], 1))
form("embedding.embedding#1")(lambda index, weight: weight[index])
form("geglu._geglu#1", "geglu._geglu_pallas#1")(lambda a, b: jax.nn.gelu(a, approximate=True) * b)
form("swiglu._swiglu_fwd#1", "swiglu._swiglu_fwd_pallas#1")(lambda a, b: jax.nn.silu(a) * b)
form("sum.sum_kernel#1", "long_sum.longsum#1", "long_sum.longsum_w_red_loop#1", "long_sum.longsum_manual#1", "aot_example.sum_aot#1")(
    lambda x: x.sum(-1)
)
form("softmax.softmax#1", "softmax.softmax_decomposed#1", "batch_softmax.batch_softmax#1", "aot_example.row_softmax#1")(
    lambda x: jax.nn.softmax(x, axis=-1)
)
form("matmul.matmul#1", "bmm.bmm#1", "broadcast_matmul.broadcast_matmul#1", "aot_example.matmul_custom_key#1")(lambda a, b: a @ b)
form("matmul_split_k.matmul_split_k#1", "split_k_barrier.split_k_matmul#1")(lambda a, b: a @ b)
form("grouped_gemm.grouped_gemm_jagged#1", "grouped_gemm.grouped_gemm_jagged_persistent#1")(lambda a, b, offsets: a @ b)
form("fp8_gemm.fp8_gemm#1")(lambda a, b: jnp.dot(a.astype(jnp.float32), b.astype(jnp.float32)))
form("fp8_matmul.fp8_matmul#1")(lambda a, b, s, t: jnp.dot(a.astype(jnp.float32), b.astype(jnp.float32)) * s * t)
form("bf16xint16_gemm._bf16xint16_gemm#1")(lambda x, w: x @ w.astype(jnp.bfloat16))
form("attention._attention_bwd_preprocess#1", "blackwell_attention._bwd_preprocess#1")(lambda o, g: (o * g).sum(-1))


@form("swiglu.swiglu_bwd#1")
def swiglu_backward(grad: Any, a: Any, b: Any) -> Any:
    s = jax.nn.sigmoid(a)
    return grad * b * (s + a * s * (1 - s)), grad * a * s


@form("softmax.softmax_bwd#1")
def softmax_backward(grad: Any, y: Any) -> Any:
    return y * (grad - (y * grad).sum(-1, keepdims=True))


@form("layer_norm.layer_norm_fwd#1", "layer_norm.layer_norm_fwd#2")
def layer_norm(x: Any, shape: Any, weight: Any, bias: Any, eps: float = 1e-5) -> Any:
    mean = x.mean(-1)
    centred = x - mean[:, None]
    rstd = jax.lax.rsqrt((centred * centred).mean(-1) + eps)
    out = centred * rstd[:, None] * weight
    return (out if bias is None else out + bias), mean, rstd


@form("layer_norm.layer_norm_bwd#1", "layer_norm.layer_norm_bwd#2")
def layer_norm_backward(grad: Any, x: Any, mean: Any, rstd: Any, weight: Any, with_bias: bool) -> Any:
    normal, scaled = (x - mean[:, None]) * rstd[:, None], grad * weight
    inner = normal * (normal * scaled).mean(-1, keepdims=True) + scaled.mean(-1, keepdims=True)
    return (scaled - inner) * rstd[:, None], (grad * normal).sum(0), grad.sum(0) if with_bias else None


@form("rms_norm.rms_norm_fwd#1")
def rms_norm(x: Any, weight: Any, eps: float = 1e-5) -> Any:
    inverse = jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + eps)
    return x * inverse * weight, inverse


@form("aot_example.rms_norm_batched#1", "aot_example.rms_norm_oneshot#1")
def rms_norm_plain(x: Any, eps: float = 1e-5) -> Any:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + eps)


def _attention(q: Any, k: Any, v: Any, bias: Any = None, causal: bool = False) -> Any:
    scores = jnp.einsum("bhmd,bhnd->bhmn", q, k) / math.sqrt(q.shape[-1])
    scores = scores if bias is None else scores + bias
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    return jnp.einsum("bhmn,bhnd->bhmd", jax.nn.softmax(scores, axis=-1), v), jax.nn.logsumexp(scores, axis=-1) / math.log(2)


form("attention.attention#1")(lambda q, k, v: _attention(q, k, v))
form("attention.causal_attention#1")(lambda q, k, v: _attention(q, k, v, causal=True))
form("attention.attention_output#1")(lambda q, k, v: _attention(q, k, v)[0])
form("attention.causal_attention_output#1")(lambda q, k, v: _attention(q, k, v, causal=True)[0])
form("attention.biased_attention_output#1")(lambda q, k, v, bias: _attention(q, k, v, bias)[0])


@form("epilogue_subtiling.matmul_bias_residual_gelu_cast#1")
def matmul_bias_residual_gelu(x: Any, w: Any, bias: Any, residual: Any) -> Any:
    return jax.nn.gelu((x @ w) * 1.25 + residual * 0.5 + bias, approximate=False)


@form("int4_gemm.matmul_bf16_int4#1")
def int4_matmul(a: Any, packed: Any) -> Any:
    low = jnp.right_shift(jnp.left_shift(packed, 4), 4)
    unpacked = jnp.stack([low, jnp.right_shift(packed, 4)], 1).reshape(-1, packed.shape[1])
    return a @ unpacked.astype(a.dtype)


@form("se_block.se_block_fwd#1")
def se_block(x: Any, w: Any) -> Any:
    s = jax.nn.sigmoid(x @ w)
    return 2 * x * s, s


@form("squeeze_and_excitation_net.squeeze_and_excitation_net_fwd#1")
def se_net(x: Any, a: Any, b: Any) -> Any:
    c = jax.nn.relu(x @ a)
    d = jax.nn.sigmoid(c @ b)
    return x * d, c, d


@form("rope.rope_fwd#1")
def rope(q: Any, k: Any, cos: Any, sin: Any) -> Any:
    def turned(x: Any) -> Any:
        half = x.shape[-1] // 2
        return x * cos[:, None] + jnp.concatenate([-x[..., half:], x[..., :half]], -1) * sin[:, None]

    return turned(q), turned(k)


@form("segment_reduction.segmented_reduction_helion#1")
def segment_sum(index: Any, x: Any, count: int) -> Any:
    return jax.ops.segment_sum(x, index, count, indices_are_sorted=True)


@form("jagged_sum.jagged_sum_kernel#1")
def jagged_sum(x: Any, offsets: Any) -> Any:
    row = jnp.searchsorted(offsets, jnp.arange(x.shape[0]), side="right") - 1
    return jax.ops.segment_sum(x, row, offsets.shape[0] - 1, indices_are_sorted=True)


@form("jagged_softmax.jagged_softmax_kernel#1")
def jagged_softmax(x: Any, offsets: Any) -> Any:
    row = jnp.searchsorted(offsets, jnp.arange(x.shape[0]), side="right") - 1
    count = offsets.shape[0] - 1
    p = jnp.exp(x - jax.ops.segment_max(x, row, count, indices_are_sorted=True)[row])
    return p / jax.ops.segment_sum(p, row, count, indices_are_sorted=True)[row]
