"""Allocations in the shape of a block size, which have in a ragged last tile as many elements as the tile.

``hl.full([tile.block_size], 1)`` means the same as ``hl.full([tile], 1)``, as long as the block is that of one loop: where
it is that of several, one in the other, nothing says which tile is meant, and all elements exist.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..program.expr import Block
from ..program.ir import Arg, Axis, Op, Ref, TensorType, TileIndex, walk
from ..program.regions import axes_of
from . import ops
from .ops import Kind


def bound(launch: Op, axes: Sequence[Axis], types: Sequence[TensorType]) -> Op:
    """``launch`` with the keyword ``tiles`` (see ``ir``) at every allocation in it, and every expansion, that has a tile's shape."""

    def inside(op: Op, around: tuple[int, ...]) -> Op:
        here = (*around, *axes_of(op))
        below = [a for region in op.regions for inner in walk(region) for a in axes_of(inner)]
        blocks = [axes[a].block for a in (*here, *below)]
        tile_of = {axes[a].block: a for a in here if blocks.count(axes[a].block) == 1}
        regions = []
        for region in op.regions:
            inner = [inside(o, here) if o.regions else _with_tiles(o, tile_of, types) for o in region.ops]
            regions.append(dataclasses.replace(region, ops=tuple(inner)))
        return dataclasses.replace(op, regions=tuple(regions))

    return inside(launch, ())


def _with_tiles(op: Op, tile_of: dict[int, int], types: Sequence[TensorType]) -> Op:
    kind, kwargs = ops.kind_of(op.name), dict(op.kwargs)
    if kind not in (Kind.CREATE, Kind.EXPAND) or "like" in kwargs:
        return op
    shape = types[op.results[0]].shape
    source = op.args[0] if kind is Kind.EXPAND else None
    own = types[source.id].shape if isinstance(source, Ref) else ()
    own = (*((1,) * (len(shape) - len(own))), *own)
    given = kwargs.get("tiles", (None,) * len(shape))
    assert isinstance(given, tuple)
    tiles: list[Arg] = list(given)
    for d, (before, after) in enumerate(zip(own, shape, strict=True)):  # what an expansion does not repeat has its elements already
        if tiles[d] is None and before != after and isinstance(after, Block) and after.id in tile_of:
            tiles[d] = TileIndex(tile_of[after.id])
    if all(tile is None for tile in tiles):
        return op
    return dataclasses.replace(op, kwargs=tuple({**kwargs, "tiles": tuple(tiles)}.items()))


__all__ = ["bound"]
