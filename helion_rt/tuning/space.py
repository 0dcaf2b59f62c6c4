"""The space: every config of one program on one target that is worth a thought, and the safe default among them."""

from __future__ import annotations

import functools
import itertools
import logging
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

from helion_rt import lowering
from helion_rt.config import Config, LoopStrategy
from helion_rt.exc import ConfigError, EmptyTensor, PlanError
from helion_rt.lowering import knobs
from helion_rt.program.expr import blocks_in, evaluate
from helion_rt.program.ir import Op, Program, Ref, walk
from helion_rt.program.regions import CARRYING, axes_of
from helion_rt.targets import Target

from . import growth, ladder

logger = logging.getLogger("helion_rt.tuning")

# Raise it when the meaning or the choice of configs changes: a record of another version is a hint, not a winner.
SPACE_VERSION = 3

# The largest value of a tile, in elements. On the CPU a grid step costs a copy of the launch's arrays (interpret mode:
# softmax of 2048 x 8192 took 8.1 s with 16 rows a block, 0.3 s in one step), so blocks are as large as memory manners
# allow: 64 MiB of float32. On a TPU they start at what fills its units, and grow where that makes a small tile (``growth``).
CPU_TILE_ELEMENTS = 1 << 24
TPU_FIRST_BLOCK = 512
# A loop whose end is in the data does the work of whole blocks: on the CPU such a block starts at this share of its axis.
DYNAMIC_SHARE = 8

MAX_SHRINKS = 64
MAX_TRIED = 4096
MAX_ASSIGNMENTS = 81  # of strategies to loops, for one choice of blocks

# An unrolled nest of more steps than this takes the compiler minutes; on the CPU a step costs at least 20 us, so that nothing
# of many more steps than the default can be any good.
MAX_UNROLLED = 64
CPU_STEPS = 2048
CPU_STEPS_OF_DEFAULT = 8

# What to try first. On the CPU the pipeline does not run and a straight line of code is what XLA likes best; on a TPU
# `grid` has no bubble between outer steps and no limit on the length of the loop.
CPU_STRATEGIES = (LoopStrategy.UNROLL, LoopStrategy.FORI, LoopStrategy.GRID)
TPU_STRATEGIES = (LoopStrategy.GRID, LoopStrategy.UNROLL, LoopStrategy.EMIT_PIPELINE, LoopStrategy.FORI)


class Space:
    """The configs of ``program`` on ``target``; ``only`` restricts it to the user's own ``configs=[...]`` (and the default).

    A point is a choice of sizes for the tunable blocks, of a strategy for each inner loop, and of values for the ``knobs`` of
    the lowering. What a knob does is no concern of the space: it asks the lowering for the canonical form of a point, so that
    points which make the same plan are one.
    """

    def __init__(self, program: Program, target: Target, only: Sequence[Config] = ()) -> None:
        self.program = program
        self.target = target
        ordered = TPU_STRATEGIES if target.is_tpu else CPU_STRATEGIES
        # For each inner loop the strategies that a plan can give it, what to try first first.
        self.strategies = [tuple(s for s in ordered if s in loop.choices) for loop in lowering.loops(program)]
        self.loop_count = len(self.strategies)
        self.knobs = knobs.knobs(program, target)
        self.infos = [program.blocks[i] for i in program.tunable_blocks]
        assignments = sum(1 for _ in _by_preference(self.strategies))
        self._loops = _nests(program)
        self._shapes = [t.shape for t in program.types if any(blocks_in(dim) for dim in t.shape)]
        # On a TPU a block that counts matrices may be 1: sublanes and lanes are filled by the others.
        self._leading = [target.is_tpu and leads(block, self._shapes) for block in program.tunable_blocks]
        smallest = [1 if leading else ladder.SMALLEST_START for leading in self._leading]
        self._powers = [ladder.powers(info, least) for info, least in zip(self.infos, smallest, strict=True)]
        self.sizes = [
            ladder.sizes(info, len(self.infos), assignments, target.is_tpu, least) for info, least in zip(self.infos, smallest, strict=True)
        ]
        self._forms: dict[Config, Config | PlanError] = {}
        self._default: Config | None = None
        self._planner_failed = False  # said once a space
        self.only = tuple(self.complete(config) for config in only)

    # ------------------------------------------------------------------------------------------------ configs

    def make(self, blocks: Sequence[int], strategies: Sequence[LoopStrategy]) -> Config:
        """The config of these choices; keys that have nothing to choose are left out."""
        chosen: dict[str, Any] = {"block_sizes": list(blocks)} if blocks else {}
        if self.loop_count:
            chosen["loop_strategies"] = list(strategies)
        return Config(**chosen)

    def complete(self, config: Config) -> Config:
        """A user's config with what it leaves open filled in from the default. Raises ``ConfigError`` for wrong counts."""
        blocks = list(config.get("block_sizes") or ())
        strategies = list(config.get("loop_strategies") or ())
        if blocks and len(blocks) != len(self.infos):
            self.check(config)
        if strategies and len(strategies) != self.loop_count:
            self.check(config)
        if not blocks:
            blocks = list(self.default().get("block_sizes") or ())
        if not strategies and self.loop_count:
            found = self._with_strategies(blocks)
            strategies = list(found["loop_strategies"]) if found else [choices[0] for choices in self.strategies]
        return config.replace(**self.make(blocks, strategies).to_dict())

    def check(self, config: Config) -> None:
        """Raise ``ConfigError`` (wrong counts) or ``PlanError`` (illegal, does not fit) unless ``config`` can be used."""
        wanted = len(self.infos)
        got = len(config.get("block_sizes") or ())
        if got != wanted:
            raise self._config_error(f"the config has {got} block_sizes, the kernel has {wanted} tunable blocks: {config!r}")
        loops = len(config.get("loop_strategies") or ())
        if loops != self.loop_count:
            raise self._config_error(f"the config has {loops} loop_strategies, the kernel has {self.loop_count} inner loops: {config!r}")
        form = self._form(config)
        if isinstance(form, PlanError):
            raise form

    def is_legal(self, config: Config) -> bool:
        return not isinstance(self._form(config), PlanError)

    def canonical(self, config: Config) -> Config | None:
        """The one config of all that make the same plan as ``config``; None if it is illegal."""
        form = self._form(config)
        return None if isinstance(form, PlanError) else form

    # ------------------------------------------------------------------------------------------------ enumeration

    def configs(self) -> Iterator[Config]:
        """Every legal config in canonical form, each once: the default first, then large blocks first."""
        seen = set()
        for config in itertools.chain((self.default(),), *([self.only] if self.only else map(self._turned, self.plain()))):
            form = self.canonical(config)
            if form is not None and form not in seen:
                seen.add(form)
                yield form

    def _turned(self, config: Config) -> Iterator[Config]:
        """``config`` under all values of those knobs that do something there, each by itself."""
        form = self.canonical(config)
        turns: list[list[Any]] = []
        for knob in self.knobs:
            forms = [(value, self.canonical(knob.put(config, value))) for value in knob.values[1:]]
            turns.append([knob.values[0], *(value for value, turned in forms if turned is not None and turned != form)])
        for values in itertools.product(*turns):
            turned = config
            for knob, value in zip(self.knobs, values, strict=True):
                turned = turned if value == knob.values[0] else knob.put(turned, value)
            yield turned

    def plain(self) -> Iterator[Config]:
        """Every choice of blocks and strategies, knobs at their defaults: legal or not (cheap: no plan is made), large blocks first."""
        if self.only:
            yield from self.only
            return
        assignments = list(_by_preference(self.strategies))
        for blocks in itertools.product(*(tuple(reversed(sizes)) for sizes in self.sizes)):
            if not self.target.is_tpu and self.tile_elements(blocks) > CPU_TILE_ELEMENTS:
                continue
            steps = self._steps(blocks)
            for strategies in assignments:
                if self._bearable(steps, strategies):
                    yield self.make(blocks, strategies)

    def some(self, limit: int, seed: int = 0) -> list[Config]:
        """All of ``plain`` where there are at most ``limit`` choices, else ``limit`` of them drawn with ``seed``, in order."""
        if self.only:
            return list(self.only)
        assignments = list(_by_preference(self.strategies))
        counts = [len(sizes) for sizes in self.sizes]
        total = math.prod(counts) * len(assignments)
        if total <= limit:
            return list(self.plain())
        drawn = []
        for number in sorted(random.Random(seed).sample(range(total), limit)):
            number, which = divmod(number, len(assignments))
            blocks: list[int] = []
            for sizes in reversed(self.sizes):
                number, at = divmod(number, len(sizes))
                blocks.insert(0, sizes[len(sizes) - 1 - at])
            fits = self.target.is_tpu or self.tile_elements(blocks) <= CPU_TILE_ELEMENTS
            if fits and self._bearable(self._steps(blocks), assignments[which]):
                drawn.append(self.make(blocks, assignments[which]))
        return drawn

    def neighbours(self, config: Config) -> Iterator[Config]:
        """Legal configs that differ in one choice: a block by one step or by half and double, a strategy or a knob at all."""
        if self.only:
            yield from (other for other in self.only if other != config and self.is_legal(other))
            return
        seen = {config}
        for other in self._around(config):
            form = self.canonical(other)
            if form is not None and form not in seen:
                seen.add(form)
                yield form

    def _around(self, config: Config) -> Iterator[Config]:
        blocks = tuple(config.get("block_sizes") or ())
        strategies = tuple(config.get("loop_strategies") or ())
        for i, (size, sizes) in enumerate(zip(blocks, self.sizes, strict=True)):
            below = [s for s in sizes if s < size]
            above = [s for s in sizes if s > size]
            half, double = [s for s in below if 2 * s <= size][-1:], [s for s in above if s >= 2 * size][:1]
            for other in dict.fromkeys((*below[-1:], *above[:1], *half, *double)):
                near = (*blocks[:i], other, *blocks[i + 1 :])
                if self._bearable(self._steps(near), strategies):
                    yield config.replace(block_sizes=list(near))
        for i, strategy in enumerate(strategies):
            for choice in self.strategies[i]:
                turned = (*strategies[:i], choice, *strategies[i + 1 :])
                if choice != strategy and self._bearable(self._steps(blocks), turned):
                    yield config.replace(loop_strategies=list(turned))
        for knob in self.knobs:
            for value in knob.values:
                yield knob.put(config, value)

    def simplicity(self, config: Config) -> tuple[Any, ...]:
        """A total order: the smaller of two that are as fast is the one to keep. The default is the simplest of all.

        Then: fewer choices beside blocks and strategies; strategies that are tried earlier; blocks that are powers of two or
        whole; larger blocks.
        """
        own = {name: value for name, value in config.to_dict().items() if name not in ("block_sizes", "loop_strategies")}
        blocks = tuple(config.get("block_sizes") or ())
        odd = sum(size & (size - 1) != 0 and size != info.extent for size, info in zip(blocks, self.infos, strict=False))
        strategies = tuple(
            choices.index(s) if s in choices else len(choices)
            for s, choices in zip(config.get("loop_strategies") or (), self.strategies, strict=False)
        )
        return (config != self.default(), len(own), sum(strategies), odd, tuple(-size for size in blocks), strategies, repr(own))

    # ------------------------------------------------------------------------------------------------ the default

    def default(self) -> Config:
        """The safe config that serves before anything is known. Raises ``PlanError`` if no config of the space is legal."""
        if self._default is None:
            self._default = self._find_default()
        return self._default

    def _find_default(self) -> Config:
        blocks = self._largest(self._start_blocks())
        last: PlanError | None = None
        for _ in range(MAX_SHRINKS):
            config = self._with_strategies(blocks)
            if config is not None:
                return config
            form = self._form(self.make(blocks, [choices[0] for choices in self.strategies]))
            last = form if isinstance(form, PlanError) else None
            if isinstance(last, EmptyTensor):
                raise last
            smaller = self._halve(blocks)
            if smaller is None:
                break
            blocks = smaller
        # Shrinking all alike can step over the legal ones, e.g. where one block must divide and another must be whole.
        for config in itertools.islice(self._every_plain(), MAX_TRIED):
            form = self.canonical(config)
            if form is not None and self._can_be_written(form):
                return form
        raise last or PlanError(
            "no config of this kernel fits", kernel=self.program.name, file=self.program.file, line=self.program.first_line
        )

    def _every_plain(self) -> Iterator[Config]:
        for blocks in itertools.product(*map(tuple, map(reversed, self._powers))):
            for strategies in _by_preference(self.strategies):
                yield self.make(blocks, strategies)

    def smaller(self, config: Config) -> Config | None:
        """A legal config of about a quarter of the footprint, or None where nothing is left to shrink."""
        blocks = tuple(config.get("block_sizes") or ())
        for step in range(MAX_SHRINKS):
            shrunk = self._halve(blocks)
            if shrunk is None:
                return None
            blocks = shrunk
            if step >= 1:
                found = self._with_strategies(blocks)
                if found is not None:
                    return found
        return None

    def tile_elements(self, blocks: Sequence[int]) -> int:
        """Elements of the largest value inside the program's loops when the tunable blocks have these sizes."""
        sizes = self.program.block_sizes(tuple(blocks))
        return max((growth.elements(shape, sizes) for shape in self._shapes), default=0)

    def _form(self, config: Config) -> Config | PlanError:
        """The canonical form of ``config``, or why it has none."""
        if config not in self._forms:
            try:
                form = knobs.canonical(self.program, config, self.target)
                self._forms[config] = self._forms[form] = form
            except PlanError as error:
                self._forms[config] = error
            except Exception as error:  # a fault of ours: that config is out, the call must not know
                level = logging.DEBUG if self._planner_failed else logging.WARNING
                self._planner_failed = True
                logger.log(level, "planning %r for kernel %s failed", config, self.program.name, exc_info=True)
                self._forms[config] = PlanError(f"{type(error).__name__}: {error}", kernel=self.program.name)
        return self._forms[config]

    def _can_be_written(self, config: Config) -> bool:
        """Whether a TPU's plan has a source: some accesses are refused only when they are written. On the CPU none is."""
        if self.target.is_tpu and not isinstance(self._forms[config], PlanError):
            try:
                lowering.generate(self.program, config, self.target)
            except PlanError as error:
                self._forms[config] = error
        return not isinstance(self._forms[config], PlanError)

    def _with_strategies(self, blocks: Sequence[int]) -> Config | None:
        """The first legal config with these blocks whose bill is moderate (half the VMEM), else the first legal one."""
        limit = self.target.vmem_bytes
        budget = limit // 2 if limit is not None else None
        steps = self._steps(blocks)
        for strategies in sorted(_by_preference(self.strategies), key=lambda s: self._unrolled(steps, s) > MAX_UNROLLED):
            config = self.canonical(self.make(blocks, strategies))
            if config is not None and self._can_be_written(config):
                plan = lowering.make_plan(self.program, config, self.target)
                if budget is None or plan.vmem_bytes <= budget or self._halve(blocks) is None:
                    return config
        return None

    def _start_blocks(self) -> tuple[int, ...]:
        dynamic, around = set[int](), dict[int, int]()
        tiles = {r: op.args[0] for op in _operations(self.program) if op.name in ("hl.tile_begin", "hl.tile_end") for r in op.results}
        for axis in self.program.axes:
            ends = [tiles.get(bound.id) for bound in (axis.begin, axis.end) if isinstance(bound, Ref)]
            if len(ends) == 2 and ends[0] == ends[1] and isinstance(ends[0], int):  # from where one tile begins to where it ends
                around[axis.block] = self.program.axes[ends[0]].block
            elif ends:
                dynamic.add(axis.block)
        start = []
        for number, info, sizes, leading in zip(self.program.tunable_blocks, self.infos, self._powers, self._leading, strict=True):
            most = 1 if leading else TPU_FIRST_BLOCK if self.target.is_tpu else sizes[-1]
            if number in dynamic and not self.target.is_tpu:
                most = max(info.extent // DYNAMIC_SHARE, 1)
            outer = self.program.blocks[around[number]].fixed if number in around else None
            most = min(most, outer) if isinstance(outer, int) else most
            start.append(max(s for s in sizes if s <= most or s == sizes[0]))
        blocks = self._with_more_matrices(tuple(start))
        if not self.target.is_tpu:
            return blocks
        bound = dynamic | set(around)
        free = [i for i, number in enumerate(self.program.tunable_blocks) if number not in bound and not self._leading[i]]
        return growth.grown(self.program, blocks, self._powers, free, lambda sizes: self._total(self._steps(sizes)))

    def _with_more_matrices(self, blocks: tuple[int, ...]) -> tuple[int, ...]:
        """``blocks`` with as many matrices a tile as do not make it larger than one of the first blocks squared: small ones are many."""
        for i in (i for i, leading in enumerate(self._leading) if leading):
            more = ((*blocks[:i], size, *blocks[i + 1 :]) for size in self._powers[i] if size <= TPU_FIRST_BLOCK)
            blocks = max((b for b in more if self.tile_elements(b) <= TPU_FIRST_BLOCK**2), default=blocks)
        return blocks

    def _largest(self, blocks: tuple[int, ...]) -> tuple[int, ...]:
        while self.tile_elements(blocks) > CPU_TILE_ELEMENTS:
            smaller = self._halve(blocks)
            if smaller is None:
                break
            blocks = smaller
        return blocks

    def _halve(self, blocks: Sequence[int]) -> tuple[int, ...] | None:
        """One step down for the largest block of the largest value; the others when that one is at its smallest."""
        tunable = self.program.tunable_blocks
        sizes = self.program.block_sizes(tuple(blocks))
        heavy = max(self._shapes, key=lambda shape: growth.elements(shape, sizes), default=())
        involved = frozenset().union(*(blocks_in(dim) for dim in heavy)) if heavy else frozenset()
        order = sorted(range(len(blocks)), key=lambda i: (tunable[i] in involved, blocks[i]), reverse=True)
        for i in order:
            below = [s for s in self._powers[i] if s < blocks[i]]
            if below:
                return (*blocks[:i], below[-1], *blocks[i + 1 :])
        return None

    # ------------------------------------------------------------------------------------------------ what is not worth a thought

    def _steps(self, blocks: Sequence[int]) -> tuple[int, ...]:
        """Steps of the grid of each launch, then of each inner loop in the order of ``strategies``, loops around it not counted."""
        sizes = self.program.block_sizes(tuple(blocks))
        return tuple(_trips(self.program, axes, sizes) for axes, _ in self._loops)

    def _bearable(self, steps: tuple[int, ...], strategies: Sequence[LoopStrategy]) -> bool:
        """Whether unrolled loops are short enough to compile, and on the CPU all steps together few enough to run."""
        return self._unrolled(steps, strategies) <= MAX_UNROLLED and (self.target.is_tpu or self._total(steps) <= self._most_steps)

    def _unrolled(self, steps: tuple[int, ...], strategies: Sequence[LoopStrategy]) -> int:
        """Copies of the most copied body when these strategies are carried out."""
        copies: list[int] = []
        chosen = iter(strategies)
        for (_, parent), own in zip(self._loops, steps, strict=True):
            if parent is None:
                copies.append(1)
            else:
                copies.append(copies[parent] * (own if next(chosen) is LoopStrategy.UNROLL else 1))
        return max(copies, default=1)

    def _total(self, steps: tuple[int, ...]) -> int:
        """Steps of all loops, each counted as often as the loops around it enter it."""
        times: list[int] = []
        for (_, parent), own in zip(self._loops, steps, strict=True):
            times.append(own * (1 if parent is None else times[parent]))
        return sum(times)

    @functools.cached_property
    def _most_steps(self) -> int:
        return max(CPU_STEPS, CPU_STEPS_OF_DEFAULT * self._total(self._steps(self.default().get("block_sizes") or ())))

    def _config_error(self, message: str) -> ConfigError:
        return ConfigError(message, kernel=self.program.name, file=self.program.file, line=self.program.first_line)


def _operations(program: Program) -> Iterator[Op]:
    """Every operation of the launches of ``program``."""
    return itertools.chain.from_iterable(walk(region) for launch in program.launches for region in launch.regions)


def leads(block: int, shapes: Sequence[Sequence]) -> bool:
    """Whether ``block`` counts matrices in the values of three dimensions and more that it is in: it is none of the last two."""
    places = [d - len(shape) for shape in shapes if len(shape) > 2 for d, dim in enumerate(shape) if block in blocks_in(dim)]
    return bool(places) and max(places) < -2


def _nests(program: Program) -> list[tuple[tuple[int, ...], int | None]]:
    """Launches and loops in the order of ``lowering.loops``: the axes of each, and the number of the one around it."""
    found: list[tuple[tuple[int, ...], int | None]] = []

    def visit(op: Op, around: int | None) -> None:
        if op.name in ("hl.launch", "hl.loop"):
            found.append((axes_of(op), around))
            around = len(found) - 1
        for region in op.regions:
            for inner in region.ops:
                if inner.name in CARRYING:
                    visit(inner, around)

    for launch in program.launches:
        visit(launch, None)
    return found


def _trips(program: Program, axes: Sequence[int], sizes: Sequence[int]) -> int:
    """Steps of a nest over ``axes``; one whose bounds are in the data is taken at its limit."""
    total = 1
    for axis in (program.axes[a] for a in axes):
        begin = 0 if isinstance(axis.begin, Ref) else evaluate(axis.begin, sizes)
        if isinstance(axis.end, Ref):
            end = axis.limit if axis.limit is not None else program.blocks[axis.block].extent
        else:
            end = evaluate(axis.end, sizes)
        total *= max(-(-(end - begin) // max(sizes[axis.block], 1)), 0)
    return total


def _by_preference(choices: Sequence[Sequence[LoopStrategy]]) -> Iterator[tuple[LoopStrategy, ...]]:
    """Assignments of strategies to loops that have these choices, the earlier choices first: uniform ones before mixed ones.

    Where there are many, only those that differ from a uniform one in one loop.
    """
    alike = list(dict.fromkeys(tuple(own[min(i, len(own) - 1)] for own in choices) for i in range(max(map(len, choices), default=1))))
    yield from alike
    if math.prod(map(len, choices)) <= MAX_ASSIGNMENTS:
        places = sorted(itertools.product(*(range(len(own)) for own in choices)), key=lambda at: (len(set(at)), sum(at), at))
        mixed = [tuple(own[i] for own, i in zip(choices, at, strict=True)) for at in places]
    else:
        mixed = [(*same[:i], other, *same[i + 1 :]) for same in alike for i, own in enumerate(choices) for other in own]
    yield from (assignment for assignment in dict.fromkeys(mixed) if assignment not in alike)
