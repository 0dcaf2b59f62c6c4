"""The store on a node's own disk: one SQLite file, laid out and written by diskcache, with everything kept inline.

No connection outlives an operation. That costs a fraction of a millisecond and buys much: nothing is inherited by a fork or kept by
a dead thread, the file is whole and closed while nobody writes, and a database that another process set aside is
noticed. Reading goes to SQLite directly: a process that only reads imports no diskcache and writes nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .paths import make_private_directory
from .store import MAX_SET_ASIDE, Fault, StoreError

if TYPE_CHECKING:
    import diskcache

log = logging.getLogger("helion_rt.database")

_READ_WAIT_S = 1.0  # a reader waits only while a writer closes or recovers the file
_WRITE_WAIT_S = 5  # writers are in the background
_MAX_BROKEN = 3  # broken databases kept for inspection
_RAW = 1  # diskcache's mode of a value that SQLite holds as it is
_COLUMNS = {"key", "raw", "store_time", "expire_time", "access_time", "access_count", "tag", "size", "mode", "filename", "value"}
# Everything diskcache has a setting for, so that nothing is taken from the Settings table of a file.
_SETTINGS: dict[str, int | str] = {
    "statistics": 0,
    "tag_index": 0,
    "eviction_policy": "none",
    "size_limit": 2**62,
    "cull_limit": 0,
    "sqlite_auto_vacuum": 0,
    "sqlite_cache_size": 2**11,
    "sqlite_journal_mode": "wal",
    "sqlite_mmap_size": 0,  # a mapped file that somebody truncates kills the process
    "sqlite_synchronous": 1,
    "disk_min_file_size": 2**62,  # never a file beside the database: its transactions make an entry atomic
    "disk_pickle_protocol": 0,
}
# Not SHMOPEN and SHMMAP: a full disk gives them as well.
_CANNOT_LOCK = {
    sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_IOERR_LOCK, sqlite3.SQLITE_IOERR_RDLOCK, sqlite3.SQLITE_IOERR_UNLOCK,
    sqlite3.SQLITE_IOERR_CHECKRESERVEDLOCK, sqlite3.SQLITE_IOERR_SHMLOCK,
}  # fmt: skip
_SYSTEM_FAULTS = {
    sqlite3.SQLITE_PERM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_AUTH,
}  # fmt: skip


class _Broken(Exception):
    """The file is not a database, or not ours."""


def _sqlite_error(error: BaseException) -> sqlite3.Error | None:
    """The first SQLite error behind ``error``: diskcache turns some into Timeout, and a failed ROLLBACK hides others."""
    found = None
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, sqlite3.Error):
            found = link
        link = link.__context__
    return found


def _is_broken(error: BaseException) -> bool:
    cause = _sqlite_error(error)
    return isinstance(error, _Broken) or getattr(cause, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _is_for_want_of_something(error: Exception) -> bool:
    """Whether the system refused (rights, room, memory, a lock), as opposed to what the file holds."""
    cause = _sqlite_error(error)
    return isinstance(error, OSError) if cause is None else getattr(cause, "sqlite_errorcode", 0) & 0xFF in _SYSTEM_FAULTS


def _to_store_error(error: Exception) -> StoreError:
    cause = _sqlite_error(error)
    code = getattr(cause, "sqlite_errorcode", 0)
    if code in _CANNOT_LOCK:
        return StoreError(Fault.CANNOT_LOCK, str(cause))
    if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreError(Fault.BUSY, str(cause))
    return StoreError(Fault.UNWRITABLE, str(cause or error))


def _disk_class() -> type[diskcache.Disk]:
    """diskcache's Disk without pickle and without files: what is not bytes under a text key is refused, both ways."""
    import diskcache  # late: only a process that writes needs it

    class BytesDisk(diskcache.Disk):
        def put(self, key: object) -> Any:
            if type(key) is not str:
                raise TypeError(f"a name is text, not {type(key).__name__}")
            return key, True

        def get(self, key: object, raw: object) -> Any:
            if type(key) is not str or not raw:
                raise OSError("refused: a name that is not text")
            return key

        def store(self, value: object, read: bool, key: object = None) -> Any:
            if type(value) is not bytes or read:
                raise TypeError(f"a value is bytes, not {type(value).__name__}")
            return 0, _RAW, None, sqlite3.Binary(value)

        def fetch(self, mode: int, filename: str | None, value: object, read: bool) -> Any:
            if mode != _RAW or filename is not None or type(value) is not bytes or read:
                raise OSError("refused: a value that is not plain bytes")  # diskcache takes OSError for a miss
            return value

        def remove(self, file_path: str) -> None:
            """No entry of ours has a file; a path found in the database is nobody's to delete."""

    return BytesDisk


class SqliteStore:
    """A ``Store`` in ``directory``, which is created at the first write. See the module."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.databases_set_aside = 0
        self._file = directory / "cache.db"
        self._cache: diskcache.Cache | None = None
        self._doubted = False
        self._lock, self._pid = threading.Lock(), os.getpid()

    def read(self, name: str, limit: int) -> list[bytes]:
        query = (
            "SELECT CASE WHEN mode = ? AND filename IS NULL AND typeof(value) = 'blob' AND length(value) <= ? THEN value ELSE x'' END"
            " FROM Cache WHERE key = ? AND raw = 1"
        )
        return [row[0] for row in self._query(query, (_RAW, limit, name))]

    def names(self) -> list[str]:
        query = "SELECT key FROM Cache WHERE raw = 1 AND typeof(key) = 'text' AND substr(key, 1, 2) IN ('r-', 'p-') ORDER BY key"
        return [row[0] for row in self._query(query, ())]

    def merge(self, name: str, data: bytes, better: Callable[[bytes, bytes], bytes]) -> None:
        def run() -> None:
            cache = self._writable()
            try:
                with cache.transact():
                    old = cache.get(name)
                    new = better(old, data) if isinstance(old, bytes) else data
                    if new != old:
                        cache.set(name, new)
            finally:
                cache.close()

        self._write(run)

    def set_aside(self, name: str, data: bytes) -> None:
        def run() -> None:
            # Only the entry that was judged: a writer may have put a good one in its place meanwhile. Its value is not read.
            with self._connected("mode=rw", _WRITE_WAIT_S) as connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(
                    "UPDATE OR REPLACE Cache SET key = 'q-' || key, store_time = ? WHERE key = ? AND raw = 1"
                    " AND (mode != ? OR filename IS NOT NULL OR typeof(value) != 'blob' OR value = ? OR ? = x'')",
                    (time.time(), name, _RAW, data, data),
                )
                connection.execute(
                    "DELETE FROM Cache WHERE substr(key, 1, 2) = 'q-' AND rowid NOT IN"
                    " (SELECT rowid FROM Cache WHERE substr(key, 1, 2) = 'q-' ORDER BY store_time DESC LIMIT ?)",
                    (MAX_SET_ASIDE,),
                )
                connection.execute("COMMIT")

        self._write(run)

    @contextlib.contextmanager
    def _connected(self, mode: str, wait_s: float) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(f"{self._file.as_uri()}?{mode}", uri=True, timeout=wait_s, isolation_level=None)
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            yield connection
        finally:
            connection.close()

    def _query(self, query: str, values: tuple[object, ...]) -> list[tuple]:
        """Rows, or none if there is no database, or no table yet. A broken database is set aside."""
        seen = self._identity()
        if seen is None:
            return []
        try:
            with self._connected("mode=rw", _READ_WAIT_S) as connection:
                return connection.execute(query, values).fetchall()
        except (sqlite3.Error, ValueError) as error:  # ValueError: text that is not UTF-8, in a damaged file
            if _is_broken(error):
                with contextlib.suppress(StoreError):
                    self._set_database_aside(seen, error)
                return []
        try:
            # A read-only directory has no room for the shared memory that SQLite wants; at rest the file is whole without it.
            with self._connected("mode=ro&immutable=1", _READ_WAIT_S) as connection:
                return connection.execute(query, values).fetchall()
        except (sqlite3.Error, ValueError) as error:
            log.debug("cannot read %s: %s", self._file, error)
            return []

    def _write(self, run: Callable[[], None]) -> None:
        """``run`` under the lock of this process; again where the database was replaced, or broken and set aside."""
        if self._pid != os.getpid():  # a fork may have copied a lock that nobody holds any more
            self._lock, self._pid, self._cache = threading.Lock(), os.getpid(), None
        with self._lock:
            for attempt in range(3):
                seen = self._identity()
                try:
                    return run()
                except (sqlite3.Error, OSError, ValueError, TypeError, AssertionError, _Broken, _timeout_class()) as error:
                    self._cache = None
                    failure = _to_store_error(error)
                    if failure.fault is Fault.BUSY or attempt == 2:
                        raise failure from error
                    if _is_broken(error):
                        self._set_database_aside(seen, error)
                    elif attempt == 1:
                        # It fails again, opened afresh. If that is not for want of rights or room, the damage is one that SQLite
                        # does not see as such. Once: should the fault be ours after all, we do not throw away all that comes.
                        if self._doubted or _is_for_want_of_something(error):
                            raise failure from error
                        self._doubted = True
                        self._set_database_aside(seen, error)

    def _writable(self) -> diskcache.Cache:
        """diskcache on our file, which is created if missing and checked before diskcache, which trusts it, sees it."""
        if self._cache is None or self._identity() is None:
            import diskcache

            make_private_directory(self.directory)
            with self._connected("mode=rwc", _WRITE_WAIT_S) as connection:
                connection.execute("BEGIN IMMEDIATE")  # waits here, and not a minute inside diskcache, while somebody holds it
                _check_schema(connection)
                connection.execute("ROLLBACK")
            # What it read of the settings is overruled: all of them are given here.
            self._cache = diskcache.Cache(str(self.directory), timeout=_WRITE_WAIT_S, disk=_disk_class(), **_SETTINGS)
        return self._cache

    def _identity(self) -> tuple[int, int] | None:
        """Which file the database is now; None if there is none."""
        try:
            status = os.stat(self._file)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _set_database_aside(self, seen: tuple[int, int] | None, error: Exception) -> None:
        """Rename the directory of a broken database, journal and all, so that the next write makes a fresh one."""
        aside = self.directory.with_name(f"{self.directory.name}.broken-{time.time_ns():020d}-{os.getpid()}")
        try:
            if self._identity() != seen:
                return  # another process has done it
            os.rename(self.directory, aside)
            older = sorted(self.directory.parent.glob(f"{self.directory.name}.broken-*"))[:-_MAX_BROKEN]
        except OSError as failure:
            raise StoreError(Fault.UNWRITABLE, f"{error}; it cannot be moved aside: {failure}") from error
        for old in older:
            shutil.rmtree(old, ignore_errors=True)
        self.databases_set_aside += 1
        log.warning("the tuning database %s is broken (%s); it was moved to %s and a fresh one is made", self._file, error, aside)


def _timeout_class() -> type[Exception]:
    import diskcache

    return diskcache.Timeout


def _check_schema(connection: sqlite3.Connection) -> None:
    """Raise _Broken unless the file is empty or laid out by diskcache with settings of the expected kind."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")}
    if not tables <= {"Cache", "Settings"} or connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'view'").fetchone():
        raise _Broken("the tables are not ours")
    if "Cache" in tables and _COLUMNS - {row[1] for row in connection.execute("PRAGMA table_info(Cache)")}:
        raise _Broken("the columns are not ours")
    if "Settings" in tables:
        rows = list(connection.execute("SELECT * FROM Settings LIMIT 100"))
        known = {*_SETTINGS, "count", "size", "hits", "misses"}
        if any(len(row) != 2 or row[0] not in known or not (isinstance(row[1], int) or row[1] in ("none", "wal")) for row in rows):
            raise _Broken("the settings are not ours")
