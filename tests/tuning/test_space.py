"""Spaces and made-up inputs of real programs, on the CPU and on TPUs."""

import numpy as np
import pytest
import torch

import helion_rt.language as hl
from helion_rt import lowering, targets
from helion_rt.capture import capture
from helion_rt.config import Config, LoopStrategy
from helion_rt.exc import ConfigError, PlanError
from helion_rt.program.signature import ScalarFact, TensorFact
from helion_rt.tuning import inputs, model
from helion_rt.tuning.space import CPU_TILE_ELEMENTS, Space

TARGETS = pytest.mark.parametrize("target", [targets.get("cpu"), targets.get("v5e"), targets.get("tpu7x")], ids=str)


def matmul(x, y):
    m, k = x.size()
    _, n = y.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


def gather(table, index, factor):
    out = torch.empty([index.size(0)], dtype=table.dtype, device=table.device)
    for tile in hl.tile(index.size(0)):
        out[tile] = table[index[tile]] * factor
    return out


def program(m=1000, k=257, n=130):
    return capture(matmul, (TensorFact((m, k), "float32"), TensorFact((k, n), "float32")))


@TARGETS
def test_the_default_is_legal_moderate_and_first(target):
    space = Space(program(4096, 4096, 4096), target)
    default = space.default()
    space.check(default)
    assert next(space.configs()) == default
    assert space.tile_elements(default.block_sizes) <= CPU_TILE_ELEMENTS
    if target.is_tpu:
        assert lowering.make_plan(space.program, default, target).vmem_bytes <= target.vmem_bytes // 2


@TARGETS
def test_smaller_ends_and_always_shrinks(target):
    space = Space(program(), target)
    config, sizes = space.default(), []
    while config is not None:
        space.check(config)
        sizes.append(int(np.prod(config.block_sizes)))
        config = space.smaller(config)
    assert len(sizes) >= 2 and sizes == sorted(set(sizes), reverse=True)


@TARGETS
def test_configs_are_distinct_and_legal(target):
    space = Space(program(64, 32, 48), target)
    configs = list(space.configs())
    assert len(configs) == len(set(configs)) > 1
    for config in configs:
        lowering.make_plan(space.program, config, target)
    if not target.is_tpu:
        assert not any(LoopStrategy.EMIT_PIPELINE in c.loop_strategies for c in configs)
        assert [64, 48, 32] in [c.block_sizes for c in configs]  # whole extents, which need no mask


def test_neighbours_differ_in_one_choice():
    space = Space(program(), targets.get("cpu"))
    here = space.default()
    around = list(space.neighbours(here))
    assert around
    for other in around:
        changes = [a != b for a, b in zip(here.block_sizes, other.block_sizes, strict=True)]
        changes += [a != b for a, b in zip(here.loop_strategies, other.loop_strategies, strict=True)]
        assert sum(changes) == 1


def test_a_users_config_is_checked_and_completed():
    space = Space(program(), targets.get("cpu"))
    done = space.complete(Config(block_sizes=[32, 32, 32], num_warps=4))
    assert done.block_sizes == [32, 32, 32] and done.num_warps == 4 and len(done.loop_strategies) == 1
    assert space.complete(Config(loop_strategies=["fori"])).block_sizes == space.default().block_sizes
    with pytest.raises(ConfigError, match="2 block_sizes, the kernel has 3"):
        space.complete(Config(block_sizes=[32, 32]))
    with pytest.raises(PlanError):
        space.check(Config(block_sizes=[32, 32, 32], loop_strategies=["emit_pipeline"]))


def test_only_restricts_to_the_users_own():
    own = [Config(block_sizes=[32, 32, 32], loop_strategies=["fori"]), Config(block_sizes=[64, 64, 64], loop_strategies=["unroll"])]
    space = Space(program(), targets.get("cpu"), own)
    assert list(space.configs()) == [space.default(), *own]
    assert list(space.neighbours(own[0])) == [own[1]]


def test_the_model_counts_flops_and_prefers_fewer_steps_on_the_cpu():
    made, cpu = program(256, 256, 256), targets.get("cpu")
    small, large = (Config(block_sizes=[b] * 3, loop_strategies=["fori"]) for b in (32, 256))
    assert model.work(made, large).flops == pytest.approx(2 * 256**3, rel=0.02)
    assert model.work(made, small).steps == 8**2 + 8**3 and model.work(made, large).steps == 2  # outer and inner
    assert model.seconds(made, large, cpu) < model.seconds(made, small, cpu)
    assert model.work(made, small).bytes > model.work(made, large).bytes


def test_made_up_inputs():
    made = capture(gather, (TensorFact((50,), "bfloat16"), TensorFact((20,), "int64"), ScalarFact("float")), (None, None, 1.5))
    live = torch.arange(20) * 2
    entries = inputs.recipe(made, [torch.zeros(50, dtype=torch.bfloat16), live, 1.5])
    table, index, factor = inputs.make(entries)
    assert table.dtype.name == "bfloat16" and table.shape == (50,) and float(np.std(table.astype(np.float32))) > 0.5
    assert index.dtype == np.int32 and index.tolist() == live.tolist() and factor == 1.5
    assert all(np.array_equal(a, b) for a, b in zip(inputs.make(entries), inputs.make(entries), strict=True))
    # Without values to copy, indices are valid for every dimension.
    _, index, _ = inputs.make(inputs.recipe(made, [None, None, 1.5]))
    assert index.min() >= 0 and index.max() < 20


def test_a_malformed_recipe_is_refused():
    for entry in ({"shape": [2]}, {"shape": [-1], "dtype": "float32"}, {"shape": [1 << 40], "dtype": "float32"}, {"scalar": "x"}):
        with pytest.raises(ValueError):
            inputs.make([entry])
