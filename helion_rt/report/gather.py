"""From what a search left behind to what a report shows of it."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator

from helion_rt import lowering
from helion_rt.config import Config
from helion_rt.database import EvidenceKind
from helion_rt.exc import ConfigError, PlanError
from helion_rt.lowering.knobs import knobs
from helion_rt.program.cost import cost
from helion_rt.program.ir import Program
from helion_rt.runtime.ahead import Filled
from helion_rt.targets import Target

from .contents import Rates, Search
from .text import config_text, duration

MAX_ALTERNATIVES = 8


def search_of(filled: Filled, kernel: str, arguments: str) -> Search:
    """What a report shows of a key that was filled, or could not be."""
    record, outcome = filled.record, filled.outcome
    evidence = record.evidence if record is not None else None
    if evidence is not None:
        kind = evidence.kind
    else:
        kind = outcome.kind if outcome is not None else EvidenceKind.SCHEDULED if filled.target.is_tpu else EvidenceKind.MEASURED
    winner = filled.winner
    return Search(
        kernel=kernel,
        arguments=arguments,
        target=filled.target.name,
        kind=kind,
        default=filled.default(),
        winner=winner,
        default_seconds=_seconds(evidence.default_ms if evidence else None),
        winner_seconds=_seconds(evidence.ms if evidence and winner is not None else None),
        log=tuple(outcome.log) if outcome is not None else (),
        spent=outcome.seconds if outcome is not None else 0.0,
        cost=cost(filled.program),
        rates=rates(filled.target, filled.program),
        alternatives=alternatives(filled, winner),
        remark=_remark(filled),
    )


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1e3


def _remark(filled: Filled) -> str:
    if filled.problem:
        return f"Not stored: {filled.problem}."
    if filled.forced is not None:
        return f"The kernel's own config= is forced: {config_text(filled.forced)}."
    if filled.outcome is None and filled.record is not None:
        evidence = filled.record.evidence
        return (
            f"The database had the answer: tuned on {filled.record.date[:10]}, {evidence.candidates_tried} candidates in "
            f"{evidence.seconds:.0f} s. What was tried then is not kept."
        )
    return ""


def rates(target: Target, program: Program) -> Rates | None:
    """The peak rates of one core of ``target``, as JAX describes it; None on the CPU, which nobody publishes."""
    info = target.info
    if info is None or not info.mem_bw_bytes_per_second:
        return None
    dtypes = {program.types[p.value].dtype for p in program.array_params if p.value is not None}
    if dtypes & {"int8", "uint8"} and info.int8_ops_per_second:
        return Rates(float(info.int8_ops_per_second), float(info.mem_bw_bytes_per_second), "int8")
    return Rates(float(info.bf16_ops_per_second), float(info.mem_bw_bytes_per_second), "bfloat16")


def alternatives(filled: Filled, winner: Config | None) -> dict[str, str]:
    """What other forms would have given, one choice of the winner's changed at a time: a time, or why there is none.

    A form is the strategy of a loop, or another choice between named ways (an orientation, an order of issue); sizes and counts are none.
    """
    config = winner or filled.default()
    if config is None:
        return {}
    found: dict[str, str] = {}
    same = _plan(filled, config)
    others = (other for other in _other_forms(filled, config) if _plan(filled, other) != same)
    for other in itertools.islice(others, MAX_ALTERNATIVES):
        changed = [f"{name}={value!r}" for name, value in other.to_dict().items() if value != config.to_dict().get(name)]
        found[" ".join(changed)] = _outcome(filled, other)
    return found


def _plan(filled: Filled, config: Config) -> Config:
    """The canonical form, which configs that make the same plan have in common; an illegal config is its own."""
    return filled.space.canonical(config) or config


def _other_forms(filled: Filled, config: Config) -> Iterator[Config]:
    chosen = list(config.get("loop_strategies") or ())
    for i, loop in enumerate(lowering.loops(filled.program)):
        for strategy in loop.choices:
            if i < len(chosen) and strategy != chosen[i]:
                yield config.replace(loop_strategies=[*chosen[:i], strategy, *chosen[i + 1 :]])
    for knob in knobs(filled.program, filled.target):
        for value in knob.values:
            if isinstance(value, enum.Enum) and value != knob.of(config):
                yield knob.put(config, value)


def _outcome(filled: Filled, config: Config) -> str:
    """What the search knows of a config."""
    try:
        filled.space.check(config)
    except (PlanError, ConfigError) as error:
        return f"not legal: {getattr(error, 'reason', error)}"
    tried = [e.trial for e in filled.outcome.log if e.config in (config, _plan(filled, config))] if filled.outcome is not None else []
    if not tried:
        return "not tried with the rest as it is"
    best = min(tried, key=lambda trial: (trial.fault is not None, trial.seconds))
    if best.fault is not None:
        return best.fault.splitlines()[0][:200]
    return f"{duration(best.seconds)} ({best.kind.value})"
