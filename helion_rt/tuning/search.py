"""The search: the modelled ranking first, then coordinate descent around the best, within a budget. Deterministic but for the clock."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from helion_rt.config import Config

from . import model
from .measure import Pairs, b_wins, spread
from .space import Space

MAX_TRIALS = 24

# Tried whatever the budget says: a verdict on fewer would keep the default for good on a machine that was slow once.
MIN_TRIALS = 4
MAX_RANKED = 1024
RETRIES_WHEN_BUSY = 2

# A candidate whose single run takes this much longer than the incumbent's is not worth pairs.
HOPELESS = 1.6


@dataclass(frozen=True, slots=True)
class Trial:
    """The verdict on a candidate: None in ``fault`` if it compiled, ran and matched the reference. ``seconds``: one call."""

    fault: str | None
    seconds: float = 0.0


class Evaluator(Protocol):
    """Who compiles and runs candidates (a worker process)."""

    def trial(self, config: Config) -> Trial: ...

    def pairs(self, a: Config, b: Config, budget: float) -> Pairs | None: ...


@dataclass(slots=True)
class Outcome:
    """What a search found. ``winner`` is None when nothing beat the default; times in milliseconds."""

    winner: Config | None = None
    incumbent: Config | None = None  # the best so far
    ms: float | None = None
    default_ms: float | None = None
    spread: float | None = None
    pairs: int = 0
    tried: int = 0
    seconds: float = 0.0
    stopped: bool = False
    faults: list[tuple[Config, str]] = field(default_factory=list)


def search(
    space: Space,
    evaluator: Evaluator,
    budget: float,
    stop: Callable[[], bool] = lambda: False,
    on_trial: Callable[[int], None] = lambda tried: None,
    start: Config | None = None,
) -> Outcome:
    """Find a config faster than ``start`` (the default). ``budget`` in seconds; ``on_trial`` is told the number tried.

    A candidate must compile, match the reference and beat the incumbent by more than the noise. The winner is compared
    with the default once more at the end: it is never slower. ``stopped`` is set if ``stop()`` ended it early.
    """
    begin = time.monotonic()
    out = Outcome()
    default = start or space.default()
    first = evaluator.trial(default)
    if first.fault is not None and not stop():  # it serves right now: once may have been somebody else's doing, e.g. the OOM killer's
        first = evaluator.trial(default)
    ready = time.monotonic()  # bringing a worker up is no part of the budget
    out.incumbent = default if first.fault is None else None
    best_seconds = first.seconds
    if first.fault is not None:
        out.faults.append((default, first.fault))
    pair_budget = min(1.0, budget / 20)
    for config in _candidates(space, default, lambda: out.incumbent or default):
        # The last comparison, with the default, gets a tenth of the budget.
        if out.tried >= MAX_TRIALS or (out.tried >= MIN_TRIALS and time.monotonic() - ready > 0.9 * budget):
            break
        if stop():
            out.stopped = True
            break
        out.tried += 1
        on_trial(out.tried)
        trial = evaluator.trial(config)
        if trial.fault is not None:
            out.faults.append((config, trial.fault))
        elif out.incumbent is None:
            out.incumbent, best_seconds = config, trial.seconds
        elif trial.seconds <= HOPELESS * best_seconds:
            pairs = _calm_pairs(evaluator, out.incumbent, config, pair_budget)
            if pairs is None:
                out.faults.append((config, "could not be compared"))
            elif not pairs.busy and b_wins(pairs):
                out.incumbent, best_seconds = config, min(trial.seconds, pairs.b_ms / 1e3)
    if out.incumbent is not None and out.incumbent != default and not out.stopped:
        _confirm(evaluator, default, out.incumbent, first.fault is None, max(pair_budget, budget / 20), out)
    out.seconds = time.monotonic() - begin
    return out


def _confirm(evaluator: Evaluator, default: Config, winner: Config, default_runs: bool, budget: float, out: Outcome) -> None:
    """The last word: the winner against the default. Where the default does not run at all, the winner stands alone."""
    rival = default if default_runs else winner
    pairs = _calm_pairs(evaluator, rival, winner, budget)
    if pairs is None:
        return
    # Of a machine that never came to rest twice the difference is asked: interleaving makes both suffer alike.
    if default_runs and not b_wins(pairs, caution=2.0 if pairs.busy else 1.0):
        out.default_ms = pairs.a_ms
        return
    out.winner = winner
    out.ms, out.spread, out.pairs = pairs.b_ms, spread(pairs.b), len(pairs.b)
    out.default_ms = pairs.a_ms if default_runs else None


def _calm_pairs(evaluator: Evaluator, a: Config, b: Config, budget: float) -> Pairs | None:
    """Pairs from a calm machine; after some retries the last, marked busy."""
    pairs = evaluator.pairs(a, b, budget)
    for attempt in range(RETRIES_WHEN_BUSY):
        if pairs is None or not pairs.busy:
            break
        time.sleep(0.2 * 2**attempt)
        pairs = evaluator.pairs(a, b, budget)
    return pairs


def _candidates(space: Space, default: Config, best: Callable[[], Config]) -> Iterator[Config]:
    """Half of the trials from the modelled ranking, the rest neighbours of whatever is best then. Each config once."""
    seen = {default}
    order = ranked(space)
    count = 0
    for config in order:
        if count >= MAX_TRIALS // 2:
            break
        if config not in seen and space.is_legal(config):
            seen.add(config)
            count += 1
            yield config
    while True:
        around = [c for c in space.neighbours(best()) if c not in seen]
        if not around:
            break
        nearest = min(around, key=lambda c: model.seconds(space.program, c, space.target))
        seen.add(nearest)
        yield nearest
    for config in order:  # what the budget leaves
        if config not in seen and space.is_legal(config):
            seen.add(config)
            yield config


def ranked(space: Space) -> list[Config]:
    """The space by modelled time. This runs in the serving process: it makes room for the calls every few configs."""
    costs: list[tuple[float, int, Config]] = []
    for number, config in enumerate(itertools.islice(space.unchecked(), MAX_RANKED)):
        if number % 8 == 7:
            time.sleep(0.001)
        costs.append((model.seconds(space.program, config, space.target), number, config))
    return [config for _, _, config in sorted(costs)]
