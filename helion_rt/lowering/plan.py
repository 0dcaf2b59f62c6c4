"""The plan: program + config + target -> grid, windows, loop strategies, scratch and the VMEM bill of each launch.

``windows`` says what of a host tensor is in VMEM for an access; here accesses become operands of the kernel function.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..config import MAX_BUFFERS, Config, Issue, LoopStrategy, Orientation, VmemLimit
from ..exc import PlanError
from ..program.ir import Axis, Op, Program, Ref, Region, refs_in, walk
from ..program.regions import CARRYING, axes_of, reads_of
from ..targets import Target
from . import constraints
from .bill import bill, most_vmem, padded_bytes, vmem_limit
from .fold import fold, foldable
from .grid_orders import why_fixed
from .legalize import legalize
from .memory import memory_of
from .ops import ITEMSIZE, Kind, kind_of
from .orient import orient
from .temporaries import points_first
from .windows import LANES, SUBLANES, Access, DimKind, Loop, Place, Window, WindowDim, Windows

SCALAR_BYTES = 256 << 10  # a tensor that is only read element by element is kept in SMEM up to this size


@dataclass
class Operand:
    """A host tensor at a level with a window: an argument of the kernel function."""

    name: str
    tensor: int
    shape: tuple[int, ...]  # rank 2 at least, or (n,) in SMEM; as shown to Pallas, where it is not flat
    dtype: str
    level: int | None  # number of the emit_pipeline loop, or None for the grid
    window: Window | None  # None: 32-bit words in SMEM, read one at a time
    loop: Loop | None  # the folded loop whose steps the index map follows, if any
    written: bool = False
    init: bool = False  # what it held before must be kept
    alias: bool = False  # and some block of it is never visited: the result is in the place of the argument
    moves: bool = True  # whether its block is another one in some step
    buffers: int = 2  # blocks of it that are in VMEM at once
    flat: bool = False  # of rank 1, and shown to Pallas as that

    def block_shape(self) -> tuple[int, ...]:
        return tuple(d.size for d in self.window or ())

    def axes(self) -> set[int]:
        return {d.axis for d in self.window or () if d.axis is not None}


@dataclass
class Launch:
    """One ``pallas_call``."""

    op: Op
    name: str
    windows: Windows
    axes: tuple[int, ...]  # grid axes, outermost first
    trips: tuple[int, ...]
    loops: list[Loop]
    folded: list[Loop]  # the loops that follow one another on the last grid axis
    operands: list[Operand]
    by_access: dict[int, Operand] = field(default_factory=dict)  # id(op) -> operand
    parallel: tuple[int, ...] = ()  # grid axes whose steps may run on two cores at once
    vmem_bytes: int = 0
    vmem_limit: int | None = None  # what it asks for; None: what it gets unasked is enough
    empty: bool = False  # it does nothing

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
    buffer_counts: dict[tuple[int, int], int | None]  # what the config says: (launch, tensor) -> blocks in VMEM
    folded: Mapping[int, int]  # matrix -> the vector that it is (see ``fold``)

    @property
    def vmem_bytes(self) -> int:
        return max((launch.vmem_bytes for launch in self.launches), default=0)


@dataclass(frozen=True)
class LoopInfo:
    """An inner loop of a program, in the order of ``Config.loop_strategies``."""

    number: int
    line: int
    depth: int
    dynamic: bool
    choices: tuple[LoopStrategy, ...]  # those that a plan can give it, whatever the block sizes


def loops(program: Program) -> list[LoopInfo]:
    """The inner loops of ``program``, in the order in which ``Config.loop_strategies`` names them."""
    found = []
    for launch in program.launches:
        for op, depth, inside in _loops_in(launch.regions[0], 0, False):
            axes = [program.axes[a] for a in axes_of(op)]
            dynamic = any(isinstance(axis.begin, Ref) or isinstance(axis.end, Ref) for axis in axes)
            found.append(LoopInfo(len(found), op.line, depth, dynamic, _choices(axes, depth, inside)))
    return found


def _loops_in(region: Region, depth: int, inside: bool) -> Iterator[tuple[Op, int, bool]]:
    """Loops at any depth, with how deep they are and whether a branch or a while is around them."""
    for op in region.ops:
        if op.name == "hl.loop":
            yield op, depth, inside
        if op.name in CARRYING:
            for inner in op.regions:
                yield from _loops_in(inner, depth + 1, inside or op.name != "hl.loop")


def _choices(axes: Sequence[Axis], depth: int, inside: bool) -> tuple[LoopStrategy, ...]:
    if any(isinstance(axis.begin, Ref) or (isinstance(axis.end, Ref) and axis.limit is None) for axis in axes):
        return (LoopStrategy.FORI,)
    refused = {LoopStrategy.GRID} if depth else set()
    refused |= {LoopStrategy.EMIT_PIPELINE} if inside else set()
    return tuple(s for s in LoopStrategy if s not in refused)


# ------------------------------------------------------------------------------------------------ making a plan


def make_plan(program: Program, config: Config, target: Target) -> Plan:
    """The plan of ``program`` under ``config`` on ``target``. Raises ``PlanError`` with the reason if there is none."""
    legal = oriented(legalized(program), tuple(config.get("orientations", ())))
    if not target.is_tpu:
        legal = _laid_out(_ById(legal))
    blocks, folded = block_sizes(program, config), dict[int, int]()
    if target.is_tpu:
        legal, blocks, folded = _with_vectors_folded(_ById(legal), blocks)
    strategies = list(config.get("loop_strategies", ()))
    count = len(loops(program))
    if len(strategies) < count:
        strategies += [LoopStrategy.FORI] * (count - len(strategies))
    plan = Plan(legal, config, target, blocks, [], _buffer_counts(program, config, folded), folded)
    number = 0
    for op in legal.launches:
        launch = _Planner(plan, op, strategies, number, len(plan.launches)).run()
        number += len(launch.loops)
        plan.launches.append(launch)
    if target.is_tpu:
        most = most_vmem(target)
        if plan.vmem_bytes > most:
            raise PlanError(f"needs {plan.vmem_bytes} bytes of VMEM, {target.name} has {most} to give", kernel=program.name)
    return plan


def _buffer_counts(program: Program, config: Config, folded: Mapping[int, int]) -> dict[tuple[int, int], int | None]:
    """The config's ``buffer_counts`` by launch and tensor."""
    counts = config.get("buffer_counts", ())
    if not counts:
        return {}
    places = buffer_places(legalized(program))
    if len(counts) > len(places):
        raise PlanError(f"the config has {len(counts)} buffer_counts, the launches access {len(places)} tensors", kernel=program.name)
    seen = origins(legalized(program), folded)
    given = dict(zip(places, counts, strict=False))
    return given | {(n, other): count for (n, tensor), count in given.items() for other, origin in seen.items() if origin == tensor}


def origins(legal: Program, folded: Mapping[int, int]) -> dict[int, int]:
    """Host tensor -> the tensor whose dimensions it has in another order, or folded: a config may have either of them accessed."""
    found: dict[int, int] = {}
    for op in legal.host.ops:
        if kind_of(op.name) is Kind.PERMUTE and isinstance(op.args[0], Ref):
            found[op.results[0]] = found.get(op.args[0].id, op.args[0].id)
    return found | {matrix: found.get(vector, vector) for matrix, vector in folded.items()}


_LEGAL: dict[int, tuple[Program, Program]] = {}  # by id of the program, which is kept alive here
_MAX_LEGAL = 4


def buffer_places(legal: Program) -> tuple[tuple[int, int], ...]:
    """(launch, tensor) of each entry of ``Config.buffer_counts``: what the launches of a legalized program access, by its ``origins``.

    In an order that does not depend on the order of accesses, which a config may change.
    """
    seen = origins(legal, {})
    found = {
        (n, seen.get(memory.tensor.id, memory.tensor.id))
        for n, launch in enumerate(legal.launches)
        for op in walk(launch.regions[0])
        if (memory := memory_of(op)) is not None
    }
    return tuple(sorted(found))


def legalized(program: Program) -> Program:
    """``legalize``, once for the many configs of a program."""
    found = _LEGAL.get(id(program))
    if found is None:
        while len(_LEGAL) >= _MAX_LEGAL:
            _LEGAL.pop(next(iter(_LEGAL)), None)
        found = _LEGAL[id(program)] = (program, legalize(program))
    return found[1]


@functools.lru_cache(maxsize=8)
def _oriented(legal: _ById, orientations: tuple[Orientation | None, ...]) -> Program:
    return orient(legal.program, orientations)


@dataclass(frozen=True)
class _ById:
    """A program as a key: the very object. Kept alive by who holds the key."""

    program: Program

    def __hash__(self) -> int:
        return id(self.program)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and self.program is other.program


@functools.lru_cache(maxsize=8)
def _laid_out(legal: _ById) -> Program:
    return points_first(legal.program)


@functools.lru_cache(maxsize=8)
def _foldable(legal: _ById) -> dict[int, int]:
    return foldable(legal.program)


@functools.lru_cache(maxsize=8)
def _folded(legal: _ById, blocks: frozenset[int]) -> tuple[Program, dict[int, int]]:
    return fold(legal.program, blocks)


def _with_vectors_folded(legal: _ById, blocks: tuple[int, ...]) -> tuple[Program, tuple[int, ...], dict[int, int]]:
    """``fold`` where block sizes allow it, and the sizes of the blocks then."""
    chosen = frozenset(n for n, unit in _foldable(legal).items() if blocks[n] % unit == 0 or blocks[n] == legal.program.blocks[n].extent)
    if not chosen:
        return legal.program, blocks, {}
    program, tensors = _folded(legal, chosen)
    return program, tuple(size // LANES if n in chosen else size for n, size in enumerate(blocks)), tensors


def oriented(legal: Program, orientations: tuple[Orientation | None, ...]) -> Program:
    """``orient``, once for the many configs of a program."""
    return _oriented(_ById(legal), orientations) if Orientation.COLUMNS in orientations else legal


def entry(config: Config, key: str, n: int) -> Any:
    """Entry ``n`` of a list of the config; None where it has none."""
    items = config.get(key, ())
    return items[n] if n < len(items) else None


def block_sizes(program: Program, config: Config) -> tuple[int, ...]:
    """The size of every block: the config's, never larger than what it tiles."""
    chosen = tuple(config.get("block_sizes", ()))
    wanted = len(program.tunable_blocks)
    if len(chosen) != wanted:
        raise PlanError(f"the config has {len(chosen)} block sizes, the kernel has {wanted} to choose", kernel=program.name)
    sizes = program.block_sizes(chosen)
    blocks = tuple(
        size if info.fixed is not None else min(size, max(1, info.extent)) for size, info in zip(sizes, program.blocks, strict=True)
    )
    constraints.check(program, blocks)
    return blocks


class _Planner:
    """Plans one launch; holds what its steps share."""

    def __init__(self, plan: Plan, op: Op, strategies: Sequence[LoopStrategy], first_loop: int, ordinal: int):
        self.plan, self.op, self.ordinal = plan, op, ordinal
        self.program, self.target, self.blocks = plan.program, plan.target, plan.blocks
        self.strategies, self.number = strategies, first_loop
        self.windows = Windows(self.program, op, self.blocks, self.target)
        self.loops: list[Loop] = []
        self.accesses: list[Access] = []

    def error(self, reason: str, line: int | None = None) -> PlanError:
        return PlanError(reason, kernel=self.program.name, file=self.program.file, line=line or self.op.line)

    def run(self) -> Launch:
        axes = self.grid_order()
        trips = tuple(self.windows.trips(a)[0] for a in axes)
        self.visit(self.op.regions[0], (), certain=True, runs=True)
        folded = [loop for loop in self.loops if loop.strategy is LoopStrategy.GRID]
        launch = Launch(self.op, f"launch_{self.ordinal}", self.windows, axes, trips, self.loops, folded, [])
        launch.empty = self.does_nothing(trips)
        if not launch.empty:
            self.check_order(launch)
            self.make_operands(launch)
            if self.target.is_tpu:
                for operand in launch.operands:
                    self.check_tiling(operand)
                    operand.moves = self.moves(launch, operand)
                    operand.buffers = self.buffers(operand)
                    operand.flat = self.is_flat(launch, operand)
            launch.parallel = self.parallel(launch)
            launch.vmem_bytes = bill(self.program, launch, tpu=self.target.is_tpu)
            if self.target.is_tpu:
                most = entry(self.plan.config, "vmem_limits", self.ordinal) is VmemLimit.MOST
                launch.vmem_limit = vmem_limit(launch.vmem_bytes, self.target, most=most)
        return launch

    def grid_order(self) -> tuple[int, ...]:
        """The axes of the launch, outermost first: as written, or as the config says."""
        axes, orders = axes_of(self.op), self.plan.config.get("grid_orders", ())
        order = orders[self.ordinal] if self.ordinal < len(orders) else None
        if order is None:
            return axes
        if len(order) != len(axes):
            raise self.error(f"the grid order {order} has {len(order)} axes, the outer loop has {len(axes)}")
        return tuple(axes[n] for n in order)

    def check_order(self, launch: Launch) -> None:
        if launch.axes == axes_of(self.op):
            return
        several = [a for a, n in zip(launch.axes, launch.trips, strict=True) if n > 1]
        moved = several != [a for a in axes_of(self.op) if a in several]
        reason = why_fixed(self.op, several, self.windows.axis_of) if moved else None
        if reason is not None:
            raise self.error(f"another grid order could change the result: {reason}")

    def does_nothing(self, trips: tuple[int, ...]) -> bool:
        """Whether a launch has no tiles, or none of its stores has an element to write."""
        written = {a.tensor for a in self.accesses if a.memory.writes}
        prints = any(op.name == "hl.print" for op in walk(self.op.regions[0]))
        return 0 in trips or (not prints and all(0 in self.windows.shape(tensor) for tensor in written))

    def visit(self, region: Region, nest: tuple[Loop, ...], *, certain: bool, runs: bool) -> None:
        """Finds loops and accesses. ``certain``: no branch is around them; ``runs``: no loop that has no tiles is."""
        for op in region.ops:
            if op.name == "hl.loop":
                loop = self.make_loop(op, nest, certain)
                self.loops.append(loop)
                self.visit(op.regions[0], (*nest, loop), certain=certain, runs=runs and not loop.never)
            elif op.name in CARRYING:
                for inner in op.regions:
                    self.visit(inner, nest, certain=False, runs=runs)
            elif runs and (memory := memory_of(op)) is not None:
                self.accesses.append(Access(op, memory, nest, certain))

    def make_loop(self, op: Op, nest: tuple[Loop, ...], certain: bool) -> Loop:
        axes = axes_of(op)
        counted = [self.windows.trips(a) for a in axes]
        strategy = LoopStrategy(self.strategies[self.number])
        dynamic, trips = any(d for _, d in counted), tuple(n for n, _ in counted)
        steps = math.prod(trips)
        if dynamic and len(axes) > 1:
            raise self.error("a loop over several axes with a bound known only at run time is not supported yet", op.line)
        placed = all(not isinstance(self.program.axes[a].begin, Ref) for a in axes)  # else fori is the only strategy there is to choose
        if not dynamic and (steps == 0 or (steps == 1 and not (placed and strategy is LoopStrategy.FORI))):
            strategy = LoopStrategy.UNROLL  # one step: every strategy is the same straight line
        if (nest or not certain) and strategy is LoopStrategy.GRID:
            raise self.error("only a loop directly inside the outer loop can be folded into the grid", op.line)
        if not certain and strategy is LoopStrategy.EMIT_PIPELINE:
            raise self.error("a loop inside of a branch cannot be a pipeline of its own", op.line)
        if dynamic and steps == 0 and strategy is not LoopStrategy.FORI:
            raise self.error("a loop whose tiles are known only at run time is run by fori", op.line)
        if strategy is LoopStrategy.EMIT_PIPELINE and not self.target.is_tpu:
            raise self.error("emit_pipeline needs a TPU: plain interpret mode cannot run it", op.line)
        tiles = self.tiles_a_turn(op, strategy, trips, dynamic)
        if 1 < tiles == steps and not dynamic:
            strategy, tiles = LoopStrategy.UNROLL, 1
        issue = entry(self.plan.config, "issue_orders", self.number) or Issue.IN_ORDER
        loop = Loop(op, self.number, axes, strategy, trips, dynamic, len(nest), tiles, issue)
        if tiles > 1 and strategy is not LoopStrategy.FORI:
            self.windows.tiles.update(dict.fromkeys(axes, tiles))  # there is one
        self.number += 1
        return loop

    def tiles_a_turn(self, op: Op, strategy: LoopStrategy, trips: tuple[int, ...], dynamic: bool) -> int:
        """How many tiles a turn of a loop has: as the config says, where that leaves none over."""
        tiles = entry(self.plan.config, "tiles_a_turn", self.number) or 1
        if tiles == 1 or strategy is LoopStrategy.UNROLL:
            return 1
        if len(trips) != 1:
            raise self.error("several tiles a turn of a loop over several axes", op.line)
        (axis,), (count,) = axes_of(op), trips
        if count == 0 or count % tiles or (dynamic and not self.ends_with_turn(axis, tiles)):
            raise self.error(f"the tiles of the loop do not go into turns of {tiles}", op.line)
        return tiles

    def ends_with_turn(self, axis: int, tiles: int) -> bool:
        """Whether an axis that ends with a tile of the grid, or where one begins, always has whole turns of ``tiles`` tiles."""
        info = self.program.axes[axis]
        end = self.windows.defs.get(info.end.id) if isinstance(info.end, Ref) else None
        outer = end.args[0] if end is not None and end.name in ("hl.tile_end", "hl.tile_begin") else None
        if info.begin != 0 or not isinstance(outer, int) or self.program.axes[outer].begin != 0:
            return False
        return self.blocks[self.program.axes[outer].block] % (self.blocks[info.block] * tiles) == 0

    # -------------------------------------------------------------------------------------------- operands

    def make_operands(self, launch: Launch) -> None:
        by_tensor: dict[int, list[Access]] = {}
        for access in self.accesses:
            by_tensor.setdefault(access.tensor, []).append(access)
        for tensor, accesses in by_tensor.items():
            if any(a.memory.writes for a in accesses):
                operand = self.written(launch, tensor, accesses)
                launch.operands.append(operand)
                launch.by_access.update((id(a.op), operand) for a in accesses)
                continue
            in_smem = self.is_scalars(tensor, accesses)
            for access in accesses:
                place = None if in_smem else self.windows.place(access)
                launch.by_access[id(access.op)] = self.read(launch, tensor, place)

    def is_scalars(self, tensor: int, accesses: Sequence[Access]) -> bool:
        """Whether a tensor is read one element at a time: then it is in SMEM, where a position may be any scalar."""
        shape = self.windows.shape(tensor)
        if 0 in shape or math.prod(shape) * 4 > SCALAR_BYTES or ITEMSIZE[self.program.types[tensor].dtype] > 4:
            return False
        return not shape or not any(self.windows.shape(r) for a in accesses for r in a.op.results)

    def read(self, launch: Launch, tensor: int, place: Place | None) -> Operand:
        new = self.operand(launch, tensor, place)
        for operand in launch.operands:
            same = operand.tensor == tensor and operand.level == new.level and operand.window == new.window
            if same and operand.loop is new.loop:
                return operand
        launch.operands.append(new)
        return new

    def written(self, launch: Launch, tensor: int, accesses: Sequence[Access]) -> Operand:
        """The one operand of a tensor that is written: blocks where each is visited once, else all of the tensor."""
        init, place = self.windows.needs_init(accesses), self.windows.joined(accesses)
        if not self.keeps(launch.axes, launch, accesses, place, init):
            if launch.axes != axes_of(self.op) and self.keeps(axes_of(self.op), launch, accesses, place, init):
                raise self.error("this grid order comes back to blocks of a tensor that it has left", accesses[0].op.line)
            place = self.windows.everything(accesses)
        operand = self.operand(launch, tensor, place)
        operand.written, operand.init = True, init
        # In interpret mode the aliased argument is what windows begin as: see ``emit``.
        operand.alias = init and not (self.target.is_tpu and self.windows.visits_all(tensor, place))
        return operand

    def operand(self, launch: Launch, tensor: int, place: Place | None) -> Operand:
        shape, dtype = self.windows.shape(tensor), self.program.types[tensor].dtype
        name = f"t{tensor}_{len(launch.operands)}"
        if place is None:
            return Operand(name, tensor, (math.prod(shape),), dtype, None, None, None)
        shown = (*(1,) * (2 - len(shape)), *shape)
        return Operand(name, tensor, shown, dtype, place.level.number if place.level else None, place.window, place.follows)

    def keeps(self, axes: Sequence[int], launch: Launch, accesses: Sequence[Access], place: Place, init: bool) -> bool:
        """Whether what is written to the blocks of ``place`` stays where the grid nests ``axes`` in this order. A block that is left
        and come back to is written over, not read back: unless each visit fills it, its visits must be consecutive."""
        if not init and any(self.fills(launch, a, place) for a in accesses):
            return True
        if place.level is not None:
            return False
        moving = place.axes()
        # (whether the block moves on this grid axis) for the axes that have more than one step, outermost first.
        moves = [a in moving for a in axes if self.windows.trips(a)[0] > 1]
        moves += [place.follows is not None] if launch.folded_steps > 1 else []
        return not any(not still and any(moves[i:]) for i, still in enumerate(moves))

    def fills(self, launch: Launch, access: Access, place: Place) -> bool:
        """Whether a covering store fills the window at each visit: nothing slices it that has more than one visit."""
        around = access.nest[: access.nest.index(place.level) + 1] if place.level in access.nest else tuple(launch.folded)
        stepping = {*launch.axes, *(a for loop in around for a in loop.axes)}
        return self.windows.covers(access) and not self.windows.sliced(access, place.window, stepping)

    # -------------------------------------------------------------------------------------------- limits

    def buffers(self, operand: Operand) -> int:
        """How many blocks of ``operand`` are in VMEM at once: as the config says, else two where the block moves.

        The pipeline that Mosaic makes of a ``pallas_call`` has one or two; ``emit_pipeline`` has more for what is only read.
        """
        if not operand.moves:
            return 1
        count = self.plan.buffer_counts.get((self.ordinal, operand.tensor))
        most = MAX_BUFFERS if operand.level is not None and not operand.written else 2
        if count is not None and count > most:
            where = "a block of the grid" if operand.level is None else "what a pipeline writes"
            raise self.error(f"{count} buffers: {where} has {most} at most")
        return 2 if count is None else count

    def parallel(self, launch: Launch) -> tuple[int, ...]:
        """The grid axes to share out between cores: all that lead the grid and may be, or the one that the config says."""
        moving = [operand.axes() for operand in launch.operands if operand.written]
        safe = [axis for axis in launch.axes if all(axis in axes for axes in moving)]
        written, splits = axes_of(self.op), self.plan.config.get("core_splits", ())
        split = splits[self.ordinal] if self.ordinal < len(splits) else None
        if split is None or not self.target.is_tpu or self.target.info.num_cores == 1:
            return tuple(axis for axis, leads in zip(launch.axes, safe, strict=False) if axis == leads)
        if split >= len(written):
            raise self.error(f"cores split axis {split}, the outer loop has {len(written)}")
        if written[split] not in safe:
            raise self.error(f"cores cannot split axis {split}: several of its tiles write the same elements")
        return (written[split],)

    def is_flat(self, launch: Launch, operand: Operand) -> bool:
        """Whether a tensor of rank 1 stays as it is: where it is only read, a whole block at a time. A row of most dtypes and lengths is
        laid out in another way on a TPU, and XLA would copy the tensor before every call."""
        if not self.target.is_tpu or operand.written or operand.window is None or operand.level is not None:
            return False
        size, unit = operand.window[-1].size, LANES * max(1, 4 // ITEMSIZE[operand.dtype])
        blocks_fit = size % (LANES * SUBLANES) == 0 or (size >= unit and size & (size - 1) == 0)  # Pallas' rule
        if len(self.windows.shape(operand.tensor)) != 1 or not (blocks_fit or size == operand.shape[-1]):
            return False
        return all(self.windows.takes_all(a, operand.window) for a in self.accesses if launch.by_access[id(a.op)] is operand)

    def moves(self, launch: Launch, operand: Operand) -> bool:
        """Whether a step has another block of ``operand`` than some step before it."""
        if operand.window is None:
            return False
        stepping = {a for a, n in zip(launch.axes, launch.trips, strict=True) if n > 1}
        for loop in launch.loops:
            if operand.loop is loop or operand.level is not None:
                stepping.update(a for a, n in zip(loop.axes, loop.trips, strict=True) if n != 1 or loop.dynamic)
        return bool(operand.axes() & stepping)

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


def reads(program: Program, op: Op) -> set[int]:
    """Values that an operation and its regions read, bounds of loops among them."""
    found = {r.id for r in reads_of(op, program.axes)}
    for region in op.regions:
        found.update(r.id for r in refs_in(region.results))
        for inner in region.ops:
            found |= reads(program, inner)
    return found


__all__ = ["Access", "DimKind", "Launch", "Loop", "LoopInfo", "Operand", "Plan", "WindowDim", "block_sizes",
           "buffer_places", "legalized", "loops", "make_plan", "origins", "padded_bytes", "reads", "strategies_that_fit"]  # fmt: skip
