"""A search and an evaluator that answer at once: what is tested is what the commands do with the answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from helion_rt.config import Config
from helion_rt.database import EvidenceKind
from helion_rt.exc import PlanError
from helion_rt.tuning.evidence import Event, Trial
from helion_rt.tuning.search import Outcome


class Searches:
    """Stands for ``search``: the default takes 2 ms, a neighbour of it 1 ms.

    ``calls``: targets that were searched for, in order. ``stays``: where the default is the best; ``broken``: where no config works;
    ``raises``: what comes of all searches but the first.
    """

    def __init__(self, stays: tuple[str, ...] = (), broken: tuple[str, ...] = (), raises: BaseException | None = None) -> None:
        self.calls: list[str] = []
        self.stays, self.broken, self.raises = stays, broken, raises

    def __call__(
        self, space: Any, evaluator: Any, budget: float, stop: Callable[[], bool] = lambda: False,
        on_event: Callable[[Event], None] = lambda event: None, **more: Any,
    ) -> Outcome:  # fmt: skip
        name = space.target.name
        self.calls.append(name)
        if self.raises is not None and len(self.calls) > 1:
            raise self.raises
        kind, default = EvidenceKind.SCHEDULED, space.default()
        if name in self.broken:
            why = "CompileError: out of VMEM"
            step = Event(0.1, default, 1e-3, Trial(why, kind=kind), "refused", None, None)
            return Outcome(tried=1, kind=kind, faults=[(default, why)], log=[step])
        first = Event(0.1, default, 1e-3, Trial(None, 2e-3, kind, {"unit:MXU": 0.5}), "the default", default, 2e-3)
        on_event(first)
        out = Outcome(incumbent=default, default_ms=2.0, tried=1, kind=kind, log=[first])
        if name not in self.stays:
            winner = next(space.neighbours(default))
            second = Event(0.2, winner, 0.9e-3, Trial(None, 1e-3, kind, {"unit:MXU": 0.9}), "new best", winner, 1e-3)
            on_event(second)
            out.winner = out.incumbent = winner
            out.ms, out.tried = 1.0, 2
            out.log.append(second)
        return out


class Compiles:
    """Stands for ``WorkerEvaluator``: every config takes 1.5 ms, and ``asked`` has them."""

    asked: list[tuple[str, Config]] = []
    kind = EvidenceKind.SCHEDULED

    def __init__(self, opening: dict[str, Any], workers: Any, *more: Any) -> None:
        self.target = opening["target"]

    def trial(self, config: Config) -> Trial:
        self.asked.append((self.target, config))
        return Trial(None, 1.5e-3, self.kind)


def illegal(*names: Any, **more: Any) -> Any:
    raise PlanError("needs too much VMEM")
