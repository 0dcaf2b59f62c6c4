"""Tiles that begin where a TPU cannot slice: what is read and written instead (see ``unaligned_source``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..program.ir import Arg, TileIndex
from .ops import ITEMSIZE
from .windows import DimKind, WindowDim, tile_unit


@dataclass(frozen=True)
class Shift:
    """A slice of ``size`` elements along dimension ``dim`` of a window from ``begin`` on, where tiles have ``unit`` elements."""

    dim: int
    begin: str
    size: int
    unit: int

    def arguments(self, name: str, pieces: Sequence[str]) -> str:
        index = ", ".join(slice_text(piece) for piece in pieces)
        return f"{name}, ({index},), {self.dim}, {self.begin}, {self.size}, {self.unit}"


def slice_text(piece: str) -> str:
    """A piece of a subscript as an expression."""
    return piece if piece.startswith("pl.ds(") else f"slice({', '.join(part or 'None' for part in piece.split(':'))})"


def sliced_tiles(index: Sequence[Arg], window: Sequence[WindowDim]) -> list[tuple[int, int]]:
    """(dimension of the window's block, axis) of the tiles that the kernel slices out of a window."""
    elements = [e for e in index if e is not None]
    dims = [None] * (len(window) - len(elements)) + elements
    kept = [(e, d) for e, d in zip(dims, window, strict=True) if d.kind is not DimKind.POINT]
    return [(n, e.axis) for n, (e, d) in enumerate(kept) if isinstance(e, TileIndex) and d.kind is DimKind.WHOLE]


def unit_of(dim: int, rank: int, dtype: str) -> int:
    return tile_unit(rank - 1 - dim, ITEMSIZE[dtype])
