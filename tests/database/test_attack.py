"""Whatever somebody puts in the place of an entry: no exception, no wrong record, nothing executed, and a good one can follow."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import pickle
import shutil
import sqlite3
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import database_support
import pytest

from helion_rt.database import LocalTier, Record, StoreKind, Trust, encode_record
from helion_rt.database import tier as tier_module
from helion_rt.database.codec import encode_program, to_plain
from helion_rt.database.key import pack
from helion_rt.database.sqlite_store import SqliteStore
from helion_rt.database.store import StoreError

Make = Callable[..., Record]


@pytest.fixture(params=[StoreKind.SQLITE, StoreKind.FILES], ids=["sqlite", "files"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> StoreKind:
    monkeypatch.setattr(tier_module, "is_network_file_system", lambda path: request.param is StoreKind.FILES)
    return request.param


def sealed(plain: Any, kind: bytes = b"r", version: int = 1) -> bytes:
    """An entry with a right checksum, whatever is in it: an attacker can make one."""
    head, payload = b"HLRT" + kind + bytes([version]), plain if isinstance(plain, bytes) else pack(plain)
    return head + hashlib.sha256(head + payload).digest() + payload


def plant(tier: LocalTier, name: str, data: bytes) -> None:
    tier.store.merge(name, data, lambda old, new: new)


class OneEntry:
    """A store that holds one entry under every name, to try many of them fast."""

    directory = Path("/nowhere")
    databases_set_aside = 0
    untrusted = ""

    def __init__(self) -> None:
        self.data = b""
        self.put_aside = 0

    def read(self, name: str, limit: int) -> list[bytes]:
        return [self.data]

    def merge(self, name: str, data: bytes, better: Callable[[bytes, bytes], bytes]) -> None:
        self.data = better(self.data, data)

    def set_aside(self, name: str, data: bytes) -> None:
        self.put_aside += 1
        raise StoreError(tier_module.Fault.UNWRITABLE, "not here")

    def entries(self, prefix: str, limit: int) -> Iterator[tuple[str, list[bytes]]]:
        yield f"{prefix}{'0' * 64}", [self.data]


def holding(tmp_path: Path, trust: Trust = Trust()) -> tuple[LocalTier, OneEntry]:  # noqa: B008
    tier, entry = LocalTier(tmp_path, trust=trust), OneEntry()
    tier._the_store = entry  # type: ignore[assignment]
    return tier, entry


@pytest.mark.parametrize("trust", [Trust(), Trust(b"secret"), Trust(b"secret", required=True)], ids=["unsigned", "signed", "required"])
def test_every_flipped_bit_and_every_length(tmp_path: Path, make_record: Make, trust: Trust) -> None:
    tier, entry = holding(tmp_path, trust)
    good, better_one = trust.seal(encode_record(make_record(7))), make_record(8)
    damaged = [good[:length] for length in range(len(good))] + [good + b"\0"]
    for bit in range(8 * len(good)):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    for data in damaged:
        entry.data = data
        assert tier.get(make_record().key) is None
        assert list(tier.records()) == []
    for data in damaged[:: len(damaged) // 97]:
        entry.data = data
        assert tier.put(better_one) and tier.get(make_record().key) == better_one
    entry.data = good
    assert tier.get(make_record().key) == make_record(7)


@pytest.mark.parametrize("trust", [Trust(), Trust(b"secret")], ids=["unsigned", "signed"])
def test_damaged_programs(tmp_path: Path, trust: Trust) -> None:
    tier, entry = holding(tmp_path, trust)
    good = trust.seal(encode_program("alias", b"program"))
    for bit in range(8 * len(good)):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        entry.data = bytes(flipped)
        assert tier.get_program("alias") is None
        entry.data = good[: bit // 8]
        assert tier.get_program("alias") is None


def hostile_entries(record: Record) -> dict[str, bytes]:
    plain = to_plain(record)
    other = {**plain, "key": [*plain["key"][:3], "another target"]}
    deep: Any = []
    for _ in range(400):
        deep = [deep]
    evidence = plain["evidence"]
    made = {
        "nothing": b"",
        "zeros": bytes(4096),
        "another key": sealed(other),
        "2 GiB of text": sealed(b"\xdb\x80\x00\x00\x00" + b"x" * 100),
        "2 GiB of bytes": sealed(b"\xc6\x80\x00\x00\x00" + b"x" * 100),
        "a list of 2**31": sealed(b"\xdd\x80\x00\x00\x00" + b"\xc0" * 100),
        "a map of 2**32": sealed(b"\xdf\xff\xff\xff\xff" + b"\xa1a\xc0" * 30),
        "an extension of 2 GiB": sealed(b"\xc9\x80\x00\x00\x00\x01" + b"x" * 100),
        "lists 100,000 deep": sealed(b"\x91" * 100_000 + b"\xc0"),
        "maps 30,000 deep": sealed(b"\x81\xa1a" * 30_000 + b"\xc0"),
        "a deep config": sealed({**plain, "config": {"x": deep}}),
        "a deep key": sealed({**plain, "key": [plain["key"][0], deep, "", ""]}),
        "a map of 30,000": sealed({str(i): i for i in range(30_000)}),
        "30,000 in quarantine": sealed({**plain, "revision": 1, "quarantined": [{}] * 30_000} | {"config": 1}),
        "one key 1,000 times": sealed(b"\xde\x03\xe8" + b"\xa3key\xc0" * 1000),
        "bytes for names": sealed({b"key": 1}),
        "an extension type": sealed(b"\x81\xa3key\xd4\x05x"),
        "a time": sealed(b"\x81\xa4date\xd6\xff\x00\x00\x00\x00"),
        "trailing bytes": sealed(pack(plain) + b"\xc0"),
        "half a surrogate pair": sealed(pack(plain).replace(b"\xa8kernel_0", b"\xa8\xed\xa0\x80\xed\xa0\x80__")),
        "an integer of 2**64": sealed({**plain, "space_version": 2**64 - 1}),
        "an integer of 5,000 digits": sealed({**plain, "key": [plain["key"][0], {"int": "9" * 5000}, "", ""]}),
        "a date that is none": sealed({**plain, "date": "2026-99-99T99:99:99Z"}),
        "a program": encode_program("alias", b"program"),
        "a record as a program": sealed(plain, kind=b"p"),
        "JSON": b'{"kernel": "k"}',
        "signed by nobody": b"HLRS\x01" + bytes(32) + encode_record(record)[:-1],
    }
    for name, number in (("nan", math.nan), ("infinity", math.inf), ("-1", -1.0)):
        value = struct.pack(">d", number)
        for field in ("ms", "default_ms", "spread", "seconds"):
            data = pack({**plain, "evidence": {**evidence, field: 12345.678}})
            assert data.count(struct.pack(">d", 12345.678)) == 1
            made[f"{field} of {name}"] = sealed(data.replace(struct.pack(">d", 12345.678), value))
        if not math.isfinite(number):
            made[f"a config of {name}"] = sealed({**plain, "config": {"x": number}})
    return made


HOSTILE = tuple(hostile_entries(database_support.make_record(3)))


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_entries_with_a_right_checksum(tmp_path: Path, make_record: Make, what: str) -> None:
    data = hostile_entries(make_record(3))[what]
    tier, entry = holding(tmp_path)
    for kind in (data, Trust(b"mine").seal(data)):  # the second: a tier without a secret opens what others signed
        entry.data = kind
        assert tier.get(make_record().key) is None and list(tier.records()) == []
        assert tier.put(make_record(1)) and tier.get(make_record().key) == make_record(1)
        entry.data = kind
        assert tier.get_program("other") is None
        assert tier.put_program("other", b"mine") and tier.get_program("other") == b"mine"


def test_what_is_claimed_takes_no_memory(tmp_path: Path, make_record: Make) -> None:
    tier, entry = holding(tmp_path)
    hostile = hostile_entries(make_record(3))
    tracemalloc.start()
    try:
        for entry.data in hostile.values():
            assert tier.get(make_record().key) is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 32 << 20


def test_hostile_entries_in_real_stores(store: StoreKind, tmp_path: Path, make_record: Make) -> None:
    tier = LocalTier(tmp_path)
    names = {f"r-{make_record(key=n).key.digest}": data for n, data in enumerate(hostile_entries(make_record(3)).values())}
    assert tier.put(make_record(5, key=999))
    for name, data in names.items():
        plant(tier, name, data)
    fresh = LocalTier(tmp_path)
    assert all(fresh.get(make_record(key=n).key) is None for n in range(0, len(names), 2))
    assert list(fresh.records()) == [make_record(5, key=999)]
    assert fresh.stats().bad == len(names)
    for n in range(0, len(names), 5):
        assert fresh.put(make_record(1, key=n)) and fresh.get(make_record(key=n).key) == make_record(1, key=n)
    assert fresh.stats().bad == len(names) and fresh.stats().databases_set_aside == 0


def test_swapped_entries(store: StoreKind, tmp_path: Path, make_record: Make) -> None:
    tier = LocalTier(tmp_path)
    names = [f"r-{make_record(key=n).key.digest}" for n in range(6)]
    for n, name in enumerate(names):
        plant(tier, name, encode_record(make_record(9, key=(n + 1) % 6)))
    assert [tier.get(make_record(key=n).key) for n in range(3)] == [None] * 3 and list(tier.records()) == []
    assert tier.stats().bad == 6
    assert tier.put(make_record(1)) and tier.get(make_record().key) == make_record(1)


def test_what_is_no_file_in_the_place_of_one(tmp_path: Path, make_record: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_module, "is_network_file_system", lambda path: True)
    tier = LocalTier(tmp_path)
    assert tier.put(make_record(1))
    (file,) = tmp_path.glob("v1/files/r-*/*.rec")
    inside = tmp_path / "inside"
    inside.write_bytes(b"mine")
    makers: dict[str, Callable[[Path], object]] = {
        "a pipe": os.mkfifo,  # whoever opens it waits for a writer
        "a directory": lambda path: path.mkdir(),
        "a link to nothing": lambda path: path.symlink_to(tmp_path / "nothing"),
        "a link to itself": lambda path: path.symlink_to(path.name),
        "a link to something else": lambda path: path.symlink_to(inside),
    }
    for what, make in makers.items():
        file.unlink()
        make(file)
        fresh = LocalTier(tmp_path)
        assert fresh.get(make_record().key) is None and list(fresh.records()) == [], what
        fresh.put(make_record(2))
        assert fresh.get(make_record().key) == make_record(2), what
        assert inside.read_bytes() == b"mine"
        for left in tmp_path.glob("v1/files/r-*/*.rec"):
            left.rmdir() if left.is_dir() and not left.is_symlink() else left.unlink()
        file.write_bytes(b"")


def test_endless_files_are_read_no_further_than_allowed(tmp_path: Path, make_record: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_module, "is_network_file_system", lambda path: True)
    tier = LocalTier(tmp_path)
    assert tier.put(make_record(1))
    (file,) = tmp_path.glob("v1/files/r-*/*.rec")
    with open(file, "wb") as endless:
        endless.truncate(1 << 40)  # a terabyte with nothing in it
    assert tier.get(make_record().key) is None and tier.stats().bad == 1
    assert tier.put(make_record(1)) and tier.get(make_record().key) == make_record(1)


class Trap:
    """Makes a directory when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple:
        return os.mkdir, (self.path,)


def test_a_pickle_is_never_loaded(store: StoreKind, tmp_path: Path, make_record: Make) -> None:
    sprung = tmp_path / "sprung"
    traps = [pickle.dumps(Trap(sprung), protocol) for protocol in (0, 2, 5)]
    tier = LocalTier(tmp_path / "cache")
    for n, trap in enumerate(traps):
        for name in (f"r-{make_record(key=n).key.digest}", tier_module.program_name(f"alias {n}")):
            for data in (trap, sealed(trap, kind=name[0].encode()), sealed({"key": trap}), sealed([f"alias {n}", trap, 1], kind=b"p")):
                plant(tier, name, data)
                fresh = LocalTier(tier.directory)
                assert fresh.get(make_record(key=n).key) is None and fresh.get_program(f"alias {n}") is None
                assert list(fresh.records()) == []
        assert tier.put(make_record(1, key=n)) and tier.put_program(f"alias {n}", b"program")
        assert tier.store.remove(f"r-{make_record(key=n).key.digest}")
    assert not sprung.exists()
    pickle.loads(traps[0])
    assert sprung.exists(), "the trap itself does not work"


def test_a_pickle_in_every_row_and_column_of_sqlite_is_never_loaded(tmp_path: Path, make_record: Make) -> None:
    """diskcache's own form of a pickled value, of a pickled key, and of a pickled setting."""
    sprung, name = tmp_path / "sprung", f"r-{make_record().key.digest}"
    trap = pickle.dumps(Trap(sprung))
    rows = [(name, 1, 4, None, trap), (name, 0, 4, None, trap), (trap, 0, 4, None, trap), (trap, 1, 1, None, trap),
            (name, 1, 4, "x.val", None)]  # fmt: skip
    for n, row in enumerate(rows):
        tier = LocalTier(tmp_path / str(n))
        assert tier.put(make_record(1))
        (tier.directory / "v1/local/x.val").write_bytes(trap)
        with closing(sqlite3.connect(tier.directory / "v1/local/cache.db")) as connection, connection:
            connection.execute("DELETE FROM Cache")
            connection.execute("INSERT INTO Cache (key, raw, mode, filename, value) VALUES (?, ?, ?, ?, ?)", row)
        fresh = LocalTier(tier.directory)
        assert fresh.get(make_record().key) is None and list(fresh.records()) == []
        assert fresh.put(make_record(2)) and fresh.get(make_record().key) == make_record(2) and list(fresh.records()) == [make_record(2)]
    for setting in ("eviction_policy", "disk_pickle_protocol", "count", "cull_limit"):
        tier = LocalTier(tmp_path / setting)
        assert tier.put(make_record(1))
        with closing(sqlite3.connect(tier.directory / "v1/local/cache.db")) as connection, connection:
            connection.execute("INSERT OR REPLACE INTO Settings VALUES (?, ?)", (setting, trap))
        fresh = LocalTier(tier.directory)
        assert fresh.put(make_record(2)) and fresh.get(make_record().key) == make_record(2)
    assert not sprung.exists()


def test_names_that_are_none_do_not_end_a_listing(tmp_path: Path, make_record: Make) -> None:
    tier = LocalTier(tmp_path)
    made = [make_record(1, key=n) for n in range(5)]
    assert all(map(tier.put, made))
    with closing(sqlite3.connect(tmp_path / "v1/local/cache.db")) as connection, connection:
        for bad in ("r-" + "g" * 64, "r-" + "0" * 63, "r-" + "0" * 63 + "\x1b", "r-\0" + "0" * 63, b"r-" + b"0" * 64, 7, 1.5):
            connection.execute("INSERT INTO Cache (key, raw, mode, value) VALUES (?, 1, 1, x'00')", (bad,))
        connection.execute("INSERT INTO Cache (key, raw, mode, value) VALUES (CAST(x'722dff30' AS TEXT), 1, 1, x'00')")  # not UTF-8
    fresh = LocalTier(tmp_path)
    assert sorted(r.kernel for r in fresh.records()) == sorted(r.kernel for r in made)
    assert sorted(fresh.store.names()) == sorted(f"r-{r.key.digest}" for r in made)


def test_an_index_that_goes_round_in_circles_ends_a_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteStore(tmp_path)
    monkeypatch.setattr(store, "_query", lambda query, values: [(f"r-{digit * 64}", "") for digit in "12"])
    assert len(list(itertools.islice(store.names("r-"), 100))) == 4


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_flipped_bit_in_every_part_of_the_database_file(tmp_path: Path, make_record: Make) -> None:
    pristine = LocalTier(tmp_path / "pristine")
    made = [make_record(n, key=n) for n in range(12)]
    assert all(map(pristine.put, made))
    image = (tmp_path / "pristine/v1/local/cache.db").read_bytes()
    damages: list[bytes] = [image[:length] for length in range(0, len(image), len(image) // 60)]
    for position in [*range(0, 110), *range(110, len(image), len(image) // 300)]:
        flipped = bytearray(image)
        flipped[position] ^= 1 << position % 8
        damages.append(bytes(flipped))
    for n, damaged in enumerate(damages):
        tier = LocalTier(tmp_path / str(n))
        (tier.directory / "v1/local").mkdir(parents=True, mode=0o700)
        (tier.directory / "v1/local/cache.db").write_bytes(damaged)
        assert all(tier.get(record.key) in (None, record) for record in made)
        assert all(record in made for record in tier.records())
        assert tier.put(make_record(1, key=77)) and tier.get(make_record(key=77).key) == make_record(1, key=77)
        shutil.rmtree(tier.directory)
