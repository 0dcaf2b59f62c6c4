"""Values that a loop holds with their last two dimensions swapped, and tiles that begin before the one before them has ended."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import pytest
import torch
from lowering_support import to_jax

import helion_rt.language as hl
from helion_rt import lowering, targets
from helion_rt.capture import capture
from helion_rt.config import Config, Orientation
from helion_rt.exc import ConfigError, PlanError
from helion_rt.kernels.attention import attention
from helion_rt.lowering import knobs
from helion_rt.lowering.issue import parts
from helion_rt.lowering.orient import orient
from helion_rt.lowering.plan import legalized
from helion_rt.program.ir import Program, walk
from helion_rt.program.signature import TensorFact

CPU, TPU = targets.get("cpu"), targets.get("tpu7x")


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# ------------------------------------------------------------------------------------------------ kernels


_plain = functools.partial(attention)
_causal = functools.partial(attention, causal=True)


def _two_dimensional(q, k, v):
    """Scores of rank 2, the keys transposed by the kernel itself, statistics kept as columns."""
    out = torch.empty_like(q)
    for tile_m in hl.tile(q.size(0)):
        highest = hl.full([tile_m, 1], -1e30)
        total = hl.zeros([tile_m, 1])
        acc = hl.zeros([tile_m, q.size(1)])
        for tile_n in hl.tile(k.size(0)):
            scores = torch.matmul(q[tile_m, :], k[tile_n, :].T)
            higher = torch.maximum(highest, scores.amax(-1, keepdim=True))
            weights = torch.exp(scores - higher)
            rescale = torch.exp(highest - higher)
            total = total * rescale + weights.sum(-1, keepdim=True)
            acc = acc * rescale + torch.matmul(weights, v[tile_n, :])
            highest = higher
        out[tile_m, :] = acc / total
    return out


def _gated(x, w, gate):
    """A product that meets a row, a column, a mask and a tensor of its own shape, and is reduced both ways."""
    rows, columns = x.new_zeros([x.size(0)]), x.new_zeros([w.size(1)])
    for tile_n in hl.tile(w.size(1)):
        seen = hl.zeros([tile_n])
        for tile_m in hl.tile(x.size(0)):
            y = torch.matmul(x[tile_m, :], w[:, tile_n])
            y = torch.where(tile_m.index[:, None] >= tile_n.index[None, :], y, 0.5) * gate[tile_m, tile_n]
            y = torch.relu(y + tile_n.index.to(torch.float32)) + seen[None, :] * 0
            rows[tile_m] = rows[tile_m] + y.sum(1)
            seen = seen + y.amax(0)
        columns[tile_n] = seen
    return rows, columns


def _rows_only(x):
    """No product: there is nothing to hold swapped."""
    out = x.new_empty([x.size(0)])
    for tile_m in hl.tile(x.size(0)):
        acc = hl.zeros([tile_m])
        for tile_n in hl.tile(x.size(1)):
            acc = acc + x[tile_m, tile_n].sum(1)
        out[tile_m] = acc
    return out


def _sdpa(q, k, v, bias=None, key_bias=None, causal=False):
    mask = None if bias is None or key_bias is None else bias + key_bias[:, None, None, :]
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)


def _want_gated(x, w, gate):
    m, n = torch.arange(x.size(0)), torch.arange(w.size(1))
    y = torch.where(m[:, None] >= n[None, :], x @ w, torch.tensor(0.5, dtype=x.dtype)) * gate
    y = torch.relu(y + n)
    tiles = [part.amax(0) for part in y.split(BLOCKS["gated"][1])]
    return y.sum(1), torch.stack(tiles).sum(0)


@dataclasses.dataclass(frozen=True)
class Subject:
    kernel: Callable[..., Any]
    expected: Callable[..., Any]
    shapes: tuple[tuple[tuple[int, ...], ...], ...]  # round ones, then ragged ones


def _heads(s: int, *more: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return (*((1, 2, s, 16),) * 3, *more)


BLOCKS = {"plain": [1, 32, 16], "causal": [1, 32, 16], "biased": [1, 32, 16], "two": [32, 16], "gated": [32, 16]}
SUBJECTS = {
    "plain": Subject(_plain, _sdpa, (_heads(64), _heads(50))),
    "causal": Subject(_causal, functools.partial(_sdpa, causal=True), (_heads(64), _heads(50))),
    "biased": Subject(_plain, _sdpa, (_heads(64, (1, 2, 64, 64), (1, 64)), _heads(50, (1, 2, 50, 50), (1, 50)))),
    "two": Subject(_two_dimensional, lambda q, k, v: (q @ k.T).softmax(-1) @ v, (((64, 16),) * 3, ((50, 16),) * 3)),
    "gated": Subject(_gated, _want_gated, (((64, 24), (24, 64), (64, 64)), ((50, 24), (24, 40), (50, 40)))),
}


def captured(kernel: Callable[..., Any], *tensors: torch.Tensor) -> Program:
    if isinstance(kernel, functools.partial):
        return kernel.func.lower(*tensors, target="cpu", **kernel.keywords).program
    return capture(kernel, tuple(TensorFact(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in tensors))


@functools.cache
def program_of(name: str, ragged: bool) -> tuple[Program, tuple[torch.Tensor, ...]]:
    subject = SUBJECTS[name]
    tensors = tuple(rand(*shape, seed=n) for n, shape in enumerate(subject.shapes[ragged]))
    return captured(subject.kernel, *tensors), tensors


def check(outputs: Sequence[Any], name: str, tensors: Sequence[torch.Tensor]) -> None:
    want = SUBJECTS[name].expected(*(t.double() for t in tensors))
    for got, x in zip(outputs, want if isinstance(want, tuple) else (want,), strict=True):
        scale = max(1.0, float(x.abs().max()))
        np.testing.assert_allclose(np.asarray(got, np.float64), x.numpy(), rtol=2e-4, atol=2e-5 * scale)


def configs(name: str, strategies: Sequence[str]) -> Iterator[Config]:
    for strategy, orientation, issue, tiles in itertools.product(strategies, ("rows", "columns"), ("in_order", "ahead"), (1, 2)):
        if strategy == "unroll" and tiles > 1:
            continue
        yield Config(
            block_sizes=BLOCKS[name], loop_strategies=[strategy], orientations=[orientation], issue_orders=[issue], tiles_a_turn=[tiles]
        )


# ------------------------------------------------------------------------------------------------ right results


def run_all(name: str, ragged: bool, some: Iterable[Config]) -> int:
    program, tensors = program_of(name, ragged)
    ran = 0
    for config in some:
        try:
            run = lowering.build(program, config, CPU)
        except PlanError as error:
            assert ragged and "turns of 2" in str(error)  # an odd number of tiles
            continue
        check(jax.jit(run)(*map(to_jax, tensors)), name, tensors)
        ran += 1
    return ran


@pytest.mark.parametrize("ragged", [False, True], ids=["round", "ragged"])
@pytest.mark.parametrize("name", SUBJECTS)
def test_columns_are_right_on_the_cpu(name: str, ragged: bool) -> None:
    chosen = {"orientations": ["columns"], "issue_orders": ["ahead"]}
    strategies = [("grid", 2), ("fori", 1)] if ragged else [("grid", 2), ("unroll", 1)]
    some = [Config(block_sizes=BLOCKS[name], loop_strategies=[s], tiles_a_turn=[n], **chosen) for s, n in strategies]
    assert run_all(name, ragged, some) > 0


@pytest.mark.slow
@pytest.mark.parametrize("ragged", [False, True], ids=["round", "ragged"])
@pytest.mark.parametrize("name", SUBJECTS)
def test_every_combination_is_right_on_the_cpu(name: str, ragged: bool) -> None:
    assert run_all(name, ragged, configs(name, ("fori", "unroll", "grid"))) >= 6


TPU_BLOCKS = {"plain": [1, 128, 128], "causal": [1, 256, 128], "biased": [1, 128, 128], "two": [128, 128]}


@pytest.mark.slow
@pytest.mark.parametrize("size", [512, 400], ids=["round", "ragged"])
@pytest.mark.parametrize("strategy", ["grid", "emit_pipeline", "fori", "unroll"])
@pytest.mark.parametrize("name", TPU_BLOCKS)
def test_right_in_the_tpu_interpreter(name: str, strategy: str, size: int) -> None:
    """With race detection, and NaN in memory that nothing has written."""
    shapes = [tuple(size if n == 64 else n for n in shape) for shape in SUBJECTS[name].shapes[0]]
    tensors = [rand(*(1 if i == 1 and len(s) == 4 else n for i, n in enumerate(s)), seed=k) for k, s in enumerate(shapes)]
    program = captured(SUBJECTS[name].kernel, *tensors)
    tiles = 1 if strategy == "unroll" else 2
    config = Config(block_sizes=TPU_BLOCKS[name], loop_strategies=[strategy], orientations=["columns"], issue_orders=["ahead"],
                    tiles_a_turn=[tiles])  # fmt: skip
    check(lowering.lower(program, config, TPU).interpret(*map(to_jax, tensors)), name, tensors)


# ------------------------------------------------------------------------------------------------ what is written


def source(name: str, target: targets.Target = CPU, **choices: Any) -> str:
    program, _ = program_of(name, False)
    return lowering.generate(program, Config(block_sizes=BLOCKS[name], loop_strategies=["fori"], **choices), target)


def body(text: str) -> str:
    """The lines of the loop's own function."""
    lines = text.splitlines()
    start = next(n for n, line in enumerate(lines) if line.lstrip().startswith("def loop_0"))
    depth = len(lines[start]) - len(lines[start].lstrip())
    inside = itertools.takewhile(lambda line: not line or len(line) - len(line.lstrip()) > depth, lines[start + 1 :])
    return "\n".join(inside)


def test_attention_in_columns_transposes_nothing_in_its_loop() -> None:
    text = source("plain", orientations=["columns"])
    assert "jnp.transpose" not in body(text)
    assert "axis=(1,)" in body(text)  # maximum and sum go down the sublanes
    assert "axis=(2,)" in body(source("plain"))


def test_a_tensor_that_the_host_transposed_is_loaded_as_it_was() -> None:
    assert "jnp.transpose" in source("plain").split("def attention(")[-1]
    assert "jnp.transpose" not in source("plain", orientations=["columns"]).split("def attention(")[-1]


def test_a_bias_is_transposed_in_the_loop() -> None:
    assert body(source("biased", orientations=["columns"])).count("jnp.transpose") == 1


def test_columns_do_nothing_to_a_loop_without_a_product() -> None:
    program = captured(_rows_only, rand(64, 64))
    legal = legalized(program)
    (loop,) = (op for op in walk(legal.launches[0].regions[0]) if op.name == "hl.loop")
    (after,) = (op for op in walk(orient(legal, (Orientation.COLUMNS,)).launches[0].regions[0]) if op.name == "hl.loop")
    assert after == loop
    config = Config(block_sizes=[64, 128], loop_strategies=["fori"])
    assert knobs.canonical(program, config.replace(orientations=["columns"]), TPU) == knobs.canonical(program, config, TPU)


def test_ahead_writes_the_next_scores_before_the_softmax() -> None:
    program, _ = program_of("plain", False)
    (loop,) = (op for op in walk(legalized(program).launches[0].regions[0]) if op.name == "hl.loop")
    found = parts(loop.regions[0], program.axes, frozenset())
    assert found is not None
    first = [op.name for op in loop.regions[0].ops if id(op) in found.first]
    assert first.count("hl.dot") == 1 and first.count("hl.load") == 1  # keys, not values


def test_a_product_with_a_carried_accumulator_has_nothing_ahead() -> None:
    def matmul(x, y):
        out = x.new_empty([x.size(0), y.size(1)])
        for tile_m, tile_n in hl.tile([x.size(0), y.size(1)]):
            acc = hl.zeros([tile_m, tile_n])
            for tile_k in hl.tile(x.size(1)):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            out[tile_m, tile_n] = acc
        return out

    program = captured(matmul, rand(256, 256), rand(256, 256))
    keys = {knob.key for knob in knobs.knobs(program, TPU)}
    assert not keys & {"orientations", "issue_orders", "tiles_a_turn"}


# ------------------------------------------------------------------------------------------------ choices


@functools.cache
def _large() -> Program:
    return captured(_plain, *(torch.empty(1, 2, 1024, 128, dtype=torch.bfloat16) for _ in range(3)))


def test_attention_offers_all_three() -> None:
    found = {knob.key: knob.values for knob in knobs.knobs(_large(), TPU)}
    assert found["orientations"] == ("rows", "columns")
    assert found["issue_orders"] == ("in_order", "ahead")
    assert found["tiles_a_turn"] == (1, 2, 4)


def _canonical(**choices: Any) -> Config:
    return knobs.canonical(_large(), Config(block_sizes=[1, 256, 128], **choices), TPU)


def test_choices_that_do_nothing_are_dropped() -> None:
    plain = _canonical(loop_strategies=["grid"])
    assert _canonical(loop_strategies=["grid"], orientations=["rows"], issue_orders=["in_order"], tiles_a_turn=[1]) == plain
    assert _canonical(loop_strategies=["grid"], issue_orders=["ahead"]) == plain  # a turn of one tile has no next
    assert _canonical(loop_strategies=["grid"], tiles_a_turn=[8]) == _canonical(loop_strategies=["unroll"])
    assert _canonical(loop_strategies=["unroll"], tiles_a_turn=[4]) == _canonical(loop_strategies=["unroll"])
    kept = Config(block_sizes=[1, 256, 128], loop_strategies=["grid"], orientations=["columns"], issue_orders=["ahead"], tiles_a_turn=[2])
    assert _canonical(**{k: v for k, v in kept.items() if k != "block_sizes"}) == kept


def test_tiles_that_are_left_over_are_refused() -> None:
    with pytest.raises(PlanError, match="turns of 3"):
        _canonical(loop_strategies=["grid"], tiles_a_turn=[3])


WRONG = ({"orientations": ["upright"]}, {"issue_orders": "ahead"}, {"tiles_a_turn": [0]}, {"tiles_a_turn": [True]})


@pytest.mark.parametrize("choice", WRONG)
def test_wrong_choices_are_refused(choice: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Config(**choice)


# ------------------------------------------------------------------------------------------------ no masked steps


def test_causal_attention_runs_no_step_that_is_masked_out() -> None:
    """NaN in the values of keys that a tile of queries must not visit: 0 * NaN would show."""
    size, block = 64, 16
    q, k, v = (rand(1, 1, size, 16, seed=n) for n in range(3))
    program = captured(_causal, q, k, v)
    for strategy, orientation, tiles in (("fori", "rows", 1), ("grid", "columns", 2), ("unroll", "columns", 1)):
        config = Config(block_sizes=[1, 32, block], loop_strategies=[strategy], orientations=[orientation], issue_orders=["ahead"],
                        tiles_a_turn=[tiles])  # fmt: skip
        run = jax.jit(lowering.build(program, config, CPU))
        poisoned = v.clone()
        poisoned[:, :, 32:] = math.nan  # beyond the first tile of queries
        (got,) = run(*map(to_jax, (q, k, poisoned)))
        assert np.isfinite(np.asarray(got)[:, :, :32]).all()
