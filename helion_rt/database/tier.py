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

from .codec import MAX_BYTES, BadRecord, Kind, NewerRecord, decode_program, decode_record, encode_program, encode_record
from .file_store import FileStore
from .key import Key
from .paths import LAYOUT_VERSION, is_network_file_system, who_else_may_write
from .record import Record, better
from .signing import OVERHEAD, Trust, Untrusted
from .store import Fault, Store, StoreError

log = logging.getLogger("helion_rt.database")

_MAX_PENDING = 1024  # entries kept in memory while the disk cannot be written
_T = TypeVar("_T")

_ADVICE = {
    Fault.BUSY: "another process has held it for long; if that is a dead mount or a stopped process, end it",
    Fault.UNTRUSTED: "make it yours and take the right to write from everybody else (chmod -R go-w), or point HELION_RT_CACHE_DIR at a"
    " directory of your own. Until then nothing is read from it either",
    Fault.NEWER: "use that version here too, or point HELION_RT_CACHE_DIR at another directory",
}
_OTHER_ADVICE = "make it a writable directory with free space, or point HELION_RT_CACHE_DIR at one"


class _Choice(enum.Enum):
    """What is kept of an old entry and a new one."""

    BETTER = "better"
    FORCED = "forced"  # the new record, with what the old one knows to be in quarantine
    PROGRAM = "program"  # the new program

    @property
    def replaces(self) -> bool:
        """Does it not ask how good the old entry is?"""
        return self is not _Choice.BETTER


class StoreKind(enum.Enum):
    """Where a local tier keeps its entries."""

    SQLITE = "sqlite"
    FILES = "files"


@dataclass(frozen=True)
class Stats:
    """Counts of one tier since it was opened. ``bad`` entries were set aside, as were broken ``databases_set_aside``; ``newer`` ones
    (of a later version of this library) and ``untrusted`` ones (not signed as they must be) were misses and stay where they are;
    ``in_memory`` entries could not be written and go with the process. Every time one is read counts."""

    directory: str
    store: StoreKind
    hits: int = 0
    misses: int = 0
    bad: int = 0
    writes: int = 0
    write_failures: int = 0
    databases_set_aside: int = 0
    in_memory: int = 0
    newer: int = 0
    untrusted: int = 0


class Tier(Protocol):
    """A place records live. No method raises for what it finds there, or because it cannot be written."""

    def get(self, key: Key) -> Record | None: ...
    def put(self, record: Record, *, force: bool = False) -> bool: ...
    def get_program(self, alias: str) -> bytes | None: ...
    def put_program(self, alias: str, program: bytes) -> bool: ...
    def records(self) -> Iterator[Record]: ...
    def stats(self) -> Stats: ...
    def close(self) -> None: ...


def open_local(directory: str | os.PathLike[str], *, trust: Trust = Trust()) -> LocalTier:  # noqa: B008  it is immutable
    """The local tier in ``directory`` (``Settings.cache_dir``). Touches no file until it is used."""
    return LocalTier(directory, trust=trust)


class LocalTier:
    """A ``Tier`` in a directory of this machine; see ``open_local``. Safe to use from any thread.

    Where others may write (to a file, or to a directory above it) is as if the tier were off, unless signatures are required.
    """

    def __init__(self, directory: str | os.PathLike[str], *, trust: Trust = Trust()) -> None:  # noqa: B008
        self.directory = Path(os.path.abspath(directory))
        self._trust = trust
        self._lock, self._pid = threading.Lock(), os.getpid()
        self._counts = Stats(str(self.directory), StoreKind.SQLITE)
        self._pending: dict[str, tuple[bytes, _Choice]] = {}
        self._left_alone: set[str] = set()  # pending entries in whose place there is one of a later version
        self._warned: set[Fault] = set()
        self._the_store: Store | None = None

    def get(self, key: Key) -> Record | None:
        """The record of ``key``, or None. One that is damaged, or belongs to another key, is set aside and counted."""
        found = self._load(f"r-{key.digest}", Kind.RECORD, decode_record, lambda record: record.key.digest == key.digest)
        self._count(hits=1) if found else self._count(misses=1)
        return _best(found) if found else None

    def put(self, record: Record, *, force: bool = False) -> bool:
        """Keep the better (``record.order``) of ``record`` and what is stored; with ``force`` keep ``record`` whatever is stored (for
        what was found out here about a record that is better only elsewhere). What either knows to be in quarantine is kept in
        both cases. False if it could only be kept in memory, or not at all."""
        name = f"r-{record.key.digest}"
        try:
            data = self._trust.seal(encode_record(record))
        except ValueError as error:
            log.warning("the record of kernel %s is not stored: %s", record.kernel, error)
            self._count(write_failures=1)
            return False
        # Reading first sets a damaged entry aside, where the merge would only overwrite it.
        self._load(name, Kind.RECORD, decode_record, lambda found: found.key.digest == record.key.digest)
        return self._save(name, data, _Choice.FORCED if force else _Choice.BETTER)

    def get_program(self, alias: str) -> bytes | None:
        """The program (as encoded by its own codec) stored under ``alias``, or None."""
        found = self._load(program_name(alias), Kind.PROGRAM, decode_program, lambda entry: entry[0] == alias)
        self._count(hits=1) if found else self._count(misses=1)
        return max(found)[1] if found else None

    def put_program(self, alias: str, program: bytes) -> bool:
        """Store ``program`` under ``alias``, in place of an earlier one. False as for ``put``."""
        try:
            data = self._trust.seal(encode_program(alias, program))
        except ValueError as error:
            log.warning("a program is not stored: %s", error)
            self._count(write_failures=1)
            return False
        return self._save(program_name(alias), data, _Choice.PROGRAM)

    def records(self) -> Iterator[Record]:
        """Every good record, by digest, a few at a time: what is put meanwhile may be among them or not."""
        pending = sorted(name for name in list(self._pending) if name.startswith("r-"))
        for name, stored in self._entries(pending):
            found = self._judge(name, stored, Kind.RECORD, decode_record, lambda record, name=name: name == f"r-{record.key.digest}")
            if found:
                yield _best(found)

    def _entries(self, pending: list[str]) -> Iterator[tuple[str, list[bytes]]]:
        """What is stored, and the (sorted) names of what is only in memory, in order."""
        if self._is_ours():
            for name, stored in self._store().entries("r-", MAX_BYTES[Kind.RECORD] + OVERHEAD):
                while pending and pending[0] < name:
                    yield pending.pop(0), []
                if pending and pending[0] == name:
                    pending.pop(0)
                yield name, stored
            self._tell_of_untrusted()
        yield from ((name, []) for name in pending)

    def forget(self, digest: str) -> bool:
        """Remove the record of the key ``digest``. False if there was none. Raises StoreError where it cannot be removed."""
        with self._own_lock():
            kept = self._pending.pop(f"r-{digest}", None)
        return self.store.remove(f"r-{digest}") or kept is not None

    @property
    def store(self) -> Store:
        """Where the entries are, as bytes: for tools (``upkeep``)."""
        return self._store()

    def stats(self) -> Stats:
        """The counts so far."""
        store = self._store()
        with self._own_lock():
            kind = StoreKind.FILES if isinstance(store, FileStore) else StoreKind.SQLITE
            return replace(self._counts, store=kind, databases_set_aside=store.databases_set_aside, in_memory=len(self._pending))

    def close(self) -> None:
        """Try once more to write what could not be written. The tier holds nothing open then, and may be used again."""
        self._flush()
        self._store().close()

    def _own_lock(self) -> threading.Lock:
        if self._pid != os.getpid():  # a fork may have copied a lock that nobody holds any more
            self._lock, self._pid = threading.Lock(), os.getpid()
        return self._lock

    def _store(self) -> Store:
        if self._the_store is None:
            if is_network_file_system(self.directory):
                self._the_store = self._files()
            else:
                from .sqlite_store import SqliteStore  # late: importing the database needs no SQLite

                self._the_store = SqliteStore(self.directory / LAYOUT_VERSION / "local", private=not self._trust.required)
        return self._the_store

    def _files(self) -> FileStore:
        return FileStore(self.directory / LAYOUT_VERSION / "files", private=not self._trust.required)

    def _is_ours(self) -> bool:
        """May only this user write to the directories of the tier? If not, that is told. Signatures are as good."""
        if self._trust.required:
            return True
        layout, store = self.directory / LAYOUT_VERSION, self._store()
        reason = who_else_may_write(self.directory, outer=True) or who_else_may_write(layout) or who_else_may_write(store.directory)
        if reason:
            self._warn(StoreError(Fault.UNTRUSTED, reason))
        return not reason

    def _tell_of_untrusted(self) -> None:
        if reason := self._store().untrusted:
            self._warn(StoreError(Fault.UNTRUSTED, reason))

    def _load(self, name: str, kind: Kind, decode: Callable[[bytes], _T], ours: Callable[[_T], bool]) -> list[_T]:
        """The good entries under ``name``, on disk and in memory."""
        stored: list[bytes] = []
        if self._is_ours():
            stored = self._store().read(name, MAX_BYTES[kind] + OVERHEAD)
            self._tell_of_untrusted()
        return self._judge(name, stored, kind, decode, ours)

    def _judge(
        self, name: str, stored: list[bytes], kind: Kind, decode: Callable[[bytes], _T], ours: Callable[[_T], bool]
    ) -> list[_T]:
        """The good ones of what is stored under ``name``, and what is in memory. The others are counted, and bad ones set aside."""
        good: list[_T] = []
        pending = self._pending.get(name)
        if pending and pending[1].replaces:
            stored = []
        for data in [*stored, pending[0]] if pending else stored:
            try:
                entry = decode(self._trust.open(data))
                if not ours(entry):
                    raise BadRecord("it belongs to another key")
                good.append(entry)
            except NewerRecord as error:
                self._count(newer=1)
                log.info("entry %s of %s is left alone: %s", name, self.directory, error)
            except Untrusted as error:
                self._count(untrusted=1)
                log.info("entry %s of %s is not taken: %s", name, self.directory, error)
            except BadRecord as error:
                self._count(bad=1)
                log.info("entry %s of %s is bad and was set aside: %s", name, self.directory, error)
                try:
                    self._store().set_aside(name, data)
                except StoreError as failure:
                    log.debug("entry %s stays where it is: %s", name, failure)
        return good

    def _save(self, name: str, data: bytes, choice: _Choice) -> bool:
        with self._own_lock():
            waiting = self._pending.get(name)
        data, choice = self._joined(waiting, data, choice)  # what is in memory is older, and must not be written after this
        try:
            self._merge(name, data, choice)
        except StoreError as error:
            self._count(write_failures=1)
            self._warn(error)
            with self._own_lock():
                meanwhile = self._pending.pop(name, None)
                self._pending[name] = (data, choice) if meanwhile is waiting else self._joined(meanwhile, data, choice)
                if error.fault is Fault.NEWER:
                    self._left_alone.add(name)
                while len(self._pending) > _MAX_PENDING:
                    self._left_alone.discard(oldest := next(iter(self._pending)))
                    del self._pending[oldest]
            return False
        self._count(writes=1)
        with self._own_lock():
            if self._pending.get(name) is waiting:
                self._pending.pop(name, None)
                self._left_alone.discard(name)
        self._flush()
        return True

    def _joined(self, old: tuple[bytes, _Choice] | None, data: bytes, choice: _Choice) -> tuple[bytes, _Choice]:
        """An entry after one that could not be written. A choice that replaces what is stored stays one."""
        return (data, choice) if old is None else (self._choose(choice, old[0], data), old[1] if old[1].replaces else choice)

    def _merge(self, name: str, data: bytes, choice: _Choice) -> None:
        if not self._is_ours():
            raise StoreError(Fault.UNTRUSTED, "others may write to it")

        def choose(old: bytes, new: bytes) -> bytes:
            return self._choose(choice, old, new)

        try:
            self._store().merge(name, data, choose)
        except StoreError as error:
            if error.fault is not Fault.CANNOT_LOCK:
                raise
            files = self._files()
            files.merge(name, data, choose)
            log.info("SQLite cannot lock files in %s (%s): records are kept as files", self.directory, error)
            self._the_store = files

    def _choose(self, choice: _Choice, old: bytes, new: bytes) -> bytes:
        """What is kept of two entries under one name. One that is bad, not trusted or of another key loses. Raises StoreError where the
        old one is of a later version."""
        try:
            entry = self._trust.open(old)
            if choice is _Choice.PROGRAM:
                decode_program(entry)
                return new
            first, second = decode_record(entry), decode_record(self._trust.open(new))
        except NewerRecord as error:
            raise StoreError(Fault.NEWER, f"an entry was written by a later version of helion_rt: {error}") from error
        except BadRecord:
            return new
        if first.key != second.key:
            return new
        best = second.joined(first.quarantined) if choice is _Choice.FORCED else better(first, second)
        kept = encode_record(best)
        # With a secret, what was not signed (or not with it) is signed now; without one, a signature of others stays.
        return old if kept == entry and self._trust.secret is None else self._trust.seal(kept)

    def _flush(self) -> None:
        """Write what was kept in memory; what cannot be written stays there."""
        for name, entry in list(self._pending.items()):
            if name in self._left_alone:
                continue
            try:
                self._merge(name, *entry)
            except StoreError as error:
                log.debug("still not written: %s", error)
                if error.fault is Fault.NEWER:
                    with self._own_lock():
                        self._left_alone.add(name)
                    continue
                return
            with self._own_lock():
                if self._pending.get(name) is entry:
                    del self._pending[name]

    def _count(self, **more: int) -> None:
        with self._own_lock():
            self._counts = replace(self._counts, **{name: getattr(self._counts, name) + n for name, n in more.items()})

    def _warn(self, error: StoreError) -> None:
        with self._own_lock():
            if error.fault in self._warned:
                return
            self._warned.add(error.fault)
        log.warning(
            "the tuning database in %s cannot be written (%s). What this process tunes is kept in memory only and will be tuned"
            " again next time. To keep it: %s.",
            self.directory, error, _ADVICE.get(error.fault, _OTHER_ADVICE),
        )  # fmt: skip


def program_name(alias: str) -> str:
    """The name of the entry that holds the program of ``alias``."""
    return "p-" + hashlib.sha256(b"helion_rt.database.alias\0" + alias.encode()).hexdigest()


def _best(records: list[Record]) -> Record:
    best = records[0]
    for record in records[1:]:
        best = better(best, record)
    return best
