"""Made-up trial inputs: a recipe that travels as plain data, and the arrays made from it.

A recipe has an entry an executable's argument: ``{"shape", "dtype", "high", "data"}`` for an array (``data`` are the bytes
of a small integer argument of the live call, copied so that indices stay valid, otherwise None), ``{"scalar"}`` for a number.
Live arrays are never kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes  # noqa: F401  (registers bfloat16 and the f8 dtypes with NumPy)
import numpy as np

from helion_rt.program.expr import evaluate
from helion_rt.program.ir import ArgKind, Program

COPY_LIMIT_BYTES = 64 * 1024
SEED = 20260101


def recipe(program: Program, leaves: Sequence[Any]) -> list[dict[str, Any]]:
    """The recipe for ``program``; ``leaves`` are the live arguments, one an array param: arrays, numbers, None where there is no value.

    Only small integer arrays are read from them.
    """
    sizes = [block.fixed or 1 for block in program.blocks]
    result: list[dict[str, Any]] = []
    for param, leaf in zip(program.array_params, leaves, strict=True):
        if param.kind is ArgKind.SCALAR:
            result.append({"scalar": leaf})
            continue
        assert param.value is not None
        kind = program.types[param.value]
        shape = [evaluate(dim, sizes) for dim in kind.shape]
        if param.kind is ArgKind.SEEDS:
            result.append({"shape": shape, "dtype": kind.dtype, "high": np.iinfo(np.int32).max, "data": None})
            continue
        result.append(
            {"shape": shape, "dtype": _device_dtype(kind.dtype), "high": _high(program), "data": _small_integers(leaf, kind.dtype)}
        )
    return result


def make(entries: Sequence[dict[str, Any]], seed: int = SEED) -> list[Any]:
    """Arrays (NumPy) and numbers of a recipe. Raises ``ValueError`` for one that is malformed."""
    rng = np.random.default_rng(seed)
    return [_one(entry, rng) for entry in entries]


def _one(entry: dict[str, Any], rng: np.random.Generator) -> Any:
    if "scalar" in entry:
        if not isinstance(entry["scalar"], (int, float)):
            raise ValueError(f"a scalar of a recipe must be a number, got {entry['scalar']!r:.80}")
        return entry["scalar"]
    try:
        dtype = np.dtype(entry["dtype"])
        shape = tuple(int(n) for n in entry["shape"])
    except (TypeError, KeyError) as error:
        raise ValueError(f"bad recipe entry {entry!r:.200}") from error
    if min(shape, default=0) < 0 or math.prod(shape) > 1 << 34:
        raise ValueError(f"bad shape in a recipe: {shape}")
    if entry.get("data") is not None:
        return np.frombuffer(entry["data"], dtype=dtype).reshape(shape).copy()
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        return rng.integers(0, max(int(entry.get("high", 2)), 1), shape).astype(dtype)
    return rng.standard_normal(shape, dtype=np.float32).astype(dtype)


def _small_integers(leaf: Any, dtype: str) -> bytes | None:
    if leaf is None or not dtype.startswith(("int", "uint")) or not hasattr(leaf, "__array__"):
        return None
    if math.prod(leaf.shape) * 4 > COPY_LIMIT_BYTES:
        return None
    return np.asarray(leaf).astype(_device_dtype(dtype)).tobytes()


def _device_dtype(dtype: str) -> str:
    """64-bit integers travel as 32-bit ones: the door has checked that the values fit."""
    return {"int64": "int32", "uint64": "uint32"}.get(dtype, dtype)


def _high(program: Program) -> int:
    """An exclusive bound that is a valid index into every dimension of every argument."""
    dims = [d for p in program.params if p.value is not None for d in program.types[p.value].shape if isinstance(d, int)]
    return max(1, min((d for d in dims if d > 0), default=2))
