"""Atomic read-modify-write operations on tensors: right also where several tiles, or one index tensor twice, name an element.

Each takes a whole tensor, an index as in ``tensor[index]`` (index tensors too), and a value that broadcasts to what the index
selects and is converted to the tensor's dtype; each returns what the elements held before, in that shape and dtype. A dtype that
an operation is not for raises ``DTypeError``. ``sem`` (the memory order on a GPU) is accepted and ignored: tiles run in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._active import tracer


def _atomic(kind: str, target: Any, index: Sequence[Any], value: Any, sem: str, expected: Any = None) -> Any:
    active = tracer(f"atomic_{kind}")
    if sem not in ("relaxed", "acquire", "release", "acq_rel"):
        active.refuse(f"hl.atomic_{kind} with sem={sem!r}", "expected 'relaxed', 'acquire', 'release' or 'acq_rel'")
    return active.atomic(kind, target, tuple(index), value, expected)


def atomic_add(target: Any, index: Sequence[Any], value: Any, sem: str = "relaxed") -> Any:
    """``target[index] += value``, of numbers. Returns what was there."""
    return _atomic("add", target, index, value, sem)


def atomic_and(target: Any, index: Sequence[Any], value: Any, sem: str = "relaxed") -> Any:
    """``target[index] &= value``, of integers or bool. Returns what was there."""
    return _atomic("and", target, index, value, sem)


def atomic_or(target: Any, index: Sequence[Any], value: Any, sem: str = "relaxed") -> Any:
    """``target[index] |= value``, of integers or bool. Returns what was there."""
    return _atomic("or", target, index, value, sem)


def atomic_xor(target: Any, index: Sequence[Any], value: Any, sem: str = "relaxed") -> Any:
    """``target[index] ^= value``, of integers or bool. Returns what was there."""
    return _atomic("xor", target, index, value, sem)


def atomic_max(target: Any, index: Sequence[Any], value: Any, sem: str = "relaxed") -> Any:
    """``target[index] = maximum(target[index], value)``, of numbers. Returns what was there."""
    return _atomic("max", target, index, value, sem)


def atomic_min(target: Any, index: Sequence[Any], value: Any, sem: str = "relaxed") -> Any:
    """``target[index] = minimum(target[index], value)``, of numbers. Returns what was there."""
    return _atomic("min", target, index, value, sem)


def atomic_xchg(target: Any, index: Sequence[Any], value: Any, sem: str = "relaxed") -> Any:
    """``target[index] = value``. Returns what was there."""
    return _atomic("xchg", target, index, value, sem)


def atomic_cas(target: Any, index: Sequence[Any], expected: Any, value: Any, sem: str = "relaxed") -> Any:
    """``target[index] = value`` where it equals ``expected``. Returns what was there."""
    return _atomic("cas", target, index, value, sem, expected)


__all__ = ["atomic_add", "atomic_and", "atomic_cas", "atomic_max", "atomic_min", "atomic_or", "atomic_xchg", "atomic_xor"]
