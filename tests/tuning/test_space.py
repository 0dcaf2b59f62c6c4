"""Spaces and made-up inputs of real programs, on the CPU and on TPUs."""

import inspect
import itertools

import numpy as np
import pytest
import torch

import helion_rt.language as hl
from helion_rt import kernels, lowering, targets
from helion_rt.capture import capture
from helion_rt.config import Config, LoopStrategy
from helion_rt.exc import ConfigError, PlanError
from helion_rt.program.ir import BlockInfo
from helion_rt.program.signature import ScalarFact, StaticFact, TensorFact
from helion_rt.tuning import inputs, ladder
from helion_rt.tuning.space import CPU_TILE_ELEMENTS, MAX_UNROLLED, Space

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


def twice(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] * 2
    return out


def jagged_sums(offsets, values):
    n = offsets.size(0) - 1
    out = torch.zeros([n, values.size(1)], dtype=values.dtype, device=values.device)
    for i in hl.grid(n):
        total = hl.zeros([values.size(1)], dtype=torch.float32)
        for tile in hl.tile(offsets[i], offsets[i + 1]):
            total = total + values[tile, :].sum(0)
        out[i, :] = total
    return out


def captured(kernel, shapes, dtype="float32"):
    bound = inspect.signature(kernel.fn).bind(*(TensorFact(shape, dtype) for shape in shapes))
    bound.apply_defaults()
    return capture(kernel.fn, tuple(fact if isinstance(fact, TensorFact) else StaticFact(fact) for fact in bound.args))


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
def test_configs_are_distinct_legal_and_canonical(target):
    space = Space(program(64, 32, 48) if not target.is_tpu else program(256, 256, 256), target)
    configs = list(itertools.islice(space.configs(), 20))
    assert len(configs) == len(set(configs)) > 1
    assert all(space.canonical(config) == config for config in configs)
    for config in configs:
        lowering.make_plan(space.program, config, target)
    if not target.is_tpu:
        configs = list(space.configs())
        assert not any(LoopStrategy.EMIT_PIPELINE in c.loop_strategies for c in configs)
        assert [64, 48, 32] in [c.block_sizes for c in configs]  # whole extents, which need no mask


def test_neighbours_differ_in_one_choice():
    space = Space(program(), targets.get("cpu"))
    here = space.default()
    around = list(space.neighbours(here))
    assert around
    for other in around:
        changes = [a != b for a, b in zip(here.block_sizes, other.block_sizes, strict=True)]
        assert sum(changes) == 1 or (not any(changes) and here.loop_strategies != other.loop_strategies)


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


@pytest.mark.parametrize(
    ("kernel", "shapes"),
    [
        (kernels.matmul, ((256, 256), (256, 256))),
        (kernels.softmax_two_pass, ((128, 512),)),
        (kernels.layer_norm, ((12000, 64), (64,), (64,))),
        (kernels.attention, ((2, 4, 128, 64),) * 3),
        (kernels.gelu, ((300, 700),)),
    ],
    ids=["matmul", "softmax", "layer norm", "attention", "gelu"],
)
def test_there_are_two_hundred_points_to_choose_from_on_the_cpu(kernel, shapes):
    space = Space(captured(kernel, shapes), targets.get("cpu"))
    assert len(list(itertools.islice(space.configs(), 200))) == 200


def test_sizes_are_powers_of_two_what_divides_evenly_and_more_where_there_are_few_blocks():
    alone = ladder.sizes(BlockInfo(None, 12000), 1, 1, False)
    assert len(alone) > 200 and alone == tuple(sorted(set(alone))) and {8, 4096, 6000, 4000, 12000} <= set(alone)
    paired = ladder.sizes(BlockInfo(None, 384), 2, 1, True)
    assert {128, 192, 384} <= set(paired) and all(size % 8 == 0 for size in paired if size > 8)
    assert ladder.sizes(BlockInfo(None, 300, low=16, high=64), 2, 1, False) == tuple(
        size for size in ladder.sizes(BlockInfo(None, 300, low=16, high=64), 2, 1, False) if 16 <= size <= 64
    )
    assert ladder.sizes(BlockInfo(None, 7), 3, 3, False)[-1] == 7


def test_a_large_space_is_sampled_alike_for_a_seed():
    space = Space(program(4096, 4096, 4096), targets.get("v5e"))
    drawn = space.some(100, seed=1)
    assert drawn == space.some(100, seed=1) != space.some(100, seed=2)
    assert 0 < len(drawn) <= 100 and len(set(drawn)) == len(drawn) and set(drawn) <= set(space.plain())


def test_loops_that_would_be_unrolled_into_thousands_of_lines_are_left_out():
    space = Space(program(64, 4096, 64), targets.get("cpu"))
    for config in space.plain():
        steps = -(-4096 // config.block_sizes[2])
        assert config.loop_strategies != [LoopStrategy.UNROLL] or steps <= MAX_UNROLLED


def test_the_default_is_the_simplest_of_all():
    space = Space(program(), targets.get("cpu"))
    configs = list(itertools.islice(space.configs(), 50))
    assert min(configs, key=space.simplicity) == space.default()
    assert len({space.simplicity(config) for config in configs}) == len(configs)


def test_on_the_cpu_a_loop_whose_end_is_in_the_data_begins_with_a_part_of_its_axis():
    facts = (TensorFact((9,), "int32"), TensorFact((1000, 64), "float32"))
    made = capture(jagged_sums, facts)
    (default,) = {Space(made, targets.get("cpu")).default()}
    assert default.block_sizes[-1] <= 1000 // 8


@pytest.mark.parametrize("shape", [(8, 32, 2048, 128), (3, 2, 500, 64)], ids=str)
def test_on_a_tpu_matrices_are_cut_before_their_number_is(shape):
    attention = Space(captured(kernels.attention, [shape] * 3), targets.get("v5e"))
    heads, queries, keys = attention.default()["block_sizes"]
    assert (queries, keys) == (min(shape[2], 512), min(shape[2], 512)) and heads <= 2
    assert 1 in attention.sizes[0]
    small = capture(twice, (TensorFact((4096, 8, 16), "float32"),))
    assert Space(small, targets.get("v5e")).default()["block_sizes"][0] >= 256  # nor is there a step for each of many small ones


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
