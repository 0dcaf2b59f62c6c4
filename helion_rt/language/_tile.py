"""``hl.Tile``: what the loop variable of ``hl.tile`` is, for ``isinstance`` and annotations."""

from __future__ import annotations


class Tile:
    """The current tile of a loop: an index into tensors, a size in shapes, its positions in arithmetic.

    It has ``index``, ``begin``, ``end``, ``id``, ``block_size`` and ``count``. Only loops make tiles.
    """


__all__ = ["Tile"]
