"""Tiles, and what ``hl.tile`` and ``hl.grid`` return: the request of a loop, which the rewritten ``for`` carries out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..language import _tile as language
from ..program.expr import binary
from ..program.ir import Ref

if TYPE_CHECKING:
    from .tracer import Tracer


class Tile(int, language.Tile):
    """The current tile of an axis: an index into tensors, a size in shapes, its positions in arithmetic.

    As an int it is a hint of its own (see ``hints``), so that PyTorch takes it for a dimension.
    """

    tracer: Tracer
    axis: int

    def __new__(cls, tracer: Tracer, axis: int) -> Tile:
        self = int.__new__(cls, tracer.tile_hint(axis))
        self.tracer, self.axis = tracer, axis
        return self

    @property
    def index(self) -> Any:
        """Positions of the elements, int32 [block]; those beyond the end are there too."""
        return self.tracer.tile_index(self)

    @property
    def begin(self) -> Any:
        """First position, int32 []."""
        return self.tracer.tile_scalar(self, "begin")

    @property
    def end(self) -> Any:
        """One past the last position, int32 []; less than ``begin + block_size`` in a ragged last tile."""
        return self.tracer.tile_scalar(self, "end")

    @property
    def id(self) -> Any:
        """The number of the tile, int32 [], from 0."""
        return self.tracer.tile_scalar(self, "id")

    @property
    def block_size(self) -> Any:
        """Size of a full tile, a dimension."""
        return self.tracer.block_size(self)

    @property
    def count(self) -> Any:
        """How many tiles there are: a number, or int32 [] where a bound is known only on the device."""
        axis = self.tracer.axes[self.axis]
        size = self.tracer.block_expr(self.axis)
        if isinstance(axis.begin, Ref) or isinstance(axis.end, Ref):
            return self.tracer.tile_count(self)
        return self.tracer.dim(binary("//", binary("+", binary("-", binary("-", axis.end, axis.begin), 1), size), size))

    def __repr__(self) -> str:
        return f"<tile of axis {self.axis}>"

    __str__ = __repr__
    __hash__ = int.__hash__


def _on_index(name: str) -> Any:
    def method(self: Tile, other: Any) -> Any:
        other = other.index if isinstance(other, Tile) else other
        return getattr(self.index, name)(other)

    method.__name__ = name
    return method


for _name in "add sub mul truediv floordiv mod pow".split():
    setattr(Tile, f"__{_name}__", _on_index(f"__{_name}__"))
    setattr(Tile, f"__r{_name}__", _on_index(f"__r{_name}__"))
for _name in "lt le gt ge eq ne".split():
    setattr(Tile, f"__{_name}__", _on_index(f"__{_name}__"))


def _no_number(self: Tile, *_: object) -> Any:
    return self.tracer.refuse("a tile is used as a Python number", "use tile.index, tile.begin or tile.block_size")


for _name in "bool int float neg and or xor lshift rshift abs round divmod".split():
    setattr(Tile, f"__{_name}__", _no_number)


@dataclass(frozen=True)
class Bound:
    """One dimension of a request, still in the terms of kernel code."""

    begin: Any
    end: Any
    block_size: Any
    step: int = 1  # of hl.grid

    @property
    def ends(self) -> tuple[Any, Any]:
        return self.begin, self.end


@dataclass(frozen=True)
class LoopRequest:
    """``hl.tile(...)`` or ``hl.grid(...)``: only the ``for`` statement of a kernel can carry it out."""

    tracer: Tracer
    bounds: tuple[Bound, ...]
    is_sequence: bool  # the loop variable is a tuple
    is_grid: bool
    lanes: Any = None  # of hl.jagged_tile: the ends of the lanes

    def __iter__(self) -> Any:
        what = "hl.grid" if self.is_grid else "hl.tile"
        return self.tracer.refuse(
            f"{what} works only in a 'for' statement in the body of the kernel itself",
            "move the loop out of the helper function or the comprehension",
        )


def _listed(value: Any) -> list[Any] | None:
    return list(value) if isinstance(value, (list, tuple)) else None


def make_request(tracer: Tracer, begin: Any, end: Any, block_size: Any, is_grid: bool, step: Any = None) -> LoopRequest:
    """A request from the arguments as they were given: scalars, or sequences of the same length."""
    ends = _listed(end)
    count = 1 if ends is None else len(ends)

    def spread(value: Any, name: str) -> list[Any]:
        items = _listed(value)
        if items is None:
            return [value] * count
        if ends is None or len(items) != count:
            tracer.refuse(f"{name} has {len(items)} entries, the end of the loop {'is no sequence' if ends is None else f'has {count}'}")
        return items

    begins, sizes, steps = spread(begin, "the begin of the loop"), spread(block_size, "block_size"), spread(step, "step")
    for item in steps:
        if item is not None and (type(item) is not int or item < 1):
            tracer.refuse(f"hl.grid with step={item}", "expected a positive int")
    if count == 0:
        tracer.refuse("a tile loop over no dimensions")
    every = zip(begins, [end] if ends is None else ends, sizes, steps, strict=True)
    bounds = tuple(Bound(0 if b is None else b, e, size, 1 if s is None else s) for b, e, size, s in every)
    return LoopRequest(tracer, bounds, ends is not None, is_grid)
