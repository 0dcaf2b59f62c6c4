"""What others planted in a shared tier: a miss, counted, never loaded. A good record may take its place; a newer version's keeps it."""

from __future__ import annotations

import hashlib
import os
import pickle
import stat
from pathlib import Path
from typing import Any

import msgpack
import pytest
from database_support import make_record

from helion_rt.database import encode_record
from helion_rt.database.shared import SharedError, SharedTier, open_shared
from helion_rt.database.shared.engine import MAX_ENTRY_BYTES
from helion_rt.database.shared.files import FilesEngine
from helion_rt.database.shared.redis import RedisEngine
from helion_rt.database.signing import Trust

RECORD = make_record(3)
GOOD = encode_record(RECORD)


def entry(payload: bytes, version: int = GOOD[5]) -> bytes:
    """An entry with a right checksum around any payload."""
    head = GOOD[:5] + bytes([version])
    return head + hashlib.sha256(head + payload).digest() + payload


class Loaded:
    """A pickle that leaves a trace where it is loaded."""

    def __init__(self, trace: str) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return os.mkdir, (self.trace,)


HOSTILE = {
    "empty": b"",
    "text": b"hello",
    "truncated": GOOD[:-1],
    "header": GOOD[:38],
    "bit flip": GOOD[:60] + bytes([GOOD[60] ^ 4]) + GOOD[61:],
    "another key": encode_record(make_record(9, key=1)),
    "2 GiB claimed": entry(b"\xdb\x80\x00\x00\x00" + b"x" * 100),
    "2^32 items claimed": entry(b"\xdd\xff\xff\xff\xff"),
    "deep": entry(b"\x91" * 60_000 + b"\x00"),
    "extension": entry(msgpack.packb(msgpack.ExtType(5, b"os.system"))),
    "long": GOOD + b"\0" * MAX_ENTRY_BYTES,
    "nothing of a record": entry(msgpack.packb({"key": None})),
}
NEWER = entry(msgpack.packb({"another": "world"}), version=GOOD[5] + 1)


def plant(tier: SharedTier, data: bytes, digest: str = RECORD.key.digest) -> None:
    engine = tier.engine
    if isinstance(engine, RedisEngine):
        with engine._told() as client:
            client.set(engine._record(digest), data)
    else:
        assert isinstance(engine, FilesEngine)
        engine._files.publish(f"records/{digest[:2]}/{digest}.{hashlib.sha256(data).hexdigest()[:16]}.rec", data)


def raw(tier: SharedTier) -> list[bytes]:
    return tier.engine.read(RECORD.key.digest)


@pytest.fixture
def tier(shared_url: str) -> SharedTier:
    return open_shared(shared_url, trust=Trust(), timeout=20.0)


def test_bad_entries_are_misses_and_give_way(tier: SharedTier, tmp_path: Path) -> None:
    trace = tmp_path / "loaded"
    hostile = {**HOSTILE, **{f"pickle {protocol}": pickle.dumps(Loaded(str(trace)), protocol) for protocol in (0, 2, 5)}}
    if tier.url.startswith("s3:"):  # what is in an entry is judged the same everywhere, and every request takes its time
        hostile = {name: hostile[name] for name in ("empty", "truncated", "long", "pickle 2")}
    for n, (name, data) in enumerate(hostile.items(), start=1):
        plant(tier, data)
        assert tier.get(RECORD.key) is None, name
        assert tier.stats().bad == n, name
        assert list(tier.records()) == [], name
        assert tier.put(RECORD) == RECORD == tier.get(RECORD.key), name
        assert raw(tier) == [GOOD], f"{name} is still there"
        assert tier.forget(RECORD.key.digest)
        # What listing saw counts as well.
        tier._counts = type(tier._counts)(tier.url, bad=n)
    assert not trace.exists()


def test_a_good_record_that_is_damaged_in_place_is_stored_again(tier: SharedTier) -> None:
    tier.put(RECORD)
    engine = tier.engine
    if isinstance(engine, FilesEngine):
        path = f"records/{RECORD.key.digest[:2]}/{RECORD.key.digest}.{hashlib.sha256(GOOD).hexdigest()[:16]}.rec"
        engine._files.publish(path, HOSTILE["bit flip"])
    else:
        plant(tier, HOSTILE["bit flip"])
    assert tier.get(RECORD.key) is None
    assert tier.put(RECORD) == RECORD == tier.get(RECORD.key)


def test_a_newer_major_version_is_a_miss_and_stays(tier: SharedTier) -> None:
    plant(tier, NEWER)
    assert tier.get(RECORD.key) is None
    assert tier.put(RECORD) == RECORD, "there is nothing better that we could read"
    assert NEWER in raw(tier)
    assert (tier.stats().newer, tier.stats().bad, tier.stats().failures) == (2, 0, 0)
    assert list(tier.records()) in ([], [RECORD])


def test_two_newer_entries_stay(tmp_path: Path) -> None:
    tier = open_shared(f"file://{tmp_path}", trust=Trust())
    other = entry(msgpack.packb({"another": "galaxy"}), version=GOOD[5] + 1)
    for data in (NEWER, GOOD, other):
        plant(tier, data)
    assert tier.get(RECORD.key) == RECORD
    tier.put(make_record(4))
    assert {NEWER, other} <= set(raw(tier))


def test_signed_records_only(shared_url: str) -> None:
    mine = open_shared(shared_url, trust=Trust(b"secret", required=True), timeout=20.0)
    unsigned = open_shared(shared_url, trust=Trust(), timeout=20.0)
    foreign = open_shared(shared_url, trust=Trust(b"another", required=True), timeout=20.0)
    for theirs in (unsigned, foreign):
        theirs.put(make_record(9))
        assert mine.get(RECORD.key) is None
        assert mine.put(RECORD) == RECORD == mine.get(RECORD.key)
        assert mine.stats().bad >= 1
    assert foreign.get(RECORD.key) is None


def test_of_two_entries_that_say_the_same_the_signed_one_stays(shared_url: str) -> None:
    signing, plain = Trust(b"secret"), Trust()
    one, other = open_shared(shared_url, trust=signing, timeout=20.0), open_shared(shared_url, trust=plain, timeout=20.0)
    other.put(RECORD)
    one.put(RECORD)
    other.put(RECORD)
    assert raw(one) == [signing.seal(GOOD)]


@pytest.mark.parametrize("engine_url", ["redis"], indirect=True)
def test_redis_values_of_other_types(engine_url: str) -> None:
    tier = open_shared(engine_url, trust=Trust(), timeout=20.0)
    engine = tier.engine
    assert isinstance(engine, RedisEngine)
    digest = RECORD.key.digest
    with engine._told() as client:
        client.rpush(engine._record(digest), "a", "b")
        client.rpush(engine._lease(digest), "a")
        client.set(engine._record("../../etc/passwd"), GOOD)
        client.set(engine._record("zz" * 32), GOOD)
        client.set(engine._lease("ab" * 32), "a lease without an end")
    assert tier.get(RECORD.key) is None and tier.stats().bad == 1
    assert list(tier.digests()) == [digest]
    assert tier.put(RECORD) == RECORD == tier.get(RECORD.key)
    assert not tier.renew_lease(digest, "a", 60)
    assert tier.take_lease(digest, "a", 60) and tier.take_lease("ab" * 32, "a", 60)


class TestFolder:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        root = tmp_path / "shared"
        root.mkdir()
        return root

    def test_anybody_may_write_there(self, root: Path) -> None:
        root.chmod(0o777)
        tier = open_shared(f"file://{root}", trust=Trust())
        for operation in (lambda: tier.get(RECORD.key), lambda: tier.put(RECORD), lambda: list(tier.records())):
            with pytest.raises(SharedError, match="anybody may write"):
                operation()
        assert os.listdir(root) == []
        with pytest.raises(SharedError, match="anybody may write"):
            open_shared(f"file://{root}", trust=Trust(b"a secret that nobody has to use")).put(RECORD)
        signed = open_shared(f"file://{root}", trust=Trust(b"secret", required=True))
        assert signed.put(RECORD) == RECORD == signed.get(RECORD.key)

    def test_a_file_that_anybody_may_change(self, root: Path) -> None:
        tier = open_shared(f"file://{root}", trust=Trust())
        tier.put(RECORD)
        (file,) = root.rglob("*.rec")
        file.chmod(0o666)
        assert tier.get(RECORD.key) is None and tier.stats().bad == 1
        assert tier.put(RECORD) == RECORD == tier.get(RECORD.key)

    @pytest.mark.parametrize("mode", [0o700, 0o770, 0o2775])
    def test_what_is_made_is_for_those_the_folder_is_for(self, root: Path, mode: int) -> None:
        root.chmod(mode)
        before = os.umask(0o077)
        try:
            tier = open_shared(f"file://{root}", trust=Trust())
            tier.put(RECORD)
            assert tier.take_lease(RECORD.key.digest, "a", 60)
        finally:
            os.umask(before)
        for path in root.rglob("*"):
            assert stat.S_IMODE(path.stat().st_mode) == (mode if path.is_dir() else mode & 0o666), path

    def test_pipes_links_and_directories_with_a_records_name(self, root: Path, tmp_path: Path) -> None:
        tier = open_shared(f"file://{root}", trust=Trust())
        tier.put(RECORD)
        (file,) = root.rglob("*.rec")
        outside = tmp_path / "outside"
        outside.write_bytes(encode_record(make_record(9)))
        os.mkfifo(file.with_name(f"{RECORD.key.digest}.0000000000000000.rec"))
        file.with_name(f"{RECORD.key.digest}.0000000000000001.rec").symlink_to(outside)
        file.with_name(f"{RECORD.key.digest}.0000000000000002.rec").mkdir()
        assert tier.get(RECORD.key) == RECORD and tier.stats().bad == 3
        assert tier.put(make_record(4)) == make_record(4) == tier.get(RECORD.key)
        assert outside.exists()

    def test_very_many_files_under_one_name(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("helion_rt.database.shared.files.MAX_FILES", 8)
        tier = open_shared(f"file://{root}", trust=Trust())
        for n in range(20):
            plant(tier, b"%d" % n)
        assert tier.get(RECORD.key) is None
        assert tier.put(RECORD) == RECORD
        for _ in range(3):  # each write clears away what it has read
            tier.put(RECORD)
        assert tier.get(RECORD.key) == RECORD
