"""The store on a node's own disk: one SQLite file, laid out and written by diskcache, with everything kept inline.

No connection that may write outlives an operation. That costs a fraction of a millisecond and buys much: no lock is inherited by a fork
or kept by a dead thread, the file is whole and closed while nobody writes, and a database that another process set aside is
noticed. The one that stays reads a file at rest, and holds no lock. Reading goes to SQLite directly: a process that only reads
imports no diskcache and writes nothing.
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

from .paths import make_private_directory, who_else_may_write
from .store import MAX_SET_ASIDE, Fault, StoreError

if TYPE_CHECKING:
    import diskcache

log = logging.getLogger("helion_rt.database")

_READ_WAIT_S = 1.0  # a reader waits only while a writer closes or recovers the file
_WRITE_WAIT_S = 5  # writers are in the background
_REST_S = 0.1  # steps in which file systems tell time are shorter
_MAX_BROKEN = 3  # broken databases kept for inspection
_RAW = 1  # diskcache's mode of a value that SQLite holds as it is
_PAGE = 100  # entries that are read at a time when all are
_VALUE = "CASE WHEN mode = ? AND filename IS NULL AND typeof(value) = 'blob' AND length(value) <= ? THEN value ELSE x'' END"
# Text only, and only names of ours: in what somebody planted, a name may be no text at all.
_NAMES = "raw = 1 AND key > ? AND key < ? AND typeof(key) = 'text' AND length(key) = 66 AND substr(key, 3) NOT GLOB '*[^0-9a-f]*'"
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
    """A ``Store`` in ``directory``, which is created at the first write. See the module. ``private``: a file that somebody else
    may write to is not used."""

    def __init__(self, directory: Path, *, private: bool = True) -> None:
        self.directory, self.private = directory, private
        self.databases_set_aside = 0
        self.untrusted = ""
        self._file = directory / "cache.db"
        self._cache: diskcache.Cache | None = None
        self._doubted = False
        self._lock, self._reading, self._pid = threading.Lock(), threading.Lock(), os.getpid()
        self._reader: tuple[tuple[int, int, int], sqlite3.Connection] | None = None

    def read(self, name: str, limit: int) -> list[bytes]:
        query = f"SELECT {_VALUE} FROM Cache WHERE key = ? AND raw = 1"
        return [row[0] for row in self._query(query, (_RAW, limit, name))]

    def names(self, prefix: str = "") -> Iterator[str]:
        return (name for name, _ in self._pages("''", (), prefix, 10 * _PAGE))

    def entries(self, prefix: str, limit: int) -> Iterator[tuple[str, list[bytes]]]:
        return ((name, [value]) for name, value in self._pages(_VALUE, (_RAW, limit), prefix, _PAGE))

    def _pages(self, value: str, parameters: tuple[object, ...], prefix: str, size: int) -> Iterator[tuple[str, bytes]]:
        """Names and values in order of the names, ``size`` at a time: writers do not wait for whoever goes through them all."""
        for kind in ("p-", "r-"):
            after, end = kind, kind[0] + "."  # the character after the hyphen
            query = f"SELECT key, {value} FROM Cache WHERE {_NAMES} ORDER BY key LIMIT {size}"
            while kind.startswith(prefix) and (rows := self._query(query, (*parameters, after, end))):
                yield from rows
                if rows[-1][0] <= after:
                    break  # the index is damaged, and would give the same again and again
                after = rows[-1][0]

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
                    "DELETE FROM Cache WHERE key > 'q-' AND key < 'q.' AND rowid NOT IN"
                    " (SELECT rowid FROM Cache WHERE key > 'q-' AND key < 'q.' ORDER BY store_time DESC LIMIT ?)",
                    (MAX_SET_ASIDE,),
                )
                connection.execute("COMMIT")

        self._write(run)

    def sizes(self) -> Iterator[tuple[str, int, float]]:
        """See ``Store``."""
        query = "SELECT key, length(value), store_time FROM Cache WHERE raw = 1 AND typeof(key) = 'text' ORDER BY key"
        for name, size, stored in self._query(query, ()):
            yield name, size if isinstance(size, int) else 0, stored if isinstance(stored, float) else 0.0

    def remove(self, name: str) -> bool:
        """See ``Store``."""
        gone = 0

        def run() -> None:
            nonlocal gone
            with self._connected("mode=rw", _WRITE_WAIT_S) as connection:
                gone = connection.execute("DELETE FROM Cache WHERE key = ? AND raw = 1", (name,)).rowcount

        if self._identity() is not None:
            self._write(run)
        return gone > 0

    def compact(self) -> None:
        """See ``Store``."""

        def run() -> None:
            with self._connected("mode=rw", _WRITE_WAIT_S) as connection:
                connection.execute("VACUUM")

        if self._identity() is not None:
            self._write(run)

    @contextlib.contextmanager
    def _connected(self, mode: str, wait_s: float) -> Iterator[sqlite3.Connection]:
        connection = self._connect(mode, wait_s)
        try:
            yield connection
        finally:
            connection.close()

    def _connect(self, mode: str, wait_s: float) -> sqlite3.Connection:
        address = f"{self._file.as_uri()}?{mode}"
        connection = sqlite3.connect(address, uri=True, timeout=wait_s, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _query(self, query: str, values: tuple[object, ...]) -> list[tuple]:
        """Rows, or none if there is no database, or no table yet. A broken database is set aside."""
        self._forget_parent()
        seen = self._identity()
        if seen is None or self._is_anybodys():
            return []
        if (rows := self._query_at_rest(query, values)) is not None:
            return rows
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

    def _query_at_rest(self, query: str, values: tuple[object, ...]) -> list[tuple] | None:
        """Rows, while nobody writes; None if somebody does, or it cannot be told.

        At rest the file is whole without its log, and may be read without a lock over a connection that stays: no log and no shared memory
        are made and removed, no schema is read, which is most of what a look-up costs. A writer that comes meanwhile leaves its log
        beside the file, or changes the time of the file, and then this asks anew.
        """
        before = self._rest()
        if before is None:
            return None
        with self._reading:
            try:
                if self._reader is None or self._reader[0] != before:
                    self._close_reader()
                    self._reader = before, self._connect("mode=ro&immutable=1", 0.0)
                rows = self._reader[1].execute(query, values).fetchall()
            except (sqlite3.Error, ValueError):
                self._close_reader()
                return None  # whoever looks with a lock says what that is
        return rows if self._rest() == before else None

    def _rest(self) -> tuple[int, int, int] | None:
        """Which file the database is, how long and of when. None if it has a log beside it, or was changed a moment ago: of the next
        change the file might have the same time."""
        try:
            status = os.stat(self._file)
        except OSError:
            return None
        if not status.st_mtime + _REST_S < time.time() or os.path.exists(f"{self._file}-wal") or os.path.exists(f"{self._file}-journal"):
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns

    def close(self) -> None:
        """See ``Store``."""
        self._forget_parent()
        with self._reading:
            self._close_reader()

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader[1].close()

    def _forget_parent(self) -> None:
        """After a fork: another thread may have held the locks of the parent, and nobody gives them back here."""
        if self._pid != os.getpid():
            self._lock, self._reading, self._pid = threading.Lock(), threading.Lock(), os.getpid()
            self._cache, self._reader = None, None

    def _write(self, run: Callable[[], None]) -> None:
        """``run`` under the lock of this process; again where the database was replaced, or broken and set aside."""
        self._forget_parent()
        with self._lock:
            if self._is_anybodys():
                raise StoreError(Fault.UNTRUSTED, self.untrusted)
            for attempt in range(3):
                seen = self._identity()
                try:
                    return run()
                except (sqlite3.Error, OSError, ValueError, TypeError, AssertionError, _Broken, _timeout_class()) as error:
                    self._cache = None
                    failure = _to_store_error(error)
                    if failure.fault is Fault.BUSY or attempt == 2:
                        raise failure from error
                    if _is_broken(error) or self._is_of_no_version():
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

    def _is_anybodys(self) -> bool:
        """May somebody else write to the file? SQLite gives what it keeps beside it the same rights."""
        if self.private and (reason := who_else_may_write(self._file)):
            self.untrusted = reason
            return True
        return False

    def _is_of_no_version(self) -> bool:
        """Is the version for writers, in the header of the file, one that SQLite has never had? To SQLite the file is read-only then."""
        try:
            with open(self._file, "rb") as file:
                header = file.read(20)
        except OSError:
            return False
        return len(header) == 20 and header[18] not in (1, 2)

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
