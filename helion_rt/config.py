"""``Config``: one point of a kernel's space of tunable choices, as immutable plain data."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .exc import ConfigError


class LoopStrategy(str, enum.Enum):
    """How an inner tile loop is lowered. Members are their own strings: ``LoopStrategy.GRID == "grid"``."""

    GRID = "grid"
    EMIT_PIPELINE = "emit_pipeline"
    UNROLL = "unroll"
    FORI = "fori"

    def __str__(self) -> str:
        return self.value


class Orientation(str, enum.Enum):
    """How values are held inside an inner loop: the last dimension along the lanes, or the one before it (see ``lowering.orient``)."""

    ROWS = "rows"
    COLUMNS = "columns"

    def __str__(self) -> str:
        return self.value


class Issue(str, enum.Enum):
    """When an inner loop begins with its next tile: after this one, or with what needs nothing of this one first."""

    IN_ORDER = "in_order"
    AHEAD = "ahead"

    def __str__(self) -> str:
        return self.value


class VmemLimit(str, enum.Enum):
    """How much VMEM a launch asks for: what it needs, or all that a kernel can have, so that none is left for what XLA would keep there."""

    NEEDED = "needed"
    MOST = "most"

    def __str__(self) -> str:
        return self.value


class Config(Mapping[str, Any]):
    """Choices for a kernel, by name: ``Config(block_sizes=[128, 256], loop_strategies=["grid"])``.

    A mapping with attribute access, immutable and hashable; lists that it gives out are copies. Known keys:

    - ``block_sizes``: positive ints, one a tunable block in program order.
    - ``loop_strategies``: one ``LoopStrategy`` (or its string) an inner loop in program order.
    - ``grid_orders``: one an outer loop (launch) in program order: its axes as the grid nests them, outermost first, e.g.
      ``[[1, 0]]`` runs through the first axis in the inner loop; None: as written.
    - ``buffer_counts``: 1 to 4, one a tensor that a launch accesses (launches in program order, the tensors of each in the
      order of the host part, parameters first): how many blocks of it VMEM holds at once; None: two where the block moves,
      else one. Ignored on the CPU.
    - ``core_splits``: one an outer loop: which of its axes (as written) the two cores of a megacore chip share out between them;
      None: the compiler's choice among those that may be. Ignored where a device has one core.
    - ``orientations``: one an inner loop: an ``Orientation`` (or its string); None: ``rows``, as written.
    - ``issue_orders``: one an inner loop: an ``Issue`` (or its string); None: ``in_order``.
    - ``tiles_a_turn``: one an inner loop: how many tiles, one after the other, a step of the grid or of a pipeline or a turn of
      a rolled loop has; None: one.
    - ``vmem_limits``: one an outer loop: a ``VmemLimit`` (or its string); None: ``needed``. Ignored on the CPU.

    Any other key is accepted with any plain value (None, bool, int, finite float, str, lists, dicts with str keys): keys
    that mean something only to Helion on a GPU are carried along and ignored. Raises ``ConfigError`` for other values.
    """

    __slots__ = ("_choices", "_hash")
    _choices: dict[str, Any]
    _hash: int

    def __init__(self, /, **choices: Any) -> None:  # a choice may have any name, 'self' too
        frozen = {name: _check(name, value) for name, value in choices.items()}
        object.__setattr__(self, "_choices", frozen)
        object.__setattr__(self, "_hash", hash(frozenset(frozen.items())))

    def __getitem__(self, name: str) -> Any:
        return _thaw(self._choices[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._choices)

    def __len__(self) -> int:
        return len(self._choices)

    def __getattr__(self, name: str) -> Any:
        # Only reached for names that are not attributes, so never for the mapping's own methods.
        if name.startswith("_") or name not in self._choices:
            raise AttributeError(f"this Config has no choice '{name}'; it has: {', '.join(self) or 'none'}")
        return self[name]

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Config is immutable; use config.replace(...)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("a Config is immutable; use config.replace(...)")

    def __eq__(self, other: object) -> bool:
        return self._choices == other._choices if isinstance(other, Config) else NotImplemented

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={value!r}' for name, value in self.to_dict().items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Config.from_dict, (self.to_dict(),))

    def replace(self, /, **choices: Any) -> Config:
        """A copy with these choices set; the others stay."""
        return Config(**{**self.to_dict(), **choices})

    @property
    def own(self) -> dict[str, Any]:
        """The choices that have no meaning here: values for ``hl.register_tunable``, and what only Helion on a GPU knows."""
        return {name: value for name, value in self.to_dict().items() if name not in KNOWN}

    def to_dict(self) -> dict[str, Any]:
        """The choices as plain data (strings for strategies, lists for sequences), fit for msgpack and JSON."""
        return {name: _plain(value) for name, value in self._choices.items()}

    @classmethod
    def from_dict(cls, choices: Mapping[str, Any]) -> Config:
        """The inverse of ``to_dict``. Raises ``ConfigError`` unless it is a mapping with string keys and legal values."""
        if not isinstance(choices, Mapping) or not all(isinstance(name, str) for name in choices):
            raise ConfigError(f"a Config is made from a mapping with string keys, not from {choices!r:.200}")
        return cls(**choices)


@dataclass(frozen=True, slots=True)
class _Items:
    """A frozen dict inside a Config: (key, value) pairs, sorted."""

    pairs: tuple[tuple[str, Any], ...]


def _check(name: str, value: Any) -> Any:
    check = KNOWN.get(name)
    return check(value) if check is not None else _freeze(name, value)


def _block_sizes(value: Any) -> tuple[int, ...]:
    sizes = value if isinstance(value, (list, tuple)) else None
    if sizes is None or not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes):
        raise ConfigError(f"block_sizes must be a list of positive ints, got {value!r:.200}", hint="for example block_sizes=[128, 128]")
    return tuple(sizes)


def _loop_strategies(value: Any) -> tuple[LoopStrategy, ...]:
    allowed = ", ".join(LoopStrategy)
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"loop_strategies must be a list, one strategy an inner loop, got {value!r:.200}", hint=f"strategies: {allowed}")
    try:
        return tuple(LoopStrategy(item) for item in value)
    except ValueError as error:
        raise ConfigError(f"loop_strategies has an unknown strategy: {value!r:.200}", hint=f"strategies: {allowed}") from error


def _grid_orders(value: Any) -> tuple[tuple[int, ...] | None, ...]:
    orders = value if isinstance(value, (list, tuple)) else None
    if orders is None or not all(order is None or _is_permutation(order) for order in orders):
        raise ConfigError(
            f"grid_orders must be a list with a permutation of its axes (or None) an outer loop, got {value!r:.200}",
            hint="for example grid_orders=[[1, 0]]",
        )
    return tuple(order if order is None else tuple(order) for order in orders)


def _is_permutation(order: Any) -> bool:
    return isinstance(order, (list, tuple)) and all(type(axis) is int for axis in order) and sorted(order) == list(range(len(order)))


def _buffer_counts(value: Any) -> tuple[int | None, ...]:
    counts = value if isinstance(value, (list, tuple)) else None
    if counts is None or not all(count is None or (type(count) is int and 1 <= count <= MAX_BUFFERS) for count in counts):
        raise ConfigError(
            f"buffer_counts must be a list of numbers from 1 to {MAX_BUFFERS} (or None), one a tensor of a launch, got {value!r:.200}",
            hint="for example buffer_counts=[2, 3, None]",
        )
    return tuple(counts)


def _members(key: str, kind: type[enum.Enum], loop: str = "inner") -> Callable[[Any], tuple[enum.Enum | None, ...]]:
    def check(value: Any) -> tuple[enum.Enum | None, ...]:
        try:
            if not isinstance(value, (list, tuple)):
                raise ValueError
            return tuple(item if item is None else kind(item) for item in value)
        except ValueError as error:
            allowed = ", ".join(str(item) for item in kind)
            raise ConfigError(f"{key} must be a list, one an {loop} loop, got {value!r:.200}", hint=f"each of: {allowed}") from error

    return check


def _tiles_a_turn(value: Any) -> tuple[int | None, ...]:
    counts = value if isinstance(value, (list, tuple)) else None
    if counts is None or not all(count is None or (type(count) is int and count > 0) for count in counts):
        raise ConfigError(f"tiles_a_turn must be a list of positive ints (or None), one an inner loop, got {value!r:.200}")
    return tuple(counts)


def _core_splits(value: Any) -> tuple[int | None, ...]:
    axes = value if isinstance(value, (list, tuple)) else None
    if axes is None or not all(axis is None or (type(axis) is int and axis >= 0) for axis in axes):
        raise ConfigError(f"core_splits must be a list with the number of an axis (or None) an outer loop, got {value!r:.200}")
    return tuple(axes)


def _freeze(name: str, value: Any) -> Any:
    if isinstance(value, enum.Enum):  # e.g. LoopStrategy under another key: its plain value is what is kept
        return _freeze(name, value.value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(_freeze(name, item) for item in value)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return _Items(tuple((key, _freeze(name, value[key])) for key in sorted(value)))
    raise ConfigError(f"Config value {name}={value!r:.200} is not plain data (None, bool, int, finite float, str, list, dict)")


def _thaw(value: Any) -> Any:
    if isinstance(value, _Items):
        return {key: _thaw(item) for key, item in value.pairs}
    return [_thaw(item) for item in value] if isinstance(value, tuple) else value


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, _Items):
        return {key: _plain(item) for key, item in value.pairs}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


MAX_BUFFERS = 4

# The keys that mean something here, and what checks and freezes the value of each.
KNOWN: Mapping[str, Callable[[Any], Any]] = {
    "block_sizes": _block_sizes,
    "loop_strategies": _loop_strategies,
    "grid_orders": _grid_orders,
    "buffer_counts": _buffer_counts,
    "core_splits": _core_splits,
    "orientations": _members("orientations", Orientation),
    "issue_orders": _members("issue_orders", Issue),
    "tiles_a_turn": _tiles_a_turn,
    "vmem_limits": _members("vmem_limits", VmemLimit, "outer"),
}
