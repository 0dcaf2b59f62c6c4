"""Issue order: which operations of a loop's body can begin before the tile before has ended.

``Issue.AHEAD`` splits a body in two. The *first* part is the matrix products that need nothing that the loop carries, what they
need, and what is made of them alone; the *rest* needs carried values. The first part of the next tile is written before the rest of
this one (software pipelining, by one tile): the compiler's scheduler, which mostly keeps the order of the source, then has work for
the matrix unit while the vector units are busy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..program.ir import Axis, Op, Ref, Region, refs_in
from ..program.regions import has_effect, reads_of, target_of
from . import ops
from .ops import Kind


@dataclass(frozen=True)
class Split:
    """The operations of a body that come first, by ``id``, and the values of theirs that the rest reads, in order."""

    first: frozenset[int]
    handed: tuple[int, ...]


def parts(region: Region, axes: tuple[Axis, ...], written: frozenset[int]) -> Split | None:
    """The two parts of the body ``region``; None if no product is free of carried values. ``written``: tensors that are stored to."""
    apart = _independent(region, axes, written)
    products = [op for op in apart if ops.kind_of(op.name) is Kind.CONTRACT]
    if not products:
        return None
    made = {r for op in products for r in op.results}
    for op in apart:  # what is made of the products
        if made.intersection(r.id for r in reads_of(op, axes)):
            made.update(op.results)
    wanted = set(made)
    for op in reversed(apart):  # and what these need
        if wanted.intersection(op.results):
            wanted.update(r.id for r in reads_of(op, axes))
    first = [op for op in apart if wanted.intersection(op.results)]
    inside = {r for op in first for r in op.results}
    chosen = frozenset(id(op) for op in first)
    rest = [r.id for op in region.ops if id(op) not in chosen for r in _all_reads(op, axes)]
    handed = dict.fromkeys(v for v in (*rest, *(r.id for r in refs_in(region.results))) if v in inside)
    return Split(chosen, tuple(handed))


def _independent(region: Region, axes: tuple[Axis, ...], written: frozenset[int]) -> list[Op]:
    """The operations that need nothing that is carried, and would give the same a tile earlier."""
    late = set(region.params)
    found = []
    for op in region.ops:
        target = target_of(op)
        bound = bool(op.regions) or has_effect(op) or (target is not None and target.id in written)
        if bound or late.intersection(r.id for r in reads_of(op, axes)):
            late.update(op.results)
        else:
            found.append(op)
    return found


def _all_reads(op: Op, axes: tuple[Axis, ...]) -> Sequence[Ref]:
    """What ``op`` and the operations inside it read."""
    inner = [r for region in op.regions for o in region.ops for r in _all_reads(o, axes)]
    return [*reads_of(op, axes), *inner, *(r for region in op.regions for r in refs_in(region.results))]


__all__ = ["Split", "parts"]
