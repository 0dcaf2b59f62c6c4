"""Knobs: the choices of a config beside block sizes and loop strategies, and which of them do something.

What plans and strategies can do in more than one way is listed here, so that the tuner's space never needs to know how it is done.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ..config import MAX_BUFFERS, Config, Issue, LoopStrategy, Orientation, VmemLimit
from ..exc import PlanError
from ..program.ir import Arg, Op, Program, Ref, TileIndex, refs_in, walk
from ..program.regions import axes_of
from ..targets import Target
from .bill import vmem_limit
from .grid_orders import why_fixed
from .issue import parts
from .memory import Memory, memory_of
from .orient import applies, gains
from .plan import Launch, Loop, Operand, Plan, block_sizes, buffer_places, entry, legalized, loops, make_plan, origins

TILES_A_TURN = (1, 2, 4)
MAX_PERMUTED = 3  # axes of a launch whose orders are all offered; of more axes, which one is innermost


@dataclass(frozen=True, slots=True)
class Knob:
    """One choice. ``key`` is its key in a ``Config``; ``index`` its place in the list under that key (None: the key holds one value).

    ``values``: what it may be, the default first.
    """

    key: str
    index: int | None
    values: tuple[Any, ...]

    def of(self, config: Config) -> Any:
        """The value that ``config`` gives this knob; the default where it says nothing."""
        value = config.get(self.key)
        if self.index is not None:
            value = value[self.index] if value is not None and self.index < len(value) else None
        value = tuple(value) if isinstance(value, list) else value
        return self.values[0] if value is None else value

    def put(self, config: Config, value: Any) -> Config:
        """``config`` with this knob at ``value``; other entries of the same list stay, those that it lacks are None: the default."""
        if self.index is None:
            return config.replace(**{self.key: value})
        items = list(config.get(self.key) or ())
        items += [None] * (self.index + 1 - len(items))
        items[self.index] = value
        return config.replace(**{self.key: items})


def knobs(program: Program, target: Target) -> tuple[Knob, ...]:
    """The knobs of ``program`` on ``target``, whatever the block sizes. Empty where there is nothing to choose.

    A value can be illegal with some block sizes and strategies (``make_plan`` says so) or do nothing there (``canonical`` drops it).
    """
    if not target.is_tpu:
        return ()  # interpret mode copies all operands at every step: neither order nor buffers change anything
    splits = _core_splits(program) if target.info.num_cores > 1 else ()
    limits = [Knob("vmem_limits", n, tuple(VmemLimit)) for n in range(len(program.launches))] if target.copies_ahead else []
    return (*_inner_loops(program), *_grid_orders(program), *_buffer_counts(program), *splits, *limits)


def _inner_loops(program: Program) -> Iterator[Knob]:
    """How values lie in each inner loop, and how its tiles overlap: where it multiplies matrices and does other things with them."""
    legal = legalized(program)
    inner = [(launch, op) for launch in legal.launches for op in walk(launch.regions[0]) if op.name == "hl.loop"]
    for n, (launch, op) in enumerate(inner):
        if gains(op, legal.types):
            yield Knob("orientations", n, tuple(Orientation))
        if parts(op.regions[0], legal.axes, frozenset(r.id for r in refs_in(launch.args[1]))) is not None:
            yield Knob("issue_orders", n, tuple(Issue))
            if len(axes_of(op)) == 1:
                yield Knob("tiles_a_turn", n, TILES_A_TURN)


def _grid_orders(program: Program) -> Iterator[Knob]:
    """The order of the grid axes of each launch where there is one to choose."""
    for n, axes, several in _free_axes(program):
        if len(several) <= MAX_PERMUTED:
            orders = list(itertools.permutations(several))
        else:
            orders = [tuple(several), *((*(i for i in several if i != last), last) for last in several[:-1])]
        yield Knob("grid_orders", n, tuple(_in_places(range(len(axes)), several, order) for order in orders))


def _core_splits(program: Program) -> Iterator[Knob]:
    """The axis that two cores share out between them; the compiler takes the first with an even number of tiles."""
    for n, _, several in _free_axes(program):
        yield Knob("core_splits", n, (None, *several))


def _free_axes(program: Program) -> Iterator[tuple[int, tuple[int, ...], list[int]]]:
    """(number, axes, places of the axes that can have several tiles) of each launch that has several such, all of them free."""
    for n, launch in enumerate(legalized(program).launches):
        axes = axes_of(launch)
        several = [i for i, axis in enumerate(axes) if not _has_one_tile(program, axis)]
        if len(several) > 1 and why_fixed(launch, [axes[i] for i in several], _positions(launch)) is None:
            yield n, axes, several


def _positions(launch: Op) -> Callable[[Arg], int | None]:
    """The axis that an element of an index moves with: a tile, or the position of one."""
    begins = {op.results[0]: op.args[0] for op in walk(launch.regions[0]) if op.name in ("hl.tile_begin", "hl.tile_id")}

    def axis_of(element: Arg) -> int | None:
        axis = element.axis if isinstance(element, TileIndex) else begins.get(element.id) if isinstance(element, Ref) else None
        return axis if isinstance(axis, int) else None

    return axis_of


def _has_one_tile(program: Program, axis: int) -> bool:
    """Whether ``axis`` has one tile at most whatever the config."""
    info = program.axes[axis]
    fixed = program.blocks[info.block].fixed
    if isinstance(info.begin, Ref) or isinstance(info.end, Ref):
        return False
    if not (isinstance(info.begin, int) and isinstance(info.end, int)):
        return False
    extent = info.end - info.begin
    return extent <= 1 or (isinstance(fixed, int) and extent <= fixed)


def _buffer_counts(program: Program) -> Iterator[Knob]:
    legal = legalized(program)
    seen = origins(legal, {})
    deep = any(LoopStrategy.EMIT_PIPELINE in loop.choices for loop in loops(program))
    for n, (launch, tensor) in enumerate(buffer_places(legal)):
        region = legal.launches[launch].regions[0]

        def accesses(ops: Iterable[Op], tensor: int = tensor) -> list[Memory]:
            return [m for op in ops if (m := memory_of(op)) and seen.get(m.tensor.id, m.tensor.id) == tensor]

        looped = any(accesses(walk(op.regions[0])) for op in walk(region) if op.name == "hl.loop")
        more = deep and looped and not any(m.writes for m in accesses(walk(region)))
        yield Knob("buffer_counts", n, (2, 1, *range(3, MAX_BUFFERS + 1)) if more else (2, 1))


# ------------------------------------------------------------------------------------------------ one config for one plan


def canonical(program: Program, config: Config, target: Target) -> Config:
    """``config`` without choices that do nothing in its plan, or that are the default: configs that make the same plan become equal.

    Block sizes become those that are used (never larger than what they tile), and a loop of one step is unrolled. Raises ``PlanError``
    as ``make_plan`` does.
    """
    plan, sizes = make_plan(program, config, target), block_sizes(program, config)
    choices = config.to_dict()
    if "block_sizes" in choices:
        choices["block_sizes"] = [sizes[b] for b in program.tunable_blocks]
    if "loop_strategies" in choices:
        choices["loop_strategies"] = [_strategy(loop) for launch in plan.launches for loop in launch.loops]
    inner = [(launch, loop) for launch in plan.launches for loop in launch.loops]
    for key, used in (("orientations", _orientation), ("issue_orders", _issue), ("tiles_a_turn", _tiles)):
        _set(choices, key, [used(plan, launch, loop) for launch, loop in inner] if key in choices else [])
    _set(choices, "buffer_counts", _used_counts(plan, program) if "buffer_counts" in choices and target.is_tpu else [])
    _set(choices, "core_splits", [_split(plan, n) for n in range(len(plan.launches))] if "core_splits" in choices else [])
    _set(choices, "vmem_limits", [_limit(plan, launch) for launch in plan.launches] if "vmem_limits" in choices else [])
    split = target.is_tpu and target.info.num_cores > 1
    orders = [_order(launch, split=split) for launch in plan.launches] if "grid_orders" in choices else []
    given = choices.pop("grid_orders", None)
    _set(choices, "grid_orders", orders)
    found = Config(**choices)
    if given is not None and orders != given and not _same_windows(plan, program, found, target):
        _set(choices, "grid_orders", list(given))
        found = Config(**choices)
    return found


def _set(choices: dict[str, Any], key: str, items: list[Any]) -> None:
    """Sets ``items`` without the Nones at its end; nothing at all if there is none left."""
    while items and items[-1] is None:
        items = items[:-1]
    choices.pop(key, None)
    if items:
        choices[key] = items


def _strategy(loop: Loop) -> LoopStrategy:
    return LoopStrategy.UNROLL if loop.steps <= 1 and not loop.dynamic else loop.strategy


def _orientation(plan: Plan, launch: Launch, loop: Loop) -> Orientation | None:
    columns = entry(plan.config, "orientations", loop.number) is Orientation.COLUMNS
    return Orientation.COLUMNS if columns and applies(loop.op, plan.program.types) else None


def _issue(plan: Plan, launch: Launch, loop: Loop) -> Issue | None:
    """``AHEAD`` where a turn has a next tile, and a part of it that can come early."""
    several = loop.tiles > 1 or (loop.strategy is LoopStrategy.UNROLL and not loop.dynamic and loop.steps > 1)
    if loop.issue is Issue.IN_ORDER or not several:
        return None
    written = frozenset(o.tensor for o in launch.operands if o.written)
    return Issue.AHEAD if parts(loop.op.regions[0], plan.program.axes, written) is not None else None


def _tiles(plan: Plan, launch: Launch, loop: Loop) -> int | None:
    return loop.tiles if loop.tiles > 1 else None


def _used_counts(plan: Plan, program: Program) -> list[int | None]:
    """The buffer counts that differ from what the operands would have unasked."""
    seen = origins(legalized(program), plan.folded)
    moving = {(n, seen.get(o.tensor, o.tensor)) for n, launch in enumerate(plan.launches) for o in launch.operands if o.moves}
    counts = [(place, plan.buffer_counts.get(place)) for place in buffer_places(legalized(program))]
    return [count if place in moving and count != 2 else None for place, count in counts]


def _split(plan: Plan, n: int) -> int | None:
    """The axis that the cores split; None for what the compiler takes unasked: the first parallel one with an even number of tiles."""
    launch, splits = plan.launches[n], plan.config.get("core_splits") or []
    asked = splits[n] if n < len(splits) else None
    if asked is None or not plan.target.is_tpu or plan.target.info.num_cores == 1:
        return None
    trips = dict(zip(launch.axes, launch.trips, strict=True))
    axis = axes_of(launch.op)[asked]
    first = next((a for a in launch.axes if trips[a] > 1), None)
    return None if trips[axis] == 1 or (axis == first and trips[axis] % 2 == 0) else asked


def _limit(plan: Plan, launch: Launch) -> VmemLimit | None:
    """``MOST`` where it is more than the launch would ask for anyhow."""
    needed = vmem_limit(launch.vmem_bytes, plan.target) if plan.target.is_tpu else launch.vmem_limit
    return VmemLimit.MOST if launch.vmem_limit != needed else None


def _order(launch: Launch, *, split: bool) -> list[int] | None:
    """The grid order of ``launch`` in a normal form, None for the order as written.

    Axes of one tile stay where they were written, and neighbours with which the same operands move are sorted: it is the same to
    every copy which of the two is the inner one. (Not to cores, which split the outer one.)
    """
    written = axes_of(launch.op)
    moving = [written.index(a) for a, n in zip(launch.axes, launch.trips, strict=True) if n > 1]
    runs = itertools.groupby(moving, key=lambda place: place if split else frozenset(_moving_with(launch, written[place])))
    order = _in_places(range(len(written)), sorted(moving), [place for _, run in runs for place in sorted(run)])
    return None if list(order) == sorted(order) else list(order)


def _moving_with(launch: Launch, axis: int) -> Iterator[int]:
    return (n for n, operand in enumerate(launch.operands) if axis in _axes(operand))


def _axes(operand: Operand) -> set[int]:
    return {d.axis for d in operand.window or () if d.axis is not None}


def _in_places(places: range, several: list[int], order: Any) -> tuple[int, ...]:
    """``places`` with those of ``several`` taken by the members of ``order``, in turn."""
    rest = iter(order)
    return tuple(next(rest) if place in several else place for place in places)


def _same_windows(plan: Plan, program: Program, config: Config, target: Target) -> bool:
    """Whether ``config`` has the same operands as ``plan``: another grid order can let blocks be revisited, or not."""
    try:
        other = make_plan(program, config, target)
    except PlanError:
        return False
    pairs = zip(plan.launches, other.launches, strict=True)
    return all([(o.tensor, o.level, o.window) for o in a.operands] == [(o.tensor, o.level, o.window) for o in b.operands] for a, b in pairs)


__all__ = ["Knob", "canonical", "knobs"]
