"""Is a candidate's answer the reference's answer? Within what its dtype and its reductions allow, or the candidate is wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import ml_dtypes
import numpy as np

from helion_rt.program.expr import evaluate
from helion_rt.program.ir import Op, Program, walk

FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")

# Values are rounded to the narrowest dtype of a program a few times on their way: where, a compiler decides.
NARROW_ROUNDINGS = 4.0

# From this share of a dtype's largest number on, one answer may have overflowed where the other just has not.
OVERFLOW = 1e-2


def tolerance(program: Program) -> float:
    """Relative tolerance of results that were computed in another order.

    Sums are taken in float32 (in float64 where that is the dtype), and the rounding errors of a sum walk at random: its epsilon times
    the root of the longest dimension, with room for exp and division on top. A narrower dtype adds a few roundings of its own, and
    those of every step where a loop carries a sum in it.
    """
    dtypes = {t.dtype for t in program.types if t.dtype in FLOATS}
    narrow = max((_eps(d) for d in dtypes), default=_eps("float32"))
    wide = _eps("float64") if dtypes == {"float64"} else _eps("float32")
    sizes = [block.fixed or block.extent for block in program.blocks]
    longest = max(1, max((evaluate(d, sizes) for t in program.types for d in t.shape), default=1))
    found = wide * (16 + 4 * math.sqrt(longest))
    if narrow > _eps("float32"):
        steps = max([1, *(program.blocks[program.axes[a].block].extent // 8 for a in _axes_that_carry(program, _eps("float32")))])
        found += narrow * NARROW_ROUNDINGS * math.sqrt(steps)
    return found


def _eps(dtype: str) -> float:
    return float(ml_dtypes.finfo(np.dtype(dtype)).eps)


def _axes_that_carry(program: Program, coarser_than: float) -> Iterator[int]:
    """The axes of loops that carry a variable in a dtype of less precision."""
    for op in _loops(program):
        carried = (program.types[p].dtype for region in op.regions for p in region.params)
        if any(d in FLOATS and _eps(d) > coarser_than for d in carried) and isinstance(op.args[0], tuple):
            yield from (axis for axis in op.args[0] if isinstance(axis, int))


def _loops(program: Program) -> Iterator[Op]:
    return (op for op in walk(program.host) if op.name == "hl.loop")


def mismatch(
    candidate: Sequence[np.ndarray], reference: Sequence[np.ndarray], rtol: float, slack: Sequence[np.ndarray] | None = None
) -> str | None:
    """None if all outputs agree, else one line that says where and by how much.

    Floats: ``|a - b| <= rtol * (|b| + rms(b)) + slack``, NaNs and infinities at the same places (a finite number next to the overflow
    may stand for an infinity). Everything else: equal, up to ``slack``. ``slack``: float64 arrays like the outputs, infinite where
    anything goes.
    """
    if len(candidate) != len(reference):
        return f"{len(candidate)} outputs, expected {len(reference)}"
    for number, (a, b) in enumerate(zip(candidate, reference, strict=True)):
        fault = _mismatch(np.asarray(a), np.asarray(b), rtol, None if slack is None else slack[number])
        if fault:
            return f"output {number}: {fault}"
    return None


def _mismatch(a: np.ndarray, b: np.ndarray, rtol: float, slack: np.ndarray | None) -> str | None:
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{a.dtype}{list(a.shape)}, expected {b.dtype}{list(b.shape)}"
    if slack is not None:  # what is open is left out
        known = np.isfinite(slack)
        a, b, slack = a[known], b[known], slack[known]
    if a.dtype.kind in "biu":
        wrong = int(np.sum(a != b if slack is None else np.abs(a.astype(np.float64) - b.astype(np.float64)) > slack))
        return f"{wrong} of {a.size} elements differ" if wrong else None
    top = float(ml_dtypes.finfo(a.dtype).max) * (1 - OVERFLOW)
    a, b = a.astype(np.float64), b.astype(np.float64)
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return "NaNs at other places"
    over = (np.isinf(a) | np.isinf(b)) & (np.abs(a) >= top) & (np.abs(b) >= top) & (np.sign(a) == np.sign(b))
    settled = over | np.isnan(b)
    if np.any((np.isinf(a) | np.isinf(b)) & ~settled):
        return "infinities at other places"
    a, b = a[~settled], b[~settled]
    if not a.size:
        return None
    allowed = rtol * (np.abs(b) + _rms(b) + np.finfo(np.float32).tiny) + (0.0 if slack is None else slack[~settled])
    excess = np.abs(a - b) - allowed
    worst = int(np.argmax(excess))
    return f"{a[worst]:.6g} where {b[worst]:.6g} was expected (tolerance {allowed[worst]:.3g})" if excess[worst] > 0 else None


def _rms(values: np.ndarray) -> float:
    """The root of the mean square, whatever their size."""
    largest = float(np.max(np.abs(values)))
    return largest * math.sqrt(float(np.mean(np.square(values / largest)))) if largest > 0 else 0.0


def distance(answers: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> list[np.ndarray]:
    """How far two answers to nearly the same question are apart, as float64; infinite where they are not even both finite."""
    result = []
    for a, b in zip(answers, others, strict=True):
        a, b = np.asarray(a).astype(np.float64), np.asarray(b).astype(np.float64)
        with np.errstate(invalid="ignore"):
            apart = np.abs(a - b)
        alike = (np.isnan(a) & np.isnan(b)) | (a == b)
        result.append(np.where(alike, 0.0, np.where(np.isfinite(apart), apart, np.inf)))
    return result


def bitwise(candidate: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> str | None:
    """None if all outputs are the same bits (a NaN is a NaN), else one line that says how many are not."""
    if len(candidate) != len(other):
        return f"{len(candidate)} outputs, expected {len(other)}"
    for number, (a, b) in enumerate(zip(candidate, other, strict=True)):
        a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"output {number}: {a.dtype}{list(a.shape)}, expected {b.dtype}{list(b.shape)}"
        bits = a.reshape(-1).view(np.uint8).reshape(-1, a.dtype.itemsize) != b.reshape(-1).view(np.uint8).reshape(-1, a.dtype.itemsize)
        differ = np.any(bits, axis=1)
        if a.dtype.kind not in "biu":
            wide_a, wide_b = a.reshape(-1).astype(np.float64), b.reshape(-1).astype(np.float64)
            differ &= ~(np.isnan(wide_a) & np.isnan(wide_b))
        if np.any(differ):
            return f"output {number}: {int(np.sum(differ))} of {a.size} elements are not bitwise those of the default"
    return None
