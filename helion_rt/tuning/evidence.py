"""What is known of a candidate's time, how it is known, and who can say: the small interface between the search and its evaluators.

An evaluator gives evidence of one kind (``EvidenceKind``): ``modelled`` in microseconds a config (``model``), ``scheduled`` by the
target's compiler in a worker process (``schedule``), ``measured`` on the device itself. Times of two kinds are never compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from helion_rt.config import Config
from helion_rt.database import EvidenceKind

from .measure import Pairs


@dataclass(frozen=True, slots=True)
class Trial:
    """The verdict on a candidate: None in ``fault`` if it compiled (and, where it can run, ran and matched the reference).

    ``seconds``: one call, known by ``kind``. ``facts``: what the evaluator saw, for people: plain numbers and texts. Those that reports
    know: ``bottleneck`` (text), ``unit:<name>`` (occupancy 0..1 of a functional unit, one a unit), ``spills``, ``vmem_bytes``,
    ``cycles``, ``hbm_floor_ms``, ``mxu_floor_ms``, ``compile_seconds``, ``note``; others are shown as they are.
    """

    fault: str | None
    seconds: float = 0.0
    kind: EvidenceKind = EvidenceKind.MEASURED
    facts: Mapping[str, float | int | str] = field(default_factory=dict)
    doubtful: bool = False  # of a fault: the machine may be to blame for it (a deadline, memory), so no verdict for good


class Evaluator(Protocol):
    """Who compiles, and where it can runs, candidates. ``pairs`` is asked only of evaluators whose ``kind`` is measured."""

    @property
    def kind(self) -> EvidenceKind: ...

    def trial(self, config: Config) -> Trial: ...

    def pairs(self, a: Config, b: Config, budget: float) -> Pairs | None: ...


@dataclass(frozen=True, slots=True)
class Event:
    """One step of a search, for live views and reports. ``at``: seconds since it began; times in seconds of one call.

    The search tells each to its ``on_event: Callable[[Event], None]`` when it happens, and keeps them all in ``Outcome.log``; the first
    is the default's, where it was tried.
    """

    at: float
    config: Config
    modelled: float
    trial: Trial
    verdict: str  # one line for people: "new best", "0.8 % slower: near tie", "wrong result: ..."
    best: Config | None  # the incumbent after this step
    best_seconds: float | None
