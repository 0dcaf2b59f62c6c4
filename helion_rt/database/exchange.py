"""The thread between this process and one shared tier. Nothing else of a serving process talks to that tier: not a call, not the tuner.

What others want of it is queued: questions, publications, leases, watches. A tier that cannot be reached costs one bounded attempt,
then is left alone for a while that doubles (with jitter, so that a cluster does not come back all at once), and what was queued
waits. A tier that hangs holds up its own thread and nobody else's: every queue is bounded, every wait has an end.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import heapq
import logging
import math
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from helion_rt.settings import TierMode, without_password

from .key import Key
from .record import Record, better
from .store import StoreError

if TYPE_CHECKING:
    from .lease import Lease
    from .shared import SharedTier

log = logging.getLogger("helion_rt.database")

# Seconds a tier is left alone after its first failure, and at most.
RETRY_FIRST = 1.0
RETRY_MOST = 60.0

# Seconds between two looks at watched keys, at least: thousands of them must not keep the tier, or this process, busy.
PACE = 0.01
# A tier that tells by itself is looked at this many times less often.
TOLD = 10

MAX_QUESTIONS = 4096
MAX_OUTBOX = 1024
MAX_WATCHED = 8192


_beginning = threading.Lock()  # of the threads of a forked child one makes an exchange anew


def _in_a_child() -> None:
    global _beginning
    _beginning = threading.Lock()  # another thread of the parent may have held the one that was copied


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_a_child)


class Holder(enum.Enum):
    """Who tunes a key."""

    MINE = "mine"  # this process holds the lease
    OTHERS = "others"
    NONE = "none"  # there is no lease to be had: no shared tier that is written, or none that can be reached


class Asked:
    """A question to shared tiers that is under way. ``then(record)`` is called, on a thread of the database's own, each time a tier
    has a better record than this process had."""

    def __init__(self, then: Callable[[Record], None] | None, exchanges: list[Exchange], seconds: float) -> None:
        self._then, self._open, self._until = then, set(map(id, exchanges)), time.monotonic() + seconds
        self._done = threading.Event()
        if not self._open:
            self._done.set()

    @property
    def settled(self) -> bool:
        """Has every tier answered, turned out to be unreachable, or had all the time it gets?"""
        return self._done.is_set() or time.monotonic() >= self._until

    @property
    def is_over(self) -> bool:
        """Does nobody want an answer any more?"""
        return self._then is None and self.settled

    def wait(self) -> None:
        """Until it is settled."""
        self._done.wait(max(0.0, self._until - time.monotonic()))

    def settle(self, exchange: Exchange) -> None:
        """``exchange`` is not waited for any longer."""
        self._open.discard(id(exchange))
        if not self._open:
            self._done.set()

    def tell(self, record: Record) -> None:
        """A better record has come of it."""
        if self._then is not None:
            call(self._then, record)


def call(then: Callable[[Record], None], record: Record) -> None:
    """Call back; what that raises is logged: the threads of the database live on."""
    try:
        then(record)
    except Exception:
        log.exception("what was to be done with a record of kernel %s failed", record.kernel)


@dataclass(slots=True)
class Counts:
    """What an exchange has done since it was made. ``dropped``: what a full queue had no room for."""

    questions: int = 0
    better: int = 0  # answers that were better than what this process had
    published: int = 0
    failures: int = 0
    dropped: int = 0
    leases_taken: int = 0
    leases_refused: int = 0


@dataclass(eq=False, slots=True)
class _Question:
    key: Key
    asked: list[Asked]


@dataclass(eq=False, slots=True)
class _Watch:
    key: Key
    every: float
    due: float


@dataclass(eq=False, slots=True)
class LeaseRequest:
    """A lease that was asked for, and what came of it."""

    key: Key
    seconds: float
    holder: Holder = Holder.NONE
    lease: Lease | None = None
    abandoned: bool = False
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class Arrival:
    """What came of a look at a tier: the record that serves now, if it is another than before; and what the tier is to be told."""

    serves: Record | None = None
    hand_on: Record | None = None


Arrived = Callable[[Key, Record | None], Arrival]
"""Told what a tier has for a key (None: nothing)."""


class Exchange:
    """See the module. ``open_tier`` opens the tier without touching it; it is called again in a forked child, which must not use its
    parent's connections. Raises what that raises. ``timeout``: seconds that one operation of the tier may take."""

    def __init__(self, open_tier: Callable[[], SharedTier], mode: TierMode, arrived: Arrived, timeout: float = 2.0) -> None:
        self.mode, self.timeout = mode, timeout
        self._open_tier, self._arrived = open_tier, arrived
        self._begin()

    def _begin(self) -> None:
        self._tier = self._open_tier()
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._requests: collections.deque[LeaseRequest] = collections.deque()
        self._questions: dict[str, _Question] = {}
        self._outbox: dict[str, Record] = {}
        self._returns: collections.deque[Lease] = collections.deque()
        self._watches: dict[str, _Watch] = {}
        self._schedule: list[tuple[float, str]] = []  # a heap of when watched keys are due; entries that are not up to date mean nothing
        self._next_look = 0.0
        self._unsubscribe: Callable[[], None] | None = None
        self._subscribed = False
        self.counts = Counts()
        self._reachable: bool | None = None  # None: not known yet
        self._failed_in_a_row, self._not_before, self._last_failure = 0, 0.0, ""
        self._busy_since: float | None = None
        self._pid = os.getpid()  # last: other threads go by it

    def _begin_anew_in_a_fork(self) -> None:
        if self._pid != os.getpid():  # the thread, the connections, the lock and what is queued are the parent's
            with _beginning:
                if self._pid != os.getpid():
                    self._begin()

    # What anybody may call, from any thread: none of it waits for the tier, but for ``take`` and ``close``, and they not for long.

    @property
    def url(self) -> str:
        return self._tier.url

    def ask(self, key: Key, asked: Asked) -> None:
        """Have the tier asked for ``key``. While it is not reachable the question is settled at once, and asked when it is again."""
        self._begin_anew_in_a_fork()
        with self._change:
            question = self._questions.get(key.digest)
            if question is not None:  # it may be there for days, while the tier is down, and be asked again by every new slot
                question.asked = [*(one for one in question.asked if not one.is_over), asked]
            elif len(self._questions) < MAX_QUESTIONS:
                self._questions[key.digest] = _Question(key, [asked])
            else:
                self.counts.dropped += 1
                asked.settle(self)
            if self._is_resting():
                asked.settle(self)
            self._wake()

    def publish(self, record: Record) -> None:
        """Have ``record`` merged into the tier, where that may be written."""
        if not self.mode.writes:
            return
        self._begin_anew_in_a_fork()
        with self._change:
            self._put_in_outbox(record)
            self._wake()

    def watch(self, key: Key, every: float) -> None:
        """Look for ``key`` again and again, every so many seconds, and at once when a peer publishes it."""
        self._begin_anew_in_a_fork()
        with self._change:
            due = time.monotonic() + every * random.uniform(0.5, 1.0)
            watch = self._watches.get(key.digest)
            if watch is None and len(self._watches) >= MAX_WATCHED:
                self.counts.dropped += 1
                return
            if watch is None:
                watch = self._watches[key.digest] = _Watch(key, every, math.inf)
            watch.every = every
            self._plan(watch, due)
            self._wake()

    def unwatch(self, digest: str) -> None:
        self._begin_anew_in_a_fork()
        with self._change:
            self._watches.pop(digest, None)

    def take(self, key: Key, seconds: float) -> LeaseRequest:
        """Try to become the one of the cluster who tunes ``key``; waits for the answer, twice the timeout at most. Whatever the tier
        has for the key by then has arrived before this returns ``MINE``."""
        self._begin_anew_in_a_fork()
        request = LeaseRequest(key, seconds)
        with self._change:
            if not self.mode.writes or self._closing or self._is_resting():
                return request
            self._requests.append(request)
            self._wake()
        if not request.done.wait(2 * self.timeout):
            with self._change:
                request.abandoned = not request.done.is_set()
        return LeaseRequest(key, seconds) if request.abandoned else request

    def give_back(self, request: LeaseRequest) -> None:
        """Release a lease, after what was tuned under it has been published."""
        self._begin_anew_in_a_fork()
        with self._change:
            if request.lease is not None:
                self._returns.append(request.lease)
                self._wake()

    def begin_to_close(self) -> None:
        """Have what is queued published, if the tier can be reached, leases given back, and the thread ended. ``close`` waits for it."""
        if self._pid == os.getpid():
            with self._change:
                self._closing = self._thread is not None
                self._change.notify_all()

    def close(self) -> None:
        """As ``begin_to_close``, and wait for the end: twice the timeout, then the thread is left behind. May be used again."""
        self.begin_to_close()
        thread = self._thread
        if self._pid == os.getpid() and thread is not None:
            thread.join(2 * self.timeout)

    def status(self) -> dict[str, Any]:
        """Plain data: ``reachable`` (None: not tried yet), seconds until it is tried again, what is queued, counts."""
        self._begin_anew_in_a_fork()
        now = time.monotonic()
        with self._change:
            return {
                "tier": "shared", "url": self.url, "mode": self.mode.value, "reachable": self._reachable,
                "retry_in_s": round(max(0.0, self._not_before - now), 3), "last_failure": self._last_failure,
                "busy_s": 0.0 if self._busy_since is None else round(now - self._busy_since, 3),
                "subscribed": self._unsubscribe is not None,
                "questions": len(self._questions), "outbox": len(self._outbox), "watched": len(self._watches), "leases": len(self._returns),
                "counts": asdict(self.counts), "tier_counts": _plain(self._tier.stats()),
            }  # fmt: skip

    # With the lock held.

    def _is_resting(self) -> bool:
        return time.monotonic() < self._not_before

    def _wake(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, daemon=True, name="helion-rt-exchange")
            try:
                thread.start()
            except RuntimeError as error:  # no more threads: what is queued waits for the next who wants something
                log.debug("%s has no thread: %s", self.url, error)
                return
            self._thread = thread
        self._change.notify_all()

    def _plan(self, watch: _Watch, due: float) -> None:
        """Have it looked at no later than ``due``."""
        if due < watch.due:
            watch.due = due
            heapq.heappush(self._schedule, (due, watch.key.digest))

    def _first_due(self) -> _Watch | None:
        """The watched key that is due first."""
        while self._schedule:
            due, digest = self._schedule[0]
            watch = self._watches.get(digest)
            if watch is not None and watch.due == due:
                return watch
            heapq.heappop(self._schedule)
        return None

    def _put_in_outbox(self, record: Record) -> None:
        digest = record.key.digest
        known = self._outbox.get(digest)
        self._outbox[digest] = record if known is None else better(known, record)
        if len(self._outbox) > MAX_OUTBOX:  # the oldest: local has it, and publishes it when its key is asked for again
            del self._outbox[next(iter(self._outbox))]
            self.counts.dropped += 1

    # The thread.

    def _run(self) -> None:
        while (job := self._next()) is not None:
            self._busy_since = time.monotonic()
            try:
                job()
            except StoreError as error:
                self._is_unreachable(error)
            except Exception as error:  # of the engine's library: the job is lost, the thread goes on
                self._is_unreachable(error)
                log.debug("an operation of %s failed", self.url, exc_info=True)
            else:
                self._is_reachable()
            self._busy_since = None
        with contextlib.suppress(Exception):
            self._stop_listening()
            self._tier.close()
        with self._change:
            self._thread, self._closing = None, False
            for question in self._questions.values():
                for asked in question.asked:
                    asked.settle(self)
            if self._requests or ((self._outbox or self._returns) and not self._is_resting()):  # came in between
                self._wake()

    def _next(self) -> Callable[[], None] | None:
        """The next thing to do, waited for; None where the thread is to end."""
        with self._change:
            while True:
                now = time.monotonic()
                resting = self._not_before - now
                if self._closing and (resting > 0 or not (self._outbox or self._returns)):
                    return None
                if resting <= 0 and (job := self._due(now)) is not None:
                    return job
                if resting > 0:
                    self._turn_down()
                    self._change.wait(resting)
                else:
                    first = self._first_due()
                    self._change.wait(None if first is None else max(first.due, self._next_look) - now)

    def _due(self, now: float) -> Callable[[], None] | None:
        """What is to be done first. A lease before all: the tuner waits for it. A lease goes back after its record was published."""
        if self._requests:
            request = self._requests.popleft()
            return lambda: self._take(request)
        if self._questions and not self._closing:
            question = self._questions.pop(next(iter(self._questions)))
            return lambda: self._ask(question)
        if self._outbox:
            record = self._outbox.pop(next(iter(self._outbox)))
            return lambda: self._publish(record)
        if self._returns:
            return self._returns.popleft().release
        if self._closing:
            return None
        if self._watches and not self._subscribed:
            return self._listen
        first = self._first_due()
        if first is None or max(first.due, self._next_look) > now:
            return None
        self._next_look = now + PACE
        first.due = math.inf
        self._plan(first, now + first.every * (TOLD if self._unsubscribe is not None else 1))
        return lambda: self._look(first.key)

    def _take(self, request: LeaseRequest) -> None:
        from .lease import Lease  # late: only who tunes needs one

        lease, holder = Lease(self._tier, request.key.digest, request.seconds), Holder.NONE
        try:
            holder = Holder.MINE if lease.take() else Holder.OTHERS
            if holder is Holder.MINE:  # whoever had it before may have published just now
                with contextlib.suppress(StoreError):
                    self._look(request.key)
        finally:
            self._answer(request, holder, lease)

    def _answer(self, request: LeaseRequest, holder: Holder, lease: Lease) -> None:
        """A lease that was taken goes to who asked for it, or back: nobody else would end its heart-beat."""
        with self._change:
            self.counts.leases_taken += holder is Holder.MINE
            self.counts.leases_refused += holder is Holder.OTHERS
            if holder is Holder.MINE and request.abandoned:
                self._returns.append(lease)
            else:
                request.holder, request.lease = holder, lease if holder is Holder.MINE else None
            request.done.set()  # under the lock: whoever gives up waiting does so before this, or sees it

    def _ask(self, question: _Question) -> None:
        try:
            found = self._tier.get(question.key)
            self.counts.questions += 1
            changed = self._arrive(question.key, found)
            if changed is not None:
                for asked in question.asked:
                    asked.tell(changed)
        except StoreError:
            with self._change:  # asked again when the tier is back
                later = self._questions.setdefault(question.key.digest, question)
                if later is not question:
                    later.asked.extend(question.asked)
            raise
        finally:
            for asked in question.asked:
                asked.settle(self)

    def _look(self, key: Key) -> None:
        self.counts.questions += 1
        self._arrive(key, self._tier.get(key))

    def _arrive(self, key: Key, found: Record | None, *, hand_on: bool = True) -> Record | None:
        arrival = self._arrived(key, found)
        self.counts.better += arrival.serves is not None
        if arrival.hand_on is not None and hand_on:
            self.publish(arrival.hand_on)
        return arrival.serves

    def _publish(self, record: Record) -> None:
        try:
            stored = self._tier.put(record)
        except StoreError:
            with self._change:
                self._put_in_outbox(record)
            raise
        except ValueError as error:
            self.counts.dropped += 1
            log.warning("the record of kernel %s is not shared through %s: %s", record.kernel, self.url, error)
            return
        self.counts.published += 1
        if stored != record:  # a peer knows better; it has just been told all that we know
            self._arrive(record.key, stored, hand_on=False)

    def _listen(self) -> None:
        self._subscribed = True
        self._unsubscribe = self._tier.subscribe(self._told, self._missed)

    def _stop_listening(self) -> None:
        stop, self._unsubscribe, self._subscribed = self._unsubscribe, None, False
        if stop is not None:
            stop()

    def _told(self, digest: str) -> None:
        """A peer has published."""
        with self._change:
            watch = self._watches.get(digest)
            if watch is not None:
                self._plan(watch, 0.0)
                self._change.notify_all()

    def _missed(self) -> None:
        """Peers may have published and were not heard."""
        with self._change:
            for watch in self._watches.values():
                self._plan(watch, 0.0)
            self._change.notify_all()

    def _turn_down(self) -> None:
        """Nobody waits for a tier that is left alone."""
        for question in self._questions.values():
            for asked in question.asked:
                asked.settle(self)
        while self._requests:
            self._requests.popleft().done.set()

    def _is_reachable(self) -> None:
        if self._failed_in_a_row:
            log.info("the shared tier %s can be reached again", self.url)
        self._reachable, self._failed_in_a_row = True, 0

    def _is_unreachable(self, error: Exception) -> None:
        with self._change:
            first = not self._failed_in_a_row
            self._reachable = False
            self._failed_in_a_row += 1
            self.counts.failures += 1
            self._last_failure = without_password(f"{error}" if isinstance(error, StoreError) else f"{type(error).__name__}: {error}")
            pause = min(RETRY_MOST, RETRY_FIRST * 2 ** min(self._failed_in_a_row - 1, 16))
            self._not_before = time.monotonic() + pause * random.uniform(0.5, 1.0)
        if first:
            log.warning(
                "the shared tier %s cannot be reached (%s). Calls go on with what this machine has; what is tuned meanwhile is published"
                " when it is back.", self.url, self._last_failure,
            )  # fmt: skip


def _plain(stats: Any) -> dict[str, Any]:
    return {name: value for name, value in asdict(stats).items() if name != "url"}
