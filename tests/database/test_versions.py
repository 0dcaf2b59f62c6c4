"""Entries of other versions: whatever was ever written is read, and what is still to come is kept or left alone.

``old_records`` holds entries as the codecs of earlier versions wrote them: ``first`` (before there was a quarantine), ``quarantine``
(before its size was bounded), ``bounded``. They are never written anew: a codec that cannot read them breaks every cache there is.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helion_rt.database import BadRecord, LocalTier, NewerRecord, Record, StoreKind, better, decode_record, encode_record
from helion_rt.database import tier as tier_module
from helion_rt.database.codec import decode_program, encode_program, from_plain, to_plain
from helion_rt.database.key import pack
from helion_rt.database.record import MINOR

Make = Callable[..., Record]
OLD = Path(__file__).parent / "old_records"
EXPECTED: dict[str, dict[str, Any]] = json.loads((OLD / "expected.json").read_text())
LATER = MINOR + 2


def sealed(plain: Any, kind: bytes = b"r", version: int = 1) -> bytes:
    head, payload = b"HLRT" + kind + bytes([version]), plain if isinstance(plain, bytes) else pack(plain)
    return head + hashlib.sha256(head + payload).digest() + payload


def of_a_later_minor(record: Record, **more: Any) -> bytes:
    plain = to_plain(record)
    return sealed({**plain, "minor": LATER, "pinned": "by the operator", "evidence": {**plain["evidence"], "joules": 0.5}, **more})


@pytest.fixture(params=[StoreKind.SQLITE, StoreKind.FILES], ids=["sqlite", "files"])
def tier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LocalTier:
    monkeypatch.setattr(tier_module, "is_network_file_system", lambda path: request.param is StoreKind.FILES)
    return LocalTier(tmp_path / "cache")


def plant(tier: LocalTier, name: str, data: bytes) -> None:
    tier.store.merge(name, data, lambda old, new: new)


def stored(tier: LocalTier, name: str) -> list[bytes]:
    return tier.store.read(name, 1 << 20)


@pytest.mark.parametrize("file", sorted(EXPECTED))
def test_old_records_are_read(file: str) -> None:
    record, expected = decode_record((OLD / file).read_bytes()), EXPECTED[file]
    evidence = record.evidence
    assert {
        "digest": record.key.digest, "fingerprint": record.key.fingerprint, "numerics": record.key.numerics, "target": record.key.target,
        "kernel": record.kernel, "status": record.status.value, "config": record.config, "space_version": record.space_version,
        "toolchain": record.toolchain, "origin": record.origin.value, "machine": record.machine, "date": record.date,
        "revision": record.revision,
        "evidence": [evidence.kind.value, evidence.ms, evidence.default_ms, evidence.spread, evidence.pairs, evidence.candidates_tried,
                     evidence.seconds],
    } == {name: value for name, value in expected.items() if name != "quarantined"}  # fmt: skip
    assert sorted(map(repr, record.quarantined)) == sorted(map(repr, expected["quarantined"]))
    assert record.extra == {} and decode_record(encode_record(record)) == record


def test_every_old_file_is_looked_at() -> None:
    files = {path.name for path in OLD.glob("*.rec")}
    assert files == {*EXPECTED, "first.program.rec", "quarantine.program.rec"} and len(files) >= 12
    for file in ("first.program.rec", "quarantine.program.rec"):
        assert decode_program((OLD / file).read_bytes()) == ("an alias", b"a program")


def test_an_old_record_serves_and_merges_in_a_tier_of_today(tier: LocalTier) -> None:
    old = decode_record((OLD / "first.winner.rec").read_bytes())
    plant(tier, f"r-{old.key.digest}", (OLD / "first.winner.rec").read_bytes())
    assert tier.get(old.key) == old
    assert tier.put(old.rolled_back())
    found = tier.get(old.key)
    assert found is not None and found.quarantined == (old.config,) and found.revision == 1


class TestNewerMinor:
    def test_what_is_not_known_is_kept_and_written_back(self, make_record: Make) -> None:
        data = of_a_later_minor(make_record(3))
        record = decode_record(data)
        assert record.extra == {"minor": LATER, "pinned": "by the operator", "evidence": {"joules": 0.5}}
        assert record.config == make_record(3).config and record.evidence == make_record(3).evidence
        assert from_plain(to_plain(record)) == decode_record(encode_record(record)) == record
        assert to_plain(record)["evidence"]["joules"] == 0.5 and to_plain(record)["minor"] == LATER

    def test_it_survives_a_merge(self, tier: LocalTier, make_record: Make) -> None:
        data = of_a_later_minor(make_record(3))
        plant(tier, f"r-{make_record().key.digest}", data)
        bad = make_record(9).config
        assert tier.put(make_record(1, quarantined=(bad,)))  # is worse, and knows of something bad
        found = LocalTier(tier.directory).get(make_record().key)
        assert found is not None and found.extra == decode_record(data).extra and found.quarantined == (bad,)

    def test_it_goes_with_its_record(self, make_record: Make) -> None:
        record = decode_record(of_a_later_minor(make_record(3)))
        assert better(record, make_record(4)) == better(make_record(4), record) == make_record(4)

    def test_a_record_that_this_version_would_misread_is_left_alone(self, make_record: Make) -> None:
        for changes in ({"status": "undecided"}, {"pinned": b"bytes"}, {"pinned": float("nan")}, {"config": None}):
            with pytest.raises(NewerRecord):
                decode_record(of_a_later_minor(make_record(3), **changes))

    @pytest.mark.parametrize("minor", [MINOR, -1, True, "9", None, 1.5])
    def test_of_this_minor_every_field_is_known(self, make_record: Make, minor: object) -> None:
        with pytest.raises(BadRecord) as caught:
            decode_record(sealed({**to_plain(make_record()), "minor": minor, "pinned": 1}))
        assert not isinstance(caught.value, NewerRecord)

    @pytest.mark.parametrize(
        "extra",
        [{"pinned": 1}, {"minor": MINOR, "pinned": 1}, {"minor": LATER, "config": {}}, {"minor": LATER, "retune": True},
         {"minor": LATER, "evidence": {"ms": 1.0}}, {"minor": LATER, "evidence": {}}],
    )  # fmt: skip
    def test_extra_is_nothing_else(self, make_record: Make, extra: dict[str, Any]) -> None:
        with pytest.raises((ValueError, TypeError)):
            make_record(extra=extra)


class TestNewerMajor:
    FUTURE = sealed({"what": "nobody knows"}, version=2)

    def test_it_is_told_from_damage(self) -> None:
        with pytest.raises(NewerRecord):
            decode_record(self.FUTURE)
        damaged = bytearray(self.FUTURE)
        damaged[-1] ^= 1
        flipped = bytearray(encode_record_of_today())
        flipped[5] = 2
        for data in (bytes(damaged), bytes(flipped), sealed({}, version=0), sealed({}, kind=b"p", version=2)):
            with pytest.raises(BadRecord) as caught:
                decode_record(data)
            assert not isinstance(caught.value, NewerRecord)

    def test_it_is_a_miss_and_stays(self, tier: LocalTier, make_record: Make, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.WARNING, "helion_rt.database")
        name = f"r-{make_record().key.digest}"
        plant(tier, name, self.FUTURE)
        assert tier.get(make_record().key) is None and list(tier.records()) == []
        assert not tier.put(make_record(2)) and not tier.put(make_record(5), force=True) and not tier.put(make_record(4))
        assert tier.get(make_record().key) == make_record(5) and list(tier.records()) == [make_record(5)]
        assert tier.put(make_record(1, key=1)), "others are written"
        assert stored(tier, name) == [self.FUTURE]
        stats = tier.stats()
        assert (stats.bad, stats.in_memory) == (0, 1) and stats.newer > 0
        (message,) = [record.getMessage() for record in caplog.records]
        assert "later version" in message and str(tier.directory) in message
        tier.close()
        assert stored(tier, name) == [self.FUTURE] and LocalTier(tier.directory).get(make_record().key) is None

    def test_a_program_too(self, tier: LocalTier) -> None:
        name, future = tier_module.program_name("alias"), sealed(["alias", b"x", "more"], kind=b"p", version=3)
        plant(tier, name, future)
        assert tier.get_program("alias") is None and not tier.put_program("alias", b"mine")
        assert tier.get_program("alias") == b"mine" and stored(tier, name) == [future]
        plant(tier, name, encode_program("alias", b"old"))
        assert tier.put_program("alias", b"newer") and stored(tier, name) == [encode_program("alias", b"newer")]

    def test_it_is_written_once_the_later_version_is_gone(self, tier: LocalTier, make_record: Make) -> None:
        name = f"r-{make_record().key.digest}"
        plant(tier, name, self.FUTURE)
        assert not tier.put(make_record(2))
        assert tier.store.remove(name)
        assert tier.put(make_record(1)) and tier.get(make_record().key) == make_record(2), "what was in memory was not lost"


def encode_record_of_today() -> bytes:
    import database_support

    return encode_record(database_support.make_record(1))
