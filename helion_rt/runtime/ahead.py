"""Tuning ahead of time: one key, now, for this machine's own target or for a TPU that is not here.

Here nothing waits for a call: ``helion-rt tune`` and ``helion-rt prewarm`` fill the database with what ``fill`` finds. The machine's own
target goes the way of every call, through the tuner (measured); for an absent one a worker compiles the candidates (``scheduled``).
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from helion_rt import targets
from helion_rt.config import Config
from helion_rt.database import EvidenceKind, Key, Record, Status, work_lock
from helion_rt.database.exchange import Holder
from helion_rt.database.tiers import Tiers
from helion_rt.exc import ConfigError, PlanError
from helion_rt.program import codec
from helion_rt.program.ir import Program
from helion_rt.targets import Target
from helion_rt.tuning import pool
from helion_rt.tuning.evidence import Event, Trial
from helion_rt.tuning.search import Outcome, search
from helion_rt.tuning.space import Space

from . import improve, jaxcache, prepare
from .slot import Origin, Tuning
from .standing import Standing, nearest, standing

if TYPE_CHECKING:
    from .kernel import Kernel

POLL_SECONDS = 0.2

# Capture answers the language through one variable of the process, so programs are found one at a time.
_finding = threading.Lock()


@dataclass(frozen=True, slots=True)
class Filled:
    """What became of a key. ``record``: what the database has now, None where ``problem`` says why there is nothing.

    ``outcome``: of the search, None where the database had the answer or the user has forced a config (``forced``).
    """

    key: Key
    program: Program
    space: Space
    record: Record | None
    outcome: Outcome | None = None
    forced: Config | None = None
    problem: str = ""

    @property
    def target(self) -> Target:
        return self.space.target

    @property
    def winner(self) -> Config | None:
        """The config of the record; None where the default serves."""
        return prepare.recorded_config(self.space, self.record)

    def default(self) -> Config | None:
        """The safe default; None where no config is legal."""
        try:
            return self.space.default()
        except PlanError:
            return None


@dataclass(frozen=True, slots=True)
class Call:
    """What is asked: a kernel and the arguments of a call."""

    kernel: Kernel
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Terms:
    """How a key is tuned. ``seconds``: budget of the search; ``again``: even if the database has the answer."""

    seconds: float
    again: bool = False
    watch: Callable[[Event], None] = lambda event: None
    stop: Callable[[], bool] = lambda: False


def fill(
    kernel: Kernel, args: tuple[Any, ...], target: Target, workers: pool.Workers, terms: Terms, kwargs: Mapping[str, Any] | None = None
) -> Filled:
    """See that the database has a record for these arguments (arrays or shape-likes) on ``target``.

    ``workers`` compile for absent targets. Raises what is wrong with the arguments or the kernel (``InputError``, ``CaptureError``,
    ``ConfigError``), and ``pool.CannotOpen`` where workers cannot be had.
    """
    call = Call(kernel, args, kwargs or {})
    return _measured(call, target, terms) if target == targets.detect() else _scheduled(call, target, workers, terms)


def _measured(call: Call, target: Target, terms: Terms) -> Filled:
    """On this machine: as a first call would, but now."""
    from .background import tuner

    with _finding:
        slot = call.kernel.bind(*call.args, **call.kwargs)
    before = Filled(slot.key, slot.subject.program, slot.subject.space, slot.tier.get(slot.key))
    if slot.serving.origin is Origin.FORCED:
        return dataclasses.replace(before, forced=slot.serving.config)
    if not slot.submitted or terms.again:
        slot.settings = dataclasses.replace(slot.settings, tune_seconds=terms.seconds)
        slot.afresh, slot.watch = terms.again, terms.watch
        if slot.tuning is Tuning.OFF or terms.again:  # HELION_RT_TUNE=off is meant for the service, not for this
            slot.tuning = Tuning.QUEUED
        slot.submitted = True
        slot.done.clear()
        tuner.submit(slot)
    while not tuner.wait(POLL_SECONDS) and not slot.done.is_set():
        if terms.stop():
            break
    record = slot.tier.get(slot.key)
    if record is None or slot.tuning is not Tuning.DONE:
        return dataclasses.replace(before, record=None, outcome=slot.outcome, problem=slot.tuning_error or "no record was stored")
    return dataclasses.replace(before, record=record, outcome=slot.outcome, problem=_unkept(slot.tier))


def _scheduled(call: Call, target: Target, workers: pool.Workers, terms: Terms) -> Filled:
    """For a target that is not here: the winner of what its compiler says."""
    kernel = call.kernel
    with _finding:
        # Of a ``dynamic=`` kernel the bucket is tuned.
        found, key, tier, _ = prepare.find(kernel, kernel.at_bucket(kernel.bound(*call.args, **call.kwargs)), target)
        space = Space(found.program, target, kernel.configs)
    filled = Filled(key, found.program, space, tier.get(key))
    if kernel.config is not None:
        forced = space.complete(kernel.config)
        space.check(forced)
        return dataclasses.replace(filled, forced=forced)
    tier.ask(key).wait()  # what the cluster has is not tuned again
    if (answer := _answered(filled, tier, terms)) is not None:
        return answer
    with tier.lease(key) as holder, work_lock(tier.directory, key.digest) as mine:
        if holder is Holder.OTHERS or not mine:
            return dataclasses.replace(filled, record=None, problem="another process is tuning this key")
        if (answer := _answered(filled, tier, terms)) is not None:  # it finished between the look-up and the lock
            return answer
        filled = dataclasses.replace(filled, record=tier.get(key))
        evaluator = pool.WorkerEvaluator(_opening(found.program, target), workers, improve.quarantine(filled.record))
        outcome = search(space, evaluator, terms.seconds, terms.stop, on_event=terms.watch, seeds=_seeds(filled, kernel.name, tier))
        if outcome.stopped:
            return dataclasses.replace(filled, record=None, outcome=outcome, problem="stopped")
        record = improve.make_record(key, kernel.name, outcome, outcome.kind, filled.record)
        tier.put(record, force=terms.again and record.status is not Status.ALL_FAILED)
        if record.status is Status.ALL_FAILED:
            fault = outcome.faults[0][1] if outcome.faults else "nothing was tried"
            return dataclasses.replace(filled, record=None, outcome=outcome, problem=f"no config compiles: {fault}")
    for alias in found.aliases:
        tier.put_program(alias, codec.encode(found.program))
    return dataclasses.replace(filled, record=record, outcome=outcome, problem=_unkept(tier))


def _answered(filled: Filled, tier: Tiers, terms: Terms) -> Filled | None:
    """The answer, if the database has it; None if there is something to tune."""
    record = tier.refresh(filled.key)
    if record is None or terms.again or not _is_settled(record):
        return None
    if record.status is Status.ALL_FAILED:
        return dataclasses.replace(filled, record=None, problem="no config compiled when it was last tried, today")
    return dataclasses.replace(filled, record=record)


def _is_settled(record: Record | None) -> bool:
    """Does a record say more than a model does, or that everything failed not long ago, and does nobody want another search?"""
    if record is None or record.retune or standing(record, prepare.toolchain()) is Standing.MISS:
        return False
    return record.evidence.kind is not EvidenceKind.MODELLED or record.status is Status.ALL_FAILED


def _opening(program: Program, target: Target) -> dict[str, Any]:
    return improve.opening(program, target, jaxcache.settings(), [])


def _seeds(filled: Filled, kernel: str, tier: Tiers) -> list[Config]:
    """What the database has for this key, then the winners of the same kernel that are nearest to it: other shapes, other targets."""
    own, default = filled.winner, filled.default()
    near = nearest(tier.records(), filled.key, kernel, default) if default is not None else []
    return [*([own] if own is not None else []), *(config for config in near if config != own)]


def _unkept(tier: Tiers) -> str:
    """Why a record goes with this process, if it does."""
    tier.local.close()  # tries once more to write what could not be written; other keys may be on their way to shared tiers
    return f"found, but {tier.directory} cannot be written" if tier.stats().in_memory else ""


def across(filled: Filled, other: Filled, workers: pool.Workers) -> Trial:
    """What the config that serves ``filled``'s target would take on ``other``'s, a TPU: the same kernel and arguments.

    Taken from the search of ``other`` where that tried it, else one more compile.
    """
    config = filled.winner or filled.default()
    if config is None:
        return Trial(f"no config is legal on {filled.target}", kind=EvidenceKind.SCHEDULED)
    if (known := _known(other, config)) is not None:
        return known
    try:
        other.space.check(config)
    except (PlanError, ConfigError) as error:
        return Trial(f"not legal on {other.target}: {getattr(error, 'reason', error)}", kind=EvidenceKind.SCHEDULED)
    try:
        return pool.WorkerEvaluator(_opening(other.program, other.target), workers).trial(config)
    except pool.CannotOpen as error:
        return Trial(str(error), kind=EvidenceKind.SCHEDULED)


def _known(filled: Filled, config: Config) -> Trial | None:
    """The time of ``config`` on the target of ``filled``, as far as its search or its record tell."""
    if filled.outcome is not None:
        tried = [event.trial for event in filled.outcome.log if event.config == config]
        if tried:
            return min(tried, key=lambda trial: (trial.fault is not None, trial.seconds))
    record = filled.record
    if record is None:
        return None
    evidence = record.evidence
    ms = evidence.ms if config == filled.winner else evidence.default_ms if config == filled.default() else None
    return Trial(None, ms / 1e3, evidence.kind) if ms is not None else None
