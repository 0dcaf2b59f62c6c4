"""Windows: what of a host tensor is in VMEM for an access of it, and which elements stores reach.

A *window* becomes a ``BlockSpec``. Where it is fetched is its *level*: the grid of the ``pallas_call``, or the nested
pipeline of one ``emit_pipeline`` loop. Tensors of rank 0 and 1 have windows of ``(1, n)``: a row of lanes, which has none of the
tiling restrictions of one-dimensional memory. (What needs no slices may be shown to Pallas as it is: see ``Operand.flat``.)
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..config import Issue, LoopStrategy
from ..exc import EmptyTensor, PlanError
from ..program.expr import BinExpr, Block, Expr, evaluate
from ..program.ir import Arg, Op, Program, Ref, Region, Span, TileIndex, walk
from ..program.regions import axes_of
from ..targets import Target
from .evaluate import resolve
from .masks import NONE, Tags, infer_tags, tile_tags
from .memory import Memory, selected_dims
from .ops import ITEMSIZE
from .scaled import ScaledTile, scaled_tile

LANES, SUBLANES = 128, 8


def tile_unit(from_end: int, itemsize: int) -> int:
    """What the begin of a slice must be a multiple of on a TPU: along the lanes, and along sublanes that hold packed values."""
    if from_end == 0:
        return LANES
    return 32 // itemsize if from_end == 1 and itemsize < 4 else 1


class DimKind(enum.Enum):
    """How one dimension of a tensor is covered by a window."""

    BLOCKED = "blocked"  # the block of an axis: the index map picks it
    WHOLE = "whole"  # all of it: the kernel slices
    POINT = "point"  # one position, the dimension is dropped from the window: by an axis of block 1, or a number


@dataclass(frozen=True)
class WindowDim:
    kind: DimKind
    size: int  # elements of the dimension in VMEM (1 for POINT)
    axis: int | None = None  # for BLOCKED and POINT
    position: int = 0  # for POINT without an axis


Window = tuple[WindowDim, ...]


@dataclass(frozen=True)
class Loop:
    """An inner loop with the strategy that the config gives it. ``number`` is its place in ``Config.loop_strategies``."""

    op: Op
    number: int
    axes: tuple[int, ...]
    strategy: LoopStrategy
    trips: tuple[int, ...]  # tiles of each axis: the most there can be where the end is known only at run time, 0 if nothing bounds them
    dynamic: bool
    depth: int  # 0: directly in the launch
    tiles: int = 1  # of a turn, which has so many tiles of the last axis one after the other
    issue: Issue = Issue.IN_ORDER

    @property
    def turns(self) -> tuple[int, ...]:
        """Turns along each axis: at most, as ``trips``."""
        return (*self.trips[:-1], self.trips[-1] // self.tiles)

    @property
    def steps(self) -> int:
        return math.prod(self.turns)

    @property
    def never(self) -> bool:
        """Whether it is known that the loop has no tiles."""
        return not self.dynamic and self.steps == 0


@dataclass(frozen=True)
class Access:
    """One load, store or atomic, with the loops around it (outermost first)."""

    op: Op
    memory: Memory
    nest: tuple[Loop, ...]
    certain: bool  # not inside of a branch or a while

    @property
    def tensor(self) -> int:
        return self.memory.tensor.id

    @property
    def index(self) -> tuple[Arg, ...]:
        return self.memory.index


@dataclass(frozen=True)
class Place:
    """Where an operand is fetched and what of it: ``follows`` is the folded loop whose steps the index map follows."""

    level: Loop | None
    window: Window
    follows: Loop | None

    def axes(self) -> set[int]:
        return {d.axis for d in self.window if d.axis is not None}


class Windows:
    """The windows of one launch of ``program`` under ``blocks``. Raises ``PlanError`` where an access has none."""

    def __init__(self, program: Program, launch: Op, blocks: Sequence[int], target: Target):
        self.program, self.launch, self.blocks, self.target = program, launch, blocks, target
        self.region: Region = launch.regions[0]
        self.tiles: dict[int, int] = {}  # axis -> tiles of it that a block has, where that is more than one
        self.defs = {r: op for op in walk(self.region) for r in op.results}

    def error(self, reason: str, op: Op) -> PlanError:
        return PlanError(reason, kernel=self.program.name, file=self.program.file, line=op.line)

    def value(self, expr: Expr) -> int:
        return evaluate(expr, self.blocks)

    def shape(self, value: int) -> tuple[int, ...]:
        return tuple(self.value(d) for d in self.program.types[value].shape)

    def trips(self, axis: int) -> tuple[int, bool]:
        """(tiles of ``axis`` at most, 0 if nothing bounds them; whether the number is known only at run time)."""
        info = self.program.axes[axis]
        if isinstance(info.begin, Ref):
            outer = self.inside_tile(axis)
            return (1, False) if outer is not None and self.blocks[self.program.axes[outer].block] == self.blocks[info.block] else (0, True)
        dynamic, begin = isinstance(info.end, Ref), self.value(info.begin)
        end = info.limit if isinstance(info.end, Ref) else self.value(info.end)
        if end is None:
            return 0, True
        return (0, False) if end <= begin else (-(-(end - begin) // self.blocks[info.block]), dynamic)

    def inside_tile(self, axis: int) -> int | None:
        """The axis that ``axis`` tiles one tile of (``hl.tile(t.begin, t.end)``), without a rest; None where that may be anywhere."""
        info = self.program.axes[axis]
        begin, end = (self.defs.get(x.id) if isinstance(x, Ref) else None for x in (info.begin, info.end))
        if begin is None or end is None or (begin.name, end.name) != ("hl.tile_begin", "hl.tile_end") or begin.args != end.args:
            return None
        outer = begin.args[0]
        assert isinstance(outer, int)
        around = self.program.axes[outer]
        bounded = not isinstance(around.begin, Ref) and self.trips(outer)[0] > 0
        return outer if bounded and self.blocks[around.block] % self.blocks[info.block] == 0 else None

    def ragged(self, axis: int) -> bool:
        """Whether the last tile of ``axis`` may reach past its end."""
        info = self.program.axes[axis]
        outer = self.inside_tile(axis)
        if outer is not None:
            return self.ragged(outer)
        if isinstance(info.begin, Ref) or isinstance(info.end, Ref):
            return True
        return (self.value(info.end) - self.value(info.begin)) % self.blocks[info.block] != 0

    # -------------------------------------------------------------------------------------------- places

    def place(self, access: Access) -> Place:
        level = self.level_of(access)
        window = self.window(access, self.indexed_axes(level, access.nest))
        folded = next((loop for loop in access.nest if loop.strategy is LoopStrategy.GRID), None)
        return Place(level, window, folded if folded and any(d.axis in folded.axes for d in window) else None)

    def level_of(self, access: Access) -> Loop | None:
        """The innermost emit_pipeline loop whose axes the access moves with; None for the grid."""
        used = self.axes_used(access)
        for loop in reversed(access.nest):
            if loop.strategy is LoopStrategy.EMIT_PIPELINE and used.intersection(loop.axes):
                return loop
        return None

    def scaled(self, memory: Memory) -> dict[int, ScaledTile]:
        """The index tensor of a load that is a tile made longer, by its place in the index: it is sliced, not gathered."""
        gathers = memory.gathers(self.shape)
        if memory.writes or len(gathers) != 1 or len(self.shape(gathers[0].id)) != 1:
            return {}
        found = scaled_tile(self.defs, self.shape, lambda x: resolve(x, self.blocks), gathers[0])
        if found is None or not self.slices(memory, found, gathers[0]):
            return {}
        return {memory.index.index(gathers[0]): found}

    def slices(self, memory: Memory, tile: ScaledTile, ref: Ref) -> bool:
        """Whether a scaled tile is where a target can slice."""
        info = self.program.axes[tile.axis]
        size, (trips, _) = self.blocks[info.block] * tile.factor, self.trips(tile.axis)
        if isinstance(info.begin, Ref) or self.value(info.begin) != 0 or trips == 0 or self.shape(ref.id) != (size,):
            return False
        elements = [e for e in memory.index if e is not None]
        unit = tile_unit(len(elements) - 1 - elements.index(ref), ITEMSIZE[self.program.types[memory.tensor.id].dtype])
        return not self.target.is_tpu or trips == 1 or size % unit == 0

    def axes_used(self, access: Access) -> set[int]:
        found = {self.axis_of(e) for e in access.index} | {tile.axis for tile in self.scaled(access.memory).values()}
        return {axis for axis in found if axis is not None}

    def axis_of(self, element: Arg) -> int | None:
        """The axis that an element of an index moves with, if it is a tile or the position of one of block 1."""
        if isinstance(element, TileIndex):
            return element.axis
        return self.point_axis(element) if isinstance(element, Ref) else None

    def point_axis(self, ref: Ref) -> int | None:
        """The axis whose tiles ``ref`` counts: a tile's number, or its begin where it is one element (the variable of ``hl.grid``)."""
        op = self.defs.get(ref.id)
        if op is None or op.name not in ("hl.tile_begin", "hl.tile_id"):
            return None
        axis = op.args[0]
        assert isinstance(axis, int)
        single = self.blocks[self.program.axes[axis].block] == 1
        if op.name == "hl.tile_begin":
            return axis if single else None
        # On a TPU, numbers of longer tiles stay positions in a whole dimension: it is mostly the last one, where no block is one element.
        return axis if self.program.axes[axis].begin == 0 and (single or not self.target.is_tpu) else None

    def indexed_axes(self, level: Loop | None, nest: tuple[Loop, ...]) -> set[int]:
        """Axes whose position an index map at ``level`` can see."""
        indexed = set(axes_of(self.launch))
        for loop in nest:
            if loop.strategy is LoopStrategy.GRID:
                indexed.update(loop.axes)
            elif level is not None:
                indexed.update(loop.axes)
                if loop is level:
                    break
        return indexed

    # -------------------------------------------------------------------------------------------- windows

    def whole(self, access: Access) -> Window:
        """All of the tensor, with room for every tile that ``access`` slices out of it."""
        return self.window(access, None)

    def window(self, access: Access, indexed: set[int] | None) -> Window:
        """The window where an index map sees the axes ``indexed``; None: nothing, not even numbers."""
        shape = self.shape(access.tensor)
        if 0 in shape:
            reason, line = "an array with no elements runs on the reference path", access.op.line
            raise EmptyTensor(reason, kernel=self.program.name, file=self.program.file, line=line)
        elements = [e for e in access.index if e is not None]
        if len(elements) != len(shape):
            raise self.error(f"an index of {len(elements)} elements for a tensor of rank {len(shape)}", access.op)
        scaled = self.scaled(access.memory)
        if not self.target.is_tpu and access.memory.gathers(self.shape) and not scaled:
            # XLA gathers out of, and scatters into, the whole array; a block of it would be copied at every step.
            if not access.memory.writes:
                return (*(WindowDim(DimKind.WHOLE, 1) for _ in range(2 - len(shape))), *(WindowDim(DimKind.WHOLE, n) for n in shape))
            indexed = None
        itemsize = ITEMSIZE[self.program.types[access.tensor].dtype]
        factors = {access.index[place]: tile for place, tile in scaled.items()}
        dims = [
            self.scaled_dim(factors[e], n, indexed or set())
            if isinstance(e, Ref) and e in factors
            else self.window_dim(e, n, indexed, len(shape) - 1 - i, itemsize)
            for i, (e, n) in enumerate(zip(elements, shape, strict=True))
        ]
        if self.target.is_tpu and len(dims) > 1 and isinstance(elements[-2], Ref) and elements[-2] not in factors and dims[-2].size > 1:
            # Single rows are taken out of, and put into, whole tiles of rows: the last one may reach past the end.
            rows = 32 // min(4, ITEMSIZE[self.program.types[access.tensor].dtype])
            dims[-2] = dataclasses.replace(dims[-2], size=-(-dims[-2].size // rows) * rows)
        return (*(WindowDim(DimKind.WHOLE, 1) for _ in range(2 - len(dims))), *dims)

    def window_dim(self, element: Arg, extent: int, indexed: set[int] | None, from_end: int, itemsize: int) -> WindowDim:
        if isinstance(element, TileIndex):
            return self.tile_dim(element.axis, extent, indexed or set(), from_end, itemsize)
        if indexed is None or (self.target.is_tpu and from_end < 2):
            return WindowDim(DimKind.WHOLE, extent)
        if isinstance(element, Ref):
            axis = self.point_axis(element)
            if axis in indexed and axis not in self.tiles and self.program.axes[axis].begin == 0:
                return WindowDim(DimKind.POINT, 1, axis)
        if isinstance(element, (int, Block, BinExpr)):
            position = self.value(element)
            return WindowDim(DimKind.POINT, 1, None, position if position >= 0 else position + extent)
        return WindowDim(DimKind.WHOLE, extent)

    def scaled_dim(self, tile: ScaledTile, extent: int, indexed: set[int]) -> WindowDim:
        size, (trips, _) = self.blocks[self.program.axes[tile.axis].block] * tile.factor, self.trips(tile.axis)
        if tile.axis in indexed and tile.axis not in self.tiles and (trips - 1) * size < extent:
            return WindowDim(DimKind.BLOCKED, size, tile.axis)
        return WindowDim(DimKind.WHOLE, max(extent, trips * size))

    def tile_dim(self, axis: int, extent: int, indexed: set[int], from_end: int, itemsize: int) -> WindowDim:
        info = self.program.axes[axis]
        size, (trips, _) = self.blocks[info.block], self.trips(axis)
        if isinstance(info.begin, Ref):
            outer = self.inside_tile(axis)
            room = extent + size - 1 if outer is None else max(extent, self.reach(outer))  # wherever a tile begins
        elif trips == 0:
            start = self.value(info.begin) % size
            room = start + max(1, -(-(extent - start) // size)) * size  # every tile that begins inside
        else:
            start = self.value(info.begin)
            # One row or one lane of many is no legal block on a TPU: there the kernel slices it out.
            held = size * self.tiles.get(axis, 1)
            sliver = self.target.is_tpu and from_end < 2 and size == 1 and extent > 1
            # So it does with the only tile of an axis that ends before the dimension, such as the offsets of n rows among n + 1.
            unit = LANES if from_end == 0 else SUBLANES
            sliver |= self.target.is_tpu and from_end < 2 and trips == 1 and size != extent and size % unit != 0
            last = start + trips * size  # where the last tile ends, which may be past the end
            inside = last - held < max(extent, 1)  # an axis longer than the dimension has tiles that are no block of it
            if self.target.is_tpu and held > size and size % tile_unit(from_end, itemsize):
                sliver = True  # the tiles of one block are sliced out of it, where a TPU can slice
            if axis in indexed and start % held == 0 and not sliver and inside:
                return WindowDim(DimKind.BLOCKED, held, axis)
            # The kernel slices tiles out of the whole dimension, with room for the last one.
            room = max(extent, last, start + -(-(extent - start) // size) * size)
        if self.target.is_tpu and not self.is_aligned(axis, unit := tile_unit(from_end, itemsize)):
            room = -(-extent // unit) * unit + -(-(unit - 1 + size) // unit) * unit  # for the tiles that a slice touches
        elif room > extent and self.target.is_tpu:
            unit = LANES if from_end == 0 else SUBLANES if from_end == 1 else 1
            room = -(-room // unit) * unit
        return WindowDim(DimKind.WHOLE, room)

    def reach(self, axis: int) -> int:
        """Where the last tile of an axis that begins at a number ends, its elements that do not exist included."""
        info = self.program.axes[axis]
        assert not isinstance(info.begin, Ref)
        return self.value(info.begin) + self.trips(axis)[0] * self.blocks[info.block]

    def is_aligned(self, axis: int, unit: int) -> bool:
        """Whether every tile of ``axis`` begins at a multiple of ``unit``, or is the only one and begins at a number."""
        info, (trips, dynamic) = self.program.axes[axis], self.trips(axis)
        if unit == 1:
            return True
        if isinstance(info.begin, Ref):
            outer = self.inside_tile(axis)
            return outer is not None and self.blocks[info.block] % unit == 0 and self.is_aligned(outer, unit)
        return (trips <= 1 and not dynamic) or (self.value(info.begin) % unit == 0 and self.blocks[info.block] % unit == 0)

    def joined(self, accesses: Sequence[Access]) -> Place:
        """One place for all accesses of a tensor that is written: theirs where they agree, else all of it at the grid."""
        places = [self.place(a) for a in accesses]
        first = places[0]
        if all(p.level is first.level and p.follows is first.follows for p in places):
            roomy = [self.whole(a) for a in accesses]
            window = tuple(map(_join, zip(*(p.window for p in places), strict=True), zip(*roomy, strict=True)))
            moving = {d.axis for d in window}
            if all(loop is None or moving.intersection(loop.axes) for loop in (first.level, first.follows)):
                return Place(first.level, window, first.follows)
        return self.everything(accesses)

    def everything(self, accesses: Sequence[Access]) -> Place:
        """All of a tensor at the grid: right whatever the order of its accesses is, as steps run one after the other."""
        windows = zip(*(self.whole(a) for a in accesses), strict=True)
        return Place(None, tuple(WindowDim(DimKind.WHOLE, max(d.size for d in dims)) for dims in windows), None)

    # -------------------------------------------------------------------------------------------- what stores reach

    @functools.cached_property
    def tags(self) -> dict[int, Tags]:
        return infer_tags(self.program, self.region, self.shape, self.ragged, strict=False)

    def needs_init(self, accesses: Sequence[Access]) -> bool:
        """Whether a launch leaves some element of a tensor unwritten, or reads it: then its old contents must come in."""
        return any(a.memory.reads for a in accesses) or not any(self.covers(a) for a in accesses)

    def covers(self, access: Access) -> bool:
        """Whether a store reaches every element: each dimension whole, or tiled from end to end by an axis of its own."""
        memory = access.memory
        if not memory.writes or memory.mask is not None or not access.certain or self.lacks(access):
            return False
        seen: set[int] = set()
        for element, extent in zip((e for e in access.index if e is not None), self.shape(access.tensor), strict=True):
            axis = self.axis_of(element)
            if element == Span() or (axis is None and extent == 1 and not isinstance(element, Ref)):
                continue
            reached = self.numbers_all if isinstance(element, Ref) else self.spans
            if axis is None or axis in seen or not reached(axis, extent):
                return False
            seen.add(axis)
        return not any(loop.dynamic for loop in access.nest)

    def lacks(self, access: Access) -> bool:
        """Whether the stored value may lack elements of the tile: those that the ragged tile of another axis does not have."""
        if not any(self.ragged(axis) for axis in range(len(self.program.axes))):
            return False  # (most configs: the tags, which take longer than all the rest of a plan, are not needed)
        value = access.memory.value
        found = self.tags.get(value.id, ()) if isinstance(value, Ref) else ()
        dims = selected_dims(access.index, self.shape)[-len(found) :] if found else ()
        own = [tile_tags(s.element.axis) if isinstance(s.element, TileIndex) else NONE for s in dims]
        return len(dims) != len(found) or any(not tags <= axes for tags, axes in zip(found, own, strict=True))

    def spans(self, axis: int, extent: int) -> bool:
        info = self.program.axes[axis]
        return not isinstance(info.end, Ref) and info.begin == 0 and self.value(info.end) == extent

    def numbers_all(self, axis: int, extent: int) -> bool:
        """Whether the numbers of the tiles of ``axis`` are the positions of a dimension of ``extent``."""
        return self.program.axes[axis].begin == 0 and self.trips(axis) == (extent, False)

    def visits_all(self, tensor: int, place: Place) -> bool:
        """Whether the blocks of ``place`` that are visited are all there are."""
        shape = self.shape(tensor)
        dims = zip(place.window[len(place.window) - len(shape) :], shape, strict=True)
        fixed = place.follows is None or not place.follows.dynamic
        return fixed and all(d.kind is DimKind.WHOLE or (d.axis is not None and self._reached(d, d.axis, n)) for d, n in dims)

    def _reached(self, dim: WindowDim, axis: int, extent: int) -> bool:
        return self.numbers_all(axis, extent) if dim.kind is DimKind.POINT else self.spans(axis, extent)

    def sliced(self, access: Access, window: Window, axes: set[int]) -> bool:
        """Whether one of ``axes`` chooses a part of ``window``."""
        elements = [e for e in access.index if e is not None]
        dims = window[len(window) - len(elements) :]
        return any(d.kind is DimKind.WHOLE and self.axis_of(e) in axes for e, d in zip(elements, dims, strict=True))


    def takes_all(self, access: Access, window: Window) -> bool:
        """Whether a load takes all of its window: dimensions that are not split, and blocks that one tile fills."""
        elements = [e for e in access.index if e is not None]
        for element, dim, extent in zip(elements, window[len(window) - len(elements) :], self.shape(access.tensor), strict=True):
            tile = isinstance(element, TileIndex) and dim.kind is DimKind.BLOCKED
            size = self.blocks[self.program.axes[element.axis].block] if isinstance(element, TileIndex) else extent
            if not (tile or element == Span()) or dim.size != size:
                return False
        return True


def _join(dims: Sequence[WindowDim], roomy: Sequence[WindowDim]) -> WindowDim:
    """``dims`` where they agree, else the whole dimension with room for all of them."""
    return dims[0] if len(set(dims)) == 1 else WindowDim(DimKind.WHOLE, max(d.size for d in roomy))


__all__ = ["LANES", "SUBLANES", "Access", "DimKind", "Loop", "Place", "Window", "WindowDim", "Windows", "tile_unit"]
