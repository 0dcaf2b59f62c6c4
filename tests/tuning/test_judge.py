"""The judge of candidates: mistakes of every kind are caught, right kernels pass, whatever the values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import helion_rt.language as hl
from helion_rt import lowering, targets
from helion_rt.capture import capture
from helion_rt.config import Config
from helion_rt.program.signature import TensorFact
from helion_rt.tuning import inputs
from helion_rt.tuning.inputs import Values
from helion_rt.tuning.judge import Judge

CPU = targets.get("cpu")
CONFIG = Config(block_sizes=[16])


def softmax(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        e = torch.exp(row - row.amax(1)[:, None])
        out[tile, :] = (e / e.sum(1)[:, None]).to(x.dtype)
    return out


def streaming(x, v):
    """A softmax-weighted sum, block by block: what it makes of a tile of nothing but -inf depends on the blocks."""
    out = torch.empty([x.size(0), v.size(1)], dtype=x.dtype, device=x.device)
    for rows in hl.tile(x.size(0)):
        top = hl.full([rows], float("-inf"))
        total = hl.zeros([rows])
        acc = hl.zeros([rows, v.size(1)])
        for columns in hl.tile(x.size(1)):
            s = x[rows, columns].to(torch.float32)
            new = torch.maximum(top, s.amax(1))
            p = torch.exp(s - new[:, None])
            scale = torch.exp(top - new)
            total = total * scale + p.sum(1)
            acc = acc * scale[:, None] + hl.dot(p.to(v.dtype), v[columns, :])
            top = new
        out[rows, :] = (acc / total[:, None]).to(out.dtype)
    return out


def narrow_sum(x):
    """Summed in the dtype of x itself, tile after tile."""
    out = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for rows in hl.tile(x.size(0)):
        acc = hl.zeros([rows], dtype=x.dtype)
        for columns in hl.tile(x.size(1)):
            acc = acc + x[rows, columns].sum(1)
        out[rows] = acc
    return out


def centred(x):
    """Cancels: what is left of large values is rounding."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :]
        mean = row.mean(1)[:, None]
        out[tile, :] = (row - mean) / torch.sqrt(((row - mean) * (row - mean)).mean(1)[:, None] + 1e-6)
    return out


def program_of(fn, *shapes, dtype="float32"):
    return capture(fn, tuple(TensorFact(shape, dtype) for shape in shapes))


def judge_of(program, **more):
    return Judge(program, inputs.recipe(program, [None] * len(program.array_params)), CPU, **more)


def verdicts(judge, run, config=CONFIG):
    """For each kind of values: is something wrong?"""
    return {values: judge.fault(run, config, values) for values in judge.values}


@pytest.fixture(scope="module")
def softmax_judge():
    return judge_of(program_of(softmax, (37, 24)))


def wrong(fn):
    """A softmax with a mistake, by hand."""
    return lambda x: (fn(jnp.asarray(x)),)


def right(x):
    return jax.nn.softmax(x, axis=1)


def test_another_order_of_the_same_sums_passes(softmax_judge):
    assert not any(verdicts(softmax_judge, wrong(right)).values())
    reversed_ = verdicts(softmax_judge, wrong(lambda x: right(x[:, ::-1])[:, ::-1]))
    assert not any(reversed_.values())


def test_wrong_only_for_large_values(softmax_judge):
    """No maximum is taken off: right as long as exp does not overflow."""

    def careless(x):
        e = jnp.exp(x)
        return jnp.where(jnp.isnan(right(x)), jnp.nan, e / e.sum(1, keepdims=True))

    found = verdicts(softmax_judge, wrong(careless))
    assert found[Values.NORMAL] is None and "large" in (found[Values.LARGE] or "")


def test_wrong_only_in_the_ragged_tail(softmax_judge):
    found = verdicts(softmax_judge, wrong(lambda x: right(x).at[-1, 3].multiply(1.1)))
    assert "expected" in (found[Values.NORMAL] or "")


def test_wrong_only_where_there_is_a_nan(softmax_judge):
    """A maximum that skips NaN, a sum that does not see it: the row comes out clean."""

    def clean(x):
        return right(jnp.where(jnp.isnan(x), -jnp.inf, x))

    found = verdicts(softmax_judge, wrong(clean))
    assert {values for values, fault in found.items() if fault} == {Values.ODD}


def test_wrong_only_for_tiny_values_and_zeros():
    program = program_of(centred, (8, 64))
    judge = judge_of(program)

    def floor(x):
        mean = x.mean(1, keepdims=True)
        return ((x - mean) / jnp.sqrt(((x - mean) ** 2).mean(1, keepdims=True)),)  # without the 1e-6: 0 / 0

    found = verdicts(judge, floor)
    assert found[Values.NORMAL] is None and found[Values.TINY] and found[Values.ZERO]


@pytest.mark.parametrize(
    ("fn", "shapes", "dtype", "configs"),
    [
        (softmax, [(37, 24)], "bfloat16", [[8], [37]]),
        (streaming, [(20, 72), (72, 16)], "float32", [[8, 8], [20, 72]]),
        (streaming, [(20, 72), (72, 16)], "bfloat16", [[8, 8], [20, 72]]),
        (narrow_sum, [(16, 640)], "bfloat16", [[16, 8], [8, 640]]),
        (narrow_sum, [(16, 640)], "float16", [[16, 8]]),
        (centred, [(20, 100)], "float32", [[8], [20]]),
        (centred, [(20, 100)], "bfloat16", [[8]]),
    ],
)
def test_right_kernels_pass_whatever_the_values(fn, shapes, dtype, configs):
    program = program_of(fn, *shapes, dtype=dtype)
    judge = judge_of(program)
    strategies = ["unroll"] * len(lowering.loops(program))
    for blocks in configs:
        config = Config(block_sizes=blocks, **({"loop_strategies": strategies} if strategies else {}))
        run = jax.jit(lowering.build(program, config, CPU))
        assert not any(verdicts(judge, run, config).values()), blocks


def test_a_bfloat16_answer_is_held_to_bfloat16():
    """As long as a row is, its tolerance does not grow to where anything passes."""
    program = program_of(softmax, (8, 4096), dtype="bfloat16")
    judge = judge_of(program)
    assert judge.rtol < 0.05
    found = verdicts(judge, lambda x: ((jax.nn.softmax(x.astype(jnp.float32), axis=1) * 1.2).astype(x.dtype),))
    assert found[Values.NORMAL]


def test_strict_is_bitwise():
    program = program_of(softmax, (16, 24))
    config = Config(block_sizes=[16])
    judge = judge_of(program, like=config)
    same = jax.jit(lowering.build(program, config, CPU))
    assert not any(verdicts(judge, same, config).values())

    def nudged(x):
        (out,) = same(x)
        return (out.at[0, 0].set(jnp.nextafter(out[0, 0], jnp.float32(2.0))),)

    assert "bitwise" in (judge.fault(nudged, config, Values.NORMAL) or "")


def test_large_integer_arguments_keep_their_range_and_order():
    def gather(x, at):
        out = torch.empty([at.size(0)], dtype=x.dtype, device=x.device)
        for tile in hl.tile(at.size(0)):
            out[tile] = x[at[tile]]
        return out

    program = capture(gather, (TensorFact((1000,), "float32"), TensorFact((40000,), "int32")))
    offsets = np.sort(np.random.default_rng(0).integers(100, 900, 40000)).astype(np.int32)
    entries = inputs.recipe(program, [None, offsets])
    made = inputs.make(entries)[1]
    assert entries[1]["data"] is None and made.min() >= 100 and made.max() < 900 and np.all(np.diff(made) >= 0)
    assert inputs.make(entries, Values.ODD)[1].dtype == np.int32


def test_values_are_what_they_are_called():
    entries = [{"shape": [1000], "dtype": dtype, "data": None} for dtype in ("float32", "float16", "bfloat16", "float8_e4m3fn")]
    for array in inputs.make(entries, Values.LARGE):
        wide = np.abs(array.astype(np.float64))
        assert np.all(np.isfinite(wide)) and wide.min() >= 0.99 and wide.max() > 10
    for array in inputs.make(entries, Values.TINY)[:3]:
        wide = np.abs(array.astype(np.float64))
        assert wide.min() > 0 and wide.max() < 1
    for array in inputs.make(entries, Values.ODD)[:3]:
        wide = array.astype(np.float64)
        assert np.isnan(wide[-1]) and np.isinf(wide).any() and np.isfinite(wide).mean() > 0.9
    assert not any(a.astype(np.float64).any() for a in inputs.make(entries, Values.ZERO))
