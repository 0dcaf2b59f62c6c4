"""The space: every config of one program on one target that is worth a thought, and the safe default among them."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from helion_rt import lowering
from helion_rt.config import Config, LoopStrategy
from helion_rt.exc import ConfigError, EmptyTensor, PlanError
from helion_rt.program.expr import blocks_in, evaluate
from helion_rt.program.ir import BlockInfo, Program
from helion_rt.targets import Target

logger = logging.getLogger("helion_rt.tuning")

# Raise it when the meaning or the choice of configs changes: a record of another version is a hint, not a winner.
SPACE_VERSION = 1

# The largest value of a tile, in elements. On the CPU a grid step costs a copy of the launch's arrays (interpret mode:
# softmax of 2048 x 8192 took 8.1 s with 16 rows a block, 0.3 s in one step), so blocks are as large as memory manners
# allow: 64 MiB of float32. On a TPU they start at what fills its units.
CPU_TILE_ELEMENTS = 1 << 24
TPU_FIRST_BLOCK = 512

# A block smaller than this is never better than the same block at this size on any target we know.
SMALLEST_BLOCK = 8
MAX_SHRINKS = 64
MAX_TRIED = 4096
MAX_ASSIGNMENTS = 81  # of strategies to loops, for one choice of blocks

# What to try first. On the CPU the pipeline does not run and a straight line of code is what XLA likes best; on a TPU
# `grid` has no bubble between outer steps and no limit on the length of the loop.
CPU_STRATEGIES = (LoopStrategy.UNROLL, LoopStrategy.FORI, LoopStrategy.GRID)
TPU_STRATEGIES = (LoopStrategy.GRID, LoopStrategy.UNROLL, LoopStrategy.EMIT_PIPELINE, LoopStrategy.FORI)


def next_power_of_2(n: int) -> int:
    """The smallest power of two >= n (1 for n <= 1)."""
    return 1 << max(n - 1, 0).bit_length()


class Space:
    """The configs of ``program`` on ``target``; ``only`` restricts it to the user's own ``configs=[...]`` (and the default)."""

    def __init__(self, program: Program, target: Target, only: Sequence[Config] = ()) -> None:
        self.program = program
        self.target = target
        ordered = TPU_STRATEGIES if target.is_tpu else CPU_STRATEGIES
        # For each inner loop the strategies that a plan can give it, what to try first first.
        self.strategies = [tuple(s for s in ordered if s in loop.choices) for loop in lowering.loops(program)]
        self.loop_count = len(self.strategies)
        self._legal: dict[Config, PlanError | None] = {}
        self.only = tuple(self.complete(config) for config in only)

    def choices(self, block: BlockInfo) -> tuple[int, ...]:
        """Sizes of a tunable block, ascending: powers of two, the whole extent, and the user's own bounds."""
        extent = max(block.extent, 1)
        high = min(block.high or extent, next_power_of_2(extent))
        low = max(1, min(block.low, high))
        start = max(low, min(SMALLEST_BLOCK, high))
        sizes = {start, high}
        size = next_power_of_2(start)
        while size <= high:
            sizes.add(size)
            size *= 2
        if low <= extent <= high:
            sizes.add(extent)  # needs no masking
            sizes.discard(next_power_of_2(extent) if extent != next_power_of_2(extent) else 0)
        return tuple(sorted(sizes))

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
        if blocks and len(blocks) != len(self.program.tunable_blocks):
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
        wanted = len(self.program.tunable_blocks)
        got = len(config.get("block_sizes") or ())
        if got != wanted:
            raise self._config_error(f"the config has {got} block_sizes, the kernel has {wanted} tunable blocks: {config!r}")
        loops = len(config.get("loop_strategies") or ())
        if loops != self.loop_count:
            raise self._config_error(f"the config has {loops} loop_strategies, the kernel has {self.loop_count} inner loops: {config!r}")
        reason = self._why_not(config)
        if reason is not None:
            raise reason

    def is_legal(self, config: Config) -> bool:
        return self._why_not(config) is None

    def configs(self) -> Iterator[Config]:
        """Every legal config, the default first (large blocks first after it)."""
        seen = set()
        for config in itertools.chain((self.default(),), self.unchecked()):
            if config not in seen and self.is_legal(config):
                seen.add(config)
                yield config

    def default(self) -> Config:
        """The safe config that serves before anything is known. Raises ``PlanError`` if no config of the space is legal."""
        blocks = self._largest(self._start_blocks())
        last: PlanError | None = None
        for _ in range(MAX_SHRINKS):
            config = self._with_strategies(blocks)
            if config is not None:
                return config
            last = self._why_not(self.make(blocks, [choices[0] for choices in self.strategies]))
            if isinstance(last, EmptyTensor):
                raise last
            smaller = self._halve(blocks)
            if smaller is None:
                break
            blocks = smaller
        # Shrinking all alike can step over the legal ones, e.g. where one block must divide and another must be whole.
        for config in itertools.islice(self.unchecked(), MAX_TRIED):
            if self.is_legal(config):
                return config
        raise last or PlanError(
            "no config of this kernel fits", kernel=self.program.name, file=self.program.file, line=self.program.first_line
        )

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

    def neighbours(self, config: Config) -> Iterator[Config]:
        """Legal configs that differ in one choice by one step (blocks) or at all (strategies)."""
        if self.only:
            yield from (other for other in self.only if other != config and self.is_legal(other))
            return
        blocks = tuple(config.get("block_sizes") or ())
        strategies = tuple(config.get("loop_strategies") or ())
        infos = [self.program.blocks[i] for i in self.program.tunable_blocks]
        for i, (size, info) in enumerate(zip(blocks, infos, strict=True)):
            sizes = self.choices(info)
            below = [s for s in sizes if s < size][-1:]
            above = [s for s in sizes if s > size][:1]
            for other in (*below, *above):
                yield from self._legal_only(self.make((*blocks[:i], other, *blocks[i + 1 :]), strategies))
        for i, strategy in enumerate(strategies):
            for choice in self.strategies[i]:
                if choice != strategy:
                    yield from self._legal_only(self.make(blocks, (*strategies[:i], choice, *strategies[i + 1 :])))

    def tile_elements(self, blocks: Sequence[int]) -> int:
        """Elements of the largest value inside the program's loops when the tunable blocks have these sizes."""
        sizes = self.program.block_sizes(tuple(blocks))
        return max((_elements(shape, sizes) for shape in self._tile_shapes()), default=0)

    def _legal_only(self, config: Config) -> Iterable[Config]:
        return (config,) if self.is_legal(config) else ()

    def unchecked(self) -> Iterator[Config]:
        """Every config of the space, legal or not (cheap: no plan is made), large blocks first."""
        if self.only:
            yield from self.only
            return
        sizes = [tuple(reversed(self.choices(self.program.blocks[i]))) for i in self.program.tunable_blocks]
        for blocks in itertools.product(*sizes):
            if self.target.is_tpu or self.tile_elements(blocks) <= CPU_TILE_ELEMENTS:
                for strategies in _by_preference(self.strategies):
                    yield self.make(blocks, strategies)

    def _why_not(self, config: Config) -> PlanError | None:
        if config not in self._legal:
            try:
                lowering.make_plan(self.program, config, self.target)
                self._legal[config] = None
            except PlanError as error:
                self._legal[config] = error
            except Exception as error:  # a fault of ours: that config is out, the call must not know
                logger.warning("planning %r for kernel %s failed", config, self.program.name, exc_info=True)
                self._legal[config] = PlanError(f"{type(error).__name__}: {error}", kernel=self.program.name)
        return self._legal[config]

    def _with_strategies(self, blocks: Sequence[int]) -> Config | None:
        """The first legal config with these blocks whose bill is moderate (half the VMEM), else the first legal one."""
        limit = self.target.vmem_bytes
        budget = limit // 2 if limit is not None else None
        for strategies in _by_preference(self.strategies):
            config = self.make(blocks, strategies)
            if self.is_legal(config):
                plan = lowering.make_plan(self.program, config, self.target)
                if budget is None or plan.vmem_bytes <= budget or self._halve(blocks) is None:
                    return config
        return None

    def _start_blocks(self) -> tuple[int, ...]:
        infos = [self.program.blocks[i] for i in self.program.tunable_blocks]
        if not self.target.is_tpu:
            return tuple(self.choices(info)[-1] for info in infos)
        return tuple(max(s for s in self.choices(info) if s <= TPU_FIRST_BLOCK or s == self.choices(info)[0]) for info in infos)

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
        heavy = max(self._tile_shapes(), key=lambda shape: _elements(shape, sizes), default=())
        involved = frozenset().union(*(blocks_in(dim) for dim in heavy)) if heavy else frozenset()
        order = sorted(range(len(blocks)), key=lambda i: (tunable[i] in involved, blocks[i]), reverse=True)
        for i in order:
            below = [s for s in self.choices(self.program.blocks[tunable[i]]) if s < blocks[i]]
            if below:
                return (*blocks[:i], below[-1], *blocks[i + 1 :])
        return None

    def _tile_shapes(self) -> list[tuple]:
        return [t.shape for t in self.program.types if any(blocks_in(dim) for dim in t.shape)]

    def _config_error(self, message: str) -> ConfigError:
        return ConfigError(message, kernel=self.program.name, file=self.program.file, line=self.program.first_line)


def _elements(shape: Sequence, sizes: Sequence[int]) -> int:
    total = 1
    for dim in shape:
        total *= max(evaluate(dim, sizes), 1)
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
