"""A shared tier in memory that a test can take down, hang, and look into. Not a test itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from helion_rt.database import Key, Record, better
from helion_rt.database.shared import SharedError, SharedStats


class FakeShared:
    """As ``SharedTier``. ``down``: it cannot be reached; ``gate`` not set: it hangs. ``calls`` are (operation, name of the thread)."""

    def __init__(self, url: str = "fake://", tells: bool = False) -> None:
        self.url, self.tells, self.down = url, tells, False
        self.gate = threading.Event()
        self.gate.set()
        self.stored: dict[str, Record] = {}
        self.leases: dict[str, str] = {}
        self.calls: list[tuple[str, str]] = []
        self.told: list[Callable[[str], None]] = []
        self._change = threading.Condition()

    def _called(self, operation: str) -> None:
        with self._change:
            self.calls.append((operation, threading.current_thread().name))
            self._change.notify_all()
        assert self.gate.wait(60)
        if self.down:
            raise SharedError("it is down")

    def until(self, condition: Callable[[], Any], seconds: float = 30.0) -> bool:
        """Wait until something has been stored, or asked, that makes ``condition`` true."""
        with self._change:
            return bool(self._change.wait_for(condition, seconds))

    def count(self, operation: str) -> int:
        return sum(name == operation for name, _ in self.calls)

    def plant(self, record: Record) -> None:
        """As a peer's publication."""
        with self._change:
            known = self.stored.get(record.key.digest)
            self.stored[record.key.digest] = record if known is None else better(known, record)
            self._change.notify_all()
        for told in list(self.told):
            told(record.key.digest)

    def get(self, key: Key) -> Record | None:
        self._called("get")
        return self.stored.get(key.digest)

    def put(self, record: Record) -> Record:
        self._called("put")
        self.plant(record)
        return self.stored[record.key.digest]

    def records(self) -> Iterator[Record]:
        yield from self.stored.values()

    def take_lease(self, digest: str, owner: str, seconds: float) -> bool:
        self._called("take")
        return self.leases.setdefault(digest, owner) == owner

    def renew_lease(self, digest: str, owner: str, seconds: float) -> bool:
        self._called("renew")
        return self.leases.get(digest) == owner

    def release_lease(self, digest: str, owner: str) -> None:
        self._called("release")
        with self._change:
            if self.leases.get(digest) == owner:
                del self.leases[digest]
            self._change.notify_all()

    def subscribe(self, callback: Callable[[str], None], missed: Callable[[], None] = lambda: None) -> Callable[[], None] | None:
        if not self.tells:
            return None
        with self._change:
            self.told.append(callback)
            self._change.notify_all()
        return lambda: self.told.remove(callback)

    def close(self) -> None:
        self.calls.append(("close", threading.current_thread().name))

    def stats(self) -> SharedStats:
        return SharedStats(self.url)
