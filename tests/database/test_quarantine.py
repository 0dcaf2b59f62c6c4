"""Configs in quarantine: kept, merged as a union, and a roll-back outlives the winner that it took down."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helion_rt.database import BadRecord, Evidence, EvidenceKind, Key, Record, Status, better, decode_record, encode_record, open_local
from helion_rt.database.codec import to_plain
from helion_rt.database.key import pack
from helion_rt.database.record import MAX_QUARANTINED

Make = Callable[..., Record]
KEY = Key("ab" * 32, (), "default", "cpu")
sizes = st.integers(1, 4)


def record(status: Status, size: int, gain: float, revision: int, bad: list[int]) -> Record:
    evidence = Evidence(EvidenceKind.MEASURED, ms=1.0, default_ms=gain)
    quarantined = tuple({"block_sizes": [n]} for n in bad)
    return Record(KEY, "k", status, {"block_sizes": [size]}, 1, evidence, {}, date="2026-01-01T00:00:00Z", quarantined=quarantined,
                  revision=revision)  # fmt: skip


records = st.builds(record, st.sampled_from(Status), sizes, st.sampled_from([1.5, 3.0]), st.integers(0, 2), st.lists(sizes, max_size=3))


@settings(deadline=None)
@given(st.lists(records, min_size=2, max_size=4))
def test_merging_joins_and_does_not_depend_on_the_order(found: list[Record]) -> None:
    merged = []
    for permutation in itertools.permutations(found):
        best = permutation[0]
        for other in permutation[1:]:
            best = better(best, other)
        merged.append(best)
    assert all(one == merged[0] for one in merged)
    assert {repr(c) for r in found for c in r.quarantined} == {repr(c) for c in merged[0].quarantined}


@settings(deadline=None)
@given(records)
def test_round_trip(found: Record) -> None:
    assert decode_record(encode_record(found)) == found


def test_what_has_never_been_rolled_back_is_written_as_before(make_record: Make) -> None:
    assert "quarantined" not in to_plain(make_record()) and "revision" not in to_plain(make_record())


@pytest.mark.parametrize("wrong", [{"quarantined": [1]}, {"quarantined": {}}, {"quarantined": [[]], "revision": 1}, {"revision": 1}])
def test_the_schema_is_checked(make_record: Make, wrong: dict[str, object]) -> None:
    payload = pack({**to_plain(make_record()), **wrong})
    head = b"HLRT" + b"r" + bytes([1])
    with pytest.raises(BadRecord):
        decode_record(head + hashlib.sha256(head + payload).digest() + payload)


def test_a_roll_back_outranks_the_winner_and_gives_way_to_the_next_one(make_record: Make) -> None:
    winner = make_record(9)
    gone = winner.rolled_back()
    assert gone.status is Status.ALL_FAILED and gone.quarantined == (winner.config,) and not gone.is_void
    assert better(winner, gone) == better(gone, winner) == gone
    next_one = make_record(1, quarantined=gone.quarantined, revision=gone.revision)
    assert better(gone, next_one) == better(next_one, gone) == next_one
    assert better(winner, next_one) == next_one, "the slower winner that nobody has taken back"


def test_a_winner_that_somebody_else_has_found_wanting_is_void(make_record: Make) -> None:
    winner = make_record(9, revision=1)
    elsewhere = make_record(1, quarantined=(winner.config,), revision=1)
    merged = better(winner, elsewhere)
    assert merged.config == winner.config and merged.is_void


def test_the_tier_never_forgets_a_quarantine(tmp_path: Path, make_record: Make) -> None:
    tier = open_local(tmp_path)
    winner = make_record(9)
    assert tier.put(winner) and tier.put(winner.rolled_back(), force=True)
    assert tier.put(make_record(3), force=True)  # by a process that had not heard of it
    found = open_local(tmp_path).get(winner.key)
    assert found is not None and found.config == make_record(3).config and found.quarantined == (winner.config,)
    assert tier.put(winner)
    again = tier.get(winner.key)
    assert again is not None and again.quarantined == (winner.config,)


def test_there_is_an_end_to_it(make_record: Make) -> None:
    many = tuple({"block_sizes": [n]} for n in range(MAX_QUARANTINED + 9))
    assert len(make_record(quarantined=many).quarantined) == MAX_QUARANTINED
