"""How temporaries of the host part lie in memory: what each store picks one position of comes first.

Nobody outside sees the layout of an allocation that only launches use. ``tmp[tile_m, tile_n, tile_k.id] = acc`` writes one element of each
row of ``tmp``; with the last dimension first it writes whole rows. Not for TPUs, where the last two dimensions are tiled and a load would
transpose.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

from ..program.ir import Op, Program, Ref, Region, Span, TensorType, TileIndex, inputs_of, output_leaves, refs_in, walk
from .memory import Memory, memory_of
from .ops import base_name

ALLOCATIONS = ("empty", "full", "ones", "zeros")  # their first argument is the shape
Item = TypeVar("Item")
Order = tuple[int, ...]  # the old dimension at each new one


def points_first(legal: Program) -> Program:
    """``legal`` (a legalized program) with its temporaries laid out anew; the same object if there is nothing to do."""
    orders: dict[int, Order] = {}
    for op in legal.host.ops:
        if base_name(op.name) in ALLOCATIONS:
            versions = _versions(legal, op.results[0])
            if (order := _order(legal, versions)) is not None:
                orders |= dict.fromkeys(versions, order)
    if not orders:
        return legal
    types = list(legal.types)
    for tensor, order in orders.items():
        types[tensor] = TensorType(_pick(types[tensor].shape, order), types[tensor].dtype)
    host = _region(legal.host, orders, types)
    return dataclasses.replace(legal, host=host, types=tuple(types))


def _versions(legal: Program, tensor: int) -> list[int]:
    """``tensor``, and what it is called after each launch that writes to it."""
    found = [tensor]
    for launch in legal.launches:
        writes = launch.args[1]
        assert isinstance(writes, tuple)
        found += [result for result, write in zip(launch.results, writes, strict=True) if isinstance(write, Ref) and write.id in found]
    return found


def _order(legal: Program, versions: Sequence[int]) -> Order | None:
    """The better layout of a temporary; None where it has it, or where somebody else looks at it."""
    seen = {ref.id for ref in (*output_leaves(legal.outputs), *(ref for _, ref in legal.mutated))}
    seen |= {ref.id for op in legal.host.ops if op.name != "hl.launch" for ref in inputs_of(op)}
    accesses = []
    for op in (op for launch in legal.launches for op in walk(launch.regions[0])):
        memory = memory_of(op)
        if memory is not None and memory.tensor.id in versions:
            accesses.append(memory)
            seen |= {ref.id for ref in refs_in((memory.index, memory.value, memory.mask, memory.expected))}
        else:
            seen |= {ref.id for ref in inputs_of(op)} | {ref.id for region in op.regions for ref in refs_in(region.results)}
    if seen.intersection(versions) or not all(_is_plain(legal, memory) for memory in accesses):
        return None
    rank = len(legal.types[versions[0]].shape)
    written = [memory for memory in accesses if memory.writes]
    points = [d for d in range(rank) if written and all(isinstance(memory.index[d], (int, Ref)) for memory in written)]
    order = (*points, *(d for d in range(rank) if d not in points))
    return None if order == tuple(range(rank)) else order


def _is_plain(legal: Program, memory: Memory) -> bool:
    """Whether the dimensions of what is accessed can be told by the index: no new ones, no index tensors; and no mask is to be turned."""
    gathers = any(isinstance(element, Ref) and legal.types[element.id].shape for element in memory.index)
    known = all(isinstance(element, (int, Ref, TileIndex, Span)) for element in memory.index)
    return known and not gathers and not (memory.mask is not None and memory.reads)


def _region(region: Region, orders: dict[int, Order], types: list[TensorType]) -> Region:
    return dataclasses.replace(region, ops=tuple(new for op in region.ops for new in _op(op, orders, types)))


def _op(op: Op, orders: dict[int, Order], types: list[TensorType]) -> tuple[Op, ...]:
    if op.regions:
        return (dataclasses.replace(op, regions=tuple(_region(region, orders, types) for region in op.regions)),)
    if op.results and op.results[0] in orders:
        shape, *rest = op.args
        assert isinstance(shape, tuple)
        return (dataclasses.replace(op, args=(_pick(shape, orders[op.results[0]]), *rest)),)
    memory = memory_of(op)
    if memory is None or (order := orders.get(memory.tensor.id)) is None:
        return (op,)
    new = dataclasses.replace(op, args=tuple(_pick(memory.index, order) if arg is memory.index else arg for arg in op.args))
    kept = [d for d in order if not isinstance(memory.index[d], (int, Ref))]
    if not op.results or kept == sorted(kept):
        return (new,)
    given = types[op.results[0]]
    types.append(TensorType(tuple(given.shape[sorted(kept).index(d)] for d in kept), given.dtype))
    turned = Ref(len(types) - 1)
    back = tuple(kept.index(d) for d in sorted(kept))
    return dataclasses.replace(new, results=(turned.id,)), Op("aten.permute.default", (turned, back), (), op.results, op.line)


def _pick(items: Sequence[Item], order: Order) -> tuple[Item, ...]:
    return tuple(items[d] for d in order)


__all__ = ["points_first"]
