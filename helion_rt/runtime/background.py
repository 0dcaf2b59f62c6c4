"""The tuner: one thread a process that finds winners while the defaults serve. Nothing it does reaches a call but a swap."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time

from helion_rt.database import host_lock, work_lock
from helion_rt.database.exchange import Holder
from helion_rt.program import codec
from helion_rt.settings import TuneMode
from helion_rt.tuning import pool, usage

from . import improve, prepare, recording, sharing
from .counters import counters
from .slot import Slot, Tuning, registry
from .standing import Standing

logger = logging.getLogger("helion_rt.tuning")

# The first calls of a program come in a burst, each compiling: let them pass first.
START_DELAY_SECONDS = 0.3
# How often a key that another process of this machine tunes is looked up, and whether the machine is free.
POLL_SECONDS = 0.3
# How often, while a lease lasts, it is tried to take that of another machine over. The record that is made under it comes by itself.
TRIES_A_LEASE = 10
# How often the calls of signatures that are not worth tuning yet are counted: the hot path tells nobody.
COUNT_SECONDS = 1.0
# A worker with nothing to do is ended after this long.
IDLE_SECONDS = 3.0
STOP_SECONDS = 4.0


class Tuner:
    """The queue and its thread. ``submit`` and ``wait`` may be called from any thread."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._change = threading.Condition()
        self._queue: list[Slot] = []
        self._unstored: list[Slot] = []
        self._offered: list[Slot] = []
        self._taking = False  # the thread looks at what was offered
        self._not_before: dict[int, float] = {}
        self._thread: threading.Thread | None = None
        self._waiting = 0
        self._idle_since: float | None = None
        self._stopping = False
        self._workers = pool.Workers(self._count_worker)

    def submit(self, slot: Slot) -> None:
        """Take on a slot: its program is stored, and it is tuned if it wants to be."""
        self._begin_anew_in_a_fork()
        with self._change:
            if self._stopping:
                slot.tuning = Tuning.OFF
                slot.done.set()
                return
            if slot.unstored or slot.asked is not None:
                self._unstored.append(slot)
            if slot.wants_tuning:
                self._queue.append(slot)
                self._workers.memory_bytes = usage.limit(slot.settings.worker_gb)
                if slot.settings.tune is not TuneMode.SYNC:
                    self._not_before[id(slot)] = time.monotonic() + START_DELAY_SECONDS
            else:
                slot.done.set()
            self._start()
            self._change.notify_all()

    def offer(self, slot: Slot) -> None:
        """A tier has something better for a slot than it had: the tuner's thread looks, compiles and swaps it in."""
        self._begin_anew_in_a_fork()
        with self._change:
            if self._stopping or slot in self._offered:
                return
            self._offered.append(slot)
            self._start()
            self._change.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing is left to tune or to store. False if ``timeout`` seconds were not enough.

        While somebody waits, every signature is worth tuning, however few calls it has had.
        """
        self._begin_anew_in_a_fork()
        with self._change:
            self._waiting += 1
            self._change.notify_all()
            try:
                return self._change.wait_for(lambda: self._stopping or self._is_through, timeout)
            finally:
                self._waiting -= 1

    @property
    def _is_through(self) -> bool:
        return not (self._queue or self._unstored or self._offered or self._taking)

    def stop(self) -> None:
        """End tuning: kill the worker, join the thread, store the programs that are not stored yet."""
        if self._pid != os.getpid():
            return
        with self._change:
            self._stopping = True
            self._change.notify_all()
        self._workers.stop()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(STOP_SECONDS)
        self._store_programs()
        recording.tell_calls(registry.all())
        for slot in self._queue:
            slot.done.set()

    def _begin_anew_in_a_fork(self) -> None:
        if self._pid != os.getpid():  # the thread, the worker and what is queued are the parent's
            self.__init__()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="helion-rt-tuner")
            self._thread.start()

    def _run(self) -> None:
        while True:
            slot, pause = self._next()
            self._store_programs()
            self._take_offers(None)
            if self._stopping:
                return
            if slot is None:
                self._rest(pause)
                continue
            self._idle_since = None
            try:
                again = self._tune(slot)
            except Exception as error:  # whatever it is, the calls go on with what they have
                self._failed(slot, error)
                again = None
            if again is None:
                self._finish(slot)
            else:
                with self._change:
                    self._not_before[id(slot)] = time.monotonic() + again

    def _finish(self, slot: Slot) -> None:
        with self._change:
            if slot in self._queue:
                self._queue.remove(slot)
            self._not_before.pop(id(slot), None)
            slot.done.set()
            self._change.notify_all()
        sharing.watch(slot)  # less often from now on

    def _failed(self, slot: Slot, error: Exception) -> None:
        if self._stopping:  # that is why: stop() has killed the worker
            slot.tuning = Tuning.OFF
            return
        counters.tuner_errors += 1
        slot.tuning, slot.tuning_error = Tuning.FAILED, f"{type(error).__name__}: {error}"
        logger.warning("tuning of kernel %s failed: %s", slot.kernel.name, slot.tuning_error, exc_info=logger.isEnabledFor(logging.DEBUG))

    def _next(self) -> tuple[Slot | None, float | None]:
        """The busiest slot that is due; else None and the seconds until one may be (None: nothing is queued)."""
        with self._change:
            self._forget_evicted()
            now = time.monotonic()
            worth = [s for s in self._queue if self._waiting or s.is_worth_tuning]
            due = [s for s in worth if self._not_before.get(id(s), 0.0) <= now]
            if due:
                return max(due, key=lambda s: s.calls), None
            pauses = [self._not_before[id(s)] - now for s in worth]
            return None, min([*pauses, *([COUNT_SECONDS] if len(worth) < len(self._queue) else [])], default=None)

    def _forget_evicted(self) -> None:
        gone = [s for s in self._queue if s.evicted]
        for slot in gone:
            self._queue.remove(slot)
            self._not_before.pop(id(slot), None)
            slot.tuning = Tuning.OFF
            slot.done.set()
        if gone:
            self._change.notify_all()

    def _rest(self, pause: float | None) -> None:
        with self._change:
            if self._stopping or self._unstored or self._offered:
                return
            if self._workers.alive:
                idle = self._idle_since = self._idle_since or time.monotonic()
                pause = IDLE_SECONDS if pause is None else pause
            else:
                idle = self._idle_since = None
            self._change.wait(pause)
        if idle is not None and time.monotonic() - idle >= IDLE_SECONDS:
            self._workers.drop()
            self._idle_since = None

    def _store_programs(self) -> None:
        with self._change:
            slots = list(self._unstored)
        if any(slot.asked is not None for slot in slots):
            recording.write(slots)
        for slot in slots:
            try:
                for alias, program in slot.unstored:
                    slot.tier.put_program(alias, codec.encode(program))
            except Exception as error:  # the next process captures again; this thread must live on
                counters.tuner_errors += 1
                logger.warning("the program of kernel %s is not stored: %s: %s", slot.kernel.name, type(error).__name__, error)
        if slots:
            with self._change:
                self._unstored = [s for s in self._unstored if s not in slots]
                self._change.notify_all()

    def _tune(self, slot: Slot) -> float | None:
        """Tune one slot, or take over what another process found: None. Else, where another process is at it, or the shared tiers have
        not answered yet, the seconds after which it is to be tried again."""
        if self._adopt(slot) and slot.is_tried:
            return None
        if slot.question is not None and not slot.question.settled:  # a warm cluster tunes nothing again
            return POLL_SECONDS
        with host_lock(slot.settings.runtime_dir) as free:
            if not free:  # it stays in the queue; the lock goes with the process that holds it
                slot.tuning = Tuning.QUEUED
                return POLL_SECONDS
            improve.settle_extents(slot, self._workers, lambda: self._stopping)
            with slot.tier.lease(slot.key) as holder:
                if holder is Holder.OTHERS:
                    slot.tuning = Tuning.ELSEWHERE
                    return slot.settings.lease_seconds / TRIES_A_LEASE
                with work_lock(slot.tier.directory, slot.key.digest) as mine:
                    if not mine:
                        slot.tuning = Tuning.ELSEWHERE
                        return POLL_SECONDS
                    if self._adopt(slot):  # it finished between the look-up and the lock
                        if not slot.is_tried:
                            improve.settle_extents(slot, self._workers, lambda: self._stopping)
                        return None
                    slot.tuning = Tuning.RUNNING
                    improve.improve(slot, self._workers, lambda: self._stopping, lambda: self._take_offers(slot))
        return None

    def _adopt(self, slot: Slot) -> bool:
        """Serve what the database has. True if that is the last word."""
        record = slot.tier.refresh(slot.key) if not slot.afresh else None
        if record is None:
            return False
        generation = slot.serving.generation
        found = prepare.adopt(slot, record)
        prepare.heed(slot, record)
        if slot.serving.generation != generation:
            counters.swaps += 1
        if found is Standing.FINAL and slot.wants_tuning:
            slot.tuning = Tuning.DONE
        return found is Standing.FINAL

    def _take_offers(self, running: Slot | None) -> None:
        """Serve what tiers had to offer, but to the slot that is being tuned: whatever comes of that is merged."""
        with self._change:
            slots = [slot for slot in self._offered if slot is not running]
            # Before it is looked at: what comes meanwhile is another offer.
            self._offered = [slot for slot in self._offered if slot is running]
            self._taking = bool(slots)
        for slot in slots:
            try:
                final = not slot.evicted and self._adopt(slot) and slot.is_tried
            except Exception as error:  # the calls go on with what they have
                counters.tuner_errors += 1
                logger.warning("kernel %s: what a tier has cannot be served: %s: %s", slot.kernel.name, type(error).__name__, error)
                final = False
            if final:
                self._finish(slot)
        if slots:
            with self._change:
                self._taking = False
                self._change.notify_all()

    def _count_worker(self) -> None:
        counters.workers_started += 1


tuner = Tuner()
atexit.register(tuner.stop)
