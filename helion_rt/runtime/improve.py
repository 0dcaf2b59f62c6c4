"""What the tuner does for one slot: try what a record says, search, store what came of it, swap. And the way back."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

from helion_rt.config import Config
from helion_rt.database import Evidence, EvidenceKind, Key, Record, Status, machine_name, utc_now
from helion_rt.database import Origin as CameBy
from helion_rt.exc import ConfigError
from helion_rt.program import codec
from helion_rt.program.ir import Program
from helion_rt.targets import Target
from helion_rt.tuning import executable, pool, tunables
from helion_rt.tuning.device import DeviceEvaluator
from helion_rt.tuning.evidence import Evaluator, Trial
from helion_rt.tuning.judge import Judge, Run
from helion_rt.tuning.measure import Pairs, b_wins, spread
from helion_rt.tuning.search import Outcome, search
from helion_rt.tuning.space import SPACE_VERSION, Space

from . import prepare, variants
from .buckets import Bucket, near
from .counters import counters
from .slot import Origin, Slot, Subject, Tuning, registry
from .standing import MAX_NEAREST, Standing, nearest, other_versions, standing

logger = logging.getLogger("helion_rt.tuning")

# Of the budget for a search, what comparing a recorded winner with the default may take.
CHECK_SHARE = 0.1
CHECKS = 3  # as long as the machine is busy


def opening(
    program: Program, target: Target, jax_settings: dict[str, Any], recipe: list[dict[str, Any]], like: Config | None = None
) -> dict[str, Any]:
    """What a worker must know to try configs of a program. ``like``: see ``judge.Judge``."""
    asked = {"program": codec.encode(program), "target": target.name, "jax": jax_settings, "inputs": recipe}
    return {**asked, "like": None if like is None else like.to_dict()}


def make_record(key: Key, kernel: str, outcome: Outcome, kind: EvidenceKind, before: Record | None = None) -> Record:
    """The database record of a finished search. ``before``: what the database has had; its quarantine is handed on."""
    failed = outcome.winner is None and outcome.incumbent is None and outcome.ms is None
    status = Status.WINNER if outcome.winner is not None else Status.ALL_FAILED if failed else Status.NO_CANDIDATE
    config = outcome.winner.to_dict() if outcome.winner is not None else {}
    # Nothing is known of anything's time where all failed: such a record never outranks one that knows.
    kind = EvidenceKind.MODELLED if failed else kind
    evidence = Evidence(
        kind, outcome.ms, outcome.default_ms, outcome.spread or 0.0, outcome.pairs, outcome.tried, round(outcome.seconds, 3)
    )
    # A void winner may have been faster: what is found in its place outranks it as the later look.
    revised = 0 if before is None else before.next_revision if before.is_void else before.revision
    inherited = {"quarantined": before.quarantined, "revision": revised} if before is not None else {}
    return Record(key, kernel, status, config, SPACE_VERSION, evidence, prepare.toolchain(), machine=machine_name(), **inherited)


def quarantine(record: Record | None) -> frozenset[Config]:
    """The configs that are never to be tried again for the key of ``record``."""
    found = set()
    for config in record.quarantined if record is not None else ():
        try:
            found.add(Config.from_dict(config))
        except ConfigError:  # of another version: it cannot be proposed either
            continue
    return frozenset(found)


def improve(slot: Slot, workers: pool.Workers, stopping: Callable[[], bool], between: Callable[[], None] = lambda: None) -> None:
    """Find out what is best for ``slot``, store it, and serve it. The caller holds the locks. ``between`` is called after each candidate.

    A worker in which not even the reference path runs is a verdict too: stored, and not tried again at once.
    """
    record = slot.tier.get(slot.key)
    try:
        if record is not None and not slot.afresh and _has_settled(slot, evaluators_of(slot, workers, record, stopping)[-1], record):
            slot.tuning = Tuning.DONE
            return
        record = slot.tier.get(slot.key)  # a roll-back has changed it
        others = variants.all_of(slot.subject) if not slot.space.target.is_tpu else []
        outcome = _search(slot, evaluators_of(slot, workers, record, stopping), record, stopping, others, between)
    except pool.CannotOpen as error:
        if stopping():
            slot.tuning = Tuning.OFF
            return
        slot.tuning, slot.tuning_error = Tuning.FAILED, str(error)
        logger.warning("kernel %s: nothing can be tried, the default stays: %s", slot.kernel.name, error)
        slot.tier.put(make_record(slot.key, slot.kernel.name, Outcome(), EvidenceKind.MODELLED, record))
        return
    if stopping() or outcome.stopped:
        slot.tuning = Tuning.OFF
        return
    _conclude(slot, outcome, record, lambda config: _trial_here(slot, config, workers, stopping))


def evaluators_of(slot: Slot, workers: pool.Workers, record: Record | None, stopping: Callable[[], bool]) -> list[Evaluator]:
    """Who tries candidates of ``slot``, the last word last: a worker process measures on the CPU. On a TPU it only compiles, and what
    is left is measured here."""
    return _evaluators(slot, slot.subject, workers, record, stopping)


def _trial_here(slot: Slot, config: Config, workers: pool.Workers, stopping: Callable[[], bool]) -> Trial:
    try:
        variants.program_of(slot, config)  # which the worker is told with the slot's others
        return evaluators_here(slot, workers, stopping)[-1].trial(config)
    except (pool.CannotOpen, ConfigError) as error:
        return Trial(str(error), doubtful=True)


def evaluators_here(slot: Slot, workers: pool.Workers, stopping: Callable[[], bool]) -> list[Evaluator]:
    """As ``evaluators_of``, with the slot's own extents where those of its bucket are tuned."""
    return _evaluators(slot, slot, workers, None, stopping)


def _evaluators(
    slot: Slot, subject: Subject, workers: pool.Workers, record: Record | None, stopping: Callable[[], bool]
) -> list[Evaluator]:
    target = slot.space.target
    like = subject.space.default() if slot.settings.strict else None
    asked = {**opening(subject.program, target, slot.jax_settings, subject.recipe, like), "variants": variants.opening(subject)}
    worker = pool.WorkerEvaluator(asked, workers, quarantine(record))
    return [worker, on_device(slot, record, stopping, subject)] if target.is_tpu else [worker]


def on_device(slot: Slot, record: Record | None, stopping: Callable[[], bool], subject: Subject | None = None) -> DeviceEvaluator:
    """Measures candidates of ``slot`` (or of ``subject`` for it) in this process, while no kernel is called."""
    subject = subject or slot.subject
    target = slot.space.target
    like = subject.space.default() if slot.settings.strict else None

    def compile(config: Config) -> Run:
        return executable.compiled(executable.function(subject.program, config, target), subject.program)

    def last_call() -> float:
        return max((other.used for other in registry.all()), default=0.0)

    judge = Judge(subject.program, subject.recipe, target, like)
    return DeviceEvaluator(judge, compile, last_call, quarantined=quarantine(record), stop=stopping)


def _search(
    slot: Slot, evaluators: list[Evaluator], record: Record | None, stopping: Callable[[], bool], others: list[dict[str, Any]],
    between: Callable[[], None],
) -> Outcome:
    """``others``: values of tunables to be tried after the kernel's own, for half of the time."""
    seconds = slot.settings.tune_seconds / (2 if others else 1)
    subject, before = slot.subject, 0
    space = subject.space

    def told(tried: int) -> None:
        slot.candidates_tried = before + tried
        counters.candidates_tried += 1
        between()

    outcome = search(space, evaluators, seconds, stopping, told, seeds=seeds(slot, record), on_event=slot.watch)
    best = space.default()
    for values in others:
        if stopping() or outcome.stopped or outcome.incumbent is None:
            break
        before, best = outcome.tried, outcome.winner or best
        other = Space(variants.variant(subject, values), space.target)
        under = tunables.Under(evaluators[-1], values)
        found = search(other, under, seconds / len(others), stopping, told, seeds=[tunables.without(best)], on_event=slot.watch)
        tunables.merge(outcome, found, values, space.default(), evaluators[-1], seconds / 20)
    slot.outcome = outcome
    for config, fault in outcome.faults:
        logger.info("kernel %s: %r is no candidate: %s", slot.kernel.name, config, fault)
    return outcome


def seeds(slot: Slot, record: Record | None) -> list[Config]:
    """Configs to start from: what the database has for this key, then the winners of the same kernel that are nearest to it."""
    space = slot.subject.space
    own = prepare.recorded_config(space, record)  # of the kernel's own values
    near = nearest(slot.tier.records(), slot.key, slot.kernel.name, space.default())
    return [*([own] if own is not None else []), *(config for config in near if config != own)]


def _conclude(slot: Slot, outcome: Outcome, before: Record | None, try_here: Callable[[Config], Trial]) -> None:
    """Store what a search has found, and serve it; after ``try_here`` where the search was of other extents than the slot's."""
    record = make_record(slot.key, slot.kernel.name, outcome, outcome.kind, before)
    # A hint that did not do here what it promised is no winner of this key any more.
    if before is not None and before.status is Status.WINNER:
        trials = (event.trial for event in outcome.log if event.config.to_dict() == before.config)
        fault = next((trial.fault for trial in trials if trial.fault is not None and not trial.doubtful), None)
        if fault is not None:
            roll_back(slot, before, fault)
        if fault is not None and not other_versions(before, prepare.toolchain()):  # see ``prepare.withdraw``
            record = dataclasses.replace(record, quarantined=(*record.quarantined, before.config), revision=before.next_revision)
    if record.status is Status.ALL_FAILED:
        logger.warning(
            "kernel %s: none of %d candidates works, the default stays: %s", slot.kernel.name, len(outcome.faults), _reason(outcome)
        )
    # A record that could not be used here must not outrank the new one; a winner that still serves may.
    stays = record.status is Status.ALL_FAILED and before is not None and _serves(slot, before)
    slot.tier.put(record, force=before is not None and not stays)
    if outcome.winner is not None:
        _serve_winner(slot, outcome.winner, record, try_here)
    elif slot.serving.origin is Origin.RECORD and record.status is Status.NO_CANDIDATE:
        prepare.serve_default(slot, prepare.evidence_dict(record))  # what served was a hint, and is not better here
    else:  # the default stays, and is known now to be as good as what was tried
        slot.serving = dataclasses.replace(slot.serving, evidence=prepare.evidence_dict(record))
    slot.tuning = Tuning.DONE


def _serve_winner(slot: Slot, winner: Config, record: Record, try_here: Callable[[Config], Trial]) -> None:
    config = prepare.config_here(slot, winner)
    if slot.bucket is not None:
        trial = None if config is None else try_here(config)
        if config is None or trial is None or trial.fault is not None:
            reason = "it is not legal" if trial is None else trial.fault
            logger.warning("kernel %s: %r, the winner of its bucket, does not serve here: %s", slot.kernel.name, winner, reason)
            if slot.serving.origin is Origin.RECORD:
                prepare.serve_default(slot)
            if trial is not None and not trial.doubtful:
                prepare.withdraw(slot, record, f"with {prepare.signature_of(slot.program)}: {trial.fault}")
            return
        slot.bucket.tried.add(config)
    prepare.serve(slot, config, Origin.TUNED, prepare.evidence_dict(record))
    counters.swaps += 1


def settle_extents(slot: Slot, workers: pool.Workers, stopping: Callable[[], bool]) -> None:
    """For a slot with a bucket: try with its own extents what serves from the bucket's record. Where there is no record, serve the
    winner of the nearest bucket until there is one, if it works here. The caller holds the host's lock."""
    bucket = slot.bucket
    if bucket is None:
        return
    record = slot.tier.get(slot.key)
    try:
        if not slot.is_tried and record is not None and _serves(slot, record):
            _try_extents(slot, bucket, record, evaluators_here(slot, workers, stopping)[-1])
        elif slot.serving.origin is Origin.DEFAULT and not bucket.looked_near and record is None:
            bucket.looked_near = True
            _serve_nearest(slot, bucket, evaluators_here(slot, workers, stopping)[-1])
    except pool.CannotOpen as error:
        logger.info("kernel %s: nothing can be tried with its own extents: %s", slot.kernel.name, error)


def _try_extents(slot: Slot, bucket: Bucket, record: Record, evaluator: Evaluator) -> None:
    config = slot.serving.config
    assert config is not None
    trial = evaluator.trial(config)
    if trial.fault is None or trial.doubtful:  # where nobody can tell it goes on serving, and the next process tries again
        bucket.tried.add(config)
        return
    roll_back(slot, record, f"with {prepare.signature_of(slot.program)}: {trial.fault}")


def _serve_nearest(slot: Slot, bucket: Bucket, evaluator: Evaluator) -> None:
    for record in near(slot.tier.records(), slot.key, slot.kernel, bucket.program)[:MAX_NEAREST]:
        if standing(record, prepare.toolchain(), strict=slot.settings.strict) is Standing.MISS:
            continue
        config = prepare.recorded_config(slot.space, record)  # of the kernel's own values
        if config is None or (trial := evaluator.trial(config)).fault is not None:
            continue
        bucket.tried.add(config)
        # The time is that of other extents.
        evidence = {**prepare.evidence_dict(record), "ms": None, "default_ms": None, "nearest_bucket": record.key.digest}
        logger.debug("kernel %s: %r of the nearest bucket serves, %s", slot.kernel.name, config, trial)
        prepare.serve(slot, config, Origin.RECORD, evidence)
        counters.swaps += 1
        return


def _reason(outcome: Outcome) -> str:
    return outcome.faults[-1][1].splitlines()[0][:200] if outcome.faults else "nothing was legal"


def _has_settled(slot: Slot, evaluator: Evaluator, record: Record) -> bool:
    """Try here a measured winner that has become a hint. True if it is still one (it is stored anew), or if nobody can tell.

    False if there is to be a search: the winner is no longer one, and has been rolled back, or it was never measured.
    """
    space = slot.subject.space
    config = prepare.recorded_config(space, record, variants_too=slot.recapture is not None)
    measured = record.evidence.kind is EvidenceKind.MEASURED
    if record.retune:  # somebody wants a search, whatever the winner is worth
        return False
    if config is None or not measured or standing(record, prepare.toolchain(), strict=slot.settings.strict) is not Standing.HINT:
        return False
    default = space.default()
    if config == default:
        return False
    trial = evaluator.trial(config)
    if trial.fault is not None:
        if trial.doubtful:
            logger.info("kernel %s: the recorded winner could not be tried: %s", slot.kernel.name, trial.fault)
            return True  # it goes on serving, and the next process tries again
        roll_back(slot, record, trial.fault)
        return False
    if evaluator.trial(default).fault is not None:
        return False
    pairs = _calm_pairs(evaluator, config, default, CHECK_SHARE * slot.settings.tune_seconds)
    if pairs is None or pairs.busy:
        logger.info("kernel %s: the recorded winner could not be compared with the default: the machine is busy", slot.kernel.name)
        return True  # as above
    if b_wins(pairs):  # a is the winner, b the default
        roll_back(slot, record, f"the default is faster today: {pairs.b_ms:.4g} ms against {pairs.a_ms:.4g} ms")
        return False
    evidence = dataclasses.replace(
        record.evidence, ms=pairs.a_ms, default_ms=pairs.b_ms, spread=spread(pairs.a), pairs=len(pairs.a)
    )
    anew = dataclasses.replace(
        record, evidence=evidence, toolchain=prepare.toolchain(), machine=machine_name(), date=utc_now(), origin=CameBy.TUNED_HERE
    )
    slot.tier.put(anew, force=True)
    slot.serving = dataclasses.replace(slot.serving, evidence=prepare.evidence_dict(anew))
    return True


def _calm_pairs(evaluator: Evaluator, a: Config, b: Config, budget: float) -> Pairs | None:
    pairs = None
    for _ in range(CHECKS):
        pairs = evaluator.pairs(a, b, budget)
        if pairs is None or not pairs.busy:
            break
    return pairs


def roll_back(slot: Slot, record: Record, reason: str) -> None:
    """Put the winner of ``record`` in quarantine, for all processes, and serve the default in its place."""
    prepare.withdraw(slot, record, reason)
    if _serves(slot, record):
        prepare.serve_default(slot)


def _serves(slot: Slot, record: Record) -> bool:
    config = slot.serving.config
    if record.status is not Status.WINNER or config is None:
        return False
    if slot.bucket is None:
        return config.to_dict() == record.config
    recorded = prepare.recorded_config(slot.bucket.space, record, variants_too=True)
    return recorded is not None and prepare.config_here(slot, recorded) == config
