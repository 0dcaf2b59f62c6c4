"""The seeds of a kernel that draws random numbers as torch does: taken from torch's default CPU generator at each call.

So ``torch.manual_seed`` makes its results reproducible, and two calls differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from helion_rt.exc import InputError
from helion_rt.program.ir import Param, Program

from . import facts as call_facts


def draw(program: Program, param: Param, args: Sequence[Any]) -> np.ndarray:
    """The seeds for one call, int32 [draws, 2]. Raises ``InputError`` under a JAX transformation, which would keep them for ever.

    A NumPy array, so that it goes to whatever device the arguments are on.
    """
    if call_facts.is_traced(args) or isinstance(jax.numpy.zeros(()), Tracer):
        raise InputError(
            "the kernel draws from torch's generator, which a JAX transformation would ask only once",
            hint="draw with hl.rand(shape, seed) or hl.randint, and make the seed an argument of the kernel",
        )
    import torch  # late: a JAX caller with stored programs has not imported it

    assert param.value is not None
    limits = torch.iinfo(torch.int32)
    shape = program.types[param.value].shape
    return torch.randint(limits.min, limits.max + 1, shape, dtype=torch.int32, device="cpu").numpy()  # type: ignore[arg-type]


def check(program: Program, param: Param) -> None:
    """Raise ``ValueError`` unless a parameter of a stored program has the form of seeds."""
    kind = None if param.value is None else program.types[param.value]
    if kind is None or param.path or kind.dtype != "int32" or len(kind.shape) != 2 or kind.shape[1] != 2 or type(kind.shape[0]) is not int:
        raise ValueError(f"its seeds are {kind} at {param.path}")


__all__ = ["check", "draw"]
