"""Flops of the matrix products and bytes of the arguments and results of any JAX function: what no schedule can beat."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core


def floors(fn: Callable[..., Any], specs: Sequence[Any]) -> tuple[float, float]:
    """(matmul flops, bytes of arguments and results). Bodies of unknown length count once, of branches the longest counts."""
    return floors_of(jax.make_jaxpr(fn)(*specs))


def floors_of(jaxpr: core.ClosedJaxpr) -> tuple[float, float]:
    """The same of a closed jaxpr."""
    arrays = [*jaxpr.jaxpr.invars, *jaxpr.jaxpr.outvars]
    return _flops(jaxpr.jaxpr), float(sum(_bytes(array.aval) for array in arrays))


def _bytes(aval: Any) -> int:
    return math.prod(aval.shape) * aval.dtype.itemsize if hasattr(aval, "shape") and hasattr(aval.dtype, "itemsize") else 0


def _flops(jaxpr: Any) -> float:
    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            total += _dot(equation)
            continue
        inner = [_flops(sub) for value in equation.params.values() for sub in _jaxprs(value)]
        if inner:
            total += _times(equation) * (max(inner) if equation.primitive.name == "cond" else sum(inner))
    return total


def _dot(equation: Any) -> float:
    left = equation.invars[0].aval.shape
    (contracted, _), _ = equation.params["dimension_numbers"]
    return 2.0 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[axis] for axis in contracted)


def _times(equation: Any) -> float:
    if equation.primitive.name == "scan":
        return float(equation.params["length"])
    if equation.primitive.name == "pallas_call":
        grid = getattr(equation.params.get("grid_mapping"), "grid", ())
        return float(math.prod(size for size in grid if isinstance(size, int)))
    return 1.0


def _jaxprs(value: Any) -> list[Any]:
    if isinstance(value, core.ClosedJaxpr):
        return [value.jaxpr]
    if isinstance(value, core.Jaxpr):
        return [value]
    if isinstance(value, (tuple, list)):
        return [sub for item in value for sub in _jaxprs(item)]
    return []
