"""Every sample kernel under every strategy that fits, round and ragged, against torch in float64."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import sample_kernels
import torch
from lowering_support import Case, check, inputs, program_of, to_jax

from helion_rt import lowering, targets
from helion_rt.config import Config, LoopStrategy
from helion_rt.exc import PlanError
from helion_rt.tuning.space import Space

CPU = targets.get("cpu")
TPUS = ("v5e", "v6e", "tpu7x")


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def _layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    mean, var = x.mean(-1), x.var(-1, correction=0)
    rstd = torch.rsqrt(var + 1e-5)
    return (x - mean[:, None]) * rstd[:, None] * w + b, mean, rstd


def _causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def _accumulate(x: torch.Tensor) -> torch.Tensor:
    out = torch.ones_like(x)
    half = x.shape[0] // 2
    out[:half] += x[:half]
    return out


CASES = [
    Case("add", ((256, 512),) * 2, torch.add, ("float32", "bfloat16", "int32")),
    Case("add", ((130, 257),) * 2, torch.add, ("float32", "bfloat16", "int32")),
    Case("add", ((1000,),) * 2, torch.add),
    Case("add_bias", ((256, 384), (384,)), torch.add),
    Case("add_bias", ((130, 1000), (1000,)), torch.add),
    Case("matmul", ((256, 256), (256, 384)), torch.matmul),
    Case("matmul", ((130, 257), (257, 1000)), torch.matmul),
    Case("matmul_dot", ((130, 1000), (1000, 257)), lambda x, y: torch.relu(x @ y)),
    Case("matmul_int", ((40, 130), (130, 20)), torch.matmul, ("int32",)),
    Case("softmax", ((256, 1024),), _softmax),
    Case("softmax", ((130, 257),), _softmax),
    Case("softmax_two_pass", ((256, 1024),), _softmax),
    Case("softmax_two_pass", ((130, 1000),), _softmax),
    Case("layer_norm", ((256, 512), (512,), (512,)), _layer_norm),
    Case("layer_norm", ((130, 1000), (1000,), (1000,)), _layer_norm),
    Case("attention", ((2, 2, 256, 64),) * 3, torch.nn.functional.scaled_dot_product_attention),
    Case("attention", ((1, 2, 130, 64), (1, 2, 257, 64), (1, 2, 257, 64)), torch.nn.functional.scaled_dot_product_attention),
    Case("causal_attention", ((2, 256, 64),) * 3, _causal),
    Case("causal_attention", ((2, 257, 64),) * 3, _causal),
    Case("column_sum", ((256, 256),), lambda x: x.sum(0)),
    Case("column_sum", ((257, 130),), lambda x: x.sum(0)),
    Case("lane_max", ((130, 257),), lambda x: x.amax(-1)),
    Case("accumulate", ((256, 256),), _accumulate),
    Case("accumulate", ((130, 257),), _accumulate, interpretable=False),
]
INTERPRETED = [pytest.param(case, dtype, id=f"{case.id}-{dtype}") for case in CASES if case.interpretable for dtype in case.dtypes]
EVERY = [pytest.param(case, dtype, id=f"{case.id}-{dtype}") for case in CASES for dtype in case.dtypes]
# More of one kernel's tiles than one, so that loops run, masks act and blocks are revisited.
BLOCK = 128


def _program(case: Case, dtype: str):
    return program_of(getattr(sample_kernels, case.kernel).fn, case, dtype)


def _config(program, strategy: LoopStrategy, block: int = BLOCK) -> Config:
    dims = {d for t in program.types for d in t.shape}

    def size(extent: int) -> int:
        if extent <= 8:
            return 1
        # A block that is no multiple of a tile must be a whole dimension, and not the half of one.
        return block if extent >= block else extent if extent in dims else 1 << (extent.bit_length() - 1)

    blocks = [size(program.blocks[b].extent) for b in program.tunable_blocks]
    return Config(block_sizes=blocks, loop_strategies=[strategy] * len(lowering.loops(program)))


def _strategies(program, target) -> list[LoopStrategy]:
    found = []
    for strategy in LoopStrategy:
        try:
            lowering.make_plan(program, _config(program, strategy), target)
        except PlanError:
            continue
        found.append(strategy)
    return found if lowering.loops(program) else found[:1]


@pytest.mark.parametrize(("case", "dtype"), EVERY)
def test_reference_is_right(case: Case, dtype: str) -> None:
    tensors = inputs(case, dtype)
    program = _program(case, dtype)
    extra = [jax.numpy.float32(1e-5)] * (len(program.array_params) - len(tensors))
    check(jax.jit(lowering.reference(program))(*map(to_jax, tensors), *extra), case, tensors, dtype)


@pytest.mark.parametrize(("case", "dtype"), EVERY)
def test_every_strategy_is_right_on_the_cpu(case: Case, dtype: str) -> None:
    tensors = inputs(case, dtype)
    program = _program(case, dtype)
    extra = [jax.numpy.float32(1e-5)] * (len(program.array_params) - len(tensors))
    strategies = _strategies(program, CPU)
    assert strategies
    for config in [*(_config(program, s) for s in strategies), Space(program, CPU).default()]:
        run = jax.jit(lowering.build(program, config, CPU))
        check(run(*map(to_jax, tensors), *extra), case, tensors, dtype)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "dtype"), INTERPRETED)
def test_every_strategy_is_right_in_the_tpu_interpreter(case: Case, dtype: str) -> None:
    tensors = inputs(case, dtype)
    program = _program(case, dtype)
    extra = [jax.numpy.float32(1e-5)] * (len(program.array_params) - len(tensors))
    target = targets.get("tpu7x")
    strategies = _strategies(program, target)
    assert strategies
    for strategy in strategies:
        outputs = lowering.lower(program, _config(program, strategy), target).interpret(*map(to_jax, tensors), *extra)
        check(outputs, case, tensors, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("target", TPUS)
@pytest.mark.parametrize(("case", "dtype"), EVERY)
def test_every_strategy_compiles_for_tpus(case: Case, dtype: str, target: str) -> None:
    program = _program(case, dtype)
    aimed = targets.get(target)
    strategies = _strategies(program, aimed)
    assert strategies
    for config in [*(_config(program, s) for s in strategies), Space(program, aimed).default()]:
        compiled = lowering.lower(program, config, aimed).compile()
        assert compiled.tpu_custom_calls >= 1


def test_generated_source_shows_the_users_lines() -> None:
    case = next(c for c in CASES if c.kernel == "softmax_two_pass")
    program = _program(case, "float32")
    for strategy in _strategies(program, CPU):
        assert "higher = torch.maximum(top, seen.amax(1))" in lowering.generate(program, _config(program, strategy), CPU)


# Runs generated files one after the other where neither helion_rt nor torch can be imported.
_ALONE = """
import sys
sys.modules["helion_rt"] = sys.modules["torch"] = None
import importlib.util, pathlib
import jax, ml_dtypes, numpy as np
for file in sorted(pathlib.Path(sys.argv[1]).glob("*.py")):
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    data = np.load(file.with_suffix(".npz"))
    entry = getattr(module, str(data["entry"]))
    outputs = jax.jit(entry)(*(data[name] for name in sorted(data.files) if name.startswith("in")))
    wanted = [data[name] for name in sorted(data.files) if name.startswith("out")]
    for got, want in zip(outputs, wanted):
        np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=2e-4, atol=2e-5 * max(1.0, abs(want).max()), err_msg=file.stem)
    print(file.stem)
"""


def test_generated_source_runs_with_only_jax(tmp_path: Path) -> None:
    written = 0
    for number, case in enumerate(CASES):
        tensors = inputs(case, case.dtypes[0])
        program = _program(case, case.dtypes[0])
        arrays = [t.numpy() for t in tensors] + [np.float32(1e-5)] * (len(program.array_params) - len(tensors))
        wanted = case.expected(*(t.double() if t.is_floating_point() else t for t in tensors))
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        data = {f"in{i}": a for i, a in enumerate(arrays)} | {f"out{i}": w.numpy() for i, w in enumerate(wanted)}
        strategies = _strategies(program, CPU)
        strategy = strategies[number % len(strategies)]  # over the cases, each strategy has its turn
        stem = f"case_{number:02}_{case.kernel}_{strategy}"
        (tmp_path / f"{stem}.py").write_text(lowering.generate(program, _config(program, strategy), CPU))
        np.savez(tmp_path / f"{stem}.npz", entry=lowering.entry_name(program), **data)
        written += 1
    command = [sys.executable, "-c", _ALONE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.split()) == written
