"""Records: what is refused, and which of two is the better."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helion_rt.database import Evidence, EvidenceKind, Key, Origin, Record, Status, better, machine_name, utc_now
from helion_rt.database.record import upper_bound_ms

KEY = Key("ab" * 32, (), "default", "cpu")


def record(kind: EvidenceKind, status: Status, ms: float | None, space: int, jax: str, date: str, pairs: int, size: int) -> Record:
    evidence = Evidence(kind, ms=ms, default_ms=2.0, pairs=pairs)
    return Record(KEY, "k", status, {"block_sizes": [size]}, space, evidence, {"jax": jax}, date=date)


records = st.builds(
    record,
    st.sampled_from(EvidenceKind),
    st.sampled_from(Status),
    st.sampled_from([None, 1.0, 1.5, 3.0]),
    st.sampled_from([1, 2]),
    st.sampled_from(["0.9.12", "0.10.2", "0.10.10", "nightly"]),
    st.sampled_from(["2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"]),
    st.sampled_from([4, 8]),
    st.sampled_from([8, 16]),
)


@given(st.lists(records, min_size=2, max_size=4))
def test_merging_does_not_depend_on_the_order(found: list[Record]) -> None:
    winners = []
    for permutation in itertools.permutations(found):
        best = permutation[0]
        for other in permutation[1:]:
            best = better(best, other)
        winners.append(best)
    assert all(winner == winners[0] for winner in winners)


def test_what_counts_more(make_record: Callable[..., Record]) -> None:
    measured, scheduled = EvidenceKind.MEASURED, EvidenceKind.SCHEDULED
    failed, default_stays = {"status": Status.ALL_FAILED, "config": {}}, {"status": Status.NO_CANDIDATE, "config": {}}
    # Each is better than the one before it, for a reason that counts more.
    ladder = [
        make_record(evidence=Evidence(EvidenceKind.MODELLED, ms=0.1)),
        make_record(evidence=Evidence(scheduled, ms=0.5, default_ms=9.0)),
        make_record(evidence=Evidence(measured, default_ms=0.1), **failed),
        make_record(evidence=Evidence(measured, ms=2.0, default_ms=9.0)),
        make_record(evidence=Evidence(measured, default_ms=1.5), **default_stays),
        make_record(evidence=Evidence(measured, ms=1.0, spread=0.3)),  # 1.0 ms, but it may as well be 1.3
        make_record(evidence=Evidence(measured, ms=1.2, spread=0.01, default_ms=1.3)),
        make_record(evidence=Evidence(measured, ms=0.5, default_ms=1.1), **default_stays),
        make_record(evidence=Evidence(measured, ms=1.05, spread=0.01)),
        make_record(evidence=Evidence(measured, ms=3.0), revision=1),
        make_record(evidence=Evidence(measured, ms=4.0), toolchain={"jax": "0.10.10"}),
        make_record(evidence=Evidence(measured), toolchain={"jax": "0.10.10", "jaxlib": "0.10.9"}, **failed),
        make_record(evidence=Evidence(measured), space_version=2, **default_stays),
    ]
    for worse, good in itertools.combinations(ladder, 2):
        assert better(worse, good) == better(good, worse) == good


def test_of_a_tie_one_is_chosen_by_what_the_records_say_and_not_by_where_they_came_from(make_record: Callable[..., Record]) -> None:
    one, two = make_record(date="2026-11-29T12:00:00Z"), make_record(date="2026-11-29T12:00:01Z")
    assert better(one, two) == better(two, one)
    best, other = (one, two) if better(one, two) == one else (two, one)
    imported = replace(best, origin=Origin.IMPORTED)
    assert better(imported, other) == imported and better(imported, best) == better(best, imported) == best


@pytest.mark.parametrize(
    ("status", "ms", "default_ms", "bound"),
    [(Status.WINNER, 2.0, 3.0, 2.5), (Status.WINNER, None, 3.0, math.inf), (Status.NO_CANDIDATE, 2.0, 4.0, 5.0),
     (Status.NO_CANDIDATE, 2.0, None, 2.5), (Status.NO_CANDIDATE, None, None, math.inf), (Status.ALL_FAILED, 2.0, 3.0, math.inf)],
)  # fmt: skip
def test_the_bound_is_of_what_would_serve(
    make_record: Callable[..., Record], status: Status, ms: float | None, default_ms: float | None, bound: float
) -> None:
    found = make_record(status=status, evidence=Evidence(EvidenceKind.MEASURED, ms=ms, default_ms=default_ms, spread=0.25))
    assert upper_bound_ms(found) == bound


@pytest.mark.parametrize("name", ["ms", "default_ms", "spread", "seconds"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_numbers_that_say_nothing_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        Evidence(EvidenceKind.MEASURED, **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"config": {"x": math.nan}}, {"config": {"x": 2**70}}, {"config": {"x": object()}}, {"config": {1: 2}}, {"config": 3},
        {"status": "winner"}, {"space_version": -1}, {"space_version": True}, {"toolchain": {"jax": 1}}, {"date": "yesterday"},
        {"date": "2026-13-01T00:00:00Z"}, {"date": "0000-01-01T00:00:00Z"},
        {"date": "2026-11-29T24:61:00Z"}, {"revision": 2**31},
        {"kernel": "\ud800"}, {"config": {"\udfff": 1}}, {"machine": "\udc80"},
        {"kernel": "k" * 1000}, {"evidence": None}, {"key": "ab"},
    ],
)  # fmt: skip
def test_malformed_records_are_refused(make_record: Callable[..., Record], changes: dict[str, object]) -> None:
    with pytest.raises((TypeError, ValueError)):
        make_record(**changes)


def test_now_and_machine_are_what_a_record_takes(make_record: Callable[..., Record]) -> None:
    made = make_record(date=utc_now(), machine=machine_name())
    assert made.date.endswith("Z") and len(made.machine) == 16


def test_speedup_is_known_only_with_both_times() -> None:
    assert Evidence(EvidenceKind.MEASURED, ms=2.0, default_ms=3.0).speedup == 1.5
    assert Evidence(EvidenceKind.MEASURED, ms=2.0).speedup is None
