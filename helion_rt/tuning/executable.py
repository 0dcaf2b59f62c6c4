"""From a program and a config to something that runs: the same steps in the server and in the worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from helion_rt import lowering
from helion_rt.config import Config
from helion_rt.program.ir import ArgKind, Program
from helion_rt.targets import Target


def function(program: Program, config: Config | None, target: Target) -> Callable[..., tuple[Any, ...]]:
    """The pure JAX function of a config; of the reference path if ``config`` is None. Raises ``PlanError``."""
    inner = lowering.reference(program) if config is None else lowering.build(program, config, target)

    specs = lowering.argument_specs(program)

    def call(*arrays: Any) -> tuple[Any, ...]:
        # Inlined under a caller's trace a number comes as Python has it.
        return tuple(inner(*(jnp.asarray(a, s.dtype) if isinstance(a, (int, float)) else a for a, s in zip(arrays, specs, strict=True))))

    # The name is part of the HLO module and so of the compilation cache's key: it must not vary between processes.
    call.__name__ = call.__qualname__ = f"helion_{program.name}" if config is not None else f"helion_{program.name}_reference"
    return call


def compiled(
    fn: Callable[..., tuple[Any, ...]], program: Program, committed: Sequence[bool] | None = None
) -> Callable[..., tuple[Any, ...]]:
    """``fn`` under ``jax.jit``, compiled for the default backend and the arguments of ``program``.

    Compiled ahead of time, so that a fault shows here; JAX keeps what that makes, and the jitted function's first call finds
    it. The jitted function and not the ``jax.stages.Compiled`` is what serves: its call is several microseconds quicker.

    ``committed``: for each array param, whether its arrays are tied to a device, as those that come from torch through DLPack
    are. JAX tells that apart, too: where it is not said, the first call compiles once more.
    """
    jitted = jax.jit(fn)
    specs = lowering.argument_specs(program)
    # A Python number is weakly typed, and a jitted function tells that apart.
    weak = not jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    given = []
    for spec, param, tied in zip(specs, program.array_params, committed or [False] * len(specs), strict=True):
        if weak and param.kind is ArgKind.SCALAR:
            given.append(jax.ShapeDtypeStruct(spec.shape, spec.dtype, weak_type=True))
        else:
            given.append(jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=device if tied else None))
    jitted.lower(*given).compile()
    return jitted
