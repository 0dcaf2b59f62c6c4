"""The plan: program + config + target -> grid, windows, loop strategies, scratch and the VMEM bill of each launch.

A *window* is the part of a host tensor that is in VMEM at a time: it becomes a ``BlockSpec``. Where it is fetched is its
*level*: the grid of the ``pallas_call``, or the nested pipeline of one ``emit_pipeline`` loop. Tensors of rank 1 are shown
to Pallas as ``(1, n)``: a row of lanes, which has none of the tiling restrictions of one-dimensional memory.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..config import Config, LoopStrategy
from ..exc import PlanError
from ..program.expr import BinExpr, Block, evaluate
from ..program.ir import Arg, Op, Program, Ref, Region, Span, TileIndex, refs_in, walk
from ..targets import Target
from .legalize import legalize
from .ops import ITEMSIZE

LANES, SUBLANES = 128, 8
DEFAULT_SCOPED_VMEM = 16 << 20  # the least that Mosaic gives a kernel that asks for nothing (v6e and tpu7x give 32 MiB)
USABLE_VMEM = 0.9  # of the physical capacity: the compiler keeps some for itself


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


@dataclass(frozen=True)
class Loop:
    """An inner loop with the strategy that the config gives it. ``number`` is its place in ``Config.loop_strategies``."""

    op: Op
    number: int
    axes: tuple[int, ...]
    strategy: LoopStrategy
    trips: tuple[int, ...]  # tiles of each axis (the most there can be, where the end is known only at run time)
    dynamic: bool
    depth: int  # 0: directly in the launch

    @property
    def steps(self) -> int:
        return math.prod(self.trips)


@dataclass
class Access:
    """One load or store, with the loops around it (outermost first)."""

    op: Op
    tensor: int
    index: tuple[Arg, ...]
    nest: tuple[Loop, ...]

    @property
    def is_store(self) -> bool:
        return self.op.name == "hl.store"


@dataclass
class Operand:
    """A host tensor at a level with a window: an argument of the kernel function."""

    name: str
    tensor: int
    shape: tuple[int, ...]  # as shown to Pallas: rank 2 at least, or (1,) for a scalar
    dtype: str
    level: int | None  # number of the emit_pipeline loop, or None for the grid
    window: tuple[WindowDim, ...] | None  # None: a scalar in SMEM
    loop: Loop | None  # the folded loop whose steps the index map follows, if any
    written: bool = False
    init: bool = False  # what it held before must be kept

    def block_shape(self) -> tuple[int, ...]:
        return tuple(d.size for d in self.window or ())

    def axes(self) -> set[int]:
        return {d.axis for d in self.window or () if d.axis is not None}


@dataclass
class Launch:
    """One ``pallas_call``."""

    op: Op
    name: str
    axes: tuple[int, ...]  # grid axes, outermost first
    trips: tuple[int, ...]
    loops: list[Loop]
    folded: list[Loop]  # the loops that follow one another on the last grid axis
    operands: list[Operand]
    by_access: dict[int, Operand] = field(default_factory=dict)  # id(op) -> operand
    vmem_bytes: int = 0

    @property
    def folded_steps(self) -> int:
        return sum(loop.steps for loop in self.folded)

    def loop_of(self, op: Op) -> Loop:
        return next(loop for loop in self.loops if loop.op is op)

    def offset(self, loop: Loop) -> int:
        """The first step of a folded loop on the last grid axis."""
        return sum(other.steps for other in self.folded[: self.folded.index(loop)])


@dataclass
class Plan:
    """What ``generate`` writes down. ``vmem_bytes`` is the bill of the hungriest launch."""

    program: Program  # legalized
    config: Config
    target: Target
    blocks: tuple[int, ...]
    launches: list[Launch]

    @property
    def vmem_bytes(self) -> int:
        return max((launch.vmem_bytes for launch in self.launches), default=0)

    def ragged(self, axis: int) -> bool:
        """Whether the last tile of ``axis`` may reach past its end."""
        begin, end = self.program.axes[axis].begin, self.program.axes[axis].end
        if isinstance(begin, Ref) or isinstance(end, Ref):
            return True
        size = self.blocks[self.program.axes[axis].block]
        return (evaluate(end, self.blocks) - evaluate(begin, self.blocks)) % size != 0


@dataclass(frozen=True)
class LoopInfo:
    """An inner loop of a program, in the order of ``Config.loop_strategies``."""

    number: int
    line: int
    depth: int
    dynamic: bool


def loops(program: Program) -> list[LoopInfo]:
    """The inner loops of ``program``, in the order in which ``Config.loop_strategies`` names them."""
    found = []
    for launch in program.launches:
        for op, depth in _loops_in(launch.regions[0], 0):
            dynamic = any(isinstance(program.axes[a].end, Ref) for a in _axes_of(op))
            found.append(LoopInfo(len(found), op.line, depth, dynamic))
    return found


def _loops_in(region: Region, depth: int) -> Iterator[tuple[Op, int]]:
    for op in region.ops:
        if op.name == "hl.loop":
            yield op, depth
            yield from _loops_in(op.regions[0], depth + 1)


def _axes_of(op: Op) -> tuple[int, ...]:
    axes = op.args[0]
    assert isinstance(axes, tuple)
    return axes


# ------------------------------------------------------------------------------------------------ making a plan


def make_plan(program: Program, config: Config, target: Target) -> Plan:
    """The plan of ``program`` under ``config`` on ``target``. Raises ``PlanError`` with the reason if there is none."""
    legal = legalize(program)
    blocks = block_sizes(program, config)
    strategies = list(config.get("loop_strategies", ()))
    count = len(loops(program))
    if len(strategies) < count:
        strategies += [LoopStrategy.FORI] * (count - len(strategies))
    plan = Plan(legal, config, target, blocks, [])
    number = 0
    for op in legal.launches:
        launch = _Planner(plan, op, strategies, number).run(len(plan.launches))
        number += len(launch.loops)
        plan.launches.append(launch)
    if target.is_tpu:
        capacity = int(target.info.vmem_capacity_bytes * USABLE_VMEM)
        if plan.vmem_bytes > capacity:
            raise PlanError(f"needs {plan.vmem_bytes} bytes of VMEM, {target.name} has {capacity} to give", kernel=program.name)
    return plan


def block_sizes(program: Program, config: Config) -> tuple[int, ...]:
    """The size of every block: the config's, never larger than what it tiles."""
    chosen = tuple(config.get("block_sizes", ()))
    wanted = len(program.tunable_blocks)
    if len(chosen) != wanted:
        raise PlanError(f"the config has {len(chosen)} block sizes, the kernel has {wanted} to choose", kernel=program.name)
    sizes = program.block_sizes(chosen)
    return tuple(
        size if info.fixed is not None else min(size, max(1, info.extent)) for size, info in zip(sizes, program.blocks, strict=True)
    )


class _Planner:
    """Plans one launch; holds what its steps share."""

    def __init__(self, plan: Plan, op: Op, strategies: Sequence[LoopStrategy], first_loop: int):
        self.plan, self.op = plan, op
        self.program, self.target, self.blocks = plan.program, plan.target, plan.blocks
        self.strategies, self.number = strategies, first_loop
        self.loops: list[Loop] = []
        self.accesses: list[Access] = []
        self.defs = {r: o for o in walk(op.regions[0]) for r in o.results}

    def error(self, reason: str, line: int | None = None) -> PlanError:
        return PlanError(reason, kernel=self.program.name, file=self.program.file, line=line or self.op.line)

    def run(self, ordinal: int) -> Launch:
        axes = _axes_of(self.op)
        trips = tuple(self.trips(a)[0] for a in axes)
        self.visit(self.op.regions[0], ())
        folded = [loop for loop in self.loops if loop.strategy is LoopStrategy.GRID]
        launch = Launch(self.op, f"launch_{ordinal}", axes, trips, self.loops, folded, [])
        self.make_operands(launch)
        self.check_written(launch)
        if self.target.is_tpu:
            for operand in launch.operands:
                self.check_tiling(operand)
        launch.vmem_bytes = self.bill(launch)
        return launch

    def trips(self, axis: int) -> tuple[int, bool]:
        """(tiles of ``axis`` at most, whether the number is known only at run time)."""
        info = self.program.axes[axis]
        if isinstance(info.begin, Ref):
            raise self.error("a tile loop that begins at a value known only at run time is not supported yet")
        begin = evaluate(info.begin, self.blocks)
        dynamic = isinstance(info.end, Ref)
        end = info.limit if isinstance(info.end, Ref) else evaluate(info.end, self.blocks)
        if end is None:
            raise self.error("a tile loop whose end nothing bounds is not supported yet")
        if end <= begin:
            raise self.error("a tile loop with no tiles runs on the reference path")
        return -(-(end - begin) // self.blocks[info.block]), dynamic

    def visit(self, region: Region, nest: tuple[Loop, ...]) -> None:
        for op in region.ops:
            if op.name == "hl.loop":
                loop = self.make_loop(op, nest)
                self.loops.append(loop)
                self.visit(op.regions[0], (*nest, loop))
            elif op.name in ("hl.load", "hl.store"):
                tensor, index = op.args[0], op.args[1]
                assert isinstance(tensor, Ref) and isinstance(index, tuple)
                self.accesses.append(Access(op, tensor.id, index, nest))

    def make_loop(self, op: Op, nest: tuple[Loop, ...]) -> Loop:
        axes = _axes_of(op)
        counted = [self.trips(a) for a in axes]
        strategy = LoopStrategy(self.strategies[self.number])
        dynamic = any(d for _, d in counted)
        trips = tuple(n for n, _ in counted)
        if nest and strategy is LoopStrategy.GRID:
            raise self.error("only a loop directly inside the outer loop can be folded into the grid", op.line)
        if dynamic and len(axes) > 1:
            raise self.error("a loop over several axes with an end known only at run time is not supported yet", op.line)
        if math.prod(trips) == 1 and not dynamic and strategy is not LoopStrategy.FORI:
            strategy = LoopStrategy.UNROLL  # one step: every strategy is the same straight line
        if strategy is LoopStrategy.EMIT_PIPELINE and not self.target.is_tpu:
            raise self.error("emit_pipeline needs a TPU: plain interpret mode cannot run it", op.line)
        loop = Loop(op, self.number, axes, strategy, trips, dynamic, len(nest))
        self.number += 1
        return loop

    # -------------------------------------------------------------------------------------------- windows

    def level_of(self, access: Access) -> Loop | None:
        """The innermost emit_pipeline loop whose axes the access moves with; None for the grid."""
        used = self.axes_used(access)
        for loop in reversed(access.nest):
            if loop.strategy is LoopStrategy.EMIT_PIPELINE and used.intersection(loop.axes):
                return loop
        return None

    def axes_used(self, access: Access) -> set[int]:
        used = {e.axis for e in access.index if isinstance(e, TileIndex)}
        for e in access.index:
            if isinstance(e, Ref) and (axis := self.point_axis(e)) is not None:
                used.add(axis)
        return used

    def point_axis(self, ref: Ref) -> int | None:
        """The axis whose position ``ref`` is, if it is the begin of an axis of block 1 (the variable of ``hl.grid``)."""
        op = self.defs.get(ref.id)
        if op is None or op.name not in ("hl.tile_begin", "hl.tile_id"):
            return None
        axis = op.args[0]
        assert isinstance(axis, int)
        starts_at_zero = self.program.axes[axis].begin == 0
        return axis if self.blocks[self.program.axes[axis].block] == 1 and (op.name == "hl.tile_begin" or starts_at_zero) else None

    def indexed_axes(self, level: Loop | None, nest: tuple[Loop, ...]) -> set[int]:
        """Axes whose position an index map at ``level`` can see."""
        indexed = set(_axes_of(self.op))
        for loop in nest:
            if loop.strategy is LoopStrategy.GRID:
                indexed.update(loop.axes)
            elif level is not None:
                indexed.update(loop.axes)
                if loop is level:
                    break
        return indexed

    def window(self, access: Access, level: Loop | None) -> tuple[WindowDim, ...]:
        shape = tuple(evaluate(d, self.blocks) for d in self.program.types[access.tensor].shape)
        indexed = self.indexed_axes(level, access.nest)
        if 0 in shape:
            raise self.error("an array with no elements runs on the reference path", access.op.line)
        elements = [e for e in access.index if e is not None]
        if len(elements) != len(shape):
            raise self.error(f"an index of {len(elements)} elements for a tensor of rank {len(shape)}", access.op.line)
        dims = [self.window_dim(e, n, indexed, len(shape) - 1 - i) for i, (e, n) in enumerate(zip(elements, shape, strict=True))]
        return tuple(dims) if len(dims) != 1 else (WindowDim(DimKind.WHOLE, 1), *dims)

    def window_dim(self, element: Arg, extent: int, indexed: set[int], from_end: int) -> WindowDim:
        if isinstance(element, TileIndex):
            info = self.program.axes[element.axis]
            size = self.blocks[info.block]
            begin = info.begin if isinstance(info.begin, Ref) else evaluate(info.begin, self.blocks)
            # One row or one lane of many is no legal block on a TPU: there the kernel slices it out.
            sliver = self.target.is_tpu and from_end < 2 and size == 1 and extent > 1
            start = begin if isinstance(begin, int) else 0
            last = start + self.trips(element.axis)[0] * size  # where the last tile ends, which may be past the end
            inside = last - size < max(extent, 1)  # an axis longer than the dimension has tiles that are no block of it
            if element.axis in indexed and isinstance(begin, int) and begin % size == 0 and not sliver and inside:
                return WindowDim(DimKind.BLOCKED, size, element.axis)
            # The kernel slices tiles out of the whole dimension, with room for the last one.
            room = max(extent, last, start + -(-(extent - start) // size) * size)
            if room > extent and self.target.is_tpu:
                unit = LANES if from_end == 0 else SUBLANES if from_end == 1 else 1
                room = -(-room // unit) * unit
            return WindowDim(DimKind.WHOLE, room)
        if isinstance(element, Ref):
            axis = self.point_axis(element)
            if axis in indexed and not (self.target.is_tpu and from_end < 2) and self.program.axes[axis].begin == 0:
                return WindowDim(DimKind.POINT, 1, axis)
            return WindowDim(DimKind.WHOLE, extent)
        if isinstance(element, (int, Block, BinExpr)) and not (self.target.is_tpu and from_end < 2):
            position = evaluate(element, self.blocks)
            return WindowDim(DimKind.POINT, 1, None, position if position >= 0 else position + extent)
        return WindowDim(DimKind.WHOLE, extent)

    def make_operands(self, launch: Launch) -> None:
        written = {a.tensor for a in self.accesses if a.is_store}
        for access in self.accesses:
            level = self.level_of(access)
            folded = next((loop for loop in access.nest if loop.strategy is LoopStrategy.GRID), None)
            type_ = self.program.types[access.tensor]
            scalar = not type_.shape
            if scalar and access.tensor in written:
                raise self.error("storing to a tensor of rank 0 is not supported yet", access.op.line)
            window = None if scalar else self.window(access, level)
            follows = folded if folded and window and any(d.axis in folded.axes for d in window) else None
            number = level.number if level else None
            operand = self.find_operand(launch, access, number, window, follows, access.tensor in written)
            if operand is None:
                shape = tuple(evaluate(d, self.blocks) for d in type_.shape)
                shown = (1,) if scalar else shape if len(shape) > 1 else (1, *shape)
                name = f"t{access.tensor}_{len(launch.operands)}"
                operand = Operand(name, access.tensor, shown, type_.dtype, number, window, follows, access.tensor in written)
                launch.operands.append(operand)
            launch.by_access[id(access.op)] = operand
        writes = self.op.args[1]
        assert isinstance(writes, tuple)
        for operand in launch.operands:
            operand.init = operand.written and self.needs_init(operand.tensor)

    def find_operand(
        self, launch: Launch, access: Access, level: int | None, window: tuple[WindowDim, ...] | None, follows: Loop | None, written: bool
    ) -> Operand | None:
        for operand in launch.operands:
            if operand.tensor != access.tensor:
                continue
            same = operand.level == level and operand.window == window and operand.loop is follows
            if same:
                return operand
            if written:
                if operand.level != level or operand.loop is not follows or operand.window is None or window is None:
                    raise self.error("a tensor that is written is used at two places of the pipeline", access.op.line)
                operand.window = tuple(_join(a, b, n) for a, b, n in zip(operand.window, window, operand.shape, strict=True))
                return operand
        return None

    # -------------------------------------------------------------------------------------------- written tensors

    def needs_init(self, tensor: int) -> bool:
        """Whether the launch leaves some element of ``tensor`` unwritten, or reads it: then its old contents must come in."""
        accesses = [a for a in self.accesses if a.tensor == tensor]
        return any(not a.is_store for a in accesses) or not any(self.covers(a) for a in accesses)

    def covers(self, access: Access) -> bool:
        """Whether a store reaches every element: each dimension whole, or tiled from end to end by an axis of its own."""
        shape = self.program.types[access.tensor].shape
        seen: set[int] = set()
        for element, dim in zip(access.index, shape, strict=True):
            extent = evaluate(dim, self.blocks)
            axis = element.axis if isinstance(element, TileIndex) else self.point_axis(element) if isinstance(element, Ref) else None
            if element == Span() or (axis is None and extent == 1 and not isinstance(element, Ref)):
                continue
            if axis is None or axis in seen or not self.spans(axis, extent):
                return False
            seen.add(axis)
        return not any(loop.dynamic and not seen.issuperset(loop.axes) for loop in access.nest)

    def spans(self, axis: int, extent: int) -> bool:
        info = self.program.axes[axis]
        return not isinstance(info.end, Ref) and info.begin == 0 and evaluate(info.end, self.blocks) == extent

    def check_written(self, launch: Launch) -> None:
        for operand in launch.operands:
            if not operand.written:
                continue
            if operand.level is not None:
                if operand.init:
                    raise self.error("emit_pipeline cannot keep the old contents of a tensor it writes")
                continue
            moving = operand.axes()
            # (whether the block moves on this grid axis) for the axes that have more than one step, outermost first.
            moves = [a in moving for a, n in zip(launch.axes, launch.trips, strict=True) if n > 1]
            moves += [operand.loop is not None] if launch.folded_steps > 1 else []
            # A block that is left and come back to is written over, not read back: its visits must be consecutive.
            if operand.init and any(not still and any(moves[i:]) for i, still in enumerate(moves)):
                raise self.error("the blocks of a tensor that is read and written are not visited one after the other")

    # -------------------------------------------------------------------------------------------- limits

    def check_tiling(self, operand: Operand) -> None:
        """Mosaic's rule for the last two dimensions of a block: multiples of (8, 128), or the whole dimension."""
        if operand.window is None:
            return
        for from_end, unit in ((0, LANES), (1, SUBLANES)):
            dim, extent = operand.window[-1 - from_end], operand.shape[-1 - from_end]
            if dim.size != extent and dim.size % unit:
                which = "last" if from_end == 0 else "second to last"
                raise self.error(
                    f"a block of {dim.size} on the {which} dimension (of {extent}) is neither a multiple of {unit} nor the whole dimension"
                )

    def bill(self, launch: Launch) -> int:
        """Bytes of VMEM: windows twice (double buffering), carried values, and the largest tile values in flight."""
        total = 0
        for operand in launch.operands:
            if operand.window is not None:
                total += 2 * padded_bytes(operand.block_shape(), operand.dtype)
        values = []
        for op in walk(self.op.regions[0]):
            for result in op.results:
                type_ = self.program.types[result]
                size = padded_bytes(tuple(evaluate(d, self.blocks) for d in type_.shape), type_.dtype)
                values.append(size)
                if op.name == "hl.loop":
                    total += size
        return total + sum(sorted(values)[-2:])


def _join(a: WindowDim, b: WindowDim, extent: int) -> WindowDim:
    return a if a == b else WindowDim(DimKind.WHOLE, max(extent, a.size, b.size))


def padded_bytes(shape: Sequence[int], dtype: str) -> int:
    """Bytes of an array in VMEM, where its last two dimensions fill tiles of (8, 128) 32-bit words."""
    if not shape:
        return 0
    itemsize = ITEMSIZE[dtype]
    packing = max(1, 4 // itemsize)
    *lead, rows, lanes = (1, *shape) if len(shape) == 1 else shape
    rows = -(-rows // (SUBLANES * packing)) * SUBLANES * packing if rows > 1 else packing
    return math.prod(lead) * rows * (-(-lanes // LANES) * LANES) * itemsize


def strategies_that_fit(program: Program, config: Config, target: Target) -> list[tuple[LoopStrategy, ...]]:
    """Every assignment of one strategy to all inner loops that has a plan (mixed assignments are left to the space)."""
    fitting = []
    for strategy in LoopStrategy:
        try:
            make_plan(program, config.replace(loop_strategies=[strategy] * len(loops(program))), target)
        except PlanError:
            continue
        fitting.append((strategy,) * len(loops(program)))
    return fitting


def reads(op: Op) -> set[int]:
    """Values that an operation and its regions read."""
    found = {r.id for r in refs_in((op.args, tuple(v for _, v in op.kwargs)))}
    for region in op.regions:
        found.update(r.id for r in refs_in(region.results))
        for inner in region.ops:
            found |= reads(inner)
    return found


__all__ = ["Access", "DimKind", "Launch", "Loop", "LoopInfo", "Operand", "Plan", "WindowDim", "block_sizes", "loops",
           "make_plan", "padded_bytes", "reads", "strategies_that_fit"]  # fmt: skip
