"""The shared tier: records that a cluster has in common, over any engine. It judges what it reads and raises one error only."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ..codec import BadRecord, NewerRecord, decode_record, encode_record
from ..key import Key
from ..record import Record, better
from ..signing import Trust
from .engine import Engine, SharedError, is_digest

log = logging.getLogger("helion_rt.database")


@dataclass(frozen=True)
class SharedStats:
    """Counts of one shared tier since it was opened. ``bad`` entries were misses, ``newer`` ones are of a later major version;
    ``failures`` are operations that raised SharedError, ``last_failure`` is the latest one's reason."""

    url: str
    hits: int = 0
    misses: int = 0
    bad: int = 0
    newer: int = 0
    writes: int = 0
    failures: int = 0
    last_failure: str = ""


class SharedTier:
    """See ``open_shared``. Safe to use from any thread. Every method that asks the engine raises SharedError if it cannot be reached.

    ``url`` names the tier in messages: it holds no password.
    """

    def __init__(self, url: str, engine: Engine, trust: Trust) -> None:
        self.url, self.engine, self._trust = url, engine, trust
        self._lock = threading.Lock()
        self._counts = SharedStats(url)

    def get(self, key: Key) -> Record | None:
        """The record of ``key``, or None. What is damaged, not trusted, or of another key is no record."""
        record = self._load(key.digest)
        self._count(hits=1) if record else self._count(misses=1)
        return record

    def put(self, record: Record) -> Record:
        """Merge ``record`` with what is stored, and return what is stored then. Where that is of a later major version it is
        left alone, and ``record`` comes back. Raises ValueError for a record that is too large."""
        data = self._trust.seal(encode_record(record))
        with self._counted():
            try:
                stored = self.engine.merge(record.key.digest, data, self._chooser(record.key))
            except NewerRecord:
                self._count(newer=1)
                return record
        self._count(writes=1)
        return self._decode(stored, record.key.digest)

    def records(self) -> Iterator[Record]:
        """Every good record, read one at a time, in no particular order."""
        for digest in self.digests():
            record = self._load(digest)
            if record is not None:
                yield record

    def digests(self) -> Iterator[str]:
        """The digests under which anything is stored, in no particular order."""
        with self._counted():
            yield from self.engine.names()

    def forget(self, digest: str) -> bool:
        """Remove what is stored under ``digest``. False if there was nothing."""
        with self._counted():
            return self.engine.remove(_checked(digest))

    def take_lease(self, digest: str, owner: str, seconds: float) -> bool:
        """Become the one who tunes ``digest``, for so long. True again for an owner that holds it already."""
        with self._counted():
            return self.engine.take(_checked(digest), owner, seconds)

    def renew_lease(self, digest: str, owner: str, seconds: float) -> bool:
        """Keep a lease from now for so long. False if it is lost: somebody else may have it."""
        with self._counted():
            return self.engine.renew(_checked(digest), owner, seconds)

    def release_lease(self, digest: str, owner: str) -> None:
        """Give a lease back, if it is ``owner``'s still."""
        with self._counted():
            self.engine.release(_checked(digest), owner)

    def subscribe(self, callback: Callable[[str], None], missed: Callable[[], None] = lambda: None) -> Callable[[], None] | None:
        """Have ``callback(digest)`` called, on a thread of the tier's own, soon after anyone publishes a record that changed
        something, and ``missed()`` whenever listening begins, at first or again after the connection was lost: what was published
        before that was not heard. Returns what stops it, or None where the engine has no such thing: then ask again from time
        to time. Never raises: it tries until it is stopped."""

        def told(digest: str) -> None:
            if is_digest(digest):
                guarded(callback, digest)

        def guarded(listener: Callable[..., None], *arguments: str) -> None:
            try:
                listener(*arguments)
            except Exception:  # the thread that listens must live on
                log.exception("a listener of %s failed", self.url)

        return self.engine.subscribe(told, lambda: guarded(missed))

    def close(self) -> None:
        """Close connections and end subscriptions."""
        self.engine.close()

    def stats(self) -> SharedStats:
        """The counts so far."""
        with self._lock:
            return self._counts

    def __repr__(self) -> str:
        return f"<SharedTier {self.url}>"

    def _load(self, digest: str) -> Record | None:
        with self._counted():
            entries = self.engine.read(digest)
        best: Record | None = None
        for data in entries:
            try:
                record = self._decode(data, digest)
            except NewerRecord:
                self._count(newer=1)
            except BadRecord as error:
                self._count(bad=1)
                log.info("entry %s of %s is bad and is a miss: %s", digest, self.url, error)
            else:
                best = record if best is None else better(best, record)
        return best

    def _decode(self, data: bytes, digest: str) -> Record:
        record = decode_record(self._trust.open(data))
        if record.key.digest != digest:
            raise BadRecord("it belongs to another key")
        return record

    def _chooser(self, key: Key) -> Callable[[bytes, bytes], bytes]:
        def choose(old: bytes, new: bytes) -> bytes:
            """The merge of two entries, one of which may be bad. Raises NewerRecord where it must not be touched."""
            first, second = self._tolerant(old, key.digest), self._tolerant(new, key.digest)
            if first is None or second is None:
                return new if first is None else old
            best = better(first, second)
            if best == first:
                # Of two that say the same everybody takes the same one: the signed one, which is longer.
                return max(old, new, key=lambda data: (len(data), data)) if best == second else old
            return new if best == second else self._trust.seal(encode_record(best))

        return choose

    def _tolerant(self, data: bytes, digest: str) -> Record | None:
        try:
            return self._decode(data, digest)
        except NewerRecord:
            raise
        except BadRecord:
            return None

    def _counted(self) -> _Counted:
        return _Counted(self)

    def _failed(self, error: SharedError) -> None:
        self._count(failures=1)
        with self._lock:
            self._counts = replace(self._counts, last_failure=str(error))

    def _count(self, **more: int) -> None:
        with self._lock:
            self._counts = replace(self._counts, **{name: getattr(self._counts, name) + n for name, n in more.items()})


class _Counted:
    """Counts the SharedError that leaves a block."""

    def __init__(self, tier: SharedTier) -> None:
        self._tier = tier

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, SharedError):
            self._tier._failed(error)


def _checked(digest: str) -> str:
    if not is_digest(digest):
        raise ValueError(f"a digest is 64 hex digits, not {digest[:80]!r}")
    return digest
