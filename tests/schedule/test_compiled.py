"""Real compiles: our kernels, plain JAX, several kernels in a module, and what the process does with refusals and bad limits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import helion_rt
from helion_rt import targets
from helion_rt.database import EvidenceKind
from helion_rt.exc import CompileError, InputError, TargetError
from helion_rt.schedule import Estimate

BF16 = jnp.bfloat16


def shape(*sizes: int, dtype: object = BF16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def matmul(m: int, k: int, n: int, bm: int, bk: int, bn: int, spare: int = 0) -> object:
    """A tiled matmul with its accumulator in scratch. ``spare``: rows of scratch that nobody needs."""

    def kernel(x: object, y: object, z: object, acc: object, _: object) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            acc[...] = jnp.zeros_like(acc)  # type: ignore[index]

        acc[...] += jnp.dot(x[...], y[...], preferred_element_type=jnp.float32)  # type: ignore[index]

        @pl.when(pl.program_id(2) == k // bk - 1)
        def _() -> None:
            z[...] = acc[...].astype(BF16)  # type: ignore[index]

    return pl.pallas_call(
        kernel,
        grid=(m // bm, n // bn, k // bk),
        in_specs=[pl.BlockSpec((bm, bk), lambda i, j, s: (i, s)), pl.BlockSpec((bk, bn), lambda i, j, s: (s, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, s: (i, j)),
        out_shape=shape(m, n),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32), pltpu.VMEM((8 + spare, 128), jnp.float32)],
    )


def sound(estimate: Estimate, target: str) -> None:
    """What holds of every scheduled estimate."""
    assert estimate.kind is EvidenceKind.SCHEDULED and estimate.target == target, estimate.notes
    assert estimate.ms >= estimate.mxu_floor_ms * 0.999
    assert estimate.cycles > 0 and estimate.kernels
    assert all(0 <= share <= 1 for share in estimate.units.values())


@pytest.mark.slow
@pytest.mark.parametrize("target", targets.TPU_NAMES)
def test_a_matmul_is_above_its_floors_and_counts_its_steps(target: str) -> None:
    found = helion_rt.estimate(matmul(2048, 2048, 2048, 512, 512, 512), shape(2048, 2048), shape(2048, 2048), target=target)  # type: ignore[arg-type]
    sound(found, target)
    cores = targets.get(target).info.num_cores
    kernel = max(found.kernels, key=lambda kernel: kernel.cycles)
    assert kernel.steps >= 64 // cores  # two more for the pipeline's ends
    # Blocks of the left matrix are read for each column of blocks, of the right one for each row; results are written once.
    assert found.ms < 4 * max(found.mxu_floor_ms, found.hbm_floor_ms * 4)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["v5e", "tpu7x"])
def test_plain_jax_and_two_kernels_in_one_function(target: str) -> None:
    first, second = matmul(1024, 1024, 1024, 512, 512, 512), matmul(1024, 1024, 1024, 256, 1024, 512)

    def function(x: jax.Array, y: jax.Array) -> jax.Array:
        return jax.nn.softmax(second(jnp.tanh(first(x, y)), y), axis=-1)  # type: ignore[operator]

    found = helion_rt.estimate(function, shape(1024, 1024), shape(1024, 1024), target=target)
    sound(found, target)
    assert len(found.kernels) >= 3
    assert found.mxu_floor_ms == pytest.approx(2 * 2 * 1024**3 / targets.get(target).info.bf16_ops_per_second * 1e3)
    assert sum(kernel.cycles * kernel.calls for kernel in found.kernels) <= found.cycles


@pytest.mark.slow
def test_a_causal_loop_runs_its_own_bounds() -> None:
    def kernel(x: object, y: object) -> None:
        turns = pl.program_id(0) + 1
        y[...] = jax.lax.fori_loop(0, turns, lambda _, v: jnp.tanh(v) + x[...], x[...])  # type: ignore[index]

    def call(steps: int) -> object:
        block = pl.BlockSpec((8, 128), lambda i: (i, 0))
        return pl.pallas_call(kernel, grid=(steps,), in_specs=[block], out_specs=block, out_shape=shape(8 * steps, 128, dtype=jnp.float32))

    found = helion_rt.estimate(call(100), shape(800, 128, dtype=jnp.float32), target="v5e")  # type: ignore[arg-type]
    (only,) = found.kernels
    assert only.steps == 100 * 101 // 2  # turns of the inner loop, all steps of the grid together
    assert not found.notes


@pytest.mark.slow
def test_a_refusal_is_the_compilers_and_a_dead_process_is_told() -> None:
    big = matmul(256, 256, 256, 128, 128, 128, spare=1 << 18)  # 128 MiB
    with pytest.raises(CompileError, match=r"v5e"):
        helion_rt.estimate(big, shape(256, 256), shape(256, 256), target="v5e")  # type: ignore[arg-type]
    late = helion_rt.estimate(lambda x: x @ x, shape(512, 512), target="v5e", deadline=0.5)
    assert late.kind is EvidenceKind.MODELLED and "no answer within" in late.notes[0]


def test_what_cannot_be_estimated() -> None:
    with pytest.raises(TargetError):
        helion_rt.estimate(lambda x: x, shape(8, 128), target="cpu")
    with pytest.raises(TargetError):
        helion_rt.estimate(lambda x: x, shape(8, 128), target="tpu99")
    with pytest.raises(InputError):
        helion_rt.estimate(lambda x: x, "text", target="v5e")
