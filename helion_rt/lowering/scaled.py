"""Index tensors that are nothing but a tile made longer: ``x[tile.begin * c : tile.begin * c + block * c]`` needs no gather.

Such an index reaches the lowering as arithmetic on the tile's positions. Here it is recognised: every position is an affine
function of the begins of tiles and of where it stands in the index tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..program.ir import Arg, Op, Ref, Region, refs_in, walk
from ..program.regions import has_effect, reads_of
from . import ops
from .memory import memory_of
from .ops import Kind

if TYPE_CHECKING:
    from .windows import Windows

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Affine:
    """``start`` + the sum of ``begins[axis]`` times the begin of its tile + the sum of ``strides[d]`` times the place along d."""

    start: int
    begins: tuple[tuple[int, int], ...]
    shape: Shape
    strides: Shape


@dataclass(frozen=True)
class ScaledTile:
    """The positions ``factor * begin`` to ``factor * (begin + block)`` of the tile of ``axis``."""

    axis: int
    factor: int


def scaled_tile(defs: Mapping[int, Op], shape_of: Callable[[int], Shape], resolve: Callable[[Arg], Any], ref: Ref) -> ScaledTile | None:
    """The tile that an index tensor is, made longer, if it is one: the size of the tensor says by how much."""
    found = _affine(defs, shape_of, resolve, ref)
    if found is None or found.start != 0 or len(found.begins) != 1 or found.strides != (1,):
        return None
    axis, factor = found.begins[0]
    return ScaledTile(axis, factor) if factor > 0 else None


def _affine(defs: Mapping[int, Op], shape_of: Callable[[int], Shape], resolve: Callable[[Arg], Any], x: Arg) -> Affine | None:
    if not isinstance(x, Ref):
        value = resolve(x)
        return Affine(value, (), (), ()) if isinstance(value, int) and not isinstance(value, bool) else None
    op = defs.get(x.id)
    if op is None:
        return None
    shape, base = shape_of(x.id), ops.base_name(op.name)

    def inner(arg: Arg) -> Affine | None:
        return _affine(defs, shape_of, resolve, arg)

    if op.name in ("hl.tile_index", "hl.tile_begin"):
        axis = op.args[0]
        assert isinstance(axis, int)
        return Affine(0, ((axis, 1),), shape, (1,) * len(shape))
    if base == "arange":
        numbers = [resolve(a) for a in op.args]
        numbers = [n for n in numbers if isinstance(n, int)]
        start, step = (0, 1) if len(numbers) == 1 else (numbers[0], numbers[2] if len(numbers) > 2 else 1)
        return Affine(start, (), shape, (step,))
    if base == "add" and not op.kwargs and len(op.args) == 2:
        a, b = inner(op.args[0]), inner(op.args[1])
        return None if a is None or b is None else _sum(a, b, shape)
    if base == "mul" and len(op.args) == 2:
        a, b = inner(op.args[0]), inner(op.args[1])
        a, b = (b, a) if a is not None and not a.begins and not a.shape else (a, b)
        return None if a is None or b is None or b.begins or b.shape else _times(a, b.start, shape)
    if base == "_to_copy" or ops.kind_of(op.name) is Kind.VIEW:
        source = inner(op.args[0])
        strides = None if source is None else _reshaped(source.shape, source.strides, shape)
        return None if source is None or strides is None else Affine(source.start, source.begins, shape, strides)
    return None


def _sum(a: Affine, b: Affine, shape: Shape) -> Affine:
    begins = dict(a.begins)
    for axis, factor in b.begins:
        begins[axis] = begins.get(axis, 0) + factor
    spread = [_broadcast(x, len(shape)) for x in (a, b)]
    return Affine(a.start + b.start, tuple(begins.items()), shape, tuple(map(sum, zip(*spread, strict=True))))


def _times(a: Affine, factor: int, shape: Shape) -> Affine:
    begins = tuple((axis, n * factor) for axis, n in a.begins)
    return Affine(a.start * factor, begins, shape, tuple(n * factor for n in _broadcast(a, len(shape))))


def _broadcast(x: Affine, rank: int) -> list[int]:
    return [0] * (rank - len(x.shape)) + [0 if n == 1 else s for n, s in zip(x.shape, x.strides, strict=True)]


def _reshaped(before: Sequence[int], strides: Sequence[int], after: Shape) -> Shape | None:
    """The strides after a reshape, or None where positions are no longer affine along its dimensions."""
    merged: list[list[int]] = []  # [size, stride] of runs of dimensions that are one
    for n, stride in zip(before, strides, strict=True):
        if n == 1:
            continue
        if merged and merged[-1][1] == stride * n:
            merged[-1] = [merged[-1][0] * n, stride]
        else:
            merged.append([n, stride])
    out = []
    for n in reversed(after):
        if n == 1:
            out.append(0)
            continue
        if not merged or merged[-1][0] % n:
            return None
        size, stride = merged.pop()
        out.append(stride)
        if size != n:
            merged.append([size // n, stride * n])
    return tuple(reversed(out)) if not merged else None


def needless(windows: Windows, region: Region) -> frozenset[int]:
    """Values that only the positions of scaled tiles are made of: nothing has to compute them."""
    every = list(walk(region))
    read: Counter[int] = Counter(r.id for op in every for inner in op.regions for r in refs_in(inner.results))
    sources: dict[int, list[int]] = {}
    gone: list[int] = []
    for op in every:
        memory = memory_of(op)
        scaled = [] if memory is None else [e.id for n in windows.scaled(memory) if isinstance(e := memory.index[n], Ref)]
        found = [r.id for r in reads_of(op, windows.program.axes)]
        read.update(found)
        read.subtract(scaled)
        gone += scaled
        sources.update(dict.fromkeys(op.results, [] if op.regions or has_effect(op) else found))
    dead: set[int] = set()
    while gone:
        value = gone.pop()
        op = windows.defs.get(value)
        if read[value] == 0 and value not in dead and op is not None and not op.regions and not has_effect(op):
            dead.add(value)
            read.subtract(sources[value])
            gone += sources[value]
    return frozenset(dead)


__all__ = ["ScaledTile", "needless", "scaled_tile"]
