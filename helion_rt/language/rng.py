"""Random numbers in tile loops: Philox-4x32-10, the numbers of Triton's ``tl.rand`` for the same seed and offset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._active import tracer


def rand(shape: Sequence[Any], seed: Any, device: object = None) -> Any:
    """Uniform random numbers in [0, 1), float32. ``shape`` is of tiles (or sizes), ``seed`` an integer, a number or a tensor of one.

    The offset of an element is its position in the whole tensor, so block sizes do not matter. Draws with one seed are equal.
    """
    return tracer("rand").rand(tuple(shape), seed)


def randint(shape: Sequence[Any], low: int, high: int, seed: Any, device: object = None) -> Any:
    """Random integers in [low, high), int32; ``shape`` and ``seed`` as for ``rand``."""
    return tracer("randint").randint(tuple(shape), low, high, seed)


def rand4x(seed: Any, offsets: Any) -> Any:
    """Four tensors of uniform random numbers, float32, of the shape of ``offsets``, an integer tensor: Triton's ``tl.rand4x``."""
    return tracer("rand4x").rand4x(seed, offsets)
