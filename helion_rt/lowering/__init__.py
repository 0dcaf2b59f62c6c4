"""Lowering: program + config + target -> plan -> Pallas source -> a JAX function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..config import Config, LoopStrategy
from ..program.ir import Program
from ..targets import Target
from .emit import entry_name, load_source, write_source
from .plan import LoopInfo, Plan, loops, make_plan, strategies_that_fit
from .reference import depends_on_blocks, reference
from .stages import Compiled, Lowered, argument_specs, lower

STRATEGIES = tuple(LoopStrategy)


def generate(program: Program, config: Config, target: Target) -> str:
    """Pallas source for ``program`` under ``config`` on ``target``. Raises ``PlanError`` if the config is illegal there."""
    return write_source(make_plan(program, config, target))


def build(program: Program, config: Config, target: Target, *, interpret: Any = None) -> Callable[..., Any]:
    """A pure JAX function: one array a TENSOR or SCALAR param -> flat tuple of arrays (see ``Program``).

    ``interpret`` overrides what the target says, e.g. ``pltpu.InterpretParams()`` to check a TPU plan on a CPU.
    """
    function = load_source(generate(program, config, target), entry_name(program))
    return function if interpret is None else functools.partial(function, interpret=interpret)


__all__ = [
    "STRATEGIES", "Compiled", "LoopInfo", "Lowered", "Plan", "argument_specs", "build", "depends_on_blocks", "entry_name", "generate",
    "load_source", "loops", "lower", "make_plan", "reference", "strategies_that_fit",
]  # fmt: skip
