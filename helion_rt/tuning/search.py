"""The search: the modelled ranking names candidates, evaluators judge them, each stage narrowing what the next one sees.

A stage is one evaluator: ``scheduled`` (the target's compiler) before ``measured`` (the device itself, where it is here). Within a
stage a surrogate over what was seen says which config is worth the next trial; the stage ends with its budget, or when the gain to be
expected is under the noise. Deterministic for the same answers: nothing is drawn, and ties have an order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from helion_rt.config import Config
from helion_rt.database import EvidenceKind
from helion_rt.exc import PlanError

from . import heuristics
from .evidence import Evaluator, Event, Trial
from .measure import Pairs, b_wins, joined, spread
from .propose import Proposer
from .space import Space

# Trials of one stage: this share of the space, within these bounds. At least MIN_TRIALS whatever the budget of time says: a verdict
# on fewer would keep the default for good on a machine that was slow once.
TRIALS_SHARE = 0.07
FEWEST_TRIALS = 12
MAX_TRIALS = 48
MIN_TRIALS = 4
RETRIES_WHEN_BUSY = 2

# A candidate whose single run takes this much longer than the incumbent's is not worth pairs.
HOPELESS = 1.4
# How much faster than the incumbent a candidate must be beside the noise (the default asks for more: ``measure.MIN_GAIN``).
STEP_GAIN = 0.015
# Of times that have no noise: what a compiler's schedule says to the per cent.
EXACT_GAIN = 0.01
# Expected gains under this, so many times in a row, end a stage.
LEAST_EXPECTED = 0.006
PATIENCE = 3
# Of the best of one stage, how many the next one sees; at the end of a stage, how many are held against the winner.
FINALISTS = 4
# A winner must beat the default by so many standard errors, beside ``measure.MIN_GAIN``.
CONFIRM_SIGMAS = 4.5


@dataclass(frozen=True, slots=True)
class Budget:
    """What a search may spend: seconds in all, trials a stage (None: by the size of the space), seconds within trials."""

    seconds: float
    trials: int | None = None
    compile_seconds: float | None = None


@dataclass(slots=True)
class Outcome:
    """What a search found. ``winner`` is None when nothing beat the default; times in milliseconds, known by ``kind``."""

    winner: Config | None = None
    incumbent: Config | None = None  # the best so far
    ms: float | None = None
    default_ms: float | None = None
    spread: float | None = None
    pairs: int = 0
    tried: int = 0
    seconds: float = 0.0
    stopped: bool = False
    kind: EvidenceKind = EvidenceKind.MEASURED
    faults: list[tuple[Config, str]] = field(default_factory=list)
    log: list[Event] = field(default_factory=list)


def search(
    space: Space,
    evaluators: Evaluator | Sequence[Evaluator],
    budget: float | Budget,
    stop: Callable[[], bool] = lambda: False,
    on_trial: Callable[[int], None] = lambda tried: None,
    start: Config | None = None,
    seeds: Iterable[Config] = (),
    on_event: Callable[[Event], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Outcome:
    """Find a config faster than ``start`` (the default).

    A candidate must compile, match the reference where it can run, and beat the incumbent by more than the noise. The winner is
    compared with the default once more at the end: it is never slower.

    Args:
        evaluators: one, or several in the order of their evidence, the weakest first; each narrows for the next.
        budget: seconds, or a ``Budget``; of several stages each gets an equal part.
        stop: asked before each trial; ``stopped`` is set in the outcome if it ended the search.
        on_trial: told the number of candidates tried.
        seeds: tried first, e.g. the nearest records of a database. Illegal ones are passed over.
        on_event: told each step, as it is logged in the outcome.
        clock, sleep: of the machine that candidates are tried on, for tests.
    """
    stages = list(evaluators) if isinstance(evaluators, Sequence) else [evaluators]
    limits = budget if isinstance(budget, Budget) else Budget(budget)
    out = Outcome()
    begin = clock()
    default = start or space.default()
    named = list(seeds)
    for number, evaluator in enumerate(stages):
        share = Budget(limits.seconds / len(stages), limits.trials, limits.compile_seconds)
        stage = _Stage(space, evaluator, share, default, out, _Hooks(stop, on_trial, on_event or (lambda event: None), clock, sleep, begin))
        stage.run(named, only_seeds=number > 0)
        if out.stopped or number + 1 == len(stages):
            stage.conclude()
            break
        named = stage.finalists()
    out.seconds = clock() - begin
    return out


@dataclass(frozen=True, slots=True)
class _Hooks:
    """What a search asks of those around it."""

    stop: Callable[[], bool]
    on_trial: Callable[[int], None]
    on_event: Callable[[Event], None]
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    begin: float


class _Stage:
    """The trials of one evaluator: who is ahead, and by what."""

    def __init__(self, space: Space, evaluator: Evaluator, budget: Budget, default: Config, out: Outcome, hooks: _Hooks) -> None:
        self.space, self.evaluator, self.budget, self.default, self.out, self.hooks = space, evaluator, budget, default, out, hooks
        self.is_measured = getattr(evaluator, "kind", EvidenceKind.MEASURED) is EvidenceKind.MEASURED
        self.incumbent: Config | None = None
        self.trials: dict[Config, Trial] = {}
        self.times: dict[Config, float] = {}  # seconds on the scale of the default's trial: pairs count more than single runs
        self.spent_in_trials = 0.0
        self.proposer = Proposer(space)

    # ------------------------------------------------------------------------------------------------ trials

    def run(self, seeds: Iterable[Config], only_seeds: bool) -> None:
        """Try the default, then candidates until the budget or the hope is used up."""
        first = self.attempt(self.default)
        if first.fault is not None and self.is_measured and not self.hooks.stop():
            first = self.attempt(self.default)  # once may have been somebody else's doing, e.g. the OOM killer's
        ready = self.hooks.clock()  # bringing a worker up is no part of the budget
        self.accept_default(first)
        rescue = () if first.fault is None else self.smaller()
        named = list(dict.fromkeys((*rescue, *seeds)))
        hints = () if only_seeds else heuristics.seeds(self.space)
        self.proposer = proposer = Proposer(self.space, named, hints, lambda: self.hooks.sleep(0.001))
        proposer.known(self.default)
        if first.fault is None:
            proposer.tell(self.default, self.times[self.default])
        limit = self.limit(only_seeds, len(named))
        hopeless = tried = 0
        while tried < limit and not self.used_up(ready, tried):
            if self.hooks.stop():
                self.out.stopped = True
                return
            config = proposer.next(self.incumbent)
            if config is None:
                return
            hopeless = hopeless + 1 if proposer.expected is not None and proposer.expected < LEAST_EXPECTED else 0
            if hopeless >= PATIENCE and tried >= min(FEWEST_TRIALS, limit):
                return
            tried += 1
            self.out.tried += 1
            self.hooks.on_trial(self.out.tried)
            verdict = self.consider(config, self.attempt(config))
            proposer.tell(config, self.times.get(config))
            self.note(config, verdict)

    def limit(self, only_seeds: bool, named: int) -> int:
        if only_seeds:
            return named
        if self.budget.trials is not None:
            return self.budget.trials
        return max(FEWEST_TRIALS, min(MAX_TRIALS, int(TRIALS_SHARE * self.proposer.size)))

    def used_up(self, ready: float, tried: int) -> bool:
        # The last comparison, with the default, gets a tenth of the budget.
        over = self.hooks.clock() - ready > 0.9 * self.budget.seconds
        compiled = self.budget.compile_seconds is not None and self.spent_in_trials > self.budget.compile_seconds
        return tried >= MIN_TRIALS and (over or compiled)

    def attempt(self, config: Config) -> Trial:
        begin = self.hooks.clock()
        trial = self.evaluator.trial(config)
        self.spent_in_trials += self.hooks.clock() - begin
        self.trials[config] = trial
        if trial.fault is not None and (config, trial.fault) not in self.out.faults:
            self.out.faults.append((config, trial.fault))
        return trial

    def accept_default(self, first: Trial) -> None:
        if first.fault is None:
            self.out.faults[:] = [(config, fault) for config, fault in self.out.faults if config != self.default]
            self.incumbent, self.times[self.default] = self.default, first.seconds
        self.out.incumbent = self.incumbent
        self.note(self.default, "the default" if first.fault is None else first.fault)

    def smaller(self) -> Iterator[Config]:
        """What a default that does not run would shrink to."""
        try:
            config = self.space.smaller(self.default)
            while config is not None:
                yield config
                config = self.space.smaller(config)
        except PlanError:
            return

    def consider(self, config: Config, trial: Trial) -> str:
        """Hold a candidate against the incumbent; in one line what came of it."""
        if trial.fault is not None:
            return trial.fault
        self.times[config] = trial.seconds
        if self.incumbent is None:
            self.promote(config)
            return "the first that runs"
        if not self.is_measured:
            return self.compare_exact(config)
        best = self.times[self.incumbent]
        if trial.seconds > HOPELESS * best:
            return f"{_percent(trial.seconds / best)} in a single run"
        pairs = self.calm_pairs(self.incumbent, config, self.pair_seconds)
        if pairs is None:
            self.out.faults.append((config, "could not be compared"))
            self.times.pop(config)
            return "could not be compared"
        self.times[config] = best * pairs.ratio
        if b_wins(pairs, _caution(pairs), least=STEP_GAIN):
            self.promote(config)
            return f"new best: {_percent(pairs.ratio)}"
        return f"{_percent(pairs.ratio)}{': near tie' if pairs.ratio < 1 + STEP_GAIN else ''}"

    def compare_exact(self, config: Config) -> str:
        assert self.incumbent is not None
        ratio = self.exact_ratio(config, self.incumbent)
        if ratio < 1 - EXACT_GAIN or (ratio < 1 + EXACT_GAIN and self.simpler(config, self.incumbent) and ratio <= 1):
            self.promote(config)
            return f"new best: {_percent(ratio)}"
        return f"{_percent(ratio)}{': near tie' if ratio < 1 + EXACT_GAIN else ''}"

    def exact_ratio(self, a: Config, b: Config) -> float:
        """Time of ``a`` over that of ``b``; where they are known in two ways, as the model has it."""
        if self.trials[a].kind is self.trials[b].kind:
            return self.times[a] / self.times[b]
        return self.proposer.modelled(a) / self.proposer.modelled(b)

    def simpler(self, a: Config, b: Config) -> bool:
        return self.space.simplicity(a) < self.space.simplicity(b)

    def promote(self, config: Config) -> None:
        self.incumbent = self.out.incumbent = config

    @property
    def pair_seconds(self) -> float:
        return min(1.0, self.budget.seconds / 20)

    def calm_pairs(self, a: Config, b: Config, budget: float) -> Pairs | None:
        """Pairs from a calm machine; after some retries all of them, marked busy: interleaving makes both suffer alike."""
        found = self.evaluator.pairs(a, b, budget)
        for attempt in range(RETRIES_WHEN_BUSY):
            if found is None or not found.busy:
                break
            self.hooks.sleep(0.2 * 2**attempt)
            again = self.evaluator.pairs(a, b, budget)
            found = again if again is None or not again.busy else joined(found, again)
        return found

    def note(self, config: Config, verdict: str) -> None:
        best = self.times.get(self.incumbent) if self.incumbent is not None else None
        at = self.hooks.clock() - self.hooks.begin
        event = Event(at, config, self.proposer.modelled(config), self.trials[config], verdict, self.incumbent, best)
        self.out.log.append(event)
        self.hooks.on_event(event)

    # ------------------------------------------------------------------------------------------------ the end of a stage

    def finalists(self) -> list[Config]:
        """The best few by their times, for the next stage."""
        strongest = self.strongest()
        good = [config for config in self.times if config != self.default and self.trials[config].kind is strongest]
        return sorted(good, key=lambda c: (self.times[c], self.space.simplicity(c)))[:FINALISTS]

    def strongest(self) -> EvidenceKind:
        kinds = {trial.kind for trial in self.trials.values() if trial.fault is None}
        order = (EvidenceKind.MEASURED, EvidenceKind.SCHEDULED, EvidenceKind.MODELLED)
        return next((kind for kind in order if kind in kinds), EvidenceKind.MODELLED)

    def conclude(self) -> None:
        """The last word of the last stage: the simplest of the best, held against the default."""
        out = self.out
        winner = self.incumbent
        out.kind = self.trials[winner].kind if winner is not None else self.strongest()
        if winner is None or out.stopped:
            return
        if not self.is_measured:
            self.conclude_exact()
            return
        if winner != self.default:
            winner = self.simplest(winner)
        if winner != self.default:
            self.confirm(winner)

    def conclude_exact(self) -> None:
        """Without noise: the simplest of those that are as good as the best; the default, if it is among them."""
        out, best = self.out, self.incumbent
        assert best is not None
        near = [c for c in self.times if self.trials[c].kind is self.trials[best].kind and self.exact_ratio(c, best) < 1 + EXACT_GAIN]
        winner = min(near, key=self.space.simplicity)
        out.incumbent, out.kind, out.ms = winner, self.trials[winner].kind, self.times[winner] * 1e3
        known = self.default in self.times and self.trials[self.default].kind is out.kind
        out.default_ms = self.times[self.default] * 1e3 if known else None
        out.winner = winner if winner != self.default else None

    def simplest(self, winner: Config) -> Config:
        """Of the near ties with the winner the simplest, so that two searches end alike; a faster one that was overlooked replaces it."""
        near = sorted((c for c in self.times if c not in (winner, self.default)), key=lambda c: self.times[c])
        near = [c for c in near if self.times[c] < (1 + 2 * STEP_GAIN) * self.times[winner]][:FINALISTS]
        for rival in sorted(near, key=self.space.simplicity):
            if self.hooks.stop():
                return winner
            pairs = self.calm_pairs(winner, rival, self.pair_seconds)
            if pairs is None:
                continue
            wins = b_wins(pairs, _caution(pairs), least=STEP_GAIN)
            ties = pairs.ratio < 1 + STEP_GAIN and not pairs.busy and self.simpler(rival, winner)
            self.times[rival] = self.times[winner] * pairs.ratio
            if wins or ties:
                winner = rival
        return winner

    def confirm(self, winner: Config) -> None:
        """The winner against the default. Where the default does not run at all, the winner stands alone."""
        out, default_runs = self.out, self.default in self.times
        rival = self.default if default_runs else winner
        pairs = self.calm_pairs(rival, winner, max(self.pair_seconds, self.budget.seconds / 20))
        if pairs is None:
            return
        if default_runs and not b_wins(pairs, _caution(pairs), sigmas=CONFIRM_SIGMAS):
            out.default_ms = pairs.a_ms
            out.incumbent = self.default
            return
        out.winner = out.incumbent = winner
        out.ms, out.spread, out.pairs = pairs.b_ms, spread(pairs.b), len(pairs.b)
        out.default_ms = pairs.a_ms if default_runs else None


def _caution(pairs: Pairs) -> float:
    """Of a machine that never came to rest twice the difference is asked."""
    return 2.0 if pairs.busy else 1.0


def _percent(ratio: float) -> str:
    change = 100 * (ratio - 1)
    return f"{abs(change):.1f} % {'slower' if change >= 0 else 'faster'}"
