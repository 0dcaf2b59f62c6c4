"""The sizes that a tunable block may have: the fewer blocks a kernel has, the finer the steps between them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from helion_rt.program.ir import BlockInfo

# Choices of blocks and strategies that a space is to have, about: what there is to say with blocks that are powers of two comes
# first, and is never left out.
CPU_POINTS = 256
TPU_POINTS = 4096
MOST = 256  # sizes of one block

# What a block that is larger than one of them is a multiple of: the lanes and the sublanes of a TPU, a vector of a CPU (where a
# single block counts rows more often than not).
TPU_UNITS = (128, 8)
CPU_UNITS = (8,)

SMALLEST_START = 8


def next_power_of_2(n: int) -> int:
    """The smallest power of two >= n (1 for n <= 1)."""
    return 1 << max(n - 1, 0).bit_length()


def powers(block: BlockInfo, smallest: int = SMALLEST_START) -> tuple[int, ...]:
    """Powers of two from ``smallest``, the whole extent and the user's own bounds, ascending: what defaults are made of."""
    low, high, extent = bounds(block)
    start = max(low, min(smallest, high))
    sizes = {start, high, *itertools.takewhile(lambda size: size <= high, _doubling(next_power_of_2(start)))}
    if low <= extent <= high:
        sizes.add(extent)  # needs no masking
        sizes.discard(next_power_of_2(extent) if extent != next_power_of_2(extent) else 0)
    return tuple(sorted(sizes))


def sizes(block: BlockInfo, blocks: int, assignments: int, is_tpu: bool, smallest: int = SMALLEST_START) -> tuple[int, ...]:
    """The sizes of one of ``blocks`` tunable blocks, ascending; ``assignments``: choices of strategies for one choice of sizes.

    Powers of two first, then what divides the extent evenly (no element is masked), then the smallest blocks for two, three,
    ... tiles, until there are enough. Whether a target can do with a size is the planner's to say.
    """
    low, high, extent = bounds(block)
    found = set(powers(block, smallest))
    wanted = min(MOST, round(((TPU_POINTS if is_tpu else CPU_POINTS) / assignments) ** (1 / blocks)))
    if extent & (extent - 1):
        wanted = max(wanted, len(found) + 2)  # the powers of two all mask something
    for size in _refinements(extent, TPU_UNITS if is_tpu else CPU_UNITS if blocks > 1 else ()):
        if len(found) >= wanted:
            break
        if low <= size <= min(high, extent):
            found.add(size)
    return tuple(sorted(found))


def bounds(block: BlockInfo) -> tuple[int, int, int]:
    """The smallest and the largest size of a block, and what it tiles."""
    extent = max(block.extent, 1)
    high = min(block.high or extent, next_power_of_2(extent))
    return max(1, min(block.low, high)), high, extent


def _refinements(extent: int, units: tuple[int, ...]) -> Iterator[int]:
    """Sizes between and below the powers of two, the most promising first."""
    yield from (extent // tiles for tiles in range(2, 33) if extent % tiles == 0 and _aligned(extent // tiles, units))
    yield from reversed([3 * size for size in itertools.takewhile(lambda size: 3 * size < extent, _doubling(8))])
    yield from (4, 2, 1)
    yield from itertools.takewhile(lambda size: size > 0, (_up(-(-extent // tiles), units) for tiles in range(2, 1 + extent)))


def _aligned(size: int, units: tuple[int, ...]) -> bool:
    return _up(size, units) == size


def _up(size: int, units: tuple[int, ...]) -> int:
    """``size`` made a multiple of the largest unit that is not above it."""
    unit = next((unit for unit in units if size >= unit), 1)
    return -(-size // unit) * unit


def _doubling(size: int) -> Iterator[int]:
    while True:
        yield size
        size *= 2
