"""Searching values of a kernel's tunables: each makes another program, with a space of its own; their best are compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from helion_rt.config import Config
from helion_rt.database import EvidenceKind

from .evidence import Evaluator, Trial
from .measure import Pairs, b_wins, spread
from .search import Outcome


class Under:
    """An evaluator of the configs of one variant: they get its values under their names."""

    def __init__(self, evaluator: Evaluator, values: Mapping[str, Any]) -> None:
        self.evaluator, self.values = evaluator, dict(values)

    @property
    def kind(self) -> EvidenceKind:
        return self.evaluator.kind

    def trial(self, config: Config) -> Trial:
        return self.evaluator.trial(config.replace(**self.values))

    def pairs(self, a: Config, b: Config, budget: float) -> Pairs | None:
        return self.evaluator.pairs(a.replace(**self.values), b.replace(**self.values), budget)


def without(config: Config) -> Config:
    """``config`` as a space has it: without values of tunables."""
    own = config.own
    return Config(**{name: value for name, value in config.to_dict().items() if name not in own})


def merge(outcome: Outcome, found: Outcome, values: Mapping[str, Any], default: Config, evaluator: Evaluator, budget: float) -> None:
    """Take the best of a variant into ``outcome`` if it beats what is there, and then the default, by more than the noise."""
    outcome.tried += found.tried
    outcome.seconds += found.seconds
    outcome.stopped = outcome.stopped or found.stopped
    outcome.faults += [(config.replace(**values), fault) for config, fault in found.faults]
    for event in found.log:
        best = event.best.replace(**values) if event.best is not None else None
        outcome.log.append(dataclasses.replace(event, config=event.config.replace(**values), best=best))
    if found.incumbent is None or found.stopped:
        return
    candidate = (found.winner or found.incumbent).replace(**values)
    if outcome.winner is not None:
        pairs = evaluator.pairs(outcome.winner, candidate, budget)
        if pairs is None or pairs.busy or not b_wins(pairs):
            return
    pairs = evaluator.pairs(default, candidate, budget)
    if pairs is None or not b_wins(pairs, caution=2.0 if pairs.busy else 1.0):
        return
    outcome.winner = outcome.incumbent = candidate
    outcome.ms, outcome.default_ms, outcome.spread, outcome.pairs = pairs.b_ms, pairs.a_ms, spread(pairs.b), len(pairs.b)
