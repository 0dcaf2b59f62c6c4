"""All the tiers of a process as one: process memory, local, shipped, and the shared ones in the background.

``get`` and ``put`` touch what is on this machine and nothing else, on whatever thread. Shared tiers are asked and told by their
exchanges (``exchange``), a thread each; what they have that is better is put into the local tier, and whoever asked is called.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helion_rt.settings import Settings, TierMode, TierModes

from .exchange import Arrival, Asked, Exchange, Holder, LeaseRequest, call
from .key import Key
from .record import Origin, Record, Status, better
from .shipped import ShippedTier
from .signing import Trust
from .tier import LocalTier, Stats, open_local

if TYPE_CHECKING:
    from .shared import SharedTier

MAX_IN_MEMORY = 65536
"""Records kept in process memory; the oldest go."""

WATCH_SECONDS = 2.0
"""How often a key that is wanted is looked up in a shared tier that does not tell by itself."""

Prefer = Callable[[Record, Record], Record]
Then = Callable[[Record], None]


@dataclass(frozen=True, slots=True)
class Shared:
    """A shared tier that is to be used: how it is opened (without touching it), and what is done with it."""

    open: Callable[[], SharedTier]
    mode: TierMode = TierMode.WRITE_THROUGH


@dataclass(slots=True)
class _Hits:
    """Look-ups answered by each tier; those of threads that race may be lost."""

    process: int = 0
    local: int = 0
    shipped: int = 0
    misses: int = 0


@dataclass(eq=False, slots=True)
class _Watcher:
    then: Then
    every: float
    known: Record | None  # what it was told of last, or this process was given before


class Tiers:
    """See the module. Safe to use from any thread, and in a forked child.

    ``prefer(a, b)`` says which of two records of one key this process serves (with what both know to be in quarantine); stored
    they are merged by ``better``, but that the local tier keeps what is preferred. ``lease_seconds``: how long a lease lasts without
    a heart-beat; ``timeout``: of one operation of a shared tier, in seconds. Raises what opening a shared tier raises (``ConfigError``).
    """

    def __init__(
        self,
        local: LocalTier,
        shared: Sequence[Shared] = (),
        shipped: ShippedTier | None = None,
        *,
        modes: TierModes = TierModes(),  # noqa: B008  immutable
        prefer: Prefer = better,
        lease_seconds: float = 60.0,
        timeout: float = 2.0,
    ) -> None:
        self.local, self.shipped = local, shipped if modes.shipped.reads else None
        self.modes, self.lease_seconds, self.timeout = modes, lease_seconds, timeout
        self._prefer = prefer
        self._lock, self._pid = threading.Lock(), os.getpid()
        self._memory: dict[str, Record] = {}
        self._kept: dict[str, Record] = {}  # what the local tier's mode keeps out of it
        self._changes = 0
        self._hits = _Hits()
        self._watchers: dict[str, dict[object, _Watcher]] = {}
        self._exchanges = [Exchange(one.open, one.mode, self._arrived, timeout) for one in shared if one.mode.reads]

    @property
    def directory(self) -> Path:
        """Where the local tier is."""
        return self.local.directory

    def get(self, key: Key) -> Record | None:
        """The record that serves: of process memory, else of the local tier, else a shipped one."""
        record = self._memory.get(key.digest)
        if record is not None:
            self._hits.process += 1
            return record
        changes = self._changes
        record = self._stored(key)
        if record is not None:
            self._hits.local += 1
        elif self.shipped is not None and (record := self.shipped.get(key)) is not None:
            self._hits.shipped += 1
        else:
            self._hits.misses += 1
        return self._remember(key, record, changes)

    def refresh(self, key: Key) -> Record | None:
        """The best record of all tiers on this machine, read anew: another process may have stored one."""
        changes = self._changes
        return self._remember(key, self._best(self._stored(key), key), changes)

    def put(self, record: Record, *, force: bool = False) -> bool:
        """Keep ``record`` here as ``LocalTier.put`` does, and have it merged into the shared tiers. False if it could only be kept in
        memory."""
        kept = self._store(record, force)
        for exchange in self._exchanges if _is_for_others(record) else ():
            exchange.publish(record)
        return kept

    def get_program(self, alias: str) -> bytes | None:
        """As ``LocalTier.get_program``. Programs are never shared."""
        return self.local.get_program(alias) if self.modes.local.reads else None

    def put_program(self, alias: str, program: bytes) -> bool:
        """As ``LocalTier.put_program``."""
        return self.modes.local.writes and self.local.put_program(alias, program)

    def records(self) -> Iterator[Record]:
        """Every record on this machine, local ones first; a key that is local and shipped comes twice."""
        if self.modes.local.reads:
            yield from self.local.records()
        yield from list(self._kept.values())
        if self.shipped is not None:
            yield from self.shipped.records()

    def stats(self) -> Stats:
        """Of the local tier."""
        return self.local.stats()

    def close(self) -> None:
        """Write and publish what is queued, within a few seconds. May be used again."""
        self.local.close()
        for exchange in self._exchanges:
            exchange.begin_to_close()
        for exchange in self._exchanges:
            exchange.close()

    # The shared tiers.

    @property
    def is_shared(self) -> bool:
        """Is there a shared tier at all?"""
        return bool(self._exchanges)

    def ask(self, key: Key, then: Then | None = None) -> Asked:
        """Have the shared tiers asked for ``key``. Returns at once; what they have that is better is here before ``then`` is called with
        it, on a thread of the database's own."""
        asked = Asked(then, self._exchanges, 2 * self.timeout)
        for exchange in self._exchanges:
            exchange.ask(key, asked)
        return asked

    def watch(self, key: Key, then: Then, every: float = WATCH_SECONDS) -> Callable[[], None]:
        """Have ``then`` called, as ``ask`` does, whenever another record of ``key`` serves than before: one that came from a shared tier,
        or that another process of this machine has put into the local one. Until what is returned is called. A tier that does not tell by
        itself is asked every so many seconds."""
        token, digest = object(), key.digest

        def stop() -> None:
            with self._own_lock():
                watchers = self._watchers.get(digest, {})
                watchers.pop(token, None)
                if not watchers:
                    self._watchers.pop(digest, None)
            self._watch_again(key)

        with self._own_lock():
            self._watchers.setdefault(digest, {})[token] = _Watcher(then, every, self._memory.get(digest))
        self._watch_again(key)
        return stop

    def _watch_again(self, key: Key) -> None:
        with self._own_lock():
            every = min((watcher.every for watcher in self._watchers.get(key.digest, {}).values()), default=None)
            for exchange in self._exchanges:  # under the lock: of two at once the later one has the last word
                exchange.unwatch(key.digest) if every is None else exchange.watch(key, every)

    @contextlib.contextmanager
    def lease(self, key: Key) -> Iterator[Holder]:
        """Try to become the one of the cluster who tunes ``key``; waits a few seconds at most. With ``MINE`` look again before tuning: what
        the last holder published is here by then. Losing the lease meanwhile costs work, nothing else: puts are merged."""
        taken: tuple[Exchange, LeaseRequest] | None = None
        for exchange in self._exchanges:
            request = exchange.take(key, self.lease_seconds)
            if request.holder is not Holder.NONE:
                taken = exchange, request
                break
        try:
            yield Holder.NONE if taken is None else taken[1].holder
        finally:
            if taken is not None:
                taken[0].give_back(taken[1])

    def status(self) -> list[dict[str, Any]]:
        """Each tier as plain data, in the order in which they serve."""
        stats = {name: getattr(value, "value", value) for name, value in asdict(self.local.stats()).items()}
        hits = self._hits
        found: list[dict[str, Any]] = [
            {"tier": "process", "hits": hits.process, "records": len(self._memory), "misses_of_all": hits.misses},
            {"tier": "local", "mode": self.modes.local.value, "hits": hits.local, "counts": stats},
            *(exchange.status() for exchange in self._exchanges),
        ]
        if self.shipped is not None:
            found.append({"tier": "shipped", "mode": self.modes.shipped.value, "hits": hits.shipped, "bad": self.shipped.bad,
                          "directory": str(self.shipped.directory or "")})  # fmt: skip
        return found

    # What is on this machine.

    def _stored(self, key: Key) -> Record | None:
        """What the local tier has, or would have if its mode let it."""
        record, kept = self.local.get(key) if self.modes.local.reads else None, self._kept.get(key.digest)
        return record if kept is None else kept if record is None else self._prefer(record, kept)

    def _best(self, stored: Record | None, key: Key) -> Record | None:
        shipped = self.shipped.get(key) if self.shipped is not None else None
        return stored if shipped is None else shipped if stored is None else self._prefer(stored, shipped)

    def _store(self, record: Record, force: bool) -> bool:
        digest = record.key.digest
        if self.modes.local.writes:
            stored = self.local.put(record, force=force)
        else:
            stored = False
            with self._own_lock():
                known = self._kept.get(digest)
                if known is not None:
                    record = record.joined(known.quarantined) if force else better(known, record)
                _bounded(self._kept, digest, record)
        with self._own_lock():
            self._changes += 1
            self._memory.pop(digest, None)
        return stored

    def _remember(self, key: Key, record: Record | None, changes: int) -> Record | None:
        """Keep in memory what was read when ``_changes`` was ``changes``: what was stored since is newer."""
        if record is not None:
            with self._own_lock():
                if self._changes == changes:
                    _bounded(self._memory, key.digest, record)
        return record

    def _own_lock(self) -> threading.Lock:
        if self._pid != os.getpid():  # a fork may have copied a lock that nobody holds any more; who watches is the parent
            self._lock, self._pid, self._watchers = threading.Lock(), os.getpid(), {}
        return self._lock

    # On the thread of an exchange.

    def _arrived(self, key: Key, found: Record | None) -> Arrival:
        """``found`` is what a shared tier has."""
        stored = self._stored(key)
        before = self._best(stored, key)
        unknown = stored is not None and _is_for_others(stored) and (found is None or better(found, stored) != found)
        hand_on = stored if unknown else None
        kept = stored if found is None else found if stored is None else self._prefer(stored, found)
        if kept is not None and kept != stored:
            self._store(kept, force=stored is not None and better(stored, kept) != kept)
        after = self._best(kept, key)
        if after is None:
            return Arrival(None, hand_on)
        self._tell(key.digest, after)
        return Arrival(None if after == before else after, hand_on)

    def _tell(self, digest: str, serves: Record) -> None:
        """Tell those who watch a key of a record that they do not know. That it was here already means nothing: another process of this
        machine, which was faster, may have put it into the local tier."""
        with self._own_lock():
            if self._memory.get(digest, serves) != serves:
                self._changes += 1
                self._memory.pop(digest, None)
            watchers = [watcher for watcher in self._watchers.get(digest, {}).values() if watcher.known != serves]
            for watcher in watchers:
                watcher.known = serves
        for watcher in watchers:
            call(watcher.then, serves)


def _is_for_others(record: Record) -> bool:
    """Does it say something to other machines? They have what is shipped, and that nothing could be tried is this machine's trouble."""
    nothing_tried = record.status is Status.ALL_FAILED and not record.evidence.candidates_tried and not record.quarantined
    return record.origin is not Origin.SHIPPED and not nothing_tried


def _bounded(records: dict[str, Record], digest: str, record: Record) -> None:
    records[digest] = record
    while len(records) > MAX_IN_MEMORY:
        records.pop(next(iter(records)), None)


def open_tiers(settings: Settings, *, prefer: Prefer = better, more: Sequence[tuple[str, TierMode]] = ()) -> Tiers:
    """The tiers that ``settings`` name; ``more`` are shared ones named in code. No tier is touched before it is used. Raises
    ``ConfigError`` for a URL that no engine is known for, and where an engine's library is missing."""
    trust = Trust.from_settings(settings)
    named = dict.fromkeys(settings.shared, settings.tiers.shared)
    most = settings.tiers.shared  # an operator's word goes before the program's
    named |= {url: most if most is not TierMode.WRITE_THROUGH else mode for url, mode in more}
    shared = [Shared(_opener(url, trust), mode) for url, mode in named.items()]
    local = open_local(settings.cache_dir, trust=trust)
    return Tiers(local, shared, ShippedTier(), modes=settings.tiers, prefer=prefer, lease_seconds=settings.lease_seconds)


def _opener(url: str, trust: Trust) -> Callable[[], SharedTier]:
    from .shared import open_shared  # late: most processes share nothing

    return lambda: open_shared(url, trust=trust)
