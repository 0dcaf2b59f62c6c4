"""For a target that is not here: the best config by the modelled ranking among those that its real compiler accepts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from helion_rt.config import Config
from helion_rt.exc import PlanError

from .search import Evaluator, Outcome, ranked
from .space import Space

# Configs that are compiled beside the default. The model is coarse: beyond a few its order means little.
CHALLENGERS = 3
MAX_FAULTS = 8


def best_that_compiles(
    space: Space, evaluator: Evaluator, budget: float, on_trial: Callable[[int], None] = lambda tried: None
) -> Outcome | None:
    """Compile the default and the best few by model, within ``budget`` seconds. None if nothing compiles.

    ``winner`` is None where the default is the best. Times are the model's, in milliseconds.
    """
    begin = time.monotonic()
    out = Outcome()
    good: dict[Config, float] = {}
    default = next(_default_chain(space), None)
    for config in _order(space):
        if good and (len(good) > CHALLENGERS or len(out.faults) >= MAX_FAULTS or time.monotonic() - begin > budget):
            break
        out.tried += 1
        on_trial(out.tried)
        trial = evaluator.trial(config)
        if trial.fault is None:
            good[config] = trial.seconds
        else:
            out.faults.append((config, trial.fault))
    out.seconds = time.monotonic() - begin
    if not good:
        return None
    best = min(good, key=lambda config: good[config])
    out.ms = good[best] * 1e3
    out.default_ms = good[default] * 1e3 if default is not None and default in good else None
    out.winner = best if best != default else None
    return out


def _order(space: Space) -> Iterator[Config]:
    """The default, the best by model, then what the default would shrink to (reached only if nothing compiled). Each config once."""
    seen: set[Config] = set()
    first = next(_default_chain(space), None)
    challengers = (config for config in ranked(space) if space.is_legal(config))
    for source in ((first,) if first is not None else (), _take(challengers, CHALLENGERS), _default_chain(space)):
        for config in source:
            if config not in seen:
                seen.add(config)
                yield config


def _default_chain(space: Space) -> Iterator[Config]:
    try:
        config: Config | None = space.default()
    except PlanError:
        return
    while config is not None:
        yield config
        config = space.smaller(config)


def _take(configs: Iterator[Config], count: int) -> Iterator[Config]:
    for _, config in zip(range(count), configs, strict=False):
        yield config
