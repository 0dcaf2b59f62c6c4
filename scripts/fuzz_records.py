"""Fuzz the decoder of database entries: ``python -m scripts.fuzz_records [--seconds 600] [--seed N]``.

Entries are made up by hypothesis: random bytes, damaged ones, and well-formed msgpack of nearly the right form under a right checksum,
with and without signatures. Whatever they are, the decoder either refuses them with BadRecord, or gives a record that can be used: encoded
to the same record again, ranked, merged with a good one in either order, its config read. The exit status is 0 if nothing else happened.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import random
import secrets
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from helion_rt import database as db
from helion_rt.config import Config
from helion_rt.database.codec import decode_program, to_plain
from helion_rt.database.key import pack
from helion_rt.database.record import EVIDENCE_FIELDS, LATER_FIELDS, MAX_REVISION, RECORD_FIELDS, order
from helion_rt.exc import ConfigError

# Slow and large inputs are what it is for.
ALLOWED = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example)
PHASES = (Phase.generate, Phase.shrink)
ROUND = 2000  # examples between two looks at the clock

KEY = db.Key("ab" * 32, (("tensor", (128, 64), "float32"), None, True), "default", "cpu")
EVIDENCE = db.Evidence(db.EvidenceKind.MEASURED, 1.0, 2.0, 0.1, 8)
GOOD = db.Record(KEY, "k", db.Status.WINNER, {"block_sizes": [8, 16]}, 1, EVIDENCE, {"jax": "0.10.2"}, date="2026-11-29T12:00:00Z",
                 quarantined=({"block_sizes": [1, 2]},), revision=1)  # fmt: skip
TRUSTS = (db.Trust(), db.Trust(b"secret"), db.Trust(b"secret", required=True))

NAMES = sorted({*RECORD_FIELDS, *LATER_FIELDS, *EVIDENCE_FIELDS, "minor", "retune", "sha256", "int", "float", "block_sizes"})
TEXTS = ["winner", "measured", "tuned_here", "nan", "9" * 5000, "2026-11-29T12:00:00Z", "9999-99-99T99:99:99Z", "ab" * 32]
names = st.sampled_from(NAMES) | st.text(max_size=3)
numbers = st.integers(-(2**63), 2**64 - 1) | st.floats() | st.sampled_from([0, 1, 64, 2**31, 2**63, -0.0, 1e308, 5e-324])
texts = st.text(max_size=8) | st.sampled_from(TEXTS)
leaves = st.none() | st.booleans() | numbers | texts | st.binary(max_size=8)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names | st.binary(max_size=2), inner, max_size=4), max_leaves=20
)

plain_configs = st.dictionaries(names | st.just("block_sizes"), values, max_size=4)
PLAUSIBLE = {
    "status": st.sampled_from(["winner", "no_candidate", "all_failed"]),
    "kind": st.sampled_from(["measured", "scheduled", "modelled"]),
    "origin": st.sampled_from(["tuned_here", "imported", "shipped"]),
    "config": plain_configs,
    "quarantined": st.lists(plain_configs, max_size=3),
    "toolchain": st.dictionaries(texts, texts, max_size=3),
    "kernel": texts,
    "machine": texts,
    "minor": st.integers(0, 3),
    "retune": st.booleans(),
    **{name: st.integers(0, 2**40) for name in ("space_version", "revision", "pairs", "candidates_tried")},
    **{name: st.floats(0, 1e308) for name in ("ms", "default_ms", "spread", "seconds")},
}


@st.composite
def nearly_right(draw: st.DrawFn) -> Any:
    """The plain data of a record, with some fields changed, gone or new, at any depth."""
    plain = copy.deepcopy(to_plain(GOOD))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from([plain, plain["evidence"], plain["key"], plain["config"], plain["toolchain"], plain["quarantined"]]))
        if isinstance(place, list):
            place[draw(st.integers(0, len(place) - 1)) if place else 0 :] = draw(st.lists(values, max_size=4))
        elif isinstance(place, dict):
            name = draw(st.sampled_from(sorted(place, key=repr))) if place and draw(st.integers(0, 4)) else draw(names)
            if draw(st.integers(0, 4)):
                place[name] = draw(PLAUSIBLE.get(name, values) if draw(st.integers(0, 4)) else values)
            else:
                place.pop(name, None)
        if not all(isinstance(plain.get(name), (dict, list)) for name in ("evidence", "key", "config", "toolchain", "quarantined")):
            break
    return plain


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes changed, inserted, taken out or doubled."""
    made = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(made) - 1, 0)))
        length = draw(st.integers(0, 8))
        made[at : at + length] = draw(st.binary(max_size=8) | st.just(bytes(made[at : at + length]) * 2))
    return bytes(made)


def sealed(payload: bytes, kind: bytes, version: int) -> bytes:
    head = b"HLRT" + kind + bytes([version])
    return head + hashlib.sha256(head + payload).digest() + payload


claims = st.integers(0, 2**32 - 1)
openings = st.sampled_from([b"\x91", b"\x81\xa1a", b"\xdd\x00\x00\x00\x01"])
payloads = st.one_of(
    st.binary(max_size=200),
    values.map(pack),
    *[nearly_right().map(pack)] * 6,
    *[damaged(pack(to_plain(GOOD)))] * 2,
    st.builds(lambda n, opening: opening * n + b"\xc0", st.integers(1, 20_000), openings),
    st.builds(lambda kind, size: kind + size.to_bytes(4, "big") + b"x" * 9, st.sampled_from([b"\xdb", b"\xc6", b"\xdd", b"\xdf"]), claims),
)
entries = st.builds(sealed, payloads, st.sampled_from([b"r"] * 9 + [b"p"]), st.sampled_from([1] * 12 + [0, 2, 255]))
layers = st.builds(lambda trust, data: trust.seal(data), st.sampled_from(TRUSTS), entries)
whole = db.encode_record(GOOD)
inputs = st.one_of(st.binary(max_size=200), *[entries] * 4, *[layers] * 2, damaged(whole), damaged(TRUSTS[1].seal(whole)))


def check(data: bytes) -> str:
    """What became of one input. Raises AssertionError, or whatever it should not have raised."""
    verdicts = [_checked(data, trust) for trust in TRUSTS]
    for trust in TRUSTS:
        try:
            alias, program = decode_program(trust.open(data))
            assert isinstance(alias, str) and isinstance(program, bytes)
        except db.BadRecord:
            pass
    return verdicts[0]


def _checked(data: bytes, trust: db.Trust) -> str:
    try:
        record = db.decode_record(trust.open(data))
    except db.NewerRecord:
        return "newer"
    except db.BadRecord:
        return "bad"
    again = db.encode_record(record)
    assert db.decode_record(again) == record and db.encode_record(db.decode_record(again)) == again
    good = GOOD if record.key == KEY else record.rolled_back()
    assert db.encode_record(db.better(record, good)) == db.encode_record(db.better(good, record))
    assert order(record.rolled_back()) > order(record) or record.revision == MAX_REVISION
    assert isinstance(record.is_void, bool)
    try:
        Config.from_dict(record.config)
    except ConfigError:
        return "a record without a config"
    return "a record"


def mutant(dice: random.Random) -> bytes:
    """The good entry with a few bytes of its payload changed, under a right checksum: cheaper than hypothesis, and blinder."""
    made = bytearray(pack(to_plain(GOOD)))
    for _ in range(dice.randrange(1, 5)):
        at = dice.randrange(len(made))
        match dice.randrange(4):
            case 0:
                made[at] ^= 1 << dice.randrange(8)
            case 1:
                made[at] = dice.choice(b"\x00\x01\x7f\x80\x90\xa0\xc0\xc3\xca\xcb\xcf\xd3\xd9\xdd\xdf\xff")
            case 2:
                del made[at : at + dice.randrange(1, 9)]
            case _:
                other = dice.randrange(len(made))
                made[at:at] = made[other : other + dice.randrange(1, 9)]
        made = made or bytearray(b"\xc0")
    return sealed(bytes(made), b"r", 1)


def fuzz(seconds: float, start: int, examples: int = ROUND) -> Counter[str]:
    """Try inputs for so many seconds, one in eleven hypothesis's; how often each verdict fell. Raises what ``check`` raises; of an input of
    hypothesis's the smallest that does it is printed, another is in a note of the exception."""
    seen: Counter[str] = Counter()
    end = time.monotonic() + seconds
    for n in range(start, sys.maxsize):

        @seed(n)
        @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=ALLOWED, phases=PHASES)
        @given(inputs)
        def one(data: bytes) -> None:
            seen[check(data)] += 1

        one()
        dice = random.Random(n)
        for _ in range(10 * examples):
            data = mutant(dice)
            try:
                seen[check(data)] += 1
            except Exception as error:
                error.add_note(f"input: {data!r}")
                raise
        if time.monotonic() >= end:
            break
    return seen


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.fuzz_records", description="Fuzz the decoder of database entries.")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long (default: 600)")
    parser.add_argument("--seed", type=int, default=None, help="the first seed, to repeat a run (default: a random one)")
    given_ = parser.parse_args(arguments)
    start = secrets.randbelow(2**31) if given_.seed is None else given_.seed
    print(f"seed {start}", flush=True)
    began = time.monotonic()
    seen = fuzz(given_.seconds, start)
    verdicts = ", ".join(f"{n} {what}" for what, n in seen.most_common())
    print(f"{sum(seen.values())} inputs in {time.monotonic() - began:.0f} s, nothing unforeseen: {verdicts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
