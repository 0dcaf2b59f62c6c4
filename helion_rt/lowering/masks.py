"""Which dimensions of a value may hold elements that do not exist, and for which axis.

The last tile of a ragged axis reaches past the end; what is there is undefined (NaN, as likely as not). Elementwise
operations carry it along harmlessly and stores drop it. It must be replaced exactly where it could reach a result: before
a reduction or contraction over that dimension, and in a variable that a loop over that very axis carries on.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from ..exc import PlanError
from ..program.ir import Arg, Op, Program, Ref, Region, TileIndex, refs_in
from ..program.regions import CARRYING, axes_of, bodies_of, inits_of
from . import ops
from .inline import is_elementwise
from .memory import memory_of, selected_dims
from .ops import Kind

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True, order=True)
class Tag:
    """What bounds a dimension: the tile of ``axis`` has ``n`` elements, the dimension ``n * factor``."""

    axis: int
    factor: int = 1


Tags = tuple[frozenset[Tag], ...]  # for each logical dimension
NONE: frozenset[Tag] = frozenset()


def tile_tags(axis: int) -> frozenset[Tag]:
    """The tags of a dimension that is a tile of ``axis``."""
    return frozenset((Tag(axis),))


def infer_tags(
    program: Program, region: Region, shape_of: Callable[[int], Shape], ragged: Callable[[int], bool], *, strict: bool = True
) -> dict[int, Tags]:
    """The tags of every value defined in ``region`` and below. Only axes for which ``ragged`` holds appear.

    Raises ``PlanError`` for an operation that would mix elements that exist with some that do not; if not ``strict``, the
    dimensions that it mixes have no tags.
    """
    tags: dict[int, Tags] = {}
    _infer(_Rules(program, shape_of, ragged, strict), region, tags)
    return tags


@dataclasses.dataclass(frozen=True)
class _Rules:
    program: Program
    shape_of: Callable[[int], Shape]
    ragged: Callable[[int], bool]
    strict: bool

    def refuse(self, op: Op, reason: str) -> None:
        if self.strict:
            raise PlanError(reason, kernel=self.program.name, file=self.program.file, line=op.line,
                            hint="choose a block size that divides the dimension")  # fmt: skip


def _infer(rules: _Rules, region: Region, tags: dict[int, Tags]) -> None:
    shape_of = rules.shape_of
    for op in region.ops:
        if op.name in CARRYING:
            _infer_carried(rules, op, tags)
        else:
            for inner in op.regions:  # the combine function of a scan, which is elementwise: it cannot mix elements
                tags.update({p: (NONE,) * len(shape_of(p)) for p in inner.params})
                _infer(rules, inner, tags)
            for result in op.results:
                tags[result] = _tags(rules, op, result, tags)


def _infer_carried(rules: _Rules, op: Op, tags: dict[int, Tags]) -> None:
    """The tags of a carried variable are those of everything that can come into it."""
    axes, ranks = set(axes_of(op)), [len(rules.shape_of(result)) for result in op.results]
    current = [_broadcast([_of(init, tags)], rank) for init, rank in zip(inits_of(op), ranks, strict=True)]
    while True:  # tags only grow, and can pass from one carried variable to the next
        for region in op.regions:
            tags.update(zip(region.params, current, strict=True))
            _infer(rules, region, tags)
        grown = current
        for body in bodies_of(op):
            # Elements that a loop's own axes do not have keep their old value: see ``strategies``.
            kept = [tuple(frozenset(t for t in dim if t.axis not in axes) for dim in _of(value, tags)) for value in body.results]
            grown = [_broadcast([old, new], rank) for old, new, rank in zip(grown, kept, ranks, strict=True)]
        if grown == current:
            break
        current = grown
    tags.update(zip(op.results, current, strict=True))


def _of(x: Arg, tags: dict[int, Tags]) -> Tags:
    return tags.get(x.id, ()) if isinstance(x, Ref) else ()


def _broadcast(parts: Sequence[Tags], rank: int) -> Tags:
    padded = [(NONE,) * (rank - len(p)) + tuple(p) for p in parts]
    return tuple(frozenset().union(*dims) for dims in zip(*padded, strict=True)) if padded else (NONE,) * rank


def _tags(rules: _Rules, op: Op, result: int, tags: dict[int, Tags]) -> Tags:
    shape_of, ragged = rules.shape_of, rules.ragged
    rank = len(shape_of(result))
    if op.name == "hl.count":
        return ()
    if op.name in ("hl.load", "hl.atomic"):
        return _memory_tags(rules, op, tags, rank)
    if op.name == "hl.tile_index":
        axis = op.args[0]
        assert isinstance(axis, int)
        return (tile_tags(axis) if ragged(axis) else NONE,)
    inputs = list(refs_in(op.args))
    if op.name == "hl.inline" and not is_elementwise(op):
        if any(t for r in inputs for t in _of(r, tags)):
            rules.refuse(op, "hl.inline_pallas on a ragged tile, by a function that is not declared elementwise")
        return (NONE,) * rank
    if op.name in ("hl.scan", "hl.inline"):
        return _broadcast([_of(r, tags) for r in inputs], rank)
    if op.name == "hl.last":
        dim = op.args[1]
        assert isinstance(dim, int)
        return tuple(NONE if d == dim % rank else t for d, t in enumerate(_broadcast([_of(inputs[0], tags)], rank)))
    kind = ops.kind_of(op.name)
    if kind is Kind.CREATE or "tiles" in dict(op.kwargs):
        return _made_tags(rules, op, tags, rank)
    if not any(t for r in inputs for t in _of(r, tags)):
        return (NONE,) * rank
    if kind is Kind.ELEMENTWISE:
        return _broadcast([_of(r, tags) for r in inputs], rank)
    first = _of(inputs[0], tags)
    if kind is Kind.REDUCTION:
        dims = ops.reduced_dims(op.args, dict(op.kwargs), len(first))
        if rank == len(first):
            return tuple(NONE if i in dims else t for i, t in enumerate(first))
        return tuple(t for i, t in enumerate(first) if i not in dims)
    if kind is Kind.PERMUTE:
        return tuple(first[d] for d in ops.permutation(ops.base_name(op.name), op.args, len(first)))
    if kind is Kind.EXPAND:
        return _broadcast([first], rank)
    if kind is Kind.VIEW:
        return _view_tags(rules, op, first, shape_of(inputs[0].id), shape_of(result))
    if kind is Kind.CONTRACT:
        a, b = _of(op.args[0], tags), _of(op.args[1], tags)
        batch = _broadcast([a[:-2], b[:-2]], rank - 2)
        left, right = contracted_dims(op)
        out = (*batch, a[-3 - left] if a else NONE, b[-3 - right] if b else NONE)
        return _broadcast([out, _of(op.args[2], tags)], rank)
    return _other_tags(rules, op, tags, first, rank)


def contracted_dims(op: Op) -> tuple[int, int]:
    """The dimension of each operand of an ``hl.dot`` that it sums over, counted from the end: -1 or -2."""
    left, right = dict(op.kwargs).get("transposed", (False, False))  # type: ignore[misc]  (a pair of bools: see ``orient``)
    return -2 if left else -1, -1 if right else -2


def _made_tags(rules: _Rules, op: Op, tags: dict[int, Tags], rank: int) -> Tags:
    """Of what is allocated, or repeated: bounded by the tiles of its shape, or by what it is made like."""
    kwargs = dict(op.kwargs)
    tiles = kwargs.get("tiles", (None,) * rank)
    assert isinstance(tiles, tuple)
    own = tuple(tile_tags(t.axis) if isinstance(t, TileIndex) and rules.ragged(t.axis) else NONE for t in tiles)
    inputs = [*refs_in(op.args), *refs_in(kwargs.get("like"))]
    return _broadcast([own, *(_of(r, tags) for r in inputs)], rank)


def _memory_tags(rules: _Rules, op: Op, tags: dict[int, Tags], rank: int) -> Tags:
    """Of what a load or an atomic gives: bounded by its tiles, its index tensors and its mask."""
    memory = memory_of(op)
    assert memory is not None
    common = _broadcast([_of(ref, tags) for ref in memory.gathers(rules.shape_of)], rank)
    dims = selected_dims(memory.index, rules.shape_of)
    last = sum(s.common is not None for s in dims)
    out: list[frozenset[Tag]] = []
    for s in dims:
        if isinstance(s.element, TileIndex):
            out.append(tile_tags(s.element.axis) if rules.ragged(s.element.axis) else NONE)
        else:
            out.append(NONE if s.common is None else common[rank - last + s.common])
    return _broadcast([tuple(out), _of(memory.mask, tags)], rank)


def _view_tags(rules: _Rules, op: Op, tags: Tags, before: Shape, after: Shape) -> Tags:
    """Follows dimensions through a reshape; one that is ragged is merged only with whole ones after it, and split where it was."""
    out: list[frozenset[Tag]] = []
    i = j = 0
    while i < len(before) or j < len(after):
        if i < len(before) and j < len(after) and before[i] == after[j]:
            out.append(tags[i])
            i, j = i + 1, j + 1
        elif j < len(after) and after[j] == 1:
            out.append(NONE)
            j += 1
        elif i < len(before) and before[i] == 1:
            i += 1
        else:
            size_in, size_out, start_i, start_j = before[i], after[j], i, j
            while size_in != size_out:
                if size_in < size_out:
                    i += 1
                    size_in *= before[i]
                else:
                    j += 1
                    size_out *= after[j]
            # Elements of the first dimension are taken apart into so many, and these put together by so many.
            apart, together = math.prod(before[start_i + 1 : i + 1]), math.prod(after[start_j + 1 : j + 1])
            whole = all(tag.factor * apart % together == 0 for tag in tags[start_i])
            if not whole or any(tags[d] for d in range(start_i + 1, i + 1)):
                rules.refuse(op, "a reshape merges or splits a ragged tile")
                out.append(NONE)
            else:
                out.append(frozenset(Tag(tag.axis, tag.factor * apart // together) for tag in tags[start_i]))
            out += [NONE] * (j - start_j)
            i, j = i + 1, j + 1
    return tuple(out)


def _other_tags(rules: _Rules, op: Op, tags: dict[int, Tags], first: Tags, rank: int) -> Tags:
    base = ops.base_name(op.name)
    given = op.args[1] if len(op.args) > 1 else dict(op.kwargs).get("dim", 0)
    dims = {d % max(1, len(first)) for d in (given if isinstance(given, tuple) else (given,)) if isinstance(d, int)}
    if base in ("cumsum", "cumprod"):
        return first  # what does not exist comes last, and reaches nothing before it
    touched = any(found[d] for d in dims for r in refs_in(op.args) if (found := _of(r, tags)))
    if base == "select":
        if touched and op.args[2:3] != (0,):  # a tile always has a first element
            rules.refuse(op, "an element of a ragged tile is selected by its position")
        return tuple(t for d, t in enumerate(first) if d not in dims)
    if touched:
        rules.refuse(op, f"{op.name} along a ragged tile")
    return tuple(NONE if d in dims else t for d, t in enumerate(_broadcast([_of(r, tags) for r in refs_in(op.args)], rank)))
