"""Made-up trial inputs: a recipe that travels as plain data, and the arrays made from it.

A recipe has an entry an executable's argument. For an array: ``{"shape", "dtype", "low", "high", "sorted", "data"}``; ``data`` are
the bytes of a small integer argument of the live call, copied so that indices stay valid, otherwise None; a larger one is made up
between ``low`` and ``high`` (exclusive), in order where the live one was (offsets of jagged rows). For a number: ``{"scalar"}``.
Live arrays are never kept.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from helion_rt.program.expr import evaluate
from helion_rt.program.ir import ArgKind, Program

COPY_LIMIT_BYTES = 64 * 1024
LOOK_LIMIT_ELEMENTS = 1 << 22  # of an integer argument whose range is looked at: this is part of the first call
SEED = 20260101

# Magnitudes of adversarial values, where the dtype holds them and their squares.
LARGE, TINY = 1e4, 1e-12
ODD_PLACES = 8  # for each of NaN, inf and -inf in an array, at most: more would leave little of a row's reductions


class Values(enum.Enum):
    """What the floats of trial inputs are. Integers are the same in all of them."""

    NORMAL = "made-up"  # standard normal
    LARGE = "large"  # of both signs, magnitudes from 1 to 1e4
    TINY = "tiny"  # of both signs, magnitudes from 1e-12 to 1e-9
    ZERO = "zero"
    ODD = "NaN and infinite"  # standard normal, with a few NaN, inf and -inf, the very last element among them


def recipe(program: Program, leaves: Sequence[Any]) -> list[dict[str, Any]]:
    """The recipe for ``program``; ``leaves`` are the live arguments, one an array param: arrays, numbers, None where there is no value.

    Only integer arrays are read from them.
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
        entry: dict[str, Any] = {"shape": shape, "dtype": _device_dtype(kind.dtype), "data": None}
        if param.kind is ArgKind.SEEDS:
            entry.update(dtype=kind.dtype, high=np.iinfo(np.int32).max)
        else:
            entry.update({"high": _high(program), **_integers(leaf, kind.dtype)})
        result.append(entry)
    return result


def make(entries: Sequence[dict[str, Any]], values: Values = Values.NORMAL, seed: int = SEED) -> list[Any]:
    """Arrays (NumPy) and numbers of a recipe. Raises ``ValueError`` for one that is malformed."""
    rng = np.random.default_rng(seed)
    return [_one(entry, values, rng) for entry in entries]


def has_floats(entries: Sequence[dict[str, Any]]) -> bool:
    """Is there an array whose values ``Values`` decides?"""
    return any("scalar" not in entry and _is_float(np.dtype(entry["dtype"])) for entry in entries)


def nudged(arrays: Sequence[Any], by: float, seed: int) -> list[Any]:
    """The same inputs with each float element changed by up to ``by`` of itself: as right as the ones given, up to rounding."""
    rng = np.random.default_rng(seed)
    return [
        (a.astype(np.float64) * (1 + by * rng.uniform(-1, 1, a.shape))).astype(a.dtype)
        if isinstance(a, np.ndarray) and _is_float(a.dtype)
        else a
        for a in arrays
    ]


def _one(entry: dict[str, Any], values: Values, rng: np.random.Generator) -> Any:
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
        low = int(entry.get("low", 0))
        made = rng.integers(low, max(int(entry.get("high", 2)), low + 1), shape)
        return (np.sort(made, axis=None).reshape(shape) if entry.get("sorted") else made).astype(dtype)
    return _floats(shape, dtype, values, rng)


def _floats(shape: tuple[int, ...], dtype: np.dtype, values: Values, rng: np.random.Generator) -> np.ndarray:
    if values is Values.ZERO:
        return np.zeros(shape, dtype)
    if values in (Values.LARGE, Values.TINY):
        facts = ml_dtypes.finfo(dtype)
        if values is Values.LARGE:
            low, high = 1.0, min(LARGE, math.sqrt(float(facts.max)))
        else:
            low = max(TINY, math.sqrt(float(facts.smallest_normal)))
            high = min(1e3 * low, math.sqrt(low))
        size = np.exp(rng.uniform(math.log(low), math.log(high), shape))
        return (size * np.where(rng.random(shape) < 0.5, -1.0, 1.0)).astype(dtype)
    made = rng.standard_normal(shape, dtype=np.float32)
    if values is Values.ODD and made.size:
        count = max(1, min(ODD_PLACES, made.size // 64))
        for odd in (np.inf, -np.inf, np.nan):
            made.reshape(-1)[rng.integers(0, made.size, count)] = odd
        made.reshape(-1)[-1] = np.nan
    return made.astype(dtype)


def _is_float(dtype: np.dtype) -> bool:
    return dtype.kind not in "biu"  # those of ml_dtypes are of kind V


def _integers(leaf: Any, dtype: str) -> dict[str, Any]:
    """What a recipe keeps of a live integer argument: all of it if it is small, else its range, and whether it is in order."""
    if leaf is None or not dtype.startswith(("int", "uint")) or not hasattr(leaf, "__array__"):
        return {}
    count = math.prod(leaf.shape)
    if count * 4 <= COPY_LIMIT_BYTES:
        return {"data": np.asarray(leaf).astype(_device_dtype(dtype)).tobytes()}
    if count > LOOK_LIMIT_ELEMENTS:
        return {}
    flat = np.asarray(leaf).reshape(-1)
    return {"low": int(flat.min()), "high": int(flat.max()) + 1, "sorted": bool(np.all(flat[1:] >= flat[:-1]))}


def _device_dtype(dtype: str) -> str:
    """64-bit integers travel as 32-bit ones: the door has checked that the values fit."""
    return {"int64": "int32", "uint64": "uint32"}.get(dtype, dtype)


def _high(program: Program) -> int:
    """An exclusive bound that is a valid index into every dimension of every argument."""
    dims = [d for p in program.params if p.value is not None for d in program.types[p.value].shape if isinstance(d, int)]
    return max(1, min((d for d in dims if d > 0), default=2))
