"""Whether the axes of a launch may be nested in another order: whether no result depends on which step comes first.

Grid steps run one after the other, and a kernel may rely on it (a tensor that carries a state from step to step). The order is free
where each element of what is written is written by one step and read by none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from ..program.ir import Arg, Op, walk
from .memory import memory_of


def why_fixed(launch: Op, several: Collection[int], axis_of: Callable[[Arg], int | None]) -> str | None:
    """Why the axes of ``launch`` keep their order, or None if they are free.

    ``several``: those of its axes that have more than one tile; ``axis_of``: the axis that an element of an index moves with.
    """
    if len(several) < 2:
        return None
    if any(op.name == "hl.print" for op in walk(launch.regions[0])):
        return "it prints"
    accesses = [memory for op in walk(launch.regions[0]) if (memory := memory_of(op)) is not None]
    for written in (m for m in accesses if m.writes):
        if any(other is not written and other.tensor == written.tensor for other in accesses):
            return "a tensor that it writes is accessed in another place too"
        if written.reads or not set(several) <= {axis_of(element) for element in written.index}:
            return "several tiles write the same elements"
    return None


__all__ = ["why_fixed"]
