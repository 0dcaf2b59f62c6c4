"""The tuner: one thread a process that finds winners while the defaults serve. Nothing it does reaches a call but a swap."""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import threading
import time
from typing import Any

from helion_rt.database import Evidence, EvidenceKind, Key, Record, Status, machine_name, work_lock
from helion_rt.program import codec
from helion_rt.program.ir import Program
from helion_rt.settings import TuneMode
from helion_rt.targets import Target
from helion_rt.tuning import pool
from helion_rt.tuning.search import Outcome, search
from helion_rt.tuning.space import SPACE_VERSION

from . import prepare
from .counters import counters
from .slot import Origin, Slot, Tuning

logger = logging.getLogger("helion_rt.tuning")

# The first calls of a program come in a burst, each compiling: let them pass first.
START_DELAY_SECONDS = 0.3
# How often a key that another process tunes is looked up.
POLL_SECONDS = 0.3
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
        self._not_before: dict[int, float] = {}
        self._thread: threading.Thread | None = None
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
            if slot.aliases:
                self._unstored.append(slot)
            if slot.wants_tuning:
                self._queue.append(slot)
                if slot.settings.tune is not TuneMode.SYNC:
                    self._not_before[id(slot)] = time.monotonic() + START_DELAY_SECONDS
            else:
                slot.done.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name="helion-rt-tuner")
                self._thread.start()
            self._change.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing is left to tune or to store. False if ``timeout`` seconds were not enough."""
        self._begin_anew_in_a_fork()
        with self._change:
            return self._change.wait_for(lambda: self._stopping or not (self._queue or self._unstored), timeout)

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
        for slot in self._queue:
            slot.done.set()

    def _begin_anew_in_a_fork(self) -> None:
        if self._pid != os.getpid():  # the thread, the worker and what is queued are the parent's
            self.__init__()

    def _run(self) -> None:
        while True:
            slot, pause = self._next()
            self._store_programs()
            if self._stopping:
                return
            if slot is None:
                self._rest(pause)
                continue
            try:
                finished = self._tune(slot)
            except Exception as error:  # whatever it is, the calls go on with what they have
                self._failed(slot, error)
                finished = True
            with self._change:
                if finished:
                    self._queue.remove(slot)
                    self._not_before.pop(id(slot), None)
                    slot.done.set()
                else:
                    self._not_before[id(slot)] = time.monotonic() + POLL_SECONDS
                self._change.notify_all()

    def _failed(self, slot: Slot, error: Exception) -> None:
        if self._stopping:  # that is why: stop() has killed the worker
            slot.tuning = Tuning.OFF
            return
        counters.tuner_errors += 1
        slot.tuning, slot.tuning_error = Tuning.FAILED, f"{type(error).__name__}: {error}"
        logger.warning("tuning of kernel %s failed: %s", slot.kernel.name, slot.tuning_error, exc_info=logger.isEnabledFor(logging.DEBUG))

    def _next(self) -> tuple[Slot | None, float | None]:
        """The busiest slot that is due; else None and the seconds until one is (None: nothing is queued)."""
        with self._change:
            now = time.monotonic()
            due = [s for s in self._queue if self._not_before.get(id(s), 0.0) <= now]
            if due:
                return max(due, key=lambda s: s.calls), None
            return None, min((self._not_before[id(s)] - now for s in self._queue), default=None)

    def _rest(self, pause: float | None) -> None:
        with self._change:
            if self._stopping or self._unstored:
                return
            woken = self._change.wait(pause if pause is not None else IDLE_SECONDS if self._workers.alive else None)
        if not woken and pause is None:
            self._workers.drop()

    def _store_programs(self) -> None:
        with self._change:
            slots = list(self._unstored)
        for slot in slots:
            try:
                data = codec.encode(slot.program)
                for alias in slot.aliases:
                    slot.tier.put_program(alias, data)
            except Exception as error:  # the next process captures again; this thread must live on
                counters.tuner_errors += 1
                logger.warning("the program of kernel %s is not stored: %s: %s", slot.kernel.name, type(error).__name__, error)
        if slots:
            with self._change:
                self._unstored = [s for s in self._unstored if s not in slots]
                self._change.notify_all()

    def _tune(self, slot: Slot) -> bool:
        """Tune one slot, or take over what another process found. False: not yet, another process is at it."""
        if self._adopt(slot):
            return True
        with work_lock(slot.tier.directory, slot.key.digest) as mine:
            if not mine:
                slot.tuning = Tuning.ELSEWHERE
                return False
            if self._adopt(slot):  # it finished between the look-up and the lock
                return True
            stale = slot.tier.get(slot.key) is not None
            slot.tuning = Tuning.RUNNING
            outcome = self._search(slot)
            if self._stopping or outcome.stopped:
                slot.tuning = Tuning.OFF
                return True
            record = make_record(slot.key, slot.kernel.name, outcome, EvidenceKind.MEASURED)
            # A record that could not be used here must not outrank the new one.
            slot.tier.put(record, force=stale)
        if outcome.winner is not None:
            prepare.serve(slot, outcome.winner, Origin.TUNED, prepare.evidence_dict(record))
            counters.swaps += 1
        else:  # the default stays, and is known now to be as good as what was tried
            slot.serving = dataclasses.replace(slot.serving, evidence=prepare.evidence_dict(record))
        slot.tuning = Tuning.DONE
        return True

    def _adopt(self, slot: Slot) -> bool:
        record = slot.tier.get(slot.key)
        if record is None or not prepare.adopt(slot, record):
            return False
        if record.status is Status.WINNER:
            counters.swaps += 1
        slot.tuning = Tuning.DONE
        return True

    def _search(self, slot: Slot) -> Outcome:
        evaluator = pool.WorkerEvaluator(opening(slot.program, slot.space.target, slot.jax_settings, slot.recipe), self._workers)

        def told(tried: int) -> None:
            slot.candidates_tried = tried
            counters.candidates_tried += 1

        outcome = search(slot.space, evaluator, slot.settings.tune_seconds, lambda: self._stopping, told)
        for config, fault in outcome.faults:
            logger.info("kernel %s: %r is no candidate: %s", slot.kernel.name, config, fault)
        return outcome

    def _count_worker(self) -> None:
        counters.workers_started += 1


def opening(program: Program, target: Target, jax_settings: dict[str, Any], recipe: list[dict[str, Any]]) -> dict[str, Any]:
    """What a worker must know to try configs of a program."""
    return {"program": codec.encode(program), "target": target.name, "jax": jax_settings, "inputs": recipe}


def make_record(key: Key, kernel: str, outcome: Outcome, kind: EvidenceKind) -> Record:
    """The database record of a finished search."""
    evidence = Evidence(
        kind, outcome.ms, outcome.default_ms, outcome.spread or 0.0, outcome.pairs, outcome.tried, round(outcome.seconds, 3)
    )
    status = Status.WINNER if outcome.winner is not None else Status.NO_CANDIDATE
    config = outcome.winner.to_dict() if outcome.winner is not None else {}
    return Record(key, kernel, status, config, SPACE_VERSION, evidence, prepare.toolchain(), machine=machine_name())


tuner = Tuner()
atexit.register(tuner.stop)
