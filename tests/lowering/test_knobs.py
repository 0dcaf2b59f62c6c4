"""Knobs: every value gives the reference's numbers, what cannot be is refused, and what does nothing is dropped."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Sequence

import jax
import numpy as np
import pytest
import sample_kernels
import torch
from lowering_support import Case, check, inputs, program_of, to_jax

import helion_rt.language as hl
from helion_rt import kernels, lowering, targets
from helion_rt.capture import capture
from helion_rt.config import Config
from helion_rt.exc import CompileError, ConfigError, PlanError
from helion_rt.lowering.bill import vmem_limit, window_bytes
from helion_rt.lowering.knobs import Knob, canonical, knobs
from helion_rt.program.ir import Program
from helion_rt.program.signature import StaticFact, TensorFact
from helion_rt.tuning.space import Space

CPU = targets.get("cpu")
TPUS = ("v5e", "v6e", "tpu7x")
ROUND = Case("matmul", ((256, 256), (256, 256)), torch.matmul)
RAGGED = Case("matmul", ((130, 257), (257, 200)), torch.matmul)
BIAS = Case("add_bias", ((130, 300), (300,)), torch.add)
HEADS = Case("attention", ((1, 2, 130, 64), (1, 2, 257, 64), (1, 2, 257, 64)), torch.nn.functional.scaled_dot_product_attention)
KEYS = ("grid_orders", "buffer_counts", "core_splits")  # those of inner loops have tests of their own
CASES = [pytest.param(case, id=case.id) for case in (ROUND, RAGGED, BIAS, HEADS)]


def _sum_of_three(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Three axes, of which ``y`` moves with two."""
    out = torch.empty_like(x)
    for a, b, c in hl.tile(x.size()):
        out[a, b, c] = x[a, b, c] + y[b, c]
    return out


def _sum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for a, b in hl.tile(x.size()):
        out[a, b] = x[a, b] + y[a, b]
    return out


def _column_sums(x: torch.Tensor) -> torch.Tensor:
    """Each block of the result is come back to for every tile of rows."""
    out = x.new_zeros([x.size(1)])
    for tile_m, tile_n in hl.tile(x.size()):
        out[tile_n] = out[tile_n] + x[tile_m, tile_n].sum(0)
    return out


def _program(case: Case, dtype: str = "float32") -> Program:
    return program_of(getattr(sample_kernels, case.kernel).fn, case, dtype)


def _facts(*shapes: tuple[int, ...]) -> tuple[TensorFact, ...]:
    return tuple(TensorFact(shape, "float32") for shape in shapes)


def _blocks(program: Program, block: int = 128) -> list[int]:
    """``block`` or the whole of what is smaller; one of a few heads."""
    extents = [program.blocks[b].extent for b in program.tunable_blocks]
    return [1 if n <= 8 else min(block, n) for n in extents]


def _base(program: Program, strategy: str) -> Config:
    loops = lowering.loops(program)
    return Config(block_sizes=_blocks(program), **({"loop_strategies": [strategy] * len(loops)} if loops else {}))


def _all_values(program: Program, base: Config, target: targets.Target) -> list[Config]:
    """``base`` with each knob of the grid at each of its values, where that is legal and does something."""
    made = {}
    for knob in knobs(program, targets.get("tpu7x")):
        for value in knob.values if knob.key in KEYS else ():
            try:
                made[canonical(program, knob.put(base, value), target)] = None
            except PlanError:
                continue
    return list(made)


# ------------------------------------------------------------------------------------------------ the right numbers


@pytest.mark.parametrize("strategy", ["grid", "fori"])
@pytest.mark.parametrize("case", CASES)
def test_every_value_is_right_on_the_cpu(case: Case, strategy: str) -> None:
    tensors, program = inputs(case, "float32"), _program(case)
    configs = [c for c in _all_values(program, _base(program, strategy), CPU) if "grid_orders" in c]
    assert len(configs) == 1
    for config in configs:
        check(jax.jit(lowering.build(program, config, CPU))(*map(to_jax, tensors)), case, tensors, "float32")


def test_every_order_of_three_axes_is_right() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((3, 20, 200), np.float32), rng.standard_normal((20, 200), np.float32)
    program = capture(_sum_of_three, _facts(x.shape, y.shape))
    (knob,) = [k for k in knobs(program, targets.get("v5e")) if k.key == "grid_orders"]
    assert set(knob.values) == set(itertools.permutations(range(3)))
    grids = set()
    for order in knob.values:
        config = Config(block_sizes=[1, 16, 128], grid_orders=[order])
        np.testing.assert_allclose(jax.jit(lowering.build(program, config, CPU))(x, y)[0], x + y, rtol=1e-6)
        grids.add(lowering.make_plan(program, config, CPU).launches[0].trips)
    assert grids == set(itertools.permutations((3, 2, 2)))


def _interpreted(case: Case, config: Config, tensors: Sequence[torch.Tensor], dtype: str) -> None:
    outputs = lowering.lower(_program(case, dtype), config, targets.get("tpu7x")).interpret(*map(to_jax, tensors))
    check(outputs, case, tensors, dtype)


@pytest.mark.parametrize("case", [pytest.param(ROUND, id="round"), pytest.param(RAGGED, id="ragged", marks=pytest.mark.slow)])
@pytest.mark.parametrize("counts", [(1, 3, None), (4, 1, 1)], ids=str)
def test_pipelines_of_any_depth_are_right_in_the_tpu_interpreter(case: Case, counts: tuple[int | None, ...]) -> None:
    config = Config(block_sizes=[128, 128, 128], loop_strategies=["emit_pipeline"], buffer_counts=counts)
    _interpreted(case, config, inputs(case, "float32"), "float32")


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["grid", "emit_pipeline"])
@pytest.mark.parametrize("case", CASES)
def test_every_value_is_right_in_the_tpu_interpreter(case: Case, strategy: str) -> None:
    program, tensors = _program(case), inputs(case, "float32")
    for config in _all_values(program, _base(program, strategy), targets.get("tpu7x")):
        _interpreted(case, config, tensors, "float32")


@pytest.mark.slow
@pytest.mark.parametrize("target", TPUS)
@pytest.mark.parametrize("strategy", ["grid", "emit_pipeline"])
@pytest.mark.parametrize("case", [pytest.param(ROUND, id="round"), pytest.param(HEADS, id="heads")])
def test_every_value_compiles_for_tpus(case: Case, strategy: str, target: str) -> None:
    program, aimed = _program(case), targets.get(target)
    for config in _all_values(program, _base(program, strategy), aimed):
        assert lowering.lower(program, config, aimed).compile().tpu_custom_calls == 1


# ------------------------------------------------------------------------------------------------ what there is to choose


def test_a_knob_reads_and_writes_its_place() -> None:
    knob = Knob("buffer_counts", 2, (2, 1))
    config = Config(block_sizes=[8])
    assert knob.of(config) == 2
    put = knob.put(config, 1)
    assert put.buffer_counts == [None, None, 1] and knob.of(put) == 1
    assert Knob("grid_orders", 0, ((0, 1), (1, 0))).of(Config(grid_orders=[[1, 0]])) == (1, 0)
    assert Knob("limit", None, (7, 8)).put(config, 8).limit == 8


def test_what_is_offered() -> None:
    program, target = _program(ROUND), targets.get("v6e")
    found = {(k.key, k.index): k.values for k in knobs(program, target)}
    assert found["grid_orders", 0] == ((0, 1), (1, 0))
    assert found["buffer_counts", 0][:2] == (2, 1) and max(found["buffer_counts", 0]) == 4
    assert found["buffer_counts", 2] == (2, 1)  # what is written
    assert knobs(program, CPU) == ()


def test_an_order_that_results_depend_on_is_fixed() -> None:
    program = capture(_column_sums, _facts((40, 256)))
    assert not [k for k in knobs(program, targets.get("v5e")) if k.key == "grid_orders"]
    config = Config(block_sizes=[8, 128], grid_orders=[[1, 0]])
    for target in (CPU, targets.get("v5e")):
        with pytest.raises(PlanError, match="grid order"):
            lowering.make_plan(program, config, target)
    one_row = config.replace(block_sizes=[40, 128])
    assert canonical(program, one_row, CPU) == Config(block_sizes=[40, 128])


@pytest.mark.parametrize(
    ("strategy", "counts", "legal"),
    [("grid", [1, 2, 1], True), ("grid", [3], False), ("emit_pipeline", [4, 3], True), ("emit_pipeline", [2, 2, 3], False)],
)
def test_more_buffers_than_a_pipeline_has_are_refused(strategy: str, counts: list[int], legal: bool) -> None:
    config = Config(block_sizes=[128] * 3, loop_strategies=[strategy], buffer_counts=counts)
    if legal:
        lowering.make_plan(_program(ROUND), config, targets.get("v5e"))
    else:
        with pytest.raises(PlanError, match="buffers"):
            lowering.make_plan(_program(ROUND), config, targets.get("v5e"))


def test_buffers_are_in_the_bill_and_in_the_source() -> None:
    program, target = _program(ROUND), targets.get("v5e")
    base = Config(block_sizes=[128] * 3, loop_strategies=["emit_pipeline"])
    block = 128 * 128 * 4
    bills = [lowering.make_plan(program, base.replace(buffer_counts=[n, None, None]), target).vmem_bytes for n in (1, 2, 3, 4)]
    assert [b - a for a, b in itertools.pairwise(bills)] == [block] * 3
    assert lowering.generate(program, base.replace(buffer_counts=[3]), target).count("pl.Buffered(3)") == 1
    assert "Buffered" not in lowering.generate(program, base.replace(buffer_counts=[3]).replace(loop_strategies=["fori"]), CPU)


def test_a_count_follows_a_tensor_that_is_loaded_the_other_way_round() -> None:
    """Keys are transposed by the host; values held in columns load them as they were."""
    program, target = _program(HEADS), targets.get("tpu7x")
    base = Config(block_sizes=[1, 128, 128], loop_strategies=["emit_pipeline"], buffer_counts=[None, 3, 4])
    for config in (base, base.replace(orientations=["columns"])):
        assert [o.buffers for o in lowering.make_plan(program, config, target).launches[0].operands] == [2, 3, 4, 2]
        assert canonical(program, config, target) == config


def test_a_block_that_stays_has_one_buffer() -> None:
    """The bias is whole in every step, and so is each operand where there is one tile."""
    program, target = _program(Case("add_bias", ((256, 128), (128,)), torch.add)), targets.get("v5e")
    plan = lowering.make_plan(program, Config(block_sizes=[64, 128]), target)
    assert {o.tensor: o.buffers for o in plan.launches[0].operands} == {0: 2, 1: 1, 2: 2}
    plan = lowering.make_plan(program, Config(block_sizes=[256, 128]), target)
    assert {o.buffers for o in plan.launches[0].operands} == {1}


def test_only_two_cores_have_something_to_split() -> None:
    program = _program(ROUND)
    offered = {name: [k.values for k in knobs(program, targets.get(name)) if k.key == "core_splits"] for name in targets.TPU_NAMES}
    assert offered == {"v4": [], "v5e": [], "v5p": [(None, 0, 1)], "v6e": [], "tpu7x": []}


@pytest.mark.parametrize(
    ("choices", "semantics"),
    [
        ({}, "('parallel', 'parallel', 'arbitrary')"),
        ({"core_splits": [0]}, "('parallel', 'arbitrary', 'arbitrary')"),
        ({"core_splits": [1]}, "('arbitrary', 'parallel', 'arbitrary')"),
        ({"core_splits": [1], "grid_orders": [[1, 0]]}, "('parallel', 'arbitrary', 'arbitrary')"),
    ],
    ids=str,
)
def test_what_cores_split(choices: dict, semantics: str) -> None:
    program = _program(ROUND)
    config = Config(block_sizes=[128] * 3, loop_strategies=["grid"], **choices)
    assert f"dimension_semantics={semantics}" in lowering.generate(program, config, targets.get("v5p"))
    alone = config.replace(core_splits=[])
    assert lowering.generate(program, config, targets.get("v5e")).split('"""')[2] == lowering.generate(
        program, alone, targets.get("v5e")
    ).split('"""')[2]


def test_cores_do_not_split_what_they_would_both_write() -> None:
    program, target = capture(_column_sums, _facts((40, 256))), targets.get("v5p")
    config = Config(block_sizes=[8, 128])
    assert "('arbitrary', 'arbitrary')" in lowering.generate(program, config, target)
    for axis in (0, 1):  # the tensor that is written is whole in VMEM: no step leaves it
        with pytest.raises(PlanError, match="same elements"):
            lowering.make_plan(program, config.replace(core_splits=[axis]), target)
    with pytest.raises(PlanError, match="split axis 2"):
        lowering.make_plan(program, config.replace(core_splits=[2]), target)


@pytest.mark.slow
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_two_cores_compile(axis: int | None) -> None:
    config = Config(block_sizes=[128] * 3, loop_strategies=["grid"], core_splits=[axis])
    assert lowering.lower(_program(ROUND), config, targets.get("v5p")).compile().tpu_custom_calls == 1


def test_all_of_the_vmem_can_be_asked_for_where_the_compiler_would_use_it() -> None:
    program = _program(BIAS)
    offered = [name for name in targets.TPU_NAMES if any(k.key == "vmem_limits" for k in knobs(program, targets.get(name)))]
    assert offered == ["tpu7x"]
    target, base = targets.get("tpu7x"), Config(block_sizes=[64, 128])
    most = base.replace(vmem_limits=["most"])
    assert canonical(program, most, target) == most
    assert canonical(program, base.replace(vmem_limits=["needed"]), target) == canonical(program, most, CPU) == base
    assert f"vmem_limit_bytes={62 << 20}" in lowering.generate(program, most, target)
    assert "vmem_limit_bytes" not in lowering.generate(program, base, target) + lowering.generate(program, most, CPU)
    full = Config(block_sizes=[512, 4096])  # its bill asks for all there is
    hungry = capture(_sum, _facts((4096, 4096), (4096, 4096)))
    assert canonical(hungry, full.replace(vmem_limits=["most"]), target) == full
    with pytest.raises(ConfigError, match="an outer loop"):
        Config(vmem_limits=["all"])


# ------------------------------------------------------------------------------------------------ the VMEM bill

BF16 = "bfloat16"
# (kernel, shapes, dtype, blocks, strategy, target, MiB): what libtpu 0.0.50.1 says in its refusal when the limit is just below.
NEEDS = [
    (kernels.matmul, ((4096, 4096),) * 2, BF16, [512, 1024, 1024], "grid", "tpu7x", 10.86),
    (kernels.matmul, ((4096, 4096),) * 2, BF16, [512, 1024, 1024], "emit_pipeline", "tpu7x", 10.0),
    (kernels.matmul, ((4096, 4096),) * 2, BF16, [512, 512, 4096], "grid", "tpu7x", 17.0),
    (kernels.matmul, ((4096, 4096),) * 2, BF16, [512, 1024, 512], "fori", "tpu7x", 30.31),
    (kernels.matmul, ((4096, 4096),) * 2, BF16, [512, 1024, 1024], "grid", "v5e", 11.09),
    (kernels.matmul, ((4096, 4096),) * 2, "float32", [512, 1024, 512], "grid", "tpu7x", 16.71),
    (kernels.matmul, ((4096, 4096),) * 2, "float32", [512, 1024, 512], "grid", "v5e", 16.2),
    (kernels.softmax, ((65536, 2560),), BF16, [256], None, "tpu7x", 7.34),
    (kernels.softmax, ((65536, 2560),), BF16, [1024], None, "tpu7x", 27.96),
    (kernels.softmax, ((65536, 2560),), "float32", [256], None, "tpu7x", 12.3),
    (kernels.layer_norm, ((16384, 16384), (16384,), (16384,)), BF16, [16], None, "tpu7x", 3.39),
    (kernels.layer_norm, ((16384, 16384), (16384,), (16384,)), BF16, [128], None, "tpu7x", 24.5),
    (kernels.gelu, ((8192, 8192),), BF16, [1024, 2048], None, "tpu7x", 16.0),
    (kernels.attention, ((1, 4, 8192, 128),) * 3, BF16, [1, 1024, 1024], "grid", "tpu7x", 7.27),
    (kernels.attention, ((1, 4, 8192, 128),) * 3, BF16, [1, 256, 2048], "grid", "tpu7x", 3.52),
    (kernels.attention, ((1, 4, 8192, 128),) * 3, BF16, [1, 512, 512], "fori", "tpu7x", 8.5),
    (kernels.attention, ((1, 4, 8192, 128),) * 3, BF16, [1, 512, 512], "emit_pipeline", "tpu7x", 2.84),
]


def _ready(kernel, shapes: tuple[tuple[int, ...], ...], dtype: str, blocks: list[int], strategy: str | None) -> tuple[Program, Config]:
    """A ready-made kernel with its other arguments at their defaults."""
    rest = [p.default for p in list(inspect.signature(kernel.fn).parameters.values())[len(shapes) :]]
    facts = (*(TensorFact(shape, dtype) for shape in shapes), *map(StaticFact, rest))
    program = capture(kernel.fn, facts, (*(None for _ in shapes), *rest))
    return program, Config(block_sizes=blocks, **({"loop_strategies": [strategy]} if strategy else {}))


@pytest.mark.parametrize(("kernel", "shapes", "dtype", "blocks", "strategy", "target", "mib"), NEEDS)
def test_the_bill_is_what_the_compiler_needs(kernel, shapes, dtype, blocks, strategy, target, mib) -> None:
    program, config = _ready(kernel, shapes, dtype, blocks, strategy)
    got = lowering.make_plan(program, config, targets.get(target)).vmem_bytes / (1 << 20)
    assert 0.99 * mib <= got <= 1.25 * mib + 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "shapes", "dtype", "blocks", "strategy", "target"),
    [
        (kernels.softmax, ((65536, 2560),), BF16, [512], None, "tpu7x"),
        (kernels.matmul, ((4096, 4096),) * 2, BF16, [1024, 1024, 512], "grid", "v5e"),
    ],
)
def test_a_kernel_compiles_in_its_bill_and_not_in_its_windows(kernel, shapes, dtype, blocks, strategy, target) -> None:
    program, config = _ready(kernel, shapes, dtype, blocks, strategy)
    aimed = targets.get(target)
    lowered = lowering.lower(program, config, aimed)
    (launch,) = lowered.plan.launches
    for limit, fits in ((launch.vmem_bytes, True), (sum(window_bytes(o, tpu=True) for o in launch.operands), False)):
        source = re.sub(r", vmem_limit_bytes=\d+", "", lowered.source)
        source = source.replace("CompilerParams(", f"CompilerParams(vmem_limit_bytes={limit}, ", 1)
        stage = targets.lower_for(lowering.load_source(source, lowering.entry_name(program)), lowered.specs, aimed)
        if fits:
            targets.compile_lowered(stage, aimed)
        else:
            with pytest.raises(CompileError, match="vmem"):
                targets.compile_lowered(stage, aimed)


@pytest.mark.parametrize(
    ("target", "need", "asked"),
    [("v5e", 8, None), ("v5e", 14, 21), ("v5e", 100, 126), ("tpu7x", 20, None), ("tpu7x", 30, 45), ("tpu7x", 60, 62), ("v4", 15, None)],
)
def test_what_is_asked_for(target: str, need: int, asked: int | None) -> None:
    """In MiB: nothing where what is given unasked is plenty, half as much again, never more than there is."""
    assert vmem_limit(need << 20, targets.get(target)) == (None if asked is None else asked << 20)


@pytest.mark.parametrize(("target", "asked"), [("v4", None), ("v5e", 126), ("tpu7x", 62)])
def test_the_most_that_is_asked_for(target: str, asked: int | None) -> None:
    assert vmem_limit(1 << 20, targets.get(target), most=True) == (None if asked is None else asked << 20)


# ------------------------------------------------------------------------------------------------ one config for one plan


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"grid_orders": [[0, 1]]}, {}),
        ({"grid_orders": [None]}, {}),
        ({"buffer_counts": [2, None, 2]}, {}),
        ({"buffer_counts": [None, 1, 2]}, {"buffer_counts": [None, 1]}),
        ({"grid_orders": [[1, 0]]}, {"grid_orders": [[1, 0]]}),
        ({"grid_orders": [[1, 0]], "block_sizes": [256, 128, 128]}, {"block_sizes": [256, 128, 128]}),
        ({"block_sizes": [512, 128, 128]}, {"block_sizes": [256, 128, 128]}),
        ({"block_sizes": [128, 128, 256], "loop_strategies": ["fori"]}, {"block_sizes": [128, 128, 256], "loop_strategies": ["unroll"]}),
        ({"block_sizes": [128, 256, 256], "buffer_counts": [None, 1]}, {"block_sizes": [128, 256, 256], "loop_strategies": ["unroll"]}),
    ],
    ids=str,
)
def test_no_ops_are_dropped(given: dict, wanted: dict) -> None:
    base = {"block_sizes": [128, 128, 128], "loop_strategies": ["grid"]}
    program, target = _program(ROUND), targets.get("v6e")
    found = canonical(program, Config(**{**base, **given}), target)
    assert found == Config(**{**base, **wanted})
    assert canonical(program, found, target) == found


def test_axes_that_every_copy_sees_alike_have_one_order() -> None:
    program, target = capture(_sum_of_three, _facts((3, 40, 300), (40, 300))), targets.get("v5e")
    found = {canonical(program, Config(block_sizes=[1, 8, 128], grid_orders=[o]), target) for o in itertools.permutations(range(3))}
    # y moves with the last two: they are alike; whether the first is outside, between or inside of them is not.
    assert sorted(str(c.get("grid_orders")) for c in found) == ["None", "[[1, 0, 2]]", "[[1, 2, 0]]", "[[2, 0, 1]]"]


@pytest.mark.parametrize(
    ("blocks", "trips", "split", "kept"),
    [
        ([96, 128], (2, 2), 0, False),  # the compiler takes the first with an even number of tiles
        ([96, 128], (2, 2), 1, True),
        ([64, 128], (3, 2), 0, True),
        ([192, 128], (1, 2), 1, False),
        ([96, 256], (2, 1), 1, False),  # one tile is not split
    ],
    ids=str,
)
def test_a_split_that_the_compiler_makes_by_itself_is_dropped(blocks: list[int], trips: tuple[int, int], split: int, kept: bool) -> None:
    program, target = _program(Case("matmul", ((192, 128), (128, 256)), torch.matmul)), targets.get("v5p")
    base = Config(block_sizes=[*blocks, 128], loop_strategies=["unroll"])
    assert lowering.make_plan(program, base, target).launches[0].trips == trips
    config = base.replace(core_splits=[split])
    assert canonical(program, config, target) == (config if kept else base)
    assert canonical(program, config, targets.get("v6e")) == base


def test_canonical_drops_buffers_on_the_cpu() -> None:
    config = Config(block_sizes=[128] * 3, loop_strategies=["fori"])
    assert canonical(_program(ROUND), config.replace(buffer_counts=[1, 1]), CPU) == config


def test_canonical_refuses_what_has_no_plan() -> None:
    with pytest.raises(PlanError):
        canonical(_program(ROUND), Config(block_sizes=[128], loop_strategies=["grid"]), CPU)


def _rotated(x: torch.Tensor) -> torch.Tensor:
    """Halves of the last dimension, paired, changed, and put back."""
    batch, heads, length, width = x.size()
    out = torch.empty_like(x)
    for b, t in hl.tile([batch, length]):
        first, second = hl.split(x[b, :, t, :].reshape([b, heads, t, 2, width // 2]).permute(0, 1, 2, 4, 3))
        out[b, :, t, :] = hl.join(-second, first).permute(0, 1, 2, 4, 3).reshape([b, heads, t, width])
    return out


@pytest.mark.parametrize("target", TPUS)
def test_pairs_of_halves_are_billed_for_their_padding(target: str) -> None:
    """Their values have two lanes of 128: libtpu asked for 44 MiB where the bill was 3, so that the default did not compile."""
    program, aimed = capture(_rotated, _facts((2, 4, 128, 64))), targets.get(target)
    whole = lowering.make_plan(program, Config(block_sizes=[2, 128]), targets.get("v5e"))
    assert whole.vmem_bytes > 40 << 20
    assert lowering.lower(program, Space(program, aimed).default(), aimed).compile().tpu_custom_calls == 1
