"""Seeds by pattern: what a person would try first for a matmul, an attention, a row reduction, an elementwise kernel.

The pattern is read off the program (which products and reductions its loops hold, which blocks their dimensions come from), never
off its name.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from helion_rt.config import Config, Issue, LoopStrategy, Orientation, VmemLimit

from .space import Space
from .work import Count, Product, Work, count


class Pattern(enum.Enum):
    """What kind of kernel a program is."""

    ATTENTION = "attention"  # a loop with two products and vector work between them
    MATMUL = "matmul"  # a loop, or a launch, with products
    REDUCTION = "row reduction"
    ELEMENTWISE = "elementwise"


class Role(enum.Enum):
    """What a block is a size of."""

    BATCH = "batch"
    ROWS = "rows"  # of the result
    COLUMNS = "columns"  # of the result
    INNER = "inner"  # what a loop runs over and sums


# The sizes of blocks, the strategy of the loops, and knobs by their key in a config.
Seed = tuple[Mapping[Role, int], LoopStrategy, Mapping[str, Any]]

# Where a loop multiplies, reduces and multiplies again, its rows are best held down the sublanes, and the next scores computed
# before this softmax.
_OVERLAPPED: Mapping[str, Any] = {"orientations": Orientation.COLUMNS, "issue_orders": Issue.AHEAD}

# What reads each operand once gains nothing from one that is copied into VMEM before; what multiplies may.
_ALL_VMEM: Mapping[str, Any] = {"vmem_limits": VmemLimit.MOST}

# Sizes to try by role, and the strategy of the loops; 0 is the whole extent. Blocks without a role, and sizes that a block cannot
# have, go to the nearest that it can. The first of a pattern is the best guess.
_BATCH, _ROWS, _COLUMNS, _INNER = Role.BATCH, Role.ROWS, Role.COLUMNS, Role.INNER
_TPU: dict[Pattern, tuple[Seed, ...]] = {
    Pattern.ATTENTION: (
        ({_BATCH: 1, _ROWS: 256, _INNER: 512}, LoopStrategy.UNROLL, _OVERLAPPED),
        ({_BATCH: 1, _ROWS: 1024, _INNER: 512}, LoopStrategy.GRID, {**_OVERLAPPED, "tiles_a_turn": 4}),
        ({_BATCH: 1, _ROWS: 1024, _INNER: 512}, LoopStrategy.GRID, {**_OVERLAPPED, "tiles_a_turn": 2}),
        ({_BATCH: 1, _ROWS: 1024, _INNER: 1024}, LoopStrategy.UNROLL, {}),
        ({_BATCH: 1, _ROWS: 1024, _INNER: 1024}, LoopStrategy.GRID, {}),
        ({_BATCH: 1, _ROWS: 512, _INNER: 512}, LoopStrategy.FORI, {}),
    ),
    Pattern.MATMUL: (
        ({_BATCH: 1, _ROWS: 1024, _COLUMNS: 1024, _INNER: 1024}, LoopStrategy.GRID, {}),
        ({_BATCH: 1, _ROWS: 1024, _COLUMNS: 1024, _INNER: 1024}, LoopStrategy.GRID, _ALL_VMEM),
        ({_BATCH: 1, _ROWS: 512, _COLUMNS: 1024, _INNER: 0}, LoopStrategy.GRID, {}),
        ({_BATCH: 1, _ROWS: 512, _COLUMNS: 2048, _INNER: 512}, LoopStrategy.GRID, {}),
    ),
    Pattern.REDUCTION: (
        ({_ROWS: 256, _COLUMNS: 0, _INNER: 2048}, LoopStrategy.GRID, _ALL_VMEM),
        ({_ROWS: 64, _COLUMNS: 0, _INNER: 0}, LoopStrategy.GRID, {}),
    ),
    Pattern.ELEMENTWISE: (
        ({_ROWS: 256, _COLUMNS: 0}, LoopStrategy.GRID, _ALL_VMEM),
        ({_ROWS: 512, _COLUMNS: 1024}, LoopStrategy.GRID, {}),
    ),
}
_CPU: dict[Pattern, tuple[Seed, ...]] = {
    Pattern.ATTENTION: (
        ({_BATCH: 1, _ROWS: 0, _INNER: 0}, LoopStrategy.UNROLL, {}),
        ({_BATCH: 0, _ROWS: 0, _INNER: 128}, LoopStrategy.UNROLL, {}),
        ({_BATCH: 0, _ROWS: 128, _INNER: 0}, LoopStrategy.UNROLL, {}),
    ),
    Pattern.MATMUL: (
        ({_ROWS: 0, _COLUMNS: 0, _INNER: 512}, LoopStrategy.UNROLL, {}),
        ({_ROWS: 256, _COLUMNS: 0, _INNER: 0}, LoopStrategy.UNROLL, {}),
    ),
    Pattern.REDUCTION: (({_ROWS: 1024, _COLUMNS: 0, _INNER: 0}, LoopStrategy.UNROLL, {}),),
    Pattern.ELEMENTWISE: (({_ROWS: 256, _COLUMNS: 0}, LoopStrategy.UNROLL, {}),),
}


def seeds(space: Space) -> Iterator[Config]:
    """Configs worth trying first, not checked for legality; none where the space is the user's own."""
    if space.only or not space.infos:
        return
    work = count(space.program)
    pattern = recognise(work)
    roles = _roles(space, work, pattern)
    for sizes, strategy, values in (_TPU if space.target.is_tpu else _CPU)[pattern]:
        blocks = []
        for number, (info, choices) in enumerate(zip(space.infos, space.sizes, strict=True)):
            role = roles.get(number)
            wanted = sizes.get(role, info.extent) if role is not None else info.extent
            blocks.append(_nearest(choices, wanted or info.extent))
        strategies = [strategy if strategy in choices else choices[0] for choices in space.strategies]
        plain = space.make(blocks, strategies)
        yield _turned(space, plain, values)


def _turned(space: Space, config: Config, values: Mapping[str, Any]) -> Config:
    """``config`` with the knobs under these keys at these values, where they can have them."""
    for knob in space.knobs:
        if knob.key in values and values[knob.key] in knob.values:
            config = knob.put(config, values[knob.key])
    return config


def recognise(work: Work) -> Pattern:
    """The pattern of a program: that of its most demanding body."""
    if any(len(body.products) >= 2 and body.vectors for body in work.bodies if body.loop is not None):
        return Pattern.ATTENTION
    if any(body.products for body in work.bodies):
        return Pattern.MATMUL
    if any(vector.rows is not None for body in work.bodies for vector in body.vectors):
        return Pattern.REDUCTION
    return Pattern.ELEMENTWISE


def _roles(space: Space, work: Work, pattern: Pattern) -> dict[int, Role]:
    """Roles by the place of a block in ``Config.block_sizes``."""
    if pattern in (Pattern.ATTENTION, Pattern.MATMUL):
        body = max((b for b in work.bodies if b.products), key=lambda b: len(b.products))
        return _roles_in_product(space, body.products[0], pattern)
    looped = {space.program.axes[a].block for body in work.bodies if body.loop is not None for a in body.axes}
    roles: dict[int, Role] = {}
    outer = [i for i, block in enumerate(space.program.tunable_blocks) if block not in looped]
    for place, number in enumerate(outer):
        # Of an elementwise kernel the last dimension lies along the lanes; the others are rows.
        last = place == len(outer) - 1 and len(outer) > 1
        roles[number] = Role.COLUMNS if last else Role.ROWS
    return roles | {i: Role.INNER for i, block in enumerate(space.program.tunable_blocks) if block in looped}


def _roles_in_product(space: Space, product: Product, pattern: Pattern) -> dict[int, Role]:
    counts: tuple[tuple[Count, Role], ...] = (
        (product.batch, Role.BATCH),
        (product.m, Role.ROWS),
        (product.n, Role.INNER if pattern is Pattern.ATTENTION else Role.COLUMNS),
        (product.k, Role.INNER),
    )
    return {
        place: role
        for place, block in enumerate(space.program.tunable_blocks)
        for size_of, role in reversed(counts)
        if _follows(size_of, block, len(space.program.blocks))
    }


def _follows(size_of: Count, block: int, blocks: int) -> bool:
    """Whether a dimension depends on the size of ``block``."""
    one = [2] * blocks
    other = [2] * blocks
    other[block] = 4
    return size_of(one) != size_of(other)


def _nearest(choices: Sequence[int], wanted: int) -> int:
    """The largest size that is not above ``wanted``, or the smallest of all."""
    return max((size for size in choices if size <= wanted), default=choices[0])


__all__ = ["Pattern", "recognise", "seeds"]
