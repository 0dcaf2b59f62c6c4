"""The capture in progress: what the names of the language talk to."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, Protocol

from ..exc import HelionError


class Tracer(Protocol):
    """What a capture offers to the language. ``Any`` stands for the values that kernel code handles: traced tensors,
    tiles, dimensions, Python numbers."""

    def tile(self, begin: Any, end: Any, block_size: Any) -> Any:
        """The iterable of ``hl.tile``."""

    def grid(self, begin: Any, end: Any, step: Any) -> Any:
        """The iterable of ``hl.grid``."""

    def register_block_size(self, low: int, high: int | None, extent: int) -> Any:
        """A new tunable block; its size as a dimension."""

    def full(self, shape: Sequence[Any], value: Any, dtype: Any) -> Any:
        """A tensor of one value."""

    def dot(self, a: Any, b: Any, acc: Any, out_dtype: Any) -> Any:
        """A matrix product."""

    def load(self, tensor: Any, index: Any, mask: Any) -> Any:
        """A tile of a host tensor."""

    def store(self, tensor: Any, index: Any, value: Any, mask: Any) -> None:
        """Writes a tile of a host tensor."""

    def atomic(self, kind: str, tensor: Any, index: Any, value: Any, expected: Any) -> Any:
        """Combines a tile of a host tensor with ``value``; what it held before."""

    def jagged_tile(self, parent: Any) -> Any:
        """The iterable of ``hl.jagged_tile``."""

    def barrier(self) -> None:
        """Between outer loops."""

    def specialize(self, value: Any) -> Any:
        """``value`` as a constant of the program."""

    def associative_scan(self, combine: Any, inputs: Any, dim: int, reverse: bool) -> Any:
        """Inclusive scans of a tensor or a tuple of tensors."""

    def reduce(self, combine: Any, inputs: Any, dim: int | None, other: Any, keep_dims: bool) -> Any:
        """A tensor or a tuple of tensors, reduced with a combine function."""

    def cumulative(self, name: str, x: Any, dim: int, reverse: bool) -> Any:
        """``cumsum`` or ``cumprod`` (``name``), in the dtype of ``x``."""

    def rand(self, shape: Sequence[Any], seed: Any) -> Any:
        """Uniform random numbers, float32."""

    def randint(self, shape: Sequence[Any], low: int, high: int, seed: Any) -> Any:
        """Random integers, int32."""

    def rand4x(self, seed: Any, offsets: Any) -> Any:
        """Four tensors of uniform random numbers."""

    def device_print(self, prefix: str, values: Sequence[Any]) -> None:
        """Prints when the kernel runs."""

    def inline(self, fn: Any, args: Sequence[Any], output_like: Any, elementwise: bool) -> Any:
        """The results of a JAX function on tiles."""

    def register_tunable(self, name: str, fragment: Any) -> Any:
        """The value of a tunable: a Python number."""

    def tile_index(self, tile: Any) -> Any:
        """Positions of the tile, int32 [block]."""

    def refuse(self, message: str, hint: str | None = None) -> Any:
        """Raises ``Unsupported`` at the user's line."""


ACTIVE: ContextVar[Tracer | None] = ContextVar("helion_rt_capture", default=None)


def tracer(name: str) -> Tracer:
    """The capture in progress. Raises ``HelionError`` where there is none: ``hl.<name>`` outside of a kernel."""
    active = ACTIVE.get()
    if active is None:
        raise HelionError(f"hl.{name} is used outside of a kernel", hint="call it in a function decorated with @helion_rt.kernel")
    return active
