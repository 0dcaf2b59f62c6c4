"""The local tier on a healthy disk and on every kind of sick one."""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from helion_rt.database import EvidenceKind, LocalTier, Record, Status, StoreKind, open_local
from helion_rt.database import tier as tier_module
from helion_rt.database.codec import MAX_RECORD_BYTES, encode_record
from helion_rt.database.store import Fault, StoreError

Log = pytest.LogCaptureFixture
Make = Callable[..., Record]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(params=[StoreKind.SQLITE, StoreKind.FILES], ids=["sqlite", "files"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> StoreKind:
    monkeypatch.setattr(tier_module, "is_network_file_system", lambda path: request.param is StoreKind.FILES)
    return request.param


@pytest.fixture
def tier(store: StoreKind, tmp_path: Path) -> LocalTier:
    return open_local(tmp_path / "cache")


def database(tier: LocalTier) -> Path:
    return tier.directory / "v1" / "local" / "cache.db"


def plant(tier: LocalTier, name: str, value: object, mode: int = 1, filename: str | None = None) -> None:
    """Put a row into the database as an attacker or a fault would."""
    with closing(sqlite3.connect(database(tier))) as connection, connection:
        connection.execute("DELETE FROM Cache WHERE key = ?", (name,))
        connection.execute("INSERT INTO Cache (key, raw, mode, filename, value) VALUES (?, 1, ?, ?, ?)", (name, mode, filename, value))


def rows(tier: LocalTier, prefix: str) -> list[tuple]:
    with closing(sqlite3.connect(database(tier))) as connection:
        return connection.execute("SELECT key, mode, value FROM Cache WHERE substr(key, 1, 2) = ?", (prefix,)).fetchall()


class TestHealthy:
    def test_touches_nothing_before_it_is_used(self, tier: LocalTier, make_record: Make) -> None:
        assert tier.get(make_record().key) is None and list(tier.records()) == []
        assert not tier.directory.exists()

    def test_what_is_put_is_there_for_the_next_process(self, tier: LocalTier, store: StoreKind, make_record: Make) -> None:
        made = [make_record(n, key=n) for n in range(3)]
        assert all(tier.put(record) for record in made)
        assert tier.put_program("alias", b"program") and tier.put_program("alias", b"newer")
        again = LocalTier(tier.directory)
        assert [again.get(record.key) for record in made] == made
        assert sorted(r.key.digest for r in again.records()) == sorted(r.key.digest for r in made)
        assert again.get_program("alias") == b"newer" and again.get_program("other") is None
        stats = again.stats()
        assert (stats.store, stats.hits, stats.misses, stats.bad, stats.in_memory) == (store, 4, 1, 0, 0)

    def test_the_better_record_stays_whoever_comes_last(self, tier: LocalTier, make_record: Make) -> None:
        for n in (1, 3, 2):
            assert tier.put(make_record(n))
        assert tier.get(make_record().key) == make_record(3)
        assert tier.put(make_record(1), force=True)
        assert tier.get(make_record().key) == make_record(1)
        assert len(list(tier.records())) == 1

    def test_that_nothing_beat_the_default_is_remembered(self, tier: LocalTier, make_record: Make) -> None:
        record = make_record(status=Status.NO_CANDIDATE, config={})
        tier.put(record)
        found = LocalTier(tier.directory).get(record.key)
        assert (
            found is not None and found == record and found.status is Status.NO_CANDIDATE and found.evidence.kind is EvidenceKind.MEASURED
        )

    def test_directories_are_the_users_alone(self, tier: LocalTier, make_record: Make) -> None:
        tier.put(make_record())
        made = [tier.directory, *(path for path in tier.directory.rglob("*") if path.is_dir())]
        assert {path.stat().st_mode & 0o777 for path in made} == {0o700}

    def test_a_program_as_large_as_allowed_is_kept_and_a_larger_one_refused(self, tier: LocalTier) -> None:
        large = os.urandom(4 * 1024 * 1024 - 200)
        assert tier.put_program("large", large) and tier.get_program("large") == large
        assert not tier.put_program("larger", large + bytes(1000))
        assert tier.get_program("larger") is None and tier.stats().write_failures == 1

    def test_nothing_lies_beside_the_database_at_rest(self, tmp_path: Path, make_record: Make) -> None:
        tier = LocalTier(tmp_path)
        tier.put(make_record())
        tier.put_program("alias", bytes(1_000_000))
        tier.get(make_record().key)
        assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["cache.db"]

    def test_what_others_write_is_seen_at_once_whether_the_database_is_at_rest_or_not(
        self, tier: LocalTier, store: StoreKind, make_record: Make
    ) -> None:
        assert tier.put(make_record(0))
        for n in range(1, 12):
            if store is StoreKind.SQLITE and n % 3:  # some time has passed
                os.utime(database(tier), (1e9 + n, 1e9 + n))
            assert tier.get(make_record().key) == make_record(n - 1)
            assert LocalTier(tier.directory).put(make_record(n)) and tier.get(make_record().key) == make_record(n)
        shutil.rmtree(tier.directory)
        assert tier.get(make_record().key) is None
        assert LocalTier(tier.directory).put(make_record(2)) and tier.get(make_record().key) == make_record(2)

    def test_reading_at_rest_makes_and_holds_nothing(self, tmp_path: Path, make_record: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        from helion_rt.database import sqlite_store

        monkeypatch.setattr(sqlite_store, "_REST_S", -1e9)  # nobody writes from here on
        assert LocalTier(tmp_path).put(make_record(1))
        before = (tmp_path / "v1/local").stat().st_mtime_ns
        tier = LocalTier(tmp_path)
        assert all(tier.get(make_record().key) == make_record(1) for _ in range(3)) and len(list(tier.records())) == 1
        assert (tmp_path / "v1/local").stat().st_mtime_ns == before, "a file was made beside the database"
        with closing(sqlite3.connect(database(tier), timeout=0, isolation_level=None)) as other:
            other.execute("PRAGMA locking_mode = EXCLUSIVE")
            other.execute("BEGIN EXCLUSIVE")  # nobody's lock is in the way
            other.execute("ROLLBACK")
        tier.close()
        assert tier.store._reader is None and tier.get(make_record().key) == make_record(1)  # type: ignore[attr-defined]

    def test_everything_is_listed_a_few_at_a_time(self, tier: LocalTier, store: StoreKind, make_record: Make) -> None:
        from helion_rt.database import sqlite_store

        total = 2 * sqlite_store._PAGE + 7
        tier.put(make_record(1, key=10**6))
        if store is StoreKind.SQLITE:  # a transaction each would take too long
            with closing(sqlite3.connect(database(tier))) as connection, connection:
                rows = [(f"r-{r.key.digest}", encode_record(r)) for r in (make_record(1, key=n) for n in range(total - 1))]
                connection.executemany("INSERT INTO Cache (key, raw, mode, value) VALUES (?, 1, 1, ?)", rows)
        else:
            total = 40
            for n in range(total - 1):
                tier.put(make_record(1, key=n))
        assert tier.put_program("alias", b"program")
        listing = tier.records()
        first = next(listing)
        late = next(make_record(1, key=n) for n in range(10**7, 10**8) if make_record(key=n).key.digest > "ff")
        assert tier.put(late), "a listing that has begun holds up nobody"
        digests = [first.key.digest, *(record.key.digest for record in listing)]
        assert digests == sorted(set(digests)) and len(digests) in (total, total + 1)
        names = list(tier.store.names())
        assert names == sorted(names) and len(names) == total + 2
        assert list(tier.store.names("p-")) == names[:1] and list(tier.store.names("r-")) == names[1:]

    def test_what_is_only_in_memory_is_listed_in_its_place(
        self, tier: LocalTier, make_record: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for n in range(0, 8, 2):
            assert tier.put(make_record(1, key=n))

        def refuse(*_: object) -> None:
            raise StoreError(Fault.UNWRITABLE, "no")

        monkeypatch.setattr(tier.store, "merge", refuse)
        for n in range(1, 8):
            assert not tier.put(make_record(2, key=n))
        found = list(tier.records())
        assert [r.key.digest for r in found] == sorted(r.key.digest for r in found)
        assert {r.kernel: r.config["block_sizes"][0] for r in found} == {"kernel_0": 1, **{f"kernel_{n}": 2 for n in range(1, 8)}}

    def test_what_is_put_last_is_what_is_written_in_the_end(
        self, tier: LocalTier, make_record: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A program, or a forced record, that could not be written must not be written over one that could."""
        assert tier.put(make_record(1))
        with monkeypatch.context() as patch:
            patch.setattr(tier.store, "merge", lambda *_: (_ for _ in ()).throw(StoreError(Fault.UNWRITABLE, "no")))
            assert not tier.put_program("alias", b"old") and not tier.put(make_record(3), force=True)
        assert tier.put_program("alias", b"new") and tier.put(make_record(2), force=True)
        tier.close()
        again = LocalTier(tier.directory)
        assert again.get_program("alias") == b"new" and again.get(make_record().key) == make_record(2) and tier.stats().in_memory == 0

    def test_a_directory_removed_under_it_is_made_again(self, tier: LocalTier, make_record: Make) -> None:
        tier.put(make_record(1))
        shutil.rmtree(tier.directory)
        assert tier.get(make_record().key) is None
        assert tier.put(make_record(2)) and tier.get(make_record().key) == make_record(2)

    def test_reading_imports_no_diskcache_and_neither_jax_nor_torch(self, tmp_path: Path, make_record: Make, run_script: Run) -> None:
        LocalTier(tmp_path).put(make_record(5))
        source = "assert open_local(sys.argv[1]).get(make_record().key) == make_record(5)\nprint(*sys.modules)"
        loaded = set(run_script(source, tmp_path).stdout.split())
        assert "helion_rt.database" in loaded
        assert loaded.isdisjoint({"jax", "torch", "numpy", "diskcache", "filelock", "rich", "asyncio", "platformdirs"})


class TestBadEntries:
    def damage(self, tier: LocalTier, store: StoreKind, name: str, data: bytes) -> None:
        if store is StoreKind.SQLITE:
            plant(tier, name, data)
        else:
            (file,) = tier.directory.glob(f"v1/files/*/{name}.*.rec")
            file.write_bytes(data)

    def test_bad_records_are_misses_and_set_aside(self, tier: LocalTier, store: StoreKind, make_record: Make) -> None:
        good, foreign = encode_record(make_record(1)), encode_record(make_record(1, key=7))
        bad = [b"", b"x", good[:-1], good[:50], good + b"x", good.replace(b"kernel_0", b"kernel_9"), foreign, bytes(MAX_RECORD_BYTES + 1)]
        for count, data in enumerate(bad, 1):
            tier.put(make_record(1))
            self.damage(tier, store, f"r-{make_record().key.digest}", data)
            assert tier.get(make_record().key) is None
            assert tier.stats().bad == count
            assert tier.get(make_record().key) is None and list(tier.records()) == []
            assert tier.stats().bad == count, "it was not set aside"
        assert tier.put(make_record(2)) and tier.get(make_record().key) == make_record(2)

    def test_a_damaged_program_is_a_miss(self, tier: LocalTier, store: StoreKind) -> None:
        tier.put_program("alias", b"program")
        (name,) = tier._store().names()
        self.damage(tier, store, name, b"junk")
        assert tier.get_program("alias") is None and tier.get_program("alias") is None and tier.stats().bad == 1

    def test_putting_over_a_damaged_record_sets_it_aside(self, tier: LocalTier, store: StoreKind, make_record: Make) -> None:
        tier.put(make_record(1))
        self.damage(tier, store, f"r-{make_record().key.digest}", b"junk")
        assert tier.put(make_record(0)) and tier.get(make_record().key) == make_record(0) and tier.stats().bad == 1

    def test_what_was_set_aside_is_bounded(self, tier: LocalTier, store: StoreKind, make_record: Make) -> None:
        for key in range(70):
            tier.put(make_record(key=key))
            self.damage(tier, store, f"r-{make_record(key=key).key.digest}", b"junk %d" % key)
        assert list(tier.records()) == [] and tier.stats().bad == 70
        kept = rows(tier, "q-") if store is StoreKind.SQLITE else list(tier.directory.glob("v1/files/set-aside/*"))
        assert len(kept) == 64


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple:
        return os.mkdir, (self.path,)


class TestHostileDatabase:
    def test_a_pickled_value_is_refused_unread(self, tmp_path: Path, make_record: Make) -> None:
        tier, sprung = LocalTier(tmp_path / "cache"), tmp_path / "sprung"
        tier.put(make_record(1))
        trap, name = pickle.dumps(Trap(sprung)), f"r-{make_record().key.digest}"
        (tmp_path / "cache/v1/local/trap.val").write_bytes(trap)
        for mode, filename, value in [
            (4, None, trap),
            (4, "trap.val", None),
            (2, "trap.val", None),
            (3, "trap.val", None),
            (1, "trap.val", trap),
        ]:
            plant(tier, name, value, mode, filename)
            fresh = LocalTier(tier.directory)
            assert fresh.get(make_record().key) is None and list(fresh.records()) == [] and fresh.stats().bad == 1
            assert [(key, kept) for key, _, kept in rows(tier, "q-")] == [(f"q-{name}", value)]
            plant(tier, name, value, mode, filename)
            cache = fresh._store()._writable()  # type: ignore[attr-defined]
            assert cache.get(name) is None, "diskcache's own look-up must refuse it as well"
            assert fresh.put(make_record(2)) and fresh.get(make_record().key) == make_record(2)
        assert (tmp_path / "cache/v1/local/trap.val").exists() and not sprung.exists()
        pickle.loads(trap)
        assert sprung.exists(), "the trap itself does not work"

    def test_diskcache_is_never_given_anything_to_pickle(self, tmp_path: Path, make_record: Make) -> None:
        tier = LocalTier(tmp_path)
        tier.put(make_record())
        cache = tier._store()._writable()  # type: ignore[attr-defined]
        for key, value in [("name", {"a": 1}), ("name", "text"), ("name", 1), (("a",), b"bytes"), (b"name", b"bytes")]:
            with pytest.raises(TypeError):
                cache.set(key, value)

    def test_a_path_in_the_database_is_nobodys_to_delete(self, tmp_path: Path, make_record: Make) -> None:
        tier, precious = LocalTier(tmp_path / "cache"), tmp_path / "precious"
        precious.write_text("precious")
        tier.put(make_record(1))
        plant(tier, f"r-{make_record().key.digest}", b"x", 2, "../../../precious")
        store = tier._store()
        store.merge(f"r-{make_record().key.digest}", encode_record(make_record(2)), lambda old, new: new)
        assert precious.exists() and tier.get(make_record().key) == make_record(2)

    @pytest.mark.parametrize(
        "statement",
        [
            "CREATE TABLE Users (name)",
            "INSERT INTO Settings VALUES ('sqlite_journal_mode; x', 1)",
            "INSERT INTO Settings VALUES ('close', 1)",
            "UPDATE Settings SET value = 'x; DROP' WHERE key = 'sqlite_cache_size'",
            "DROP TABLE Cache; CREATE TABLE Cache (key, value)",
            "DROP TABLE Cache; CREATE VIEW Cache AS SELECT 1 AS key, 1 AS raw",
        ],
    )
    def test_a_foreign_schema_is_set_aside(self, tmp_path: Path, make_record: Make, statement: str) -> None:
        LocalTier(tmp_path).put(make_record(1))
        with closing(sqlite3.connect(tmp_path / "v1/local/cache.db")) as connection:
            connection.executescript(statement)
        tier = LocalTier(tmp_path)
        assert tier.put(make_record(2)) and tier.get(make_record().key) == make_record(2)
        assert tier.stats().databases_set_aside == 1
        assert len(list(tmp_path.glob("v1/local.broken-*/cache.db"))) == 1


class TestBrokenFile:
    @pytest.mark.parametrize("content", [b"", b"garbage" * 5000, None], ids=["empty", "garbage", "half"])
    @pytest.mark.parametrize("write_first", [True, False])
    def test_it_is_replaced(self, tmp_path: Path, make_record: Make, content: bytes | None, write_first: bool, caplog: Log) -> None:
        old = LocalTier(tmp_path)
        for key in range(60):
            old.put(make_record(key=key))
        file = database(old)
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2] if content is None else content)
        tier = LocalTier(tmp_path)
        if write_first:
            assert tier.put(make_record(1, key=500))
        found = [tier.get(make_record(key=key).key) for key in range(60)]
        assert all(record in (None, make_record(key=key)) for key, record in enumerate(found))
        for key in range(60):
            assert tier.put(make_record(1, key=key))
        assert all(tier.get(make_record(key=key).key) == make_record(1, key=key) for key in range(60))
        broken = tier.stats().databases_set_aside
        assert broken == (0 if content == b"" else 1) == len(list(tmp_path.glob("v1/local.broken-*")))
        assert ("broken" in caplog.text) == bool(broken)

    def test_one_that_breaks_under_a_running_process_is_replaced(self, tmp_path: Path, make_record: Make) -> None:
        tier = LocalTier(tmp_path)
        for round_ in range(1, 6):
            assert tier.put(make_record(1)) and tier.get(make_record().key) == make_record(1)
            database(tier).write_bytes(b"not a database, but long enough to be looked at" * 100)
            assert tier.get(make_record().key) is None
            assert tier.stats().databases_set_aside == round_
        assert len(list(tmp_path.glob("v1/local.broken-*"))) == 3

    def test_random_damage_never_raises_and_never_gives_a_wrong_record(self, tmp_path: Path, make_record: Make) -> None:
        import random

        dice = random.Random(0)
        pristine = LocalTier(tmp_path / "pristine")
        for key in range(20):
            pristine.put(make_record(key, key=key))
        image = database(pristine).read_bytes()
        for round_ in range(60):
            tier = LocalTier(tmp_path / str(round_))
            database(tier).parent.mkdir(parents=True)
            damaged = bytearray(image)
            for _ in range(dice.choice([1, 10, 1000])):
                damaged[dice.randrange(len(damaged))] = dice.randrange(256)
            database(tier).write_bytes(damaged)
            found = [tier.get(make_record(key=key).key) for key in range(20)]
            assert all(record in (None, make_record(key, key=key)) for key, record in enumerate(found))
            assert tier.put(make_record(1, key=77)) and tier.get(make_record(key=77).key) == make_record(1, key=77)


class TestNoWriting:
    @pytest.fixture(autouse=True)
    def _logged(self, caplog: Log) -> None:
        caplog.set_level(logging.WARNING, "helion_rt.database")

    @pytest.mark.parametrize("where", ["cache", "cache/below", "cache/v1", "cache/v1/local", "cache/v1/files"])
    def test_a_file_where_the_directory_should_be(
        self, store: StoreKind, tmp_path: Path, make_record: Make, where: str, caplog: Log
    ) -> None:
        if {StoreKind.SQLITE: "files", StoreKind.FILES: "local"}[store] in where:
            pytest.skip("a place of the other store")
        (tmp_path / where).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / where).write_text("a file")
        tier = LocalTier(tmp_path / ("cache/below" if where == "cache/below" else "cache"))
        assert tier.get(make_record().key) is None
        for n in (1, 3, 2):
            assert not tier.put(make_record(n))
        assert not tier.put_program("alias", b"program")
        assert tier.get(make_record().key) == make_record(3) and tier.get_program("alias") == b"program"
        assert list(tier.records()) == [make_record(3)]
        (message,) = [record.getMessage() for record in caplog.records]
        assert str(tier.directory) in message and "HELION_RT_CACHE_DIR" in message
        assert (tier.stats().in_memory, tier.stats().write_failures) == (2, 4)
        (tmp_path / where).unlink()
        assert tier.put(make_record(1, key=1)), "the directory can be written now"
        assert tier.stats().in_memory == 0 and LocalTier(tier.directory).get(make_record().key) == make_record(3)

    def test_a_database_that_is_held_is_a_failed_write_and_still_read(
        self, tmp_path: Path, make_record: Make, monkeypatch: pytest.MonkeyPatch, caplog: Log
    ) -> None:
        from helion_rt.database import sqlite_store

        monkeypatch.setattr(sqlite_store, "_WRITE_WAIT_S", 0.05)
        tier, fresh = LocalTier(tmp_path), LocalTier(tmp_path)
        tier.put(make_record(1))
        with closing(sqlite3.connect(database(tier), isolation_level=None)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            for one in (tier, fresh):
                assert one.get(make_record().key) == make_record(1)
                assert not one.put(make_record(2)) and not one.put(make_record(2, key=1))
                assert one.get(make_record().key) == make_record(2)
            holder.execute("ROLLBACK")
        assert len(caplog.records) == 2, "one warning a tier"
        tier.close()
        assert tier.stats().in_memory == 0 and LocalTier(tmp_path).get(make_record().key) == make_record(2)

    def test_a_file_system_without_locks_gets_the_store_of_files(
        self, tmp_path: Path, make_record: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from helion_rt.database.sqlite_store import SqliteStore
        from helion_rt.database.store import Fault, StoreError

        def merge(self: SqliteStore, *_: object) -> None:
            raise StoreError(Fault.CANNOT_LOCK, "locking protocol")

        monkeypatch.setattr(SqliteStore, "merge", merge)
        tier = LocalTier(tmp_path)
        assert tier.put(make_record(1)) and tier.stats().store is StoreKind.FILES and tier.get(make_record().key) == make_record(1)

    @pytest.mark.parametrize("readable", [True, False])
    def test_read_only_for_an_unprivileged_user(self, store: StoreKind, make_record: Make, run_script: Run, readable: bool) -> None:
        source = """
import os, sqlite3, diskcache, filelock, helion_rt.database.sqlite_store, helion_rt.database.tier as module
module.is_network_file_system = lambda path: sys.argv[2] == "files"
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
readable = sys.argv[3] == "True"
tier = open_local(sys.argv[1])
assert tier.get(make_record().key) == (make_record(1) if readable else None)
assert not tier.put(make_record(2)) and not tier.put(make_record(3))
assert not tier.put(make_record(2, key=1)) and not tier.put_program("a", b"b")
assert tier.get(make_record().key) == make_record(3) and tier.get(make_record(key=1).key) == make_record(2, key=1)
assert len(list(tier.records())) == 2 and tier.get_program("a") == b"b"
assert not tier.put(make_record(0), force=True) and tier.get(make_record().key) == make_record(0)
with work_lock(sys.argv[1], "ab") as free:
    assert free
"""
        directory = Path(tempfile.mkdtemp())  # pytest's own folder is closed to other users
        try:
            LocalTier(directory).put(make_record(1))
            for path in [directory, *directory.rglob("*")]:
                path.chmod((0o555 if readable else 0o000) if path.is_dir() else 0o444)
            result = run_script(source, directory, store.value, readable)
            assert result.stderr.count("cannot be written") == 1 and str(directory) in result.stderr
        finally:
            for path in [directory, *directory.rglob("*")]:
                path.chmod(0o700)
            shutil.rmtree(directory)

    def test_a_full_disk(self, store: StoreKind, tmp_path: Path, make_record: Make, run_script: Run) -> None:
        # A limit on the size of files makes every write beyond it fail, as a full disk does.
        source = """
import resource, helion_rt.database.tier as module
module.is_network_file_system = lambda path: sys.argv[2] == "files"
tier = open_local(sys.argv[1])
assert tier.put(make_record(1))
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), hard))
written = [tier.put_program(f"alias {n}", bytes(500_000)) for n in range(4)]
assert not all(written), written
assert not tier.put_program("big", bytes(3_000_000))
assert tier.get(make_record().key) == make_record(1), "what was there is still served"
assert all(tier.get_program(f"alias {n}") == bytes(500_000) for n in range(4))
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
assert tier.put(make_record(2)) and tier.stats().in_memory == 0
assert tier.stats().databases_set_aside == 0 and tier.stats().bad == 0
again = open_local(sys.argv[1])
assert again.get(make_record().key) == make_record(2) and again.get_program("big") == bytes(3_000_000)
"""
        for limit in (0, 100, 300_000):
            result = run_script(source, tmp_path / str(limit), store.value, limit)
            assert result.stderr.count("cannot be written") == 1

    @pytest.fixture
    def small_disk(self, tmp_path: Path) -> Iterator[Path]:
        place = tmp_path / "disk"
        place.mkdir()
        if sys.platform != "linux" or os.getuid() != 0:
            pytest.skip("only root can mount a small disk; test_a_full_disk stands in")
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", place], capture_output=True).returncode:
            pytest.skip("mounting is not permitted here; test_a_full_disk stands in")
        try:
            yield place
        finally:
            subprocess.run(["umount", place], check=True)

    def test_a_disk_that_is_really_full(self, store: StoreKind, small_disk: Path, make_record: Make) -> None:
        tier = LocalTier(small_disk / "cache")
        assert tier.put(make_record(1))
        ballast = small_disk / "ballast"
        with open(ballast, "wb", buffering=0) as file, pytest.raises(OSError):
            while True:
                file.write(bytes(4096))
        for fresh in (tier, LocalTier(small_disk / "cache")):
            assert fresh.get(make_record().key) == make_record(1)
            assert not fresh.put_program("alias", bytes(100_000)) and fresh.get_program("alias") == bytes(100_000)
            assert fresh.get(make_record().key) == make_record(1)
        ballast.unlink()
        assert tier.put(make_record(2)) and tier.stats().in_memory == 0
        assert LocalTier(small_disk / "cache").get_program("alias") == bytes(100_000)
