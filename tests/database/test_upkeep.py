"""What tools do to a local tier as a whole, on both stores."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from helion_rt.database import LocalTier, Record, encode_record, sqlite_store, upkeep
from helion_rt.database.codec import BadRecord
from helion_rt.database.signing import Trust
from helion_rt.database.store import StoreError
from helion_rt.database.tier import program_name


@pytest.fixture(params=["sqlite", "files"])
def tier(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalTier:
    monkeypatch.setattr("helion_rt.database.tier.is_network_file_system", lambda path: request.param == "files")
    return LocalTier(tmp_path / "cache")


def test_what_was_never_made_is_empty_and_is_not_made(tier: LocalTier) -> None:
    assert not list(tier.store.sizes()) and not list(upkeep.raw_entries(tier)) and not list(upkeep.leftovers(tier))
    assert not tier.forget("ab" * 32) and not tier.store.remove("r-" + "ab" * 32)
    tier.store.compact()
    assert not tier.directory.exists()


def test_entries_are_listed_with_their_sizes_and_removed(tier: LocalTier, make_record: Callable[..., Record]) -> None:
    records = [make_record(1, key=n) for n in range(3)]
    for record in records:
        tier.put(record)
    tier.put_program("alias", b"program")
    sizes = {name: size for name, size, stored in tier.store.sizes() if stored > 1.7e9}
    assert sizes == {name: len(data) for name, data in upkeep.raw_entries(tier)} and len(sizes) == 4
    assert all(sizes[f"r-{record.key.digest}"] == len(encode_record(record)) for record in records)
    assert upkeep.removed(tier, program_name("alias")) and not upkeep.removed(tier, program_name("alias"))
    assert tier.forget(records[0].key.digest) and not tier.forget(records[0].key.digest)
    tier.store.compact()
    assert tier.get(records[0].key) is None and tier.get(records[1].key) == records[1] and tier.get_program("alias") is None
    assert len(list(tier.store.sizes())) == 2 and tier.stats().bad == 0


def test_a_set_aside_entry_is_a_leftover_and_no_entry(tier: LocalTier, make_record: Callable[..., Record]) -> None:
    good, bad = make_record(1, key=1), make_record(1, key=2)
    tier.put(good)
    tier.store.merge(f"r-{bad.key.digest}", b"junk", lambda old, new: new)
    assert tier.get(bad.key) is None and tier.stats().bad == 1
    assert [name for name, _ in upkeep.raw_entries(tier)] == [f"r-{good.key.digest}"]
    (left,) = upkeep.leftovers(tier)
    assert left.what is upkeep.What.SET_ASIDE and left.bytes == 4 and left.remove() and not left.remove()
    assert not list(upkeep.leftovers(tier)) and tier.get(good.key) == good


def test_what_is_checked(make_record: Callable[..., Record]) -> None:
    record = make_record(1)
    data, name, ours = encode_record(record), f"r-{record.key.digest}", Trust(b"a secret that is ours", required=True)
    assert upkeep.check_record(name, data, Trust()) == upkeep.check_record(name, ours.seal(data), ours) == record
    for stored_as, entry, trust in [("r-" + "0" * 64, data, Trust()), (name, data[:-1], Trust()), (name, data, ours), (name, b"", Trust())]:
        with pytest.raises(BadRecord):
            upkeep.check_record(stored_as, entry, trust)
    with pytest.raises(BadRecord):
        upkeep.check_program(name, data, Trust())


def test_a_record_that_is_in_memory_alone_is_forgotten(tmp_path: Path, make_record: Callable[..., Record]) -> None:
    (tmp_path / "file").write_text("")
    tier = LocalTier(tmp_path / "file")
    record = make_record(1)
    assert not tier.put(record) and tier.get(record.key) == record
    assert tier.forget(record.key.digest) and tier.get(record.key) is None


def test_a_database_that_somebody_holds_is_told(
    tmp_path: Path, make_record: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = LocalTier(tmp_path)
    tier.put(make_record(1))
    monkeypatch.setattr(sqlite_store, "_WRITE_WAIT_S", 0)
    holder = sqlite3.connect(tier.directory / "v1/local/cache.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError):
        tier.forget(make_record(1).key.digest)
    assert not upkeep.removed(tier, f"r-{make_record(1).key.digest}")
    holder.execute("ROLLBACK")
    holder.close()
    assert tier.forget(make_record(1).key.digest)
