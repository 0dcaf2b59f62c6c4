"""A lease on the tuning of one key, kept alive by a thread. It saves work: no record is right or wrong because of it."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from typing import Protocol

from .store import StoreError

log = logging.getLogger("helion_rt.database")

_JOIN_S = 1.0  # how long giving back waits for a renewal on its way


class Leases(Protocol):
    """What gives leases: a ``SharedTier``."""

    def take_lease(self, digest: str, owner: str, seconds: float) -> bool: ...
    def renew_lease(self, digest: str, owner: str, seconds: float) -> bool: ...
    def release_lease(self, digest: str, owner: str) -> None: ...


class Lease:
    """The lease on ``digest`` for ``seconds`` at a time, renewed three times as often while it is held.

        lease = Lease(tier, digest)
        if lease.take():
            with lease:  # gives it back in the end
                ...      # and stops early where lease.lost

    ``lost`` turns true when another may have it: it was taken over, or could not be renewed in time. The time is counted from
    before it was asked for, by a clock that knows no date, so ``lost`` is never late.
    """

    def __init__(self, tier: Leases, digest: str, seconds: float = 60.0) -> None:
        self.digest, self.seconds = digest, seconds
        self._tier, self._owner = tier, secrets.token_hex(16)  # this lease's own, not the process's: it may want two
        self._ends = 0.0
        self._taken, self._gone = False, False
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self) -> bool:
        """Try, without waiting. True if it is this one's now; then somebody has to ``release`` it. Raises SharedError."""
        asked = time.monotonic()
        if not self._tier.take_lease(self.digest, self._owner, self.seconds):
            return False
        self._ends = asked + self.seconds
        self._over.clear()
        self._taken, self._gone = True, False
        self._thread = threading.Thread(target=self._keep, daemon=True, name="helion-rt-lease")
        self._thread.start()
        return True

    @property
    def held(self) -> bool:
        """Was it taken, and is it neither lost nor given back?"""
        return self._taken and not self.lost

    @property
    def lost(self) -> bool:
        """Was it taken, and may another have it by now?"""
        return self._taken and (self._gone or time.monotonic() >= self._ends)

    def release(self) -> None:
        """Give it back. Never raises: where that cannot be said, it ends by itself."""
        if not self._taken:
            return
        self._over.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
        gone, self._taken = self.lost, False
        if not gone:
            try:
                self._tier.release_lease(self.digest, self._owner)
            except StoreError as error:
                log.info("the lease on %s ends by itself: %s", self.digest, error)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _keep(self) -> None:
        pause = self.seconds / 3
        while not self._over.wait(pause):
            asked = time.monotonic()
            try:
                if not self._tier.renew_lease(self.digest, self._owner, self.seconds):
                    self._gone = True
            except Exception as error:  # of whatever kind: until the lease is lost there is time for more attempts
                log.debug("the lease on %s is not renewed: %s", self.digest, error)
                pause = self.seconds / 12
            else:
                self._ends, pause = asked + self.seconds, self.seconds / 3
            if self.lost:
                log.info("the lease on %s is lost", self.digest)
                return
