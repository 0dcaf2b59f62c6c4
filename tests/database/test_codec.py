"""Bytes from a tier: either exactly what was encoded, or BadRecord."""

from __future__ import annotations

import hashlib
import string
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from database_strategies import config_values, keys, words
from hypothesis import given
from hypothesis import strategies as st

from helion_rt.database import BadRecord, Evidence, EvidenceKind, Origin, Record, Status, decode_record, encode_record
from helion_rt.database.codec import MAX_RECORD_BYTES, decode_program, encode_program, to_plain
from helion_rt.database.key import pack

times = st.none() | st.floats(min_value=1e-9, max_value=1e9)
amounts = st.floats(min_value=0, max_value=1e12)
counts = st.integers(0, 2**40)
records = st.builds(
    Record,
    key=keys,
    kernel=words,
    status=st.sampled_from(Status),
    config=st.dictionaries(words, config_values, max_size=4),
    space_version=counts,
    evidence=st.builds(Evidence, st.sampled_from(EvidenceKind), times, times, amounts, counts, counts, amounts),
    toolchain=st.dictionaries(words, words, max_size=4),
    origin=st.sampled_from(Origin),
    machine=st.text(string.hexdigits, max_size=16),
)


def sealed(plain: Any, kind: bytes = b"r", version: int = 1) -> bytes:
    """An entry with a right checksum, whatever is in it."""
    head, payload = b"HLRT" + kind + bytes([version]), plain if isinstance(plain, bytes) else pack(plain)
    return head + hashlib.sha256(head + payload).digest() + payload


@given(records)
def test_record_round_trip(record: Record) -> None:
    data = encode_record(record)
    assert decode_record(data) == record
    assert encode_record(decode_record(data)) == data


@given(words, st.binary(max_size=200))
def test_program_round_trip(alias: str, program: bytes) -> None:
    assert decode_program(encode_program(alias, program)) == (alias, program)


@given(st.binary(max_size=300))
def test_random_bytes_are_bad(data: bytes) -> None:
    for decode in (decode_record, decode_program):
        for attempt in (data, sealed(data), sealed(data, b"p")):
            if decode is decode_program and attempt == sealed(data, b"p"):
                continue  # may be a program: a list of text and bytes is short enough to be hit by chance
            with pytest.raises(BadRecord):
                decode(attempt)


@given(records, st.data())
def test_flipped_bits_and_truncations_are_bad(record: Record, data: st.DataObject) -> None:
    good = encode_record(record)
    flipped = bytearray(good)
    flipped[data.draw(st.integers(0, len(good) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    for bad in (bytes(flipped), good[: data.draw(st.integers(0, len(good) - 1))], good + b"\0"):
        with pytest.raises(BadRecord):
            decode_record(bad)


@given(records, st.data())
def test_damage_under_a_right_checksum_never_makes_something_that_is_not_a_record(record: Record, data: st.DataObject) -> None:
    payload = bytearray(pack(to_plain(record)))
    payload[data.draw(st.integers(0, len(payload) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found = decode_record(sealed(bytes(payload)))
    except BadRecord:
        return
    assert decode_record(encode_record(found)) == found


def test_schema_is_checked_field_by_field(make_record: Callable[..., Record]) -> None:
    good = to_plain(make_record())
    assert decode_record(sealed(good)) == make_record()
    wrong = [None, [], "text", -1, {"a": 1}, b"bytes", 1.5, float("nan")]
    for name in good:
        with pytest.raises(BadRecord):
            decode_record(sealed({k: v for k, v in good.items() if k != name}))
        for value in wrong:
            if (name == "config" and value == {"a": 1}) or (name in ("kernel", "machine") and value == "text"):
                continue
            with pytest.raises(BadRecord):
                decode_record(sealed({**good, name: value}))
    with pytest.raises(BadRecord):
        decode_record(sealed({**good, "more": 1}))
    for name in good["evidence"]:
        with pytest.raises(BadRecord):
            decode_record(sealed({**good, "evidence": {**good["evidence"], name: "text"}}))


def test_kinds_versions_and_extension_types_do_not_mix(make_record: Callable[..., Record]) -> None:
    good = to_plain(make_record())
    hostile = [
        sealed(good, b"p"),
        sealed(good, version=2),
        sealed({**good, "config": {"x": msgpack.ExtType(1, b"x")}}),
        sealed({**good, "config": {"x": msgpack.Timestamp(1)}}),
        sealed({1: 2}),
        sealed(b"\x91" * 50_000 + b"\xc0"),  # nested fifty thousand deep
        sealed(b"\xdd\xff\xff\xff\xff"),  # a list that claims four thousand million items
        sealed(b"\xc6\xff\xff\xff\xff"),
        encode_program("alias", b"program"),
    ]
    for data in hostile:
        with pytest.raises(BadRecord):
            decode_record(data)


def test_size_is_capped_both_ways(make_record: Callable[..., Record]) -> None:
    with pytest.raises(ValueError, match="at most 65536 bytes"):
        encode_record(make_record(config={str(i): i for i in range(20_000)}))
    with pytest.raises(BadRecord, match="too long"):
        decode_record(sealed("x" * MAX_RECORD_BYTES))
