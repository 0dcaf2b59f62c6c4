"""Fragments: what a value of ``hl.register_tunable`` can be. ``from helion_rt.autotuner import PowerOfTwoFragment``.

The names are Helion's. The value is the one that the kernel's own ``Config(name=...)`` has, else the fragment's default until the tuner
has found a better one; it tries those that ``values()`` lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MAX_VALUES = 8  # of an integer, spread over its range


@dataclass(frozen=True)
class IntegerFragment:
    """An integer from ``low`` to ``high``."""

    low: int
    high: int
    default_val: int | None = None

    def default(self) -> int:
        """``default_val``, or the lowest value."""
        return self.low if self.default_val is None else self.default_val

    def allows(self, value: Any) -> bool:
        """Whether a config may have ``value``."""
        return isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high

    def values(self) -> tuple[int, ...]:
        """What the tuner tries."""
        count = min(MAX_VALUES, self.high - self.low + 1)
        return tuple(sorted({self.low + (self.high - self.low) * i // max(count - 1, 1) for i in range(count)}))


@dataclass(frozen=True)
class PowerOfTwoFragment(IntegerFragment):
    """A power of two from ``low`` to ``high``, which are powers of two themselves."""

    def __post_init__(self) -> None:
        for value in (self.low, self.high, self.default()):
            if value < 1 or value & (value - 1):
                raise ValueError(f"PowerOfTwoFragment with {value}, which is no power of two")

    def allows(self, value: Any) -> bool:
        return super().allows(value) and value & (value - 1) == 0

    def values(self) -> tuple[int, ...]:
        return tuple(1 << n for n in range(self.low.bit_length() - 1, self.high.bit_length()))


@dataclass(frozen=True)
class EnumFragment:
    """One of ``choices``, the first by default."""

    choices: Sequence[Any]

    def default(self) -> Any:
        return self.choices[0]

    def allows(self, value: Any) -> bool:
        return any(type(value) is type(choice) and value == choice for choice in self.choices)

    def values(self) -> tuple[Any, ...]:
        return tuple(self.choices)


@dataclass(frozen=True)
class BooleanFragment:
    """True or False, which is the default."""

    def default(self) -> bool:
        return False

    def allows(self, value: Any) -> bool:
        return isinstance(value, bool)

    def values(self) -> tuple[bool, bool]:
        return (False, True)


__all__ = ["BooleanFragment", "EnumFragment", "IntegerFragment", "PowerOfTwoFragment"]
