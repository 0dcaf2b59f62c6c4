"""Timing two executables against each other: interleaved pairs, medians, and whether the difference is more than noise."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# A sample shorter than this is a loop of several calls: the clock and the scheduler would be most of it.
SAMPLE_SECONDS = 5e-4
MIN_PAIRS = 5
MAX_PAIRS = 60

FEW = 4.0  # pairs: of five the error is nearly doubled, of fifty it is as it is

# The smallest gain worth a swap. Below it two runs of the same search would pick different winners.
MIN_GAIN = 0.03

# A machine is busy when the incumbent, whose time we know, takes this much longer than at its best, or gets this much
# less of the processors than at its best.
DRIFT_LIMIT = 1.3
CPU_SHARE_LIMIT = 0.7


@dataclass(frozen=True, slots=True)
class Pairs:
    """Times in seconds a call, one of ``a`` and one of ``b`` a pair; ``cpu``: process CPU time over wall time of the ``a`` samples."""

    a: tuple[float, ...]
    b: tuple[float, ...]
    cpu: float = 1.0
    busy: bool = False

    @property
    def a_ms(self) -> float:
        return statistics.median(self.a) * 1e3

    @property
    def b_ms(self) -> float:
        return statistics.median(self.b) * 1e3

    @property
    def ratio(self) -> float:
        """Median over the pairs of time of b / time of a: below 1 where b is faster."""
        return statistics.median(y / x for x, y in zip(self.a, self.b, strict=True))

    @property
    def error(self) -> float:
        """The standard error of ``ratio``, from the median absolute deviation: spikes do not count. Few pairs do not know their own
        spread well, so theirs is taken to be larger."""
        ratios = [y / x for x, y in zip(self.a, self.b, strict=True)]
        middle = statistics.median(ratios)
        spread = 1.4826 * statistics.median(abs(r - middle) for r in ratios)
        return (1 + FEW / len(ratios)) * 1.2533 * spread / math.sqrt(len(ratios))

    @property
    def noise(self) -> float:
        """Three standard errors."""
        return 3 * self.error


def b_wins(pairs: Pairs, caution: float = 1.0, *, least: float = MIN_GAIN, sigmas: float = 3.0) -> bool:
    """Is ``b`` faster than ``a`` by more than ``sigmas`` standard errors, and than ``least``? A near tie goes to ``a``, the incumbent."""
    return pairs.ratio < 1 - caution * max(least, sigmas * pairs.error)


def joined(first: Pairs, second: Pairs) -> Pairs:
    """All pairs of two batches of the same two."""
    return Pairs(first.a + second.a, first.b + second.b, min(first.cpu, second.cpu), first.busy or second.busy)


def interleave(
    a: Callable[[], object],
    b: Callable[[], object],
    budget: float,
    clock: Callable[[], float] = time.perf_counter,
    cpu_clock: Callable[[], float] = time.process_time,
) -> Pairs:
    """Time ``a`` and ``b`` in turns (the order alternates) until ``budget`` seconds are used, at least ``MIN_PAIRS`` pairs.

    Both must wait for their result. The first call of each is not counted.
    """
    begin = clock()
    single = max(_one(a, 1, clock), 1e-9)
    _one(b, 1, clock)
    calls = max(1, math.ceil(SAMPLE_SECONDS / single))
    times: tuple[list[float], list[float]] = ([], [])
    cpu = wall = 0.0
    while len(times[0]) < MAX_PAIRS and (len(times[0]) < MIN_PAIRS or clock() - begin < budget):
        for which in (0, 1) if len(times[0]) % 2 == 0 else (1, 0):
            before = cpu_clock()
            spent = _one((a, b)[which], calls, clock)
            times[which].append(max(spent, 1e-9))
            if which == 0:
                cpu += cpu_clock() - before
                wall += spent * calls
    return Pairs(tuple(times[0]), tuple(times[1]), cpu / wall if wall > 0 else 1.0)


@dataclass(slots=True)
class Calm:
    """The best that was ever seen of one executable in this session: what 'not busy' looks like."""

    seconds: float = math.inf
    cpu: float = 0.0

    def judge(self, seconds: float, cpu: float) -> bool:
        """Remember this batch and say whether the machine was busy during it."""
        busy = seconds > DRIFT_LIMIT * self.seconds or cpu < CPU_SHARE_LIMIT * self.cpu
        self.seconds = min(self.seconds, seconds)
        self.cpu = max(self.cpu, cpu)
        return busy


def _one(run: Callable[[], object], calls: int, clock: Callable[[], float]) -> float:
    begin = clock()
    for _ in range(calls):
        run()
    return (clock() - begin) / calls


def spread(times: Sequence[float]) -> float:
    """Median absolute deviation over the median, without unit."""
    middle = statistics.median(times)
    return statistics.median(abs(t - middle) for t in times) / middle
