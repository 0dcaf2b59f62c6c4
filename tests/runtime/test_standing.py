"""What a record is worth in this process, and which records are near."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from helion_rt.config import Config
from helion_rt.database import Evidence, EvidenceKind, Key, Origin, Record, Status, utc_now
from helion_rt.runtime.standing import MAX_NEAREST, Reason, Standing, distance, judge, nearest, prefer, standing
from helion_rt.tuning.space import SPACE_VERSION

NOW = datetime(2026, 6, 1, tzinfo=UTC)
TOOLS = {"helion_rt": "1", "jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "5", "torch": "2"}

ALL_FAILED = {"status": Status.ALL_FAILED, "config": {}, "date": "2026-05-31T20:00:00Z", "evidence": Evidence(EvidenceKind.MODELLED)}


def key(target="cpu;x86_64-v3;2", shape=("64", "64"), dtype="float32", digest="ab"):
    return Key(digest * 32, (("tensor", shape, dtype),), "default", target)


def record(**changes):
    fields = {
        "key": key(), "kernel": "k", "status": Status.WINNER, "config": {"block_sizes": [8]}, "space_version": SPACE_VERSION,
        "evidence": Evidence(EvidenceKind.MEASURED, 1.0, 2.0), "toolchain": TOOLS, "date": "2026-05-31T00:00:00Z",
    }  # fmt: skip
    return Record(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Standing.FINAL),
        ({"status": Status.NO_CANDIDATE, "date": "2020-01-01T00:00:00Z"}, Standing.FINAL),
        ({"space_version": SPACE_VERSION + 1}, Standing.MISS),
        ({"quarantined": ({"block_sizes": [8]},)}, Standing.MISS),
        ({"date": "2026-04-01T00:00:00Z"}, Standing.HINT),
        ({"origin": Origin.IMPORTED}, Standing.HINT),
        ({"retune": True}, Standing.HINT),
        ({"retune": True, "status": Status.NO_CANDIDATE, "config": {}}, Standing.HINT),
        ({"retune": True, **ALL_FAILED}, Standing.MISS),
        ({"toolchain": {**TOOLS, "jax": "0.10.3"}}, Standing.HINT),
        ({"toolchain": {**TOOLS, "torch": "3", "libtpu": "6"}}, Standing.FINAL),  # neither compiles for the CPU
        ({"toolchain": {**TOOLS, "libtpu": "6"}, "key": key("v5e")}, Standing.HINT),
        ({"evidence": Evidence(EvidenceKind.SCHEDULED, 1.0, 2.0)}, Standing.HINT),
        ({"evidence": Evidence(EvidenceKind.MODELLED, 1.0, 2.0), "status": Status.NO_CANDIDATE}, Standing.HINT),
        ({**ALL_FAILED, "date": "2026-05-31T00:00:00Z"}, Standing.MISS),  # a day has passed
        (ALL_FAILED, Standing.FINAL),
        ({**ALL_FAILED, "toolchain": {}}, Standing.MISS),
        ({**ALL_FAILED, "evidence": Evidence(EvidenceKind.MEASURED, None, 2.0)}, Standing.MISS),  # rolled back: what else is there?
        ({"date": "2026-06-01T00:05:00Z"}, Standing.FINAL),  # of a clock that is fast
        ({"date": "9999-12-31T23:59:59Z"}, Standing.HINT),
        ({**ALL_FAILED, "date": "9999-12-31T23:59:59Z"}, Standing.MISS),
    ],
)
def test_standing(changes, expected):
    assert standing(record(**changes), TOOLS, now=NOW) is expected


def test_extents_that_are_none_are_no_error():
    """Signatures come from whoever wrote the record."""
    for odd in ("9" * 5000, "\N{SUPERSCRIPT TWO}", "-3", ""):
        assert distance(("64", odd), ("64", "8")) is None and distance((odd,), (odd,)) == 0.0
    assert distance(("64", "8"), ("16", "16")) == 3.0


def test_the_reason_has_the_facts():
    assert str(judge(record(), TOOLS, now=NOW)) == "final: measured under this toolchain"
    other = judge(record(toolchain={**TOOLS, "jax": "0.9", "libtpu": "4"}, key=key("v5e")), TOOLS, now=NOW)
    assert str(other) == "hint: found under another toolchain (jax 0.9, here 0.10.2; libtpu 4, here 5)"
    assert "libtpu" not in judge(record(toolchain={"jax": "0.9"}), TOOLS, now=NOW).detail  # on the CPU it compiles nothing
    assert judge(record(space_version=SPACE_VERSION + 1), TOOLS).detail == f"{SPACE_VERSION + 1}, here {SPACE_VERSION}"
    assert judge(None, TOOLS).reason is Reason.NO_RECORD
    scheduled = record(evidence=Evidence(EvidenceKind.SCHEDULED, 1.0))
    assert judge(scheduled, TOOLS, strict=True, now=NOW).reason is Reason.NOT_STRICT


def test_a_later_look_elsewhere_goes_before_what_was_found_here():
    here, elsewhere = record(date=utc_now()), record(config={"block_sizes": [16]}, origin=Origin.IMPORTED)
    later = replace(elsewhere, revision=1)
    for a, b in ((here, elsewhere), (elsewhere, here)):
        assert prefer(a, b, TOOLS) == here
    for a, b in ((here, later), (later, here)):
        assert prefer(a, b, TOOLS) == later
    asked = here.to_be_retuned()
    assert prefer(here, asked, TOOLS) == prefer(asked, here, TOOLS) == asked


def test_strict_serves_only_what_was_measured():
    assert standing(record(), TOOLS, strict=True, now=NOW) is Standing.FINAL
    assert standing(record(evidence=Evidence(EvidenceKind.SCHEDULED, 1.0)), TOOLS, strict=True, now=NOW) is Standing.MISS


def test_nothing_is_a_miss_and_a_clock_that_was_set_back_harms_nobody():
    assert standing(None, TOOLS) is Standing.MISS
    assert standing(record(), TOOLS, now=NOW - timedelta(days=20)) is Standing.FINAL
    assert standing(record(), TOOLS, now=NOW - timedelta(days=900)) is Standing.HINT, "it serves on, and is measured again"


def test_the_nearest_winners_of_the_same_kernel_come_first():
    mine = key(shape=("256", "256"))
    found = [
        record(key=key(shape=("1024", "256")), config={"block_sizes": [2]}),
        record(key=key(shape=("512", "256")), config={"block_sizes": [1]}),
        record(key=key(target="v5e", shape=("256", "256")), config={"block_sizes": [3]}),
        record(key=mine, config={"block_sizes": [4]}),  # that is no other key
        record(key=key(shape=("256",)), config={"block_sizes": [5]}),  # another rank
        record(key=key(shape=("256", "256"), dtype="bfloat16", digest="cd"), config={"block_sizes": [6]}),
        record(key=key(shape=("128", "256")), config={"block_sizes": [7, 7]}),  # another kernel of that name
        record(key=key(shape=("256", "128")), config={"block_sizes": [8]}, kernel="other"),
        record(key=key(shape=("256", "64")), config={"block_sizes": [9]}, status=Status.NO_CANDIDATE),
        record(key=key(shape=("256", "512")), config={"block_sizes": [10]}, quarantined=({"block_sizes": [10]},)),
    ]
    near = nearest(found, mine, "k", Config(block_sizes=[64]))
    assert [c.block_sizes for c in near] == [[1], [3], [2]]
    many = [record(key=key(shape=("512", str(n))), config={"block_sizes": [n]}) for n in range(1, 40)]
    assert len(nearest(many, mine, "k", Config(block_sizes=[64]))) == MAX_NEAREST
