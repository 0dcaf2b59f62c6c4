"""``min`` and ``max`` of traced numbers, and what ``assert`` says of block sizes."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import pytest
import torch

import helion_rt
import helion_rt.language as hl
from helion_rt import lowering, targets
from helion_rt.capture import capture
from helion_rt.exc import PlanError, Unsupported
from helion_rt.program import decode, encode, fingerprint, to_text
from helion_rt.program.expr import BinExpr, Block
from helion_rt.program.ir import Constraint, Relation
from helion_rt.program.signature import TensorFact
from helion_rt.tuning.space import Space

from .test_capture import check, program_of, rand


def last_of_chunk(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.size(0), dtype=torch.int32)
    for tile in hl.tile(x.size(0)):
        last = min(tile.begin + 8, x.size(0)) - 1
        first = max(3, tile.begin, -1)
        out[tile] = x[tile].to(torch.int32) * 0 + last * 100 + first
    return out


@pytest.mark.parametrize("n", [16, 20])
def test_min_and_max_of_a_position_and_a_number(n: int) -> None:
    begin = torch.arange(n) // 4 * 4
    expected = (torch.clamp(begin + 8, max=n) - 1) * 100 + torch.clamp(begin, min=3)
    check(last_of_chunk, (rand(n),), (4,), expected.to(torch.int32))


def of_tiles(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = min(x[tile], y[tile], 0.5) + max([x[tile], y[tile]]) + min(1, 2) + max([3, 4], key=lambda n: -n) + abs(x[tile])
    return out


def test_min_and_max_of_tiles() -> None:
    x, y = rand(24), rand(24) * 2
    check(of_tiles, (x, y), (8,), torch.minimum(x, y).clamp(max=0.5) + torch.maximum(x, y) + 4 + x.abs())


def rounded(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.size(0), dtype=torch.int32)
    for tile in hl.tile(x.size(0)):
        v: Any = x[tile] * 7
        quotient, rest = divmod(tile.index, 3)
        out[tile] = round(v) + math.floor(v) * 10 + math.ceil(v) * 100 + math.trunc(v) * 1000 + quotient * 3 + rest + sum([tile.begin, 1])
    return out


def test_rounding_and_divmod() -> None:
    x = rand(16)
    v = x * 7
    begin = torch.arange(16) // 4 * 4
    expected = v.round() + v.floor() * 10 + v.ceil() * 100 + v.trunc() * 1000 + torch.arange(16) + begin + 1
    check(rounded, (x,), (4,), expected.to(torch.int32))


def of_block_sizes(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(64)
    block = hl.register_block_size(64)
    for tile in hl.tile(x.size(0), block_size=min(16, block)):
        out[tile] = x[tile] + max(block, 10) * 0
    return out


def test_min_and_max_of_block_sizes() -> None:
    with pytest.raises(Unsupported):  # the size of a tile is a block, not an expression
        program_of(of_block_sizes, rand(64))


def shadowed(x: torch.Tensor) -> torch.Tensor:
    def min(a: Any, b: Any) -> Any:
        return a + b

    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = min(x[tile], 1.0)
    return out


def test_a_name_of_the_users_own_is_theirs() -> None:
    x = rand(12)
    check(shadowed, (x,), (4,), x + 1)


def asserting(x: torch.Tensor) -> torch.Tensor:
    n = x.size(0)
    block = hl.register_block_size(n)
    assert n % block == 0 and 4 <= block < 64, "whole tiles"
    assert n > 0
    out = torch.empty([n // block])
    for tile in hl.tile(n, block_size=block):
        out[tile.id] = x[tile].sum()
    return out


def _asserting_program(n: int) -> Any:
    return capture(asserting, (TensorFact((n,), "float32"),))


def test_an_assertion_about_a_block_size_is_a_constraint() -> None:
    program = _asserting_program(48)
    block, line = Block(0), asserting.__code__.co_firstlineno + 3
    assert program.constraints == (
        Constraint(Relation.EQ, BinExpr("%", 48, block), 0, line),
        Constraint(Relation.LE, 4, block, line),
        Constraint(Relation.LT, block, 64, line),
    )
    assert "assert (48 % B0) == 0" in to_text(program)
    assert decode(encode(program)) == program
    assert fingerprint(program) != fingerprint(_asserting_program(64))


def test_only_configs_that_satisfy_the_assertions_are_legal() -> None:
    program = _asserting_program(48)
    space = Space(program, targets.get("cpu"))
    sizes = [config["block_sizes"][0] for config in space.configs()]
    assert sizes and all(48 % n == 0 and 4 <= n < 64 for n in sizes)
    with pytest.raises(PlanError, match=r"asserts 48 % 32 \(block size 0\) == 0") as error:
        space.check(helion_rt.Config(block_sizes=[32]))
    assert error.value.line == program.constraints[0].line


@pytest.mark.parametrize("n", [48, 130, 7])
def test_the_reference_path_chooses_blocks_that_satisfy_the_assertions(n: int) -> None:
    program = _asserting_program(n)
    x = rand(n)
    (out,) = lowering.reference(program)(jnp.asarray(x.numpy()))
    assert out.shape[0] > n / 64 and n % out.shape[0] == 0
    expected = x.double().reshape(out.shape[0], -1).sum(1)
    torch.testing.assert_close(torch.from_numpy(jnp.asarray(out).copy().__array__().copy()).double(), expected, rtol=1e-5, atol=1e-5)


def test_no_block_size_satisfies_the_assertions() -> None:
    with pytest.raises(PlanError, match="the kernel asserts") as error:
        lowering.reference(_asserting_program(3))
    assert error.value.line == asserting.__code__.co_firstlineno + 3


def comparing(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    block = hl.register_block_size(64)
    if block > 16:
        block = 16
    for tile in hl.tile(x.size(0), block_size=block):
        out[tile] = x[tile]
    return out


def test_a_block_size_compared_in_plain_code_is_refused() -> None:
    with pytest.raises(Unsupported, match="assert a comparison"):
        program_of(comparing, rand(64))


def test_on_ragged_tiles_end_to_end() -> None:
    n = 21
    x, y = rand(n), rand(n) * 2
    begin = torch.arange(n) // 8 * 8
    expected = (torch.clamp(begin + 8, max=n) - 1) * 100 + torch.clamp(begin, min=3)
    run = helion_rt.kernel(last_of_chunk, config=helion_rt.Config(block_sizes=[8]))
    torch.testing.assert_close(run(x), expected.to(torch.int32))
    doubles = torch.minimum(x, y).double().clamp(max=0.5) + torch.maximum(x, y).double() + 4 + x.double().abs()
    run = helion_rt.kernel(of_tiles, config=helion_rt.Config(block_sizes=[8]))
    torch.testing.assert_close(run(x, y).double(), doubles, rtol=1e-6, atol=1e-6)


def test_a_forced_config_that_breaks_an_assertion_is_an_error_at_its_line() -> None:
    x = rand(48)
    with pytest.raises(PlanError, match="the kernel asserts 48 % 32") as error:
        helion_rt.kernel(asserting, config=helion_rt.Config(block_sizes=[32]))(x)
    assert "assert n % block == 0" in str(error.value)
    out = helion_rt.kernel(asserting)(x)
    assert out.shape[0] in (1, 2, 3, 4, 6, 12)
    torch.testing.assert_close(out.double(), x.double().reshape(out.shape[0], -1).sum(1), rtol=1e-5, atol=1e-5)
