"""Is a candidate's answer the reference's answer? Within what its dtype and its reductions allow, or the candidate is wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np

from helion_rt.program.expr import evaluate
from helion_rt.program.ir import Program

FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


def tolerance(program: Program) -> float:
    """Relative tolerance: the epsilon of the narrowest float in the program, times the growth of a sum over its longest dimension."""
    narrow = [t.dtype for t in program.types if t.dtype in FLOATS]
    eps = max((float(ml_dtypes.finfo(np.dtype(d)).eps) for d in narrow), default=float(np.finfo(np.float32).eps))
    sizes = [block.fixed or block.extent for block in program.blocks]
    longest = max((evaluate(d, sizes) for t in program.types for d in t.shape), default=1)
    # Rounding errors of a sum walk at random: sqrt(n). The constants leave room for exp and division on top of it.
    return eps * (16 + 4 * math.sqrt(max(longest, 1)))


def mismatch(candidate: Sequence[np.ndarray], reference: Sequence[np.ndarray], rtol: float) -> str | None:
    """None if all outputs agree, else one line that says where and by how much.

    Floats: ``|a - b| <= rtol * (|b| + rms(b))``, NaNs and infinities at the same places. Everything else: equal.
    """
    if len(candidate) != len(reference):
        return f"{len(candidate)} outputs, expected {len(reference)}"
    for number, (a, b) in enumerate(zip(candidate, reference, strict=True)):
        fault = _mismatch(np.asarray(a), np.asarray(b), rtol)
        if fault:
            return f"output {number}: {fault}"
    return None


def _mismatch(a: np.ndarray, b: np.ndarray, rtol: float) -> str | None:
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{a.dtype}{list(a.shape)}, expected {b.dtype}{list(b.shape)}"
    if a.dtype.kind in "biu":
        wrong = int(np.sum(a != b))
        return f"{wrong} of {a.size} elements differ" if wrong else None
    a, b = a.astype(np.float64), b.astype(np.float64)
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return "NaNs at other places"
    infinite = np.isinf(b)
    if not np.array_equal(np.isinf(a), infinite) or not np.array_equal(a[infinite], b[infinite]):
        return "infinities at other places"
    finite = np.isfinite(b)
    a, b = a[finite], b[finite]
    if not a.size:
        return None
    allowed = rtol * (np.abs(b) + math.sqrt(float(np.mean(np.square(b)))) + np.finfo(np.float32).tiny)
    excess = np.abs(a - b) - allowed
    worst = int(np.argmax(excess))
    return f"{a[worst]:.6g} where {b[worst]:.6g} was expected (tolerance {allowed[worst]:.3g})" if excess[worst] > 0 else None
