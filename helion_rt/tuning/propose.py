"""What to try next: seeds, then the best of the model, then what the surrogate expects most of. Deterministic."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from helion_rt.config import Config

from . import model
from .space import Space
from .surrogate import Surrogate

MAX_RANKED = 4096
MODELLED_FIRST = 6  # by the model's order, before the surrogate has anything to go on: every other one far from all others
FAR_SHARE = 0.4  # of the order, among which those are
POOL = 2048  # configs that the surrogate chooses from, the best by model
NEIGHBOURS = 64  # of each new incumbent, that join them



def ranked(space: Space, yielding: Callable[[], None] = lambda: time.sleep(0.001)) -> list[tuple[float, Config]]:
    """The space, or a fair sample of it, with modelled seconds; what is long to compile comes later than what is as good.

    This runs in the serving process: it makes room for calls.
    """
    costs = []
    for number, config in enumerate(space.some(MAX_RANKED)):
        if number % 32 == 31:
            yielding()
        seconds = model.seconds(space.program, config, space.target)
        costs.append((seconds * model.effort(space.program, config, space.target), number, seconds, config))
    return [(seconds, config) for _, _, seconds, config in sorted(costs)]


class Proposer:
    """Names candidates of ``space`` one at a time, each once, in canonical form; ``tell`` it what became of them.

    ``seeds`` come first, then the best by the model, then ``hints``. ``expected``: the gain, as a fraction of the incumbent's time,
    that was expected of the last one named; None while there was nothing to expect it from.
    """

    def __init__(
        self,
        space: Space,
        seeds: Iterable[Config] = (),
        hints: Iterable[Config] = (),
        yielding: Callable[[], None] = lambda: time.sleep(0.001),
    ) -> None:
        self.space = space
        self.expected: float | None = None
        self._yielding = yielding
        self._seeds = list(seeds)
        self._hints = list(hints)
        self._pool: list[Config] = []
        self._modelled: list[float] = []
        self._numbers: dict[Config, int] = {}
        self._seen: set[Config] = set()
        self._times: dict[Config, float] = {}
        self._ranked: Iterator[Config] | None = None
        self._from_model = 0
        self._grown_around: set[Config] = set()
        self._surrogate: Surrogate | None = None

    @property
    def size(self) -> int:
        """Points to choose from, about."""
        self._load()
        return len(self._pool)

    def modelled(self, config: Config) -> float:
        return self._modelled[self._number(config)]

    def known(self, config: Config) -> None:
        """``config`` is not to be named: it is tried already."""
        self._seen.add(config)

    def tell(self, config: Config, seconds: float | None) -> None:
        """One call takes so long; None for a fault."""
        self._seen.add(config)
        if seconds is not None:
            self._times[config] = seconds

    def next(self, incumbent: Config | None) -> Config | None:
        """The next candidate; None when there is none left."""
        self.expected = None
        if (seed := self._first(self._seeds)) is not None:
            return seed
        self._load()
        if self._from_model and (hint := self._first(self._hints)) is not None:
            return hint
        if incumbent is None or incumbent not in self._times or self._from_model < MODELLED_FIRST or len(self._times) < 2:
            self._from_model += 1
            return (self._far_away() if self._from_model % 2 == 0 else None) or self._best_by_model()
        return self._most_promising(incumbent)

    def _first(self, named: list[Config]) -> Config | None:
        """The first of ``named`` that is legal and was not named before; those before it are dropped."""
        while named:
            form = self._unseen(named.pop(0))
            if form is not None:
                return form
        return None

    def _best_by_model(self) -> Config | None:
        assert self._ranked is not None
        for config in self._ranked:
            form = self._unseen(config)
            if form is not None:
                return form
        return None

    def _far_away(self) -> Config | None:
        """Of the better part of the model's order what is least like anything tried: the model may be wrong about a whole region."""
        tried = [self._number(config) for config in self._times]
        if not tried:
            return None
        distance = self._known().distance(tried)[: max(int(FAR_SHARE * len(self._pool)), 1)]
        for number in sorted(range(len(distance)), key=lambda i: (-distance[i], i)):
            form = self._unseen(self._pool[number])
            if form is not None:
                return form
        return None

    def _known(self) -> Surrogate:
        if self._surrogate is None or len(self._surrogate.prior) != len(self._pool):
            self._surrogate = Surrogate(self._pool, self._modelled)
        return self._surrogate

    def _most_promising(self, incumbent: Config) -> Config | None:
        """The config with the largest expected improvement that is legal and not tried."""
        self._grow(incumbent)
        times = {self._number(config): seconds for config, seconds in self._times.items()}
        gains = self._known().improvement(list(times), list(times.values()), self._times[incumbent])
        for number in sorted(range(len(gains)), key=lambda i: (-gains[i], i)):
            form = self._unseen(self._pool[number])
            if form is not None:
                self.expected = float(gains[number])
                return form
        return None

    def _grow(self, incumbent: Config) -> None:
        """Let the neighbours of the incumbent into the pool: of a large space it is a sample, and knobs are at their defaults."""
        if incumbent in self._grown_around:
            return
        self._grown_around.add(incumbent)
        for count, config in enumerate(self.space.neighbours(incumbent)):
            if count >= NEIGHBOURS:
                break
            self._yielding()
            self._number(config)

    def _unseen(self, config: Config) -> Config | None:
        """The canonical form of a config that is legal and was not named before."""
        form = None if config in self._seen else self.space.canonical(config)
        self._seen.add(config)
        if form is None or (form != config and form in self._seen):
            return None
        self._seen.add(form)
        return form

    def _load(self) -> None:
        if self._ranked is None:
            order = ranked(self.space, self._yielding)
            self._ranked = iter([config for _, config in order])
            for seconds, config in order[:POOL]:
                if config not in self._numbers:
                    self._numbers[config] = len(self._pool)
                    self._pool.append(config)
                    self._modelled.append(seconds)

    def _number(self, config: Config) -> int:
        if config not in self._numbers:
            self._numbers[config] = len(self._pool)
            self._pool.append(config)
            self._modelled.append(model.seconds(self.space.program, config, self.space.target))
        return self._numbers[config]
