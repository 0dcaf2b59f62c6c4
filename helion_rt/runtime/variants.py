"""Variants of a program: what other values of its tunables (``hl.register_tunable``) make of a kernel.

A value shapes the program, so each has a program of its own. The record belongs to the program of the values that the kernel has by
itself; its config carries others under their names, and these pick the variant that serves.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from helion_rt.capture.alias import alias
from helion_rt.config import Config
from helion_rt.exc import ConfigError
from helion_rt.program import codec
from helion_rt.program.ir import Program, output_leaves
from helion_rt.program.signature import Fact
from helion_rt.settings import Settings

from . import facts as facts_of_call
from .counters import counters
from .slot import Recapture, Subject

if TYPE_CHECKING:
    from .kernel import Kernel

logger = logging.getLogger("helion_rt.tuning")

MAX_VARIANTS = 8  # that a search tries


def recapture(kernel: Kernel, facts: tuple[Fact, ...], bound: Sequence[Any], program: Program, settings: Settings) -> Recapture | None:
    """How to come by variants of ``program``; None where it has no tunables, or they are the user's to choose (``config=``).

    Nothing of the arguments is kept but their facts and numbers: programs that read values of arrays, or reach arrays through
    callables, have no variants.
    """
    if not program.notes or kernel.config is not None or kernel.configs or program.probes or facts_of_call.has_unstable(facts):
        return None
    values = tuple(map(facts_of_call.values_of, bound))
    if any(isinstance(value, facts_of_call.Opened) for value in values):
        return None

    def again(tunables: Any, declared: dict[str, Any]) -> tuple[Program, str | None]:
        from helion_rt.capture import capture  # late, as in ``prepare``

        counters.captures += 1
        made = capture(kernel.fn, facts, values, settings=settings, kernel_name=kernel.name, tunables=tunables, declared=declared)
        return made, alias(kernel.fn, facts, settings, tunables)

    return again


def values_of(program: Program, config: Config) -> dict[str, Any]:
    """The values of tunables that ``config`` has and ``program`` has not."""
    own = config.own
    return {name: own[name] for name, value in program.notes if name in own and own[name] != value}


def program_of(slot: Subject, config: Config) -> Program:
    """The program that ``config`` is for. Raises ``ConfigError`` if it cannot be had, or is not for the same arguments and results."""
    values = values_of(slot.program, config)
    return variant(slot, values) if values else slot.program


def variant(slot: Subject, values: dict[str, Any]) -> Program:
    """The program of ``slot`` with these values of its tunables. Raises as ``program_of``."""
    key = tuple(sorted(values.items()))
    if key not in slot.variants:
        if slot.recapture is None:
            raise ConfigError(f"the kernel cannot be captured with {values}", kernel=slot.kernel.name)
        program, _ = slot.recapture(values, {})
        if _outside(program) != _outside(slot.program):
            raise ConfigError(f"with {values} the kernel has other results", kernel=slot.kernel.name)
        slot.variants[key] = program
    return slot.variants[key]


def all_of(slot: Subject) -> list[dict[str, Any]]:
    """Values of tunables that are worth trying: one of them changed at a time, in the order in which the kernel asks for them."""
    if slot.recapture is None:
        return []
    declared: dict[str, Any] = {}
    slot.recapture({}, declared)
    has = dict(slot.program.notes)
    found = [
        {name: value}
        for name, fragment in declared.items()
        for value in getattr(fragment, "values", tuple)()
        if type(value) in (bool, int, float, str) and value != has.get(name)
    ]
    good = []
    for values in found[:MAX_VARIANTS]:
        try:
            variant(slot, values)
        except Exception as error:  # whatever the user's own code does with that value
            logger.info("kernel %s: %s is no candidate: %s", slot.kernel.name, values, error)
        else:
            good.append(values)
    return good


def opening(slot: Subject) -> list[list[Any]]:
    """The variants that are known, as a worker is told them: values and program."""
    return [[dict(values), codec.encode(program)] for values, program in slot.variants.items()]


def _outside(program: Program) -> tuple[Any, ...]:
    """What a caller sees of a program."""
    params = [(p.path, p.kind, None if p.value is None else program.types[p.value]) for p in program.params]
    results = [program.type_of(ref) for ref in (*output_leaves(program.outputs), *(ref for _, ref in program.mutated))]
    return params, results, [index for index, _ in program.mutated]


__all__ = ["all_of", "opening", "program_of", "recapture", "values_of", "variant"]
