"""Tiles with numbers in them, and the loops that make them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..language._tile import Tile


@dataclass(frozen=True)
class Range:
    """One dimension of a tile loop: ``begin`` to ``end`` in steps of ``block``."""

    begin: int
    end: int
    block: int

    @property
    def count(self) -> int:
        return max(0, -(-(self.end - self.begin) // self.block))


class EagerTile(int, Tile):
    """One tile. As an int it is its true size, so that it can be a dimension; in an index it is its positions."""

    range: Range
    number: int

    def __new__(cls, of: Range, number: int) -> EagerTile:
        begin = of.begin + number * of.block
        self = int.__new__(cls, max(0, min(of.end, begin + of.block) - begin))
        self.range, self.number = of, number
        return self

    @property
    def first(self) -> int:
        return self.range.begin + self.number * self.range.block

    @property
    def positions(self) -> slice:
        return slice(self.first, self.first + int.__int__(self))

    @property
    def index(self) -> torch.Tensor:
        """Positions of the elements, int32 [size]."""
        return torch.arange(self.positions.start, self.positions.stop, dtype=torch.int32)

    @property
    def begin(self) -> torch.Tensor:
        """First position, int32 []."""
        return _scalar(self.positions.start)

    @property
    def end(self) -> torch.Tensor:
        """One past the last position, int32 []."""
        return _scalar(self.positions.stop)

    @property
    def id(self) -> torch.Tensor:
        """The number of the tile, int32 []."""
        return _scalar(self.number)

    @property
    def block_size(self) -> int:
        """Size of a full tile."""
        return self.range.block

    @property
    def count(self) -> int:
        """How many tiles there are."""
        return self.range.count

    def __repr__(self) -> str:
        return f"<tile {self.number} of {self.count}: {self.positions.start}:{self.positions.stop}>"

    __str__ = __repr__
    __hash__ = int.__hash__


def _scalar(value: int) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.int32)


def as_value(item: Any) -> Any:
    """A tile among numbers means its positions."""
    return item.index if isinstance(item, EagerTile) else item


def _on_index(name: str) -> Callable[[EagerTile, Any], Any]:
    def method(self: EagerTile, other: Any) -> Any:
        return getattr(self.index, name)(as_value(other))

    method.__name__ = name
    return method


for _name in "add sub mul truediv floordiv mod pow".split():
    setattr(EagerTile, f"__{_name}__", _on_index(f"__{_name}__"))
    setattr(EagerTile, f"__r{_name}__", _on_index(f"__r{_name}__"))
for _name in "lt le gt ge eq ne".split():
    setattr(EagerTile, f"__{_name}__", _on_index(f"__{_name}__"))


def tiles_of(ranges: Sequence[Range]) -> Iterator[tuple[EagerTile, ...]]:
    """The tiles of a loop over ``ranges``, the last dimension fastest."""
    for numbers in itertools.product(*(range(r.count) for r in ranges)):
        yield tuple(EagerTile(r, n) for r, n in zip(ranges, numbers, strict=True))


__all__ = ["EagerTile", "Range", "as_value", "tiles_of"]
