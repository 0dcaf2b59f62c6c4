"""The blocks that a TPU's default begins with, made larger where they leave a small tile: vectors, few rows, a loop over long ones.

By the compiler's schedule a step costs about 0.3 us whatever it does, as much as copying 64 Ki elements. So tiles grow to that; and up to
what a square of two first blocks holds, while some steps are left for the copies to overlap with. What counts are registers: each is an
instruction an operation, so values that fill only a part of theirs stay small, and so do tiles of what is done element by element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from helion_rt.lowering.fold import foldable
from helion_rt.lowering.memory import memory_of
from helion_rt.lowering.ops import Kind, kind_of
from helion_rt.lowering.plan import legalized
from helion_rt.lowering.windows import LANES, SUBLANES
from helion_rt.program.expr import Expr, blocks_in, evaluate
from helion_rt.program.ir import Op, Program, Ref, walk

Shape = tuple[Expr, ...]

SMALL_TILE = 1 << 16
LARGE_TILE = 1 << 18
FEWEST_STEPS = 4
MOST_WASTE = 2  # elements of registers for one of the largest value, in tiles above the small ones

# What is done a register at a time.
WIDE = frozenset({Kind.ELEMENTWISE, Kind.REDUCTION, Kind.VIEW, Kind.PERMUTE, Kind.EXPAND, Kind.CREATE, Kind.CONTRACT})
CONTROL = frozenset({"hl.loop", "hl.if", "hl.tile_begin", "hl.tile_end", "hl.tile_id", "hl.tile_index", "hl.count"})


def grown(
    program: Program,
    blocks: tuple[int, ...],
    powers: Sequence[Sequence[int]],
    free: Sequence[int],
    steps_of: Callable[[tuple[int, ...]], int],
) -> tuple[int, ...]:
    """``blocks`` (the sizes of the tunable ones) with those at the places ``free`` doubled, the smallest values first.

    ``powers``: the sizes that each block may have. ``steps_of``: the steps of all loops under such sizes.
    """
    legal = legalized(program)
    if not all(_is_wide(legal, op) for launch in legal.launches for op in walk(launch.regions[0])):
        return blocks
    vectors = frozenset(foldable(legal))
    shapes = {i: [t.shape for t in program.types if any(program.tunable_blocks[i] in blocks_in(dim) for dim in t.shape)] for i in free}
    while True:
        more = []
        for i in free:
            larger = next((size for size in powers[i] if size > blocks[i]), blocks[i])
            after = (*blocks[:i], larger, *blocks[i + 1 :])
            held, most = (max((elements(s, program.block_sizes(b)) for s in shapes[i]), default=0) for b in (blocks, after))
            room = max((_in_registers(s, program.block_sizes(after), vectors) for s in shapes[i]), default=0)
            large = room <= min(MOST_WASTE * most, LARGE_TILE) and steps_of(after) >= FEWEST_STEPS
            if held < most and (room <= SMALL_TILE or large):
                more.append((held, -i, after))
        if not more:
            return blocks
        _, _, blocks = min(more)


def _is_wide(legal: Program, op: Op) -> bool:
    memory = memory_of(op)
    if memory is not None:
        return memory.kind is None and not any(isinstance(e, Ref) and legal.types[e.id].shape for e in memory.index)
    return op.name in CONTROL or kind_of(op.name) in WIDE


def elements(shape: Shape, sizes: Sequence[int]) -> int:
    """Elements of a value of ``shape`` where blocks have these sizes; one at least."""
    return math.prod(max(evaluate(dim, sizes), 1) for dim in shape)


def _in_registers(shape: Shape, sizes: Sequence[int], vectors: frozenset[int]) -> int:
    """Elements of the registers that hold a value of ``shape``; a vector over one of ``vectors`` is folded."""
    if len(shape) == 1 and vectors.intersection(blocks_in(shape[0])):
        return elements(shape, sizes)
    *lead, rows, lanes = (1, 1, *(evaluate(dim, sizes) for dim in shape))
    return math.prod(lead) * -(-rows // SUBLANES) * SUBLANES * -(-lanes // LANES) * LANES


__all__ = ["elements", "grown"]
