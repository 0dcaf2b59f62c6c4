"""The modelled ranking: flops, bytes and steps of a config as seconds. It orders candidates, thousands a second; it decides nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

from helion_rt.config import Config, LoopStrategy
from helion_rt.program.ir import Program
from helion_rt.schedule.units import Rates, rates
from helion_rt.targets import Target

from .work import Body, Move, Product, Work, count

# Cycles of a TPU: a step of the grid or of a nested pipeline beside its work (128-blocks of a 4096^3 matmul take 11.8 ms on a v5e,
# 32768 steps; 565 cycles a step are scheduled for a 7x), a turn of a rolled loop, the start of a nested pipeline beside its first copy.
STEP_CYCLES = 500.0
TURN_CYCLES = 60.0
PIPELINE_CYCLES = 1200.0

VREG = 1024.0  # elements of 32 bits in a vector register of a TPU
VECTOR_SLOTS = 2.5  # of the four a bundle has, what code as it is fills
XLU_CYCLES = 8.0  # to reduce the lanes of eight rows
FEWEST_ROWS = 64.0  # that pay for loading a square of weights into the MXU
SECONDARY = 0.25  # of what the busiest unit does not hide of the others' work
PASSES = {4: 6.0}  # of bfloat16 products, by bytes an element: float32 is multiplied exactly

EASY_CYCLES = 8192.0  # of a straight line, which the compiler schedules in seconds
EFFORT = 0.03  # of the time, for each doubling of that

# Of a plain CPU, per second: products, vector instructions (elements), bytes. A step of the grid in interpret mode costs something
# fixed and copies what the launch writes (measured: matmul 1024^3 with 128-blocks takes 0.5 ms a step, its result has 4 MiB; a reduction
# of rows pays nothing of the kind); a turn of a rolled loop carries its variables. What an unrolled loop costs is compiled away.
CPU_FLOPS = 5e10
CPU_VECTOR = 4e9
CPU_BYTES = 1e10
CPU_COPY_BYTES = 1e10
CPU_STEP_SECONDS = 2e-5
CPU_TURN_SECONDS = 3e-6
CPU_CALL_SECONDS = 2e-5


def seconds(program: Program, config: Config, target: Target) -> float:
    """Modelled seconds of one call of ``program`` under ``config``."""
    point = _Point(program, count(program), config)
    return _on_cpu(point) if not target.is_tpu else _on_tpu(point, rates(target))


def effort(program: Program, config: Config, target: Target) -> float:
    """By what to multiply ``seconds`` for an order in which to compile: 1, and more for bodies that take the compiler long.

    A straight line of so many cycles is as many bundles to schedule: a product of 1024 x 1024 x 4096 is a minute of libtpu's time, and
    hardly better than one of a quarter that is compiled in seconds.
    """
    if not target.is_tpu:
        return 1.0
    point, core = _Point(program, count(program), config), rates(target)
    copies: list[float] = []
    longest = 1.0
    for number, body in enumerate(point.work.bodies):
        unrolled = point.own[number] if point.strategy(body) is LoopStrategy.UNROLL else 1.0
        copies.append(unrolled * (1.0 if body.around is None else copies[body.around]))
        longest = max(longest, copies[number] * _step_cycles(point, body, core))
    return 1.0 + EFFORT * math.log2(max(longest / EASY_CYCLES, 1.0))


def steps(program: Program, config: Config) -> float:
    """Steps of all loops of one call, those inside others as often as they are entered."""
    point = _Point(program, count(program), config)
    return sum(point.visits)


class _Point:
    """A config with what follows from it for every body."""

    def __init__(self, program: Program, work: Work, config: Config) -> None:
        self.work = work
        self.config = config
        self.sizes = program.block_sizes(tuple(config.get("block_sizes") or ()))
        self.trips = {axis: trips(self.sizes) for axis, trips in work.trips.items()}
        chosen = config.get("loop_strategies") or ()
        self.strategies = [LoopStrategy(s) for s in chosen]
        self.own = [math.prod([self.trips[a] for a in body.axes]) for body in work.bodies]
        self.visits: list[float] = []
        for body, own in zip(work.bodies, self.own, strict=True):
            self.visits.append(float(own) * (1.0 if body.around is None else self.visits[body.around]))

    def strategy(self, body: Body) -> LoopStrategy | None:
        """How a loop is run; None for a launch. A loop of one step is a straight line whatever was chosen."""
        if body.loop is None:
            return None
        own = math.prod([self.trips[a] for a in body.axes])
        chosen = self.strategies[body.loop] if body.loop < len(self.strategies) else LoopStrategy.FORI
        return LoopStrategy.UNROLL if own <= 1 else chosen

    def chain(self, number: int) -> list[Body]:
        """A body and those around it, the launch first."""
        found: list[Body] = []
        at: int | None = number
        while at is not None:
            found.insert(0, self.work.bodies[at])
            at = self.work.bodies[at].around
        return found

    def launch_axes(self, launch: Body) -> tuple[int, ...]:
        """The axes of the grid, outermost first."""
        orders = self.config.get("grid_orders") or ()
        which = [body for body in self.work.bodies if body.around is None].index(launch)
        order = orders[which] if which < len(orders) else None
        return tuple(launch.axes[i] for i in order) if order and len(order) == len(launch.axes) else launch.axes


@dataclass(slots=True)
class _Traffic:
    """Of one operand: bytes of a window, and how often it is fetched or written."""

    bytes: float
    times: float


def _traffic(point: _Point, number: int, move: Move) -> _Traffic:
    """What an access moves. A window is kept while the axes that move it stand still; a loop over resident operands needs all of them."""
    chain = point.chain(number)
    stepping = list(point.launch_axes(chain[0]))
    restarts = 0  # axes that are outside of the innermost nested pipeline: it begins anew at each of their steps
    for body in chain[1:]:
        strategy = point.strategy(body)
        if strategy is LoopStrategy.EMIT_PIPELINE:
            restarts = len(stepping)
            stepping += body.axes
        elif strategy is LoopStrategy.GRID:
            stepping += body.axes
    size = 1.0
    for axis, extent in zip(move.dims, move.shape, strict=False):
        elements = extent(point.sizes)
        size *= elements if axis is None or axis in stepping else elements * point.trips[axis]
    for extent in move.shape[len(move.dims) :]:
        size *= extent(point.sizes)
    if move.indirect:
        return _Traffic(size * move.item, point.visits[number])
    last = max((i for i, axis in enumerate(stepping) if axis in move.moved and point.trips[axis] > 1), default=-1)
    last = max(last, restarts - 1)
    return _Traffic(size * move.item, float(math.prod([point.trips[axis] for axis in stepping[: last + 1]])))


# ------------------------------------------------------------------------------------------------ TPUs


def _on_tpu(point: _Point, core: Rates) -> float:
    total = 0.0
    for number, body in enumerate(point.work.bodies):
        if body.around is None:
            total += _launch_cycles(point, number, core)
    return total / core.clock


def _launch_cycles(point: _Point, launch: int, core: Rates) -> float:
    """The longer of computing and copying, and what neither hides: the first copy in, the last one out."""
    compute = copied = fill = 0.0
    for number, body in enumerate(point.work.bodies):
        chain = point.chain(number)
        if chain[0] is not point.work.bodies[launch]:
            continue
        strategy, visits = point.strategy(body), point.visits[number]
        compute += visits * _step_cycles(point, body, core)
        if strategy in (None, LoopStrategy.GRID, LoopStrategy.EMIT_PIPELINE):
            compute += visits * STEP_CYCLES
        elif strategy is LoopStrategy.FORI:
            compute += visits * TURN_CYCLES
        windows = [_traffic(point, number, move) for move in (*body.loads, *body.stores)]
        copied += sum(w.bytes * w.times for w in windows) / core.hbm
        first = sum(w.bytes for w in windows) / core.hbm
        fill += first
        if strategy is LoopStrategy.EMIT_PIPELINE and body.around is not None:
            compute += (point.visits[body.around] - 1) * first + point.visits[body.around] * PIPELINE_CYCLES
    return max(compute, copied) + fill


def _step_cycles(point: _Point, body: Body, core: Rates) -> float:
    """One step of a body: its busiest unit, and a share of the others."""
    sizes = point.sizes
    mxu = sum(_product_cycles(product, point, core) for product in body.products)
    vector = sum(v.elements(sizes) * v.cost for v in body.vectors) / VREG / VECTOR_SLOTS
    lanes = sum(v.rows(sizes) for v in body.vectors if v.rows is not None) / 8 * XLU_CYCLES
    stores = sum(elements(sizes) for elements in body.carried) / VREG
    turned = point.config.get("orientations") or ()
    if body.loop is not None and body.loop < len(turned) and turned[body.loop] not in (None, "rows"):
        lanes = 0.0  # values run down the sublanes: nothing is reduced across lanes
    units = (mxu, vector, lanes, stores)
    return max(units) + SECONDARY * (sum(units) - max(units))


def _product_cycles(product: Product, point: _Point, core: Rates) -> float:
    sizes = point.sizes
    rows = max(_up(product.m(sizes), 8), FEWEST_ROWS)
    columns, inner = _up(product.n(sizes), core.columns), _up(product.k(sizes), core.columns)
    return PASSES.get(product.item, 1.0) * 2.0 * product.batch(sizes) * rows * columns * inner / core.mxu_flops


def _up(n: float, unit: int) -> float:
    return math.ceil(n / unit) * unit


# ------------------------------------------------------------------------------------------------ the CPU


def _on_cpu(point: _Point) -> float:
    total = CPU_CALL_SECONDS
    for number, body in enumerate(point.work.bodies):
        chain = point.chain(number)
        strategy, visits = point.strategy(body), point.visits[number]
        total += visits * _cpu_step(point, body)
        if strategy in (None, LoopStrategy.GRID) and point.own[number] > 1:
            written = {m.tensor for at, b in enumerate(point.work.bodies) if point.chain(at)[0] is chain[0] for m in b.stores}
            total += visits * (CPU_STEP_SECONDS + sum(point.work.tensors[t] for t in written) / CPU_COPY_BYTES)
        elif strategy is LoopStrategy.FORI:
            total += visits * (CPU_TURN_SECONDS + 4 * sum(c(point.sizes) for c in body.carried) / CPU_BYTES)
    return total


def _cpu_step(point: _Point, body: Body) -> float:
    sizes = point.sizes
    flops = sum(2.0 * p.batch(sizes) * p.m(sizes) * p.n(sizes) * p.k(sizes) for p in body.products)
    vector = sum(v.elements(sizes) * v.cost for v in body.vectors)
    moved = sum(m.item * math.prod([s(sizes) for s in m.shape]) for m in (*body.loads, *body.stores))
    return flops / CPU_FLOPS + vector / CPU_VECTOR + moved / CPU_BYTES
