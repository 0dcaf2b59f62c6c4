"""``Lowered`` and ``Compiled``: a kernel on its way to a target, with the names of JAX's own stages."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from .. import targets
from ..config import Config
from ..exc import CompileError
from ..program.ir import Program
from ..targets import Target
from .emit import entry_name, load_source, write_source
from .legalize import narrow
from .plan import Plan, make_plan


class Compiled:
    """A kernel compiled for ``target``. Callable with JAX arrays where that target is the machine's own."""

    def __init__(self, lowered: Lowered, stage: jax.stages.Compiled):
        self.lowered, self.stage = lowered, stage
        self.target = lowered.target

    def __call__(self, *arrays: Any) -> tuple[Any, ...]:
        """One array a TENSOR or SCALAR param -> the flat tuple of outputs."""
        return self.stage(*arrays)

    def as_text(self) -> str:
        """What the compiler made, as HLO text."""
        return self.stage.as_text() or ""

    @functools.cached_property
    def tpu_custom_calls(self) -> int:
        """Mosaic kernels in it; 0 would mean that the plan fell back to plain XLA."""
        return targets.count_tpu_custom_calls(self.stage)


class Lowered:
    """A kernel lowered for ``target`` under ``config``: its plan and its Pallas ``source``."""

    def __init__(self, program: Program, config: Config, target: Target):
        self.program, self.config, self.target = program, config, target
        self.plan: Plan = make_plan(program, config, target)
        self.source: str = write_source(self.plan)

    @property
    def specs(self) -> list[jax.ShapeDtypeStruct]:
        """Shapes and dtypes of the arrays that the executable takes."""
        return argument_specs(self.program)

    @functools.cached_property
    def stage(self) -> jax.stages.Lowered:
        """JAX's own lowered stage. Raises ``CompileError`` if Pallas or Mosaic refuses the plan."""
        function = load_source(self.source, entry_name(self.program))
        return targets.lower_for(function, self.specs, self.target, kernel=self.program.name)

    def as_text(self) -> str:
        """StableHLO, with Mosaic's payloads."""
        return self.stage.as_text()

    def interpret(self, *arrays: Any) -> tuple[Any, ...]:
        """Runs the plan on the CPU in JAX's TPU interpreter: DMAs and semaphores as on the chip, what is uninitialized is NaN.

        Slow; for small arrays. One array a TENSOR or SCALAR param -> the flat tuple of outputs. Raises ``CompileError`` if the
        interpreter finds a data race.
        """
        from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter
        from jax.experimental.pallas import tpu as pltpu  # late: it is slow to import

        # On the chip HBM is tiled: an array has room up to whole tiles, and a pipeline copies whole tiles.
        params = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan", buffer_bounds="padded")
        function = functools.partial(load_source(self.source, entry_name(self.program)), interpret=params)
        with targets.interpreted_as(self.target):
            outputs = jax.block_until_ready(jax.jit(function)(*arrays))
        if interpreter.races is not None and interpreter.races.races_found:
            raise CompileError("a data race, found by the TPU interpreter", target=self.target.name, kernel=self.program.name)
        return outputs

    def compile(self) -> Compiled:
        """Compiles for the target, with libtpu for a TPU that is not there. Raises ``CompileError`` with the compiler's reason."""
        return Compiled(self, targets.compile_lowered(self.stage, self.target, kernel=self.program.name))


def argument_specs(program: Program) -> list[jax.ShapeDtypeStruct]:
    """Shapes and dtypes of the arrays that executables of ``program`` take, in order."""
    specs = []
    for param in program.array_params:
        assert param.value is not None
        type_ = program.types[param.value]
        shape = tuple(d for d in type_.shape if isinstance(d, int))
        specs.append(jax.ShapeDtypeStruct(shape, jnp.dtype(narrow(type_.dtype))))
    return specs


def lower(program: Program, config: Config, target: Target) -> Lowered:
    """The kernel planned and written for ``target``. Raises ``PlanError`` if ``config`` is illegal or does not fit there."""
    return Lowered(program, config, target)
