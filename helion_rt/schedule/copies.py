"""Copies between HBM and VMEM: one queue of limited bandwidth, and a latency for each copy.

A copy that is started at ``now`` waits for those before it, takes ``bytes / bandwidth`` of the memory and raises its flag ``latency``
later. So a pipeline of two buffers costs ``max(compute, latency + bytes / bandwidth)`` a step without that being said anywhere.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Copies:
    """The copies in flight. Times in cycles; ``rate`` in bytes a cycle. Flags are numbers, or None where the text does not tell which."""

    rate: float
    latency: float
    free: float = 0.0  # when the memory is done with what has been asked
    busy: float = 0.0
    moved: float = 0.0
    stalled: float = 0.0
    pending: dict[int | None, deque[float]] = field(default_factory=lambda: defaultdict(deque))

    def start(self, now: float, flag: int | None, size: float, hbm: bool) -> None:
        """Begin a copy of ``size`` bytes. Copies that stay on the chip (``hbm`` False) cost their latency only."""
        if hbm:
            begin = max(now, self.free)
            self.free = begin + size / self.rate
            self.busy += size / self.rate
            self.moved += size
            done = self.free + self.latency
        else:
            done = now
        self.pending[flag].append(done)

    def wait(self, now: float, flag: int | None) -> float:
        """When the oldest copy under ``flag`` is done, at least ``now``. A flag that nothing raises costs nothing: others signal it."""
        queue = self.pending.get(flag)
        if not queue:
            return now
        done = max(now, queue.popleft())
        self.stalled += done - now
        return done

    def drain(self, now: float) -> float:
        """When everything in flight has landed."""
        last = max((queue[-1] for queue in self.pending.values() if queue), default=now)
        self.pending.clear()
        self.stalled += max(0.0, last - now)
        return max(now, last)
