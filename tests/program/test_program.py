"""Codec, fingerprint, printer and cost of programs that were really captured."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import msgpack
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import helion_rt.language as hl
from helion_rt.program import cost, decode, encode, fingerprint, simplify, to_text
from helion_rt.program.codec import MAX_BYTES
from helion_rt.program.cost import bytes_of
from helion_rt.program.ir import Op, Program, Ref, Region, TensorType
from tests.capture import kernels
from tests.capture.test_capture import program_of, rand


def _softmax() -> Program:
    return program_of(kernels.softmax_two_pass, rand(12, 20))


PROGRAMS = [
    _softmax(),
    program_of(kernels.two_outputs, rand(8, 6), 3.0),
    program_of(kernels.causal_sums, rand(24)),
    program_of(kernels.scale_in_place, rand(8), 2.0),
    program_of(kernels.attention, rand(2, 8, 4), rand(2, 12, 4), rand(2, 12, 4)),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_round_trip(program: Program) -> None:
    data = encode(program)
    assert decode(data) == program and encode(decode(data)) == data
    assert simplify(program) == program


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode(data)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(encode(PROGRAMS[0])) - 1))
def test_truncated_bytes_are_refused(length: int) -> None:
    with pytest.raises(ValueError):
        decode(encode(PROGRAMS[0])[:length])


def _leaves(data: Any, path: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    if isinstance(data, list):
        return [path] + [p for i, item in enumerate(data) for p in _leaves(item, (*path, i))]
    return [path]


RAW = msgpack.unpackb(encode(PROGRAMS[0]))
PATHS = _leaves(RAW)[1:]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(PATHS), st.sampled_from([None, -1, 10**6, "x", 1.5, [], ["r", 999], ["e", "**", 1, 2], {}, b"b", True, [[]]]))
def test_damaged_fields_are_refused_or_give_a_well_formed_program(path: tuple[int, ...], value: Any) -> None:
    raw = msgpack.unpackb(encode(PROGRAMS[0]))
    at = raw
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    try:
        program = decode(msgpack.packb(raw))
    except ValueError:
        return
    assert decode(encode(program)) == program


def test_undefined_values_and_wrong_nesting_are_refused() -> None:
    program = PROGRAMS[0]
    early = dataclasses.replace(program, host=Region(tuple(reversed(program.host.ops))))
    with pytest.raises(ValueError, match="not defined"):
        decode(encode(early))
    with pytest.raises(ValueError, match="too large"):
        encode(dataclasses.replace(program, source="x" * MAX_BYTES))
    deep = Op("aten.neg.default", ((),), (), (), 1)
    nested: Any = ()
    for _ in range(200):
        nested = (nested,)
    with pytest.raises(ValueError):
        decode(encode(dataclasses.replace(program, host=Region((dataclasses.replace(deep, args=nested),)))))


def _one(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        value = x[tile] * 2
        out[tile] = value + 1
    return out


def _one_renamed(data):
    # The same, written otherwise.
    result = torch.empty_like(
        data,
    )

    for t in hl.tile(data.size(0)):
        unused = data[t] / 3  # noqa: F841
        doubled = data[t] * 2
        result[t] = doubled + 1
    return result


def _other(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        value = x[tile] * 2
        out[tile] = value + 2
    return out


def test_fingerprint_depends_on_what_is_computed_alone() -> None:
    one = fingerprint(program_of(_one, rand(8)))
    assert one == fingerprint(program_of(_one_renamed, rand(8))) and len(one) == 64
    assert one != fingerprint(program_of(_other, rand(8)))
    assert one != fingerprint(program_of(_one, rand(9)))
    assert one != fingerprint(program_of(_one, rand(8, dtype=torch.bfloat16)))
    moved = dataclasses.replace(program_of(_one, rand(8)), name="n", file="f", first_line=7, source="s")
    assert fingerprint(moved) == one
    assert fingerprint(dataclasses.replace(moved, numerics="ieee")) != one


def test_simplify_drops_what_only_feeds_itself() -> None:
    def dead_carry(x):
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            acc = hl.zeros([tile])
            useless = hl.zeros([tile])
            for inner in hl.tile(x.size(0)):
                acc = acc + x[inner].sum()
                useless = useless * 2
            out[tile] = acc
        return out

    program = program_of(dead_carry, rand(8))
    (loop,) = [op for op in program.launches[0].regions[0].ops if op.name == "hl.loop"]
    assert len(loop.results) == 1
    assert "aten.mul.Tensor" not in {op.name for op in loop.regions[0].ops}


def test_listing() -> None:
    text = to_text(PROGRAMS[0])
    assert text.startswith("program softmax_two_pass  # ")
    assert "block B0 tunable, for an extent of 12" in text and "axis 1 from 0 to 20 in steps of B1" in text
    assert "float32[B0, B1] = hl.load(%0, (tile 0, tile 1))" in text
    line = kernels.softmax_two_pass.__code__.co_firstlineno + 10
    assert f"aten.amax.default(%6, (1,))  # line {line}" in text
    assert "yield" in text and "carry" in text


def test_cost_of_a_product() -> None:
    program = program_of(kernels.matmul_dot, rand(16, 18), rand(18, 12))
    found = cost(program)
    assert found.dot_flops == 2 * 16 * 18 * 12
    assert found.bytes == 4 * (16 * 18 + 18 * 12 + 16 * 12)


def test_cost_of_elementwise_work() -> None:
    found = cost(program_of(_one, rand(8)))
    assert (found.flops, found.dot_flops, found.bytes) == (16, 0, 64)


def test_sizes_of_dtypes() -> None:
    assert [bytes_of(d) for d in ("bool", "int8", "bfloat16", "float8_e4m3fn", "float32", "int64")] == [1, 1, 2, 1, 4, 8]
    with pytest.raises(ValueError):
        bytes_of("object")


def test_nan_and_infinite_constants_survive() -> None:
    kind = TensorType((), "float32")
    ops = tuple(Op("aten.full.default", ((), v), (), (i,), 1) for i, v in enumerate((math.inf, -math.inf, math.nan)))
    program = dataclasses.replace(PROGRAMS[0], params=(), types=(kind,) * 3, axes=(), host=Region(ops), outputs=(Ref(0), Ref(1), Ref(2)))
    values = [op.args[1] for op in decode(encode(program)).host.ops]
    assert values[:2] == [math.inf, -math.inf] and math.isnan(values[2])  # type: ignore[arg-type]
