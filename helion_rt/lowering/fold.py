"""Vectors as matrices of 128 columns: how a launch over elements of rank 1 fills a TPU's registers.

A register has 8 sublanes of 128 lanes (16 and 32 of packed values). As a row of lanes a vector fills one of them, and all but float32 is
laid out anew by XLA on the way in and out. Where a launch does nothing but elementwise work, its tensors are viewed as matrices on the
host instead: for XLA that is the same memory, whatever the length is, if 128 divides it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from ..program.expr import Block, Expr, blocks_in
from ..program.ir import Axis, Op, Program, Ref, Span, TensorType, TileIndex, refs_in, walk
from ..program.regions import axes_of
from .memory import memory_of
from .ops import ITEMSIZE, Kind, kind_of
from .windows import LANES, SUBLANES

ACCESSES = ("hl.load", "hl.store")


def foldable(legal: Program) -> dict[int, int]:
    """Block -> what its sizes must be a multiple of, for the launches of ``legal`` (a legalized program) that can be folded."""
    found = {}
    for launch in legal.launches:
        axes = axes_of(launch)
        if len(axes) == 1 and _is_elementwise(legal, launch, axes[0]):
            tensors = {m.tensor.id for op in walk(launch.regions[0]) if (m := memory_of(op)) is not None}
            packing = max(max(1, 4 // ITEMSIZE[legal.types[t].dtype]) for t in tensors)
            found[legal.axes[axes[0]].block] = LANES * SUBLANES * packing
    return found


def fold(legal: Program, blocks: Iterable[int]) -> tuple[Program, dict[int, int]]:
    """``legal`` with the launches over ``blocks`` folded, and which tensor each of the new matrices is.

    The sizes of those blocks count rows of 128 elements then.
    """
    chosen = frozenset(blocks)
    types, host, tensors = list(legal.types), list[Op](), dict[int, int]()
    axes = [_rows_axis(axis) if axis.block in chosen else axis for axis in legal.axes]
    infos = [dataclasses.replace(b, extent=b.extent // LANES) if n in chosen else b for n, b in enumerate(legal.blocks)]
    for op in legal.host.ops:
        if op.name == "hl.launch" and (block := legal.axes[axes_of(op)[0]].block) in chosen:
            host += _folded(op, legal, types, block, tensors)
        else:
            host.append(op)
    region = dataclasses.replace(legal.host, ops=tuple(host))
    return dataclasses.replace(legal, types=tuple(types), axes=tuple(axes), blocks=tuple(infos), host=region), tensors


def _rows_axis(axis: Axis) -> Axis:
    assert isinstance(axis.end, int)
    return dataclasses.replace(axis, end=axis.end // LANES)


def _is_elementwise(legal: Program, launch: Op, axis: int) -> bool:
    """Whether a launch loads, stores and computes elements of vectors that are as long as its axis, and nothing else."""
    info = legal.axes[axis]
    if info.begin != 0 or not isinstance(info.end, int) or info.end % LANES or _is_used_elsewhere(legal, launch, info.block):
        return False
    fixed = legal.blocks[info.block].fixed
    shapes = ((), (Block(info.block),), (fixed,))
    stores = False
    for op in walk(launch.regions[0]):
        if op.regions or (kind_of(op.name) is not Kind.ELEMENTWISE and op.name not in ACCESSES):
            return False
        if any(legal.types[r].shape not in shapes for r in op.results) or _sizes_of(op):
            return False
        memory = memory_of(op)
        if memory is not None and (legal.types[memory.tensor.id].shape, memory.index) not in (((), ()), ((info.end,), (TileIndex(axis),))):
            return False
        stores |= memory is not None and memory.writes
    return stores and not launch.regions[0].results


def _is_used_elsewhere(legal: Program, launch: Op, block: int) -> bool:
    """Whether the size of ``block`` is anything but that of the tiles of ``launch``: a number that is computed with, the end of a loop."""
    own = {r for op in walk(launch.regions[0]) for r in op.results}
    sizes = [_sizes_in(t.shape) for n, t in enumerate(legal.types) if n not in own]
    sizes += [_sizes_in((axis.begin, axis.end)) for axis in legal.axes]
    sizes += [_sizes_of(op) for op in walk(legal.host)]
    return any(block in found for found in sizes) or sum(axis.block == block for axis in legal.axes) > 1


def _sizes_of(op: Op) -> frozenset[int]:
    """Blocks whose sizes are arguments of ``op``."""
    return _sizes_in((op.args, tuple(value for _, value in op.kwargs), tuple(region.results for region in op.regions)))


def _sizes_in(arg: object) -> frozenset[int]:
    if isinstance(arg, tuple):
        return frozenset().union(*map(_sizes_in, arg))
    return blocks_in(arg) if isinstance(arg, Expr) else frozenset()


def _folded(launch: Op, legal: Program, types: list[TensorType], block: int, tensors: dict[int, int]) -> Sequence[Op]:
    """The launch on matrices, with the views before and after it; ``tensors`` gets which tensor each matrix is."""
    before, after, names = list[Op](), list[Op](), dict[int, int]()

    def new(tensor: int) -> int:
        (extent,), dtype = legal.types[tensor].shape, legal.types[tensor].dtype
        assert isinstance(extent, int)
        types.append(TensorType((extent // LANES, LANES), dtype))
        tensors[len(types) - 1] = tensor
        return len(types) - 1

    used = {m.tensor.id for op in walk(launch.regions[0]) if (m := memory_of(op)) is not None}  # what is written is among them
    for tensor in sorted(used):
        if legal.types[tensor].shape:
            names[tensor] = new(tensor)
            shape = types[names[tensor]].shape
            before.append(Op("aten.view.default", (Ref(tensor), shape), (), (names[tensor],), launch.line))
    results = []
    for result in launch.results:
        results.append(new(result) if legal.types[result].shape else result)
        if results[-1] != result:
            after.append(Op("aten.view.default", (Ref(results[-1]), legal.types[result].shape), (), (result,), launch.line))
    ops = []
    for op in launch.regions[0].ops:
        for result in op.results:
            if legal.types[result].shape:
                types[result] = TensorType((Block(block), LANES), legal.types[result].dtype)
        ops.append(_renamed(op, names))
    region = dataclasses.replace(launch.regions[0], ops=tuple(ops))
    axes, writes = launch.args
    assert isinstance(writes, tuple)
    writes = tuple(Ref(names.get(ref.id, ref.id)) for ref in refs_in(writes))
    return *before, dataclasses.replace(launch, args=(axes, writes), results=tuple(results), regions=(region,)), *after


def _renamed(op: Op, names: dict[int, int]) -> Op:
    memory = memory_of(op)
    if memory is None or memory.tensor.id not in names:
        return op
    tensor, index, *rest = op.args
    assert isinstance(tensor, Ref) and isinstance(index, tuple)
    return dataclasses.replace(op, args=(Ref(names[tensor.id]), (*index, Span()), *rest))


__all__ = ["fold", "foldable"]
