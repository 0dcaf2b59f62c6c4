"""The TPU compiler for chips that are not there. Needs libtpu; the kernel is compiled for real."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from helion_rt import targets
from helion_rt.exc import CompileError
from helion_rt.targets import compiler

needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu has no wheel for this machine")
ROOT = Path(__file__).parents[2]


def _hold(mib: int) -> tuple[Any, list[jax.ShapeDtypeStruct]]:
    """A kernel that holds ``mib`` MiB of VMEM and a little more; cheap to compile."""
    rows = mib * 2048  # of 128 floats

    def body(x: Any, out: Any, scratch: Any) -> None:
        # Positions that are known only at run time: a buffer whose use is plain to see is optimised away.
        step = pl.program_id(0)
        scratch[pl.ds(step * 8, 8), :] = x[...]
        out[...] = scratch[pl.ds(rows - 8 - step * 8, 8), :]

    spec = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    whole = pl.BlockSpec((8, 128), lambda i: (0, 0))
    scratch = pltpu.VMEM((rows, 128), jnp.float32)
    return pl.pallas_call(body, grid=(4,), in_specs=[whole], out_specs=whole, out_shape=spec, scratch_shapes=[scratch]), [spec]


def _matmul(size: int, block: int) -> tuple[Any, list[jax.ShapeDtypeStruct]]:
    def body(a: Any, b: Any, out: Any, acc: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            acc[...] = jnp.zeros_like(acc)

        acc[...] += jnp.dot(a[...], b[...], preferred_element_type=jnp.float32)
        out[...] = acc[...]

    call = pl.pallas_call(
        body,
        grid=(size // block,) * 3,
        in_specs=[pl.BlockSpec((block, block), lambda i, j, k: (i, k)), pl.BlockSpec((block, block), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((block, block), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((size, size), jnp.float32),
        scratch_shapes=[pltpu.VMEM((block, block), jnp.float32)],
    )
    return call, [jax.ShapeDtypeStruct((size, size), jnp.float32)] * 2


@needs_libtpu
@pytest.mark.parametrize("name", targets.TPU_NAMES)  # 1 s for the first, 0.15 s for each of the others
def test_a_matmul_compiles_for_every_generation(name: str) -> None:
    lowered, compiled = targets.compile_for(*_matmul(256, 128), targets.get(name))
    assert targets.count_tpu_custom_calls(lowered) == 1
    assert targets.count_tpu_custom_calls(compiled) == 1


@needs_libtpu
def test_the_described_device_is_of_the_generation_and_made_once() -> None:
    for name in targets.TPU_NAMES:
        where = targets.aim(targets.get(name))
        (device,) = where.device_set
        assert targets.from_device(device) == targets.get(name)
        assert targets.aim(targets.get(name)) is where
        assert device.num_cores == targets.get(name).info.num_cores


@needs_libtpu
def test_plain_jax_has_no_tpu_kernel_in_it() -> None:
    lowered, compiled = targets.compile_for(lambda x: x + 1, [jax.ShapeDtypeStruct((8, 128), jnp.float32)], targets.get("v5e"))
    assert targets.count_tpu_custom_calls(lowered) == targets.count_tpu_custom_calls(compiled) == 0


def test_the_cpu_is_a_target_like_the_others_and_runs() -> None:
    _, compiled = targets.compile_for(lambda x: x * 2, [jax.ShapeDtypeStruct((4,), jnp.float32)], targets.get("cpu"))
    assert compiled(jnp.arange(4.0)).tolist() == [0.0, 2.0, 4.0, 6.0]


@needs_libtpu
def test_too_much_vmem_is_refused_with_the_compilers_reason() -> None:
    with pytest.raises(CompileError) as caught:
        targets.compile_for(*_hold(64), targets.get("v5e"), kernel="big")
    assert re.search(r"size [\d.]+M and limit 16\.00M exceeded scoped vmem limit by", caught.value.reason)
    assert "RESOURCE_EXHAUSTED" in caught.value.full_text
    assert "v5e" in str(caught.value) and "'big'" in str(caught.value)


@needs_libtpu
def test_an_illegal_tile_is_refused_with_the_compilers_reason() -> None:
    with pytest.raises(CompileError, match="divisible by 8 and 128") as caught:
        targets.compile_for(*_matmul(1200, 100), targets.get("tpu7x"))
    assert isinstance(caught.value.__cause__, ValueError)


@needs_libtpu
@pytest.mark.parametrize("name", targets.TPU_NAMES)
def test_the_vmem_limit_is_the_one_the_compiler_applies(name: str) -> None:
    target = targets.get(name)
    assert target.vmem_bytes is not None
    mib = target.vmem_bytes >> 20
    targets.compile_for(*_hold(mib - 1), target)
    with pytest.raises(CompileError, match=rf"(limit|of) {mib}\.00M"):
        targets.compile_for(*_hold(mib), target)


@needs_libtpu
@pytest.mark.parametrize("name", targets.TPU_NAMES)
def test_which_compiler_copies_operands_before_a_kernel(name: str) -> None:
    target = targets.get(name)

    def copies(limit: int | None) -> bool:
        params = pltpu.CompilerParams(vmem_limit_bytes=limit)
        rows, spec = pl.BlockSpec((256, 1024), lambda i: (i, 0)), jax.ShapeDtypeStruct((2048, 1024), jnp.float32)
        double = pl.pallas_call(_double, grid=(8,), in_specs=[rows], out_specs=rows, out_shape=spec, compiler_params=params)
        _, compiled = targets.compile_for(double, [spec], target)
        return "copy-start" in (compiled.as_text() or "")

    assert copies(None) is target.copies_ahead
    assert not copies((target.vmem_capacity_bytes or 0) - (2 << 20) if target.copies_ahead else None)


def _double(x_ref, out_ref) -> None:
    out_ref[...] = x_ref[...] * 2


def test_without_libtpu_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_aimed", {})
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    with pytest.raises(CompileError, match="pip install libtpu"):
        targets.aim(targets.get("v6e"))


@pytest.mark.parametrize(("chips", "is_set"), [(False, True), (True, False)])
def test_the_environment_is_set_only_where_the_user_has_not(monkeypatch: pytest.MonkeyPatch, chips: bool, is_set: bool) -> None:
    monkeypatch.setattr(compiler, "has_chips", lambda: chips)
    environ = {"TPU_WORKER_HOSTNAMES": "mine"}
    monkeypatch.setattr(os, "environ", environ)
    targets.prepare_environment()
    assert environ["TPU_WORKER_HOSTNAMES"] == "mine"
    assert environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] == "1"
    assert ("TPU_ACCELERATOR_TYPE" in environ) is is_set
    assert not any(name.startswith("JAX_") for name in environ)


@needs_libtpu
def test_aiming_works_before_and_after_jax_started_and_leaves_the_default_device() -> None:
    # In processes of their own: what a process did first with JAX cannot be undone. JAX_PLATFORMS is unset, as a user has it.
    compile_one = "targets.compile_for(lambda x: x + 1, [jax.ShapeDtypeStruct((8, 128), 'float32')], targets.get('v6e'))"
    begin = "import jax; from helion_rt import targets; "
    ours = {"JAX_PLATFORMS", *compiler._NO_CHIP_VARIABLES, compiler._SHARED_LOAD}
    environ = {name: value for name, value in os.environ.items() if name not in ours}
    codes = [begin + f"{compile_one}; print(jax.devices())", begin + f"jax.devices(); {compile_one}; print(jax.devices())"]
    running = [  # at once: libtpu must let them share
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environ)
        for code in codes
    ]
    results = [process.communicate(timeout=120) for process in running]
    expected = subprocess.run(
        [sys.executable, "-c", "import jax; print(jax.devices())"], capture_output=True, text=True, env=environ, check=True
    ).stdout
    for process, (out, err) in zip(running, results, strict=True):
        assert process.returncode == 0, err
        assert out == expected
    assert results[0][1] == ""  # aimed first: libtpu knows that there is no chip, and is silent


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom:\nRan out of memory in memory space vmem while allocating on stack for %f. "
         "Scoped allocation with size 64.00M and limit 16.00M exceeded scoped vmem limit by 48.00M. It should",
         "Scoped allocation with size 64.00M and limit 16.00M exceeded scoped vmem limit by 48.00M"),
        ("INTERNAL: Mosaic failed to compile TPU kernel: Not implemented: odd shape\n\nThe MLIR operation involved:\n  %1",
         "Not implemented: odd shape"),
        ("INTERNAL: Mosaic failed to compile TPU kernel:\n\nUnsupported thing\n", "Unsupported thing"),
        ("\n  name 'y' is not defined", "name 'y' is not defined"),
        ("", "no reason given"),
    ],
)  # fmt: skip
def test_the_reason_is_the_line_that_says_why(text: str, reason: str) -> None:
    assert targets.compiler_reason(text) == reason


@needs_libtpu
def test_a_chip_that_is_there_is_compiled_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = jax.local_devices(backend="cpu")[0]
    monkeypatch.setattr(compiler, "has_chips", lambda: True)
    monkeypatch.setattr(compiler, "detect", lambda: targets.get("v6e"))
    monkeypatch.setattr(compiler, "_aimed", {})
    assert targets.aim(targets.get("v6e")).device_set == {stand_in}
    assert targets.aim(targets.get("v5e")).device_set != {stand_in}


@needs_libtpu
def test_what_is_compiled_for_an_absent_chip_is_not_cached(tmp_path: Path) -> None:
    """JAX cannot load it again, and would warn at every later compilation."""
    script = """
import jax, jax.numpy as jnp, warnings, sys
warnings.simplefilter("error")
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
from helion_rt import targets
for _ in range(2):
    jax.clear_caches()
    targets.compile_for(lambda x: x + 1, [jax.ShapeDtypeStruct((8, 128), jnp.float32)], targets.get("v5e"))
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not [f for f in tmp_path.rglob("*") if f.is_file()]
