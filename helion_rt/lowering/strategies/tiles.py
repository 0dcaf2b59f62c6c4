"""The tiles of one turn of a loop, one after the other: what all strategies share.

A turn is a step of the grid or of a nested pipeline, an iteration of a rolled loop, or the whole of an unrolled one.
"""

from __future__ import annotations

from ...config import Issue
from ...program.ir import Ref, Region
from .. import issue
from ..issue import Split
from ..windows import Loop
from ..writer import KernelWriter, Position
from . import write_op, write_region
from .resident import bind_carried, bind_positions, pack, tuple_text, unpacked


def write_tiles(w: KernelWriter, loop: Loop, carry: str, *, turn: str | None) -> str:
    """Writes the tiles of turn ``turn`` (None: all tiles of the loop, whose positions are then numbers when traced).

    ``carry``: the text of the tuple of carried values before; returned: the name of that after.
    """
    count = loop.steps if turn is None else loop.tiles
    name, after = w.name(f"loop_{loop.number}"), w.name("carry")
    tile = w.name("i")  # a name of its own: the bodies of loops inside of this one use it, too
    parts = parts_of(w, loop)
    if parts is None:
        _write_tile(w, loop, name, turn, tile, None)
        w.out.add(f"{after} = {carry}")
        w.out.add(f"for {tile} in range({count}):")
        with w.out.indented():
            w.out.add(f"{after} = {name}({tile}, {after})")
        return after
    first, ahead = w.name(f"first_{loop.number}"), w.name("ahead")
    _write_first(w, loop, first, turn, tile, parts)
    _write_tile(w, loop, name, turn, tile, parts)
    w.out.add(f"{after}, {ahead} = {carry}, {first}(0)")
    w.out.add(f"for {tile} in range({count}):")
    with w.out.indented():
        now = w.name("now")
        w.out.add(f"{now}, {ahead} = {ahead}, {first}({tile} + 1) if {tile} + 1 < {count} else None")
        w.out.add(f"{after} = {name}({tile}, {now}, {after})")
    return after


def write_turn(w: KernelWriter, loop: Loop, turn: str) -> None:
    """Writes turn ``turn`` of a loop whose carried values are in scratch; the positions of a turn of one tile are bound already."""
    region = loop.op.regions[0]
    if loop.tiles > 1:
        after = write_tiles(w, loop, tuple_text([pack(w, w.value(Ref(p), w.form(p)), p) for p in region.params]), turn=turn)
        names = [f"{after}[{n}]" for n in range(len(region.params))]
        results = [unpacked(w, name, p) for name, p in zip(names, region.params, strict=True)]
    else:
        write_region(w, region)
        results = [w.next_value(x, p, loop.axes) for x, p in zip(region.results, region.params, strict=True)]
        if len(results) > 1:  # all of them are made before the first is kept
            names = [w.name("next") for _ in results]
            for name, text in zip(names, results, strict=True):
                w.out.add(f"{name} = {text}")
            results = names
    for param, text in zip(region.params, results, strict=True):
        w.out.add(w.scratch[param].write(text))


def parts_of(w: KernelWriter, loop: Loop) -> Split | None:
    """The two parts of the loop's body, where the config has the next tile begin before this one has ended."""
    if loop.issue is Issue.IN_ORDER:
        return None
    written = frozenset(o.tensor for o in w.launch.operands if o.written)
    return issue.parts(loop.op.regions[0], w.program.axes, written)


def bind_tile(w: KernelWriter, loop: Loop, turn: str | None, tile: str) -> None:
    """The positions of the turn's tile of number ``tile``."""
    if turn is None:
        bind_positions(w, loop, tile, static=True)
        return
    (axis,) = loop.axes
    id = f"({turn} * {loop.tiles} + {tile})"
    w.positions[axis] = Position(id, w.begin_of(axis, id), within=tile)


def _write_first(w: KernelWriter, loop: Loop, name: str, turn: str | None, tile: str, parts: Split) -> None:
    with w.function(f"def {name}({tile}):"):
        bind_tile(w, loop, turn, tile)
        for op in loop.op.regions[0].ops:
            if id(op) in parts.first:
                write_op(w, op)
        handed = [w.value(Ref(v), w.form(v)) for v in parts.handed if not w.is_free(w.defs[v])]
        w.out.add(f"return {tuple_text(handed)}")


def _write_tile(w: KernelWriter, loop: Loop, name: str, turn: str | None, tile: str, parts: Split | None) -> None:
    region: Region = loop.op.regions[0]
    with w.function(f"def {name}({tile}, {'now, ' if parts else ''}carry):"):
        bind_tile(w, loop, turn, tile)
        handed = [v for v in parts.handed if not w.is_free(w.defs[v])] if parts else []
        if handed:
            names = [w.bind((v, w.form(v)), w.name("early")) for v in handed]
            w.out.add(f"{tuple_text(names)} = now")
        bind_carried(w, region)
        for op in region.ops:
            if parts is None or id(op) not in parts.first:
                write_op(w, op)
        results = [pack(w, w.next_value(x, p, loop.axes), p) for x, p in zip(region.results, region.params, strict=True)]
        w.out.add(f"return {tuple_text(results)}")


__all__ = ["parts_of", "write_tiles", "write_turn"]
