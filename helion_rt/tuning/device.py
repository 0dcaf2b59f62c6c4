"""Measuring in the serving process, on the device that serves: where one process owns the chip. Only while nobody calls.

Candidates are compiled in a worker before (a stage of the search of its own), so that a crash of the compiler is not the server's. What
is measured here has compiled there.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax

from helion_rt.config import Config
from helion_rt.database import EvidenceKind

from . import measure
from .evidence import Trial
from .judge import Judge, Run

# No call for this long: the machine is idle. A call that comes in the middle of a sample spoils it.
QUIET_SECONDS = 0.05
POLL_SECONDS = 0.01
PATIENCE_SECONDS = 30.0  # after which a server that is never idle is given up

# Launches that are queued before their results are awaited: so much that the way to the device is a small part of a sample.
BATCH_SECONDS = 2e-3
MAX_BATCH = 16
MAX_BATCH_BYTES = 256 << 20  # of results in flight

# Of the samples, how many may have been spoiled by calls before the comparison counts as one on a busy machine.
SPOILED_SHARE = 0.2
KEPT = 3


class Busy(Exception):
    """The server was not idle for ``PATIENCE_SECONDS``."""


class DeviceEvaluator:
    """An ``Evaluator`` that measures in this process.

    ``compile``: the executable of a config. ``last_call``: when the last call of the server began, on ``clock``, in seconds. ``stop``:
    ends the waiting. ``clock`` and ``sleep`` can be those of a simulation.
    """

    kind = EvidenceKind.MEASURED

    def __init__(
        self,
        judge: Judge,
        compile: Callable[[Config], Run],
        last_call: Callable[[], float],
        *,
        quarantined: Collection[Config] = (),
        stop: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.judge, self.compile, self.last_call, self.stop = judge, compile, last_call, stop
        self.quarantined = frozenset(quarantined)
        self._clock, self._sleep = clock, sleep
        self._waited = 0.0  # for the server to come to rest: no part of anything's time
        self._samples = self._spoiled = 0
        self._runs: OrderedDict[Config, Run] = OrderedDict()
        self._prepared = False
        self._right: set[Config] = set()
        self._calm: dict[Config, measure.Calm] = {}

    def trial(self, config: Config) -> Trial:
        """Compile, compare with the reference on all trial inputs, and time. An error of the device is the candidate's verdict."""
        if config in self.quarantined:
            return Trial("quarantined: it was found to be wrong or slower than the default before")
        try:
            fault = self._fault(config)
            if fault is not None:
                return Trial(fault)
            run = self._sample(config, 1)
            run()
            return Trial(None, min(self._timed(run) for _ in range(3)))
        except Busy as error:
            return Trial(str(error), doubtful=True)
        except Exception as error:  # the runtime's own errors have no common base
            return Trial(f"{type(error).__name__}: {error}"[:2000])

    def pairs(self, a: Config, b: Config, budget: float) -> measure.Pairs | None:
        """Interleaved pairs, the server's own calls let pass in between; None where one of them fails or the server is never idle."""
        try:
            if any(self._fault(config) is not None for config in (a, b)):
                return None
            batch = self._batch(a)
            first, second = self._sample(a, batch), self._sample(b, batch)
            self._samples = self._spoiled = 0
            found = measure.interleave(first, second, budget, clock=self._own_time, cpu_clock=self._own_time)
        except Exception:  # a verdict on neither: the search says that they could not be compared
            return None
        a_times, b_times = ([t / batch for t in times] for times in (found.a, found.b))
        busy = self._calm.setdefault(a, measure.Calm()).judge(found.a_ms / 1e3 / batch, 1.0)
        busy = busy or self._spoiled > SPOILED_SHARE * self._samples
        return measure.Pairs(tuple(a_times), tuple(b_times), 1.0, busy)

    def _fault(self, config: Config) -> str | None:
        if config in self._right:
            return None
        if not self._prepared:
            self._wait_for_quiet()
            self.judge.prepare()
            self._prepared = True
        for values in self.judge.values:
            self._wait_for_quiet()
            fault = self.judge.fault(self._run(config), config, values)
            if fault is not None:
                return fault
        self._right.add(config)
        return None

    def _run(self, config: Config) -> Run:
        if config not in self._runs:
            self._runs[config] = self.compile(config)
            while len(self._runs) > KEPT:
                self._runs.popitem(last=False)
        self._runs.move_to_end(config)
        return self._runs[config]

    def _batch(self, config: Config) -> int:
        """How many launches to queue in a sample: the same for both of a pair."""
        run = self._run(config)
        size = sum(out.nbytes for out in run(*self.judge.normal))
        single = max(min(self._timed(self._sample(config, 1)) for _ in range(2)), 1e-9)
        return max(1, min(math.ceil(BATCH_SECONDS / single), MAX_BATCH, MAX_BATCH_BYTES // max(size, 1)))

    def _sample(self, config: Config, batch: int) -> Callable[[], None]:
        """``batch`` launches, one after the other on the device, once the server is at rest."""
        run, arrays = self._run(config), self.judge.normal

        def sample() -> None:
            self._wait_for_quiet()
            before = self.last_call()
            outputs: Sequence[Any] = ()
            for _ in range(batch):
                outputs = run(*arrays)
            jax.block_until_ready(outputs)
            self._samples += 1
            self._spoiled += self.last_call() != before

        return sample

    def _wait_for_quiet(self) -> None:
        begin = self._clock()
        while self._clock() - self.last_call() < QUIET_SECONDS:
            if self.stop() or self._clock() - begin > PATIENCE_SECONDS:
                raise Busy("the server was never idle for long enough to measure")
            self._sleep(POLL_SECONDS)
        self._waited += self._clock() - begin

    def _own_time(self) -> float:
        return self._clock() - self._waited

    def _timed(self, run: Callable[[], None]) -> float:
        begin = self._own_time()
        run()
        return self._own_time() - begin
