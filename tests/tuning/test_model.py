"""The modelled ranking and the seeds: what is counted of real programs, and what follows from it."""

import inspect
import math

import pytest

from helion_rt import kernels, targets
from helion_rt.capture import capture
from helion_rt.config import Config
from helion_rt.program.signature import StaticFact, TensorFact
from helion_rt.tuning import heuristics, model
from helion_rt.tuning.heuristics import Pattern
from helion_rt.tuning.space import Space
from helion_rt.tuning.work import count

CPU, V5E, TPU7X = (targets.get(name) for name in ("cpu", "v5e", "tpu7x"))


def captured(kernel, *shapes, dtype="float32"):
    bound = inspect.signature(kernel.fn).bind(*(TensorFact(shape, dtype) for shape in shapes))
    bound.apply_defaults()
    return capture(kernel.fn, tuple(fact if isinstance(fact, TensorFact) else StaticFact(fact) for fact in bound.args))


def blocks(*sizes, strategy="grid", **more):
    return Config(block_sizes=list(sizes), loop_strategies=[strategy], **more)


@pytest.fixture(scope="module")
def matmul():
    return captured(kernels.matmul, (4096, 4096), (4096, 4096), dtype="bfloat16")


def test_work_is_counted_body_by_body(matmul):
    launch, loop = count(matmul).bodies
    sizes = matmul.block_sizes((256, 512, 128))
    (product,) = loop.products
    assert [f(sizes) for f in (product.batch, product.m, product.n, product.k)] == [1, 256, 512, 128] and product.item == 2
    assert (launch.loop, loop.loop, loop.around) == (None, 0, 0)
    assert sorted(math.prod(s(sizes) for s in load.shape) for load in loop.loads) == [256 * 128, 512 * 128]
    assert [math.prod(s(sizes) for s in store.shape) for store in launch.stores] == [256 * 512]
    assert model.steps(matmul, blocks(256, 512, 128)) == 16 * 8 + 16 * 8 * 32


def test_a_v5e_takes_what_its_documentation_measured_for_the_smallest_blocks(matmul):
    # JAX's documentation: 11.8 ms for 128-blocks, 0.89 ms (dispatch included) for 512 x 1024 x 1024.
    assert model.seconds(matmul, blocks(128, 128, 128), V5E) == pytest.approx(11.8e-3, rel=0.3)
    assert model.seconds(matmul, blocks(512, 1024, 1024), V5E) == pytest.approx(0.8e-3, rel=0.2)


def test_no_config_is_modelled_below_the_floors_of_the_hardware(matmul):
    for target in (V5E, TPU7X):
        floor = 2 * 4096**3 / target.info.bf16_ops_per_second
        space = Space(matmul, target)
        assert min(model.seconds(matmul, config, target) for config in space.plain()) >= floor


def test_blocks_are_fetched_again_where_an_inner_axis_moves_them():
    tall = captured(kernels.matmul, (8192, 512), (512, 8192), dtype="bfloat16")
    wide_first = blocks(128, 8192, 512)
    square = blocks(128, 128, 512)
    assert model.seconds(tall, wide_first, TPU7X) < model.seconds(tall, square, TPU7X)
    # The outer axis' operand stands still while the inner one moves: with few, large blocks outside less is fetched.
    rows_outside = blocks(4096, 128, 512)
    columns_outside = blocks(4096, 128, 512, grid_orders=[[1, 0]])
    assert model.seconds(tall, rows_outside, V5E) < model.seconds(tall, columns_outside, V5E)


def test_a_half_filled_mxu_and_small_steps_cost(matmul):
    assert model.seconds(matmul, blocks(1024, 128, 1024), TPU7X) > 1.5 * model.seconds(matmul, blocks(1024, 256, 1024), TPU7X)
    assert model.seconds(matmul, blocks(512, 512, 128), TPU7X) > model.seconds(matmul, blocks(512, 512, 512), TPU7X)


def test_what_takes_the_compiler_minutes_is_tried_after_what_is_about_as_good(matmul):
    whole, part = blocks(1024, 1024, 4096), blocks(1024, 1024, 512)
    assert model.effort(matmul, part, TPU7X) == 1 < model.effort(matmul, whole, TPU7X) < 1.2
    unrolled = blocks(1024, 1024, 512, strategy="unroll")
    assert model.effort(matmul, unrolled, TPU7X) == pytest.approx(model.effort(matmul, whole, TPU7X), rel=0.02)
    assert model.effort(matmul, whole, CPU) == 1


def test_on_the_cpu_fewer_steps_and_straight_lines_are_cheaper():
    made = captured(kernels.matmul, (256, 256), (256, 256))
    whole, quarters, small = (model.seconds(made, blocks(b, b, 256, strategy="unroll"), CPU) for b in (256, 128, 32))
    assert whole < quarters < small
    by_strategy = [model.seconds(made, blocks(256, 256, 32, strategy=s), CPU) for s in ("unroll", "fori", "grid")]
    assert by_strategy == sorted(by_strategy)


@pytest.mark.parametrize(
    ("kernel", "shapes", "pattern"),
    [
        (kernels.matmul, ((512, 512), (512, 512)), Pattern.MATMUL),
        (kernels.attention, ((2, 4, 512, 64),) * 3, Pattern.ATTENTION),
        (kernels.layer_norm, ((512, 512), (512,), (512,)), Pattern.REDUCTION),
        (kernels.softmax_two_pass, ((512, 4096),), Pattern.REDUCTION),
        (kernels.gelu, ((512, 512),), Pattern.ELEMENTWISE),
    ],
    ids=lambda value: value.value if isinstance(value, Pattern) else "",
)
@pytest.mark.parametrize("target", [CPU, TPU7X], ids=str)
def test_patterns_are_read_off_the_program_and_have_seeds_that_fit(kernel, shapes, pattern, target):
    made = captured(kernel, *shapes, dtype="bfloat16" if target.is_tpu else "float32")
    assert heuristics.recognise(count(made)) is pattern
    space = Space(made, target)
    seeds = list(heuristics.seeds(space))
    assert seeds and any(space.is_legal(seed) for seed in seeds)
    for seed in seeds:
        assert all(size in sizes for size, sizes in zip(seed.block_sizes, space.sizes, strict=True))


def test_the_seeds_of_attention_take_one_head_at_a_time_and_many_rows():
    space = Space(captured(kernels.attention, *((2, 4, 4096, 128),) * 3, dtype="bfloat16"), TPU7X)
    first = next(heuristics.seeds(space))
    assert first.block_sizes[0] == 1 and first.block_sizes[1] >= 256


def test_where_the_user_says_what_there_is_nothing_is_added(matmul):
    assert not list(heuristics.seeds(Space(matmul, TPU7X, [blocks(256, 256, 256)])))
