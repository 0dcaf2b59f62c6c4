"""The local tier: the records and programs of this machine. Whatever happens to the disk, a call does not notice."""

from __future__ import annotations

import enum
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

from .codec import MAX_BYTES, BadRecord, Kind, decode_program, decode_record, encode_program, encode_record
from .file_store import FileStore
from .key import Key
from .paths import LAYOUT_VERSION, is_network_file_system
from .record import Record, better
from .store import Fault, Store, StoreError

log = logging.getLogger("helion_rt.database")

_MAX_PENDING = 1024  # entries kept in memory while the disk cannot be written
_T = TypeVar("_T")
_Choose = Callable[[bytes, bytes], bytes]


class StoreKind(enum.Enum):
    """Where a local tier keeps its entries."""

    SQLITE = "sqlite"
    FILES = "files"


@dataclass(frozen=True)
class Stats:
    """Counts of one tier since it was opened. ``bad`` entries were set aside, as were broken ``databases_set_aside``;
    ``in_memory`` entries could not be written and go with the process."""

    directory: str
    store: StoreKind
    hits: int = 0
    misses: int = 0
    bad: int = 0
    writes: int = 0
    write_failures: int = 0
    databases_set_aside: int = 0
    in_memory: int = 0


class Tier(Protocol):
    """A place records live. No method raises for what it finds there, or because it cannot be written."""

    def get(self, key: Key) -> Record | None: ...
    def put(self, record: Record, *, force: bool = False) -> bool: ...
    def get_program(self, alias: str) -> bytes | None: ...
    def put_program(self, alias: str, program: bytes) -> bool: ...
    def records(self) -> Iterator[Record]: ...
    def stats(self) -> Stats: ...
    def close(self) -> None: ...


def open_local(directory: str | os.PathLike[str]) -> LocalTier:
    """The local tier in ``directory`` (``Settings.cache_dir``). Touches no file until it is used."""
    return LocalTier(directory)


class LocalTier:
    """A ``Tier`` in a directory of this machine; see ``open_local``. Safe to use from any thread."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(os.path.abspath(directory))
        self._lock, self._pid = threading.Lock(), os.getpid()
        self._counts = Stats(str(self.directory), StoreKind.SQLITE)
        self._pending: dict[str, tuple[bytes, _Choose]] = {}
        self._warned: set[Fault] = set()
        self._the_store: Store | None = None

    def get(self, key: Key) -> Record | None:
        """The record of ``key``, or None. One that is damaged, or belongs to another key, is set aside and counted."""
        found = self._load(f"r-{key.digest}", Kind.RECORD, decode_record, lambda record: record.key.digest == key.digest)
        self._count(hits=1) if found else self._count(misses=1)
        return _best(found) if found else None

    def put(self, record: Record, *, force: bool = False) -> bool:
        """Keep the better (``record.order``) of ``record`` and what is stored; with ``force`` keep ``record`` whatever is
        stored (for a winner that was shown here to be wrong). What either knows to be in quarantine is kept in both cases.
        False if it could only be kept in memory, or not at all."""
        name = f"r-{record.key.digest}"
        try:
            data = encode_record(record)
        except ValueError as error:
            log.warning("the record of kernel %s is not stored: %s", record.kernel, error)
            self._count(write_failures=1)
            return False
        # Reading first sets a damaged entry aside, where the merge would only overwrite it.
        self._load(name, Kind.RECORD, decode_record, lambda found: found.key.digest == record.key.digest)
        return self._save(name, data, _keep_new_record if force else _better_record)

    def get_program(self, alias: str) -> bytes | None:
        """The program (as encoded by its own codec) stored under ``alias``, or None."""
        found = self._load(_program_name(alias), Kind.PROGRAM, decode_program, lambda entry: entry[0] == alias)
        self._count(hits=1) if found else self._count(misses=1)
        return max(found)[1] if found else None

    def put_program(self, alias: str, program: bytes) -> bool:
        """Store ``program`` under ``alias``, in place of an earlier one. False as for ``put``."""
        try:
            data = encode_program(alias, program)
        except ValueError as error:
            log.warning("a program is not stored: %s", error)
            self._count(write_failures=1)
            return False
        return self._save(_program_name(alias), data, _keep_new)

    def records(self) -> Iterator[Record]:
        """Every good record, by digest."""
        names = {name for name in (*self._store().names(), *self._pending) if name.startswith("r-")}
        for name in sorted(names):
            found = self._load(name, Kind.RECORD, decode_record, lambda record, name=name: name == f"r-{record.key.digest}")
            if found:
                yield _best(found)

    def stats(self) -> Stats:
        """The counts so far."""
        store = self._store()
        with self._lock:
            kind = StoreKind.FILES if isinstance(store, FileStore) else StoreKind.SQLITE
            return replace(self._counts, store=kind, databases_set_aside=store.databases_set_aside, in_memory=len(self._pending))

    def close(self) -> None:
        """Try once more to write what could not be written. The tier holds nothing open and may be used again."""
        self._flush()

    def _store(self) -> Store:
        if self._pid != os.getpid():  # a fork may have copied a lock that nobody holds any more
            self._lock, self._pid = threading.Lock(), os.getpid()
        if self._the_store is None:
            if is_network_file_system(self.directory):
                self._the_store = FileStore(self.directory / LAYOUT_VERSION / "files")
            else:
                from .sqlite_store import SqliteStore  # late: importing the database needs no SQLite

                self._the_store = SqliteStore(self.directory / LAYOUT_VERSION / "local")
        return self._the_store

    def _load(self, name: str, kind: Kind, decode: Callable[[bytes], _T], ours: Callable[[_T], bool]) -> list[_T]:
        """The good entries under ``name``, on disk and in memory; bad ones are counted and set aside."""
        store = self._store()
        good: list[_T] = []
        pending = self._pending.get(name)
        stored = [] if pending and pending[1] in _REPLACING else store.read(name, MAX_BYTES[kind])
        for data in [*stored, pending[0]] if pending else stored:
            try:
                entry = decode(data)
                if not ours(entry):
                    raise BadRecord("it belongs to another key")
                good.append(entry)
            except BadRecord as error:
                self._count(bad=1)
                log.info("entry %s of %s is bad and was set aside: %s", name, self.directory, error)
                try:
                    store.set_aside(name, data)
                except StoreError as failure:
                    log.debug("entry %s stays where it is: %s", name, failure)
        return good

    def _save(self, name: str, data: bytes, choose: _Choose) -> bool:
        try:
            self._merge(name, data, choose)
        except StoreError as error:
            self._count(write_failures=1)
            self._warn(error)
            with self._lock:
                old = self._pending.pop(name, None)
                # A choice that replaces what is stored stays one, whatever is merged into it before it can be written.
                self._pending[name] = (choose(old[0], data), old[1] if old[1] in _REPLACING else choose) if old else (data, choose)
                while len(self._pending) > _MAX_PENDING:
                    self._pending.pop(next(iter(self._pending)))
            return False
        self._count(writes=1)
        self._flush()
        return True

    def _merge(self, name: str, data: bytes, choose: _Choose) -> None:
        try:
            self._store().merge(name, data, choose)
        except StoreError as error:
            if error.fault is not Fault.CANNOT_LOCK:
                raise
            files = FileStore(self.directory / LAYOUT_VERSION / "files")
            files.merge(name, data, choose)
            log.info("SQLite cannot lock files in %s (%s): records are kept as files", self.directory, error)
            self._the_store = files

    def _flush(self) -> None:
        """Write what was kept in memory; what cannot be written stays there."""
        for name, entry in list(self._pending.items()):
            try:
                self._merge(name, *entry)
            except StoreError as error:
                log.debug("still not written: %s", error)
                return
            with self._lock:
                if self._pending.get(name) == entry:
                    del self._pending[name]

    def _count(self, **more: int) -> None:
        with self._lock:
            self._counts = replace(self._counts, **{name: getattr(self._counts, name) + n for name, n in more.items()})

    def _warn(self, error: StoreError) -> None:
        with self._lock:
            if error.fault in self._warned:
                return
            self._warned.add(error.fault)
        advice = (
            "another process has held it for long; if that is a dead mount or a stopped process, end it"
            if error.fault is Fault.BUSY
            else "make it a writable directory with free space, or point HELION_RT_CACHE_DIR at one"
        )
        log.warning(
            "the tuning database in %s cannot be written (%s). What this process tunes is kept in memory only and will be tuned"
            " again next time. To keep it: %s.",
            self.directory, error, advice,
        )  # fmt: skip


def _program_name(alias: str) -> str:
    return "p-" + hashlib.sha256(b"helion_rt.database.alias\0" + alias.encode()).hexdigest()


def _best(records: list[Record]) -> Record:
    best = records[0]
    for record in records[1:]:
        best = better(best, record)
    return best


def _keep_new(old: bytes, new: bytes) -> bytes:
    return new


def _both(old: bytes, new: bytes) -> tuple[Record | None, Record | None]:
    found: list[Record | None] = []
    for data in (old, new):
        try:
            found.append(decode_record(data))
        except BadRecord:
            found.append(None)
    return found[0], found[1]


def _better_record(old: bytes, new: bytes) -> bytes:
    """The better of two records; one that is bad, or of another key, loses."""
    first, second = _both(old, new)
    if first is None or second is None:
        return new if first is None else old
    if first.key != second.key:
        return new
    best = better(first, second)
    return _encoded(best, old if replace(best, quarantined=first.quarantined) == first else new)


def _keep_new_record(old: bytes, new: bytes) -> bytes:
    """The new record, with what the old one knows to be in quarantine."""
    first, second = _both(old, new)
    if first is None or second is None or first.key != second.key:
        return new
    return _encoded(replace(second, quarantined=(*first.quarantined, *second.quarantined)), new)


def _encoded(record: Record, otherwise: bytes) -> bytes:
    try:
        return encode_record(record)
    except ValueError:  # so much in quarantine that it has no room
        return otherwise


# Choices that do not ask how good the stored entry is.
_REPLACING = (_keep_new, _keep_new_record)
