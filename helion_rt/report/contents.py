"""What a report shows: finished searches, and what the winner of one target would take on another. Plain data, nothing drawn yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from helion_rt.config import Config
from helion_rt.database import EvidenceKind
from helion_rt.program.cost import Cost
from helion_rt.tuning.evidence import Event, Trial


@dataclass(frozen=True, slots=True)
class Rates:
    """What a target can do at most, a second: flops of matrix products in ``dtype`` (``matrix``), bytes of HBM (``memory``)."""

    matrix: float
    memory: float
    dtype: str


@dataclass(frozen=True, slots=True)
class Search:
    """One finished search. Times in seconds of one call, known by ``kind``.

    ``winner`` is the config that is stored: None where the default stays. ``log`` is the search's own, in its order; it is
    empty where the database had the answer. ``alternatives``: for people, what other choices than the winner's would give
    ("loop_strategies=['unroll']" -> "not legal: ..."). ``space``: points of the space after no-ops are gone, where they were counted.
    """

    kernel: str
    arguments: str
    target: str
    kind: EvidenceKind
    default: Config | None
    winner: Config | None
    default_seconds: float | None
    winner_seconds: float | None
    log: tuple[Event, ...] = ()
    spent: float = 0.0
    space: int | None = None
    cost: Cost | None = None
    rates: Rates | None = None
    alternatives: Mapping[str, str] = field(default_factory=dict)
    remark: str = ""

    @property
    def best(self) -> Config | None:
        """The config that serves: the winner's, or the default where nothing beat it."""
        return self.winner if self.winner is not None else self.default

    @property
    def best_seconds(self) -> float | None:
        return self.winner_seconds if self.winner is not None else self.default_seconds

    @property
    def gain(self) -> float | None:
        """Time of the default over the time of what serves: 1 where the default stays, None where one is unknown."""
        if self.winner is None:
            return 1.0 if self.default_seconds else None
        if not self.default_seconds or not self.winner_seconds:
            return None
        return self.default_seconds / self.winner_seconds

    @property
    def good(self) -> list[Event]:
        """Steps whose candidate has a time of the search's own kind: times of two kinds are never compared."""
        return [e for e in self.log if e.trial.fault is None and e.trial.seconds > 0 and e.trial.kind is self.kind]

    @property
    def of_other_kinds(self) -> list[Event]:
        """Steps whose candidate works, but has a time of another kind (a fallback of the evaluator)."""
        return [event for event in self.log if event.trial.fault is None and event.trial.kind is not self.kind]

    @property
    def faults(self) -> list[Event]:
        return [event for event in self.log if event.trial.fault is not None]

    def event_of(self, config: Config | None) -> Event | None:
        """The best step that tried ``config``; None if there was none."""
        found = [event for event in self.good if event.config == config]
        return min(found, key=lambda event: event.trial.seconds) if found else None


@dataclass(frozen=True, slots=True)
class Crossing:
    """The config that won on target ``tuned_for``, tried for target ``runs_on``. On the diagonal, the winner's own time."""

    kernel: str
    arguments: str
    tuned_for: str
    runs_on: str
    config: Config | None
    trial: Trial
