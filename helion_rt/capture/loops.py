"""Loops: what a rewritten ``for`` statement talks to.

A plain Python loop just runs. A device loop runs its body once: variables that it assigns are given placeholders, and
those whose placeholder is read are carried from tile to tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ..program.expr import Block, Expr, evaluate
from ..program.ir import Arg, Axis, BlockInfo, Op, Ref, Region
from . import jagged, views
from . import tracer as tracing
from .carry import Carried
from .hints import Dim
from .tensors import TracedTensor
from .tiles import Bound, LoopRequest, Tile
from .undefined import Undefined

if TYPE_CHECKING:
    from .tracer import Tracer


class PlainLoop:
    """A loop over a Python iterable: runs as it is."""

    def __init__(self, tracer: Tracer, iterable: Any, names: tuple[str, ...]) -> None:
        self.tracer, self.iterable, self.names = tracer, iterable, names

    def _values(self, scope: Mapping[str, Any]) -> tuple[Any, ...]:
        missing = object()
        found = [(name, scope.get(name, missing)) for name in self.names]
        return tuple(Undefined(self.tracer, name, "is used before it has a value") if v is missing else v for name, v in found)

    begin = next = end = _values

    def jump(self, what: str, line: int) -> None:
        """Leaving the body is as in Python."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self.iterable)


class DeviceLoop:
    """One ``hl.tile`` or ``hl.grid`` loop: a launch in host code, an inner loop in device code."""

    def __init__(self, tracer: Tracer, request: LoopRequest, names: tuple[str, ...], line: int) -> None:
        self.tracer, self.request, self.names, self.line = tracer, request, names, line
        self.kind = tracing.FrameKind.LOOP if tracer.in_device else tracing.FrameKind.LAUNCH
        self.outer = tracer.frame
        self.axes = tuple(self._axis(bound) for bound in request.bounds)
        if request.lanes is not None:
            self._make_jagged(request.lanes)
        self.frame = tracing.Frame(self.kind, self.axes)
        self.carried = Carried(tracer, names, line, "a tile loop", is_launch=self.kind is tracing.FrameKind.LAUNCH)

    # Axes.

    def _axis(self, bound: Bound) -> int:
        tracer = self.tracer
        begin, end = self._bound(bound.begin), self._bound(bound.end)
        if bound.step != 1:  # counts the positions
            begin, end = 0, self._bound((bound.end - bound.begin + bound.step - 1) // bound.step)
        limit = self._limit(end) if isinstance(end, Ref) else None
        extent = self._extent(begin, end, limit)
        if self.request.is_grid:
            block = self._new_block(BlockInfo(1, extent))
        else:
            block = self._block(bound.block_size, extent)
        tracer.axes.append(Axis(block, begin, end, self.request.is_grid, limit))
        return len(tracer.axes) - 1

    def _make_jagged(self, lanes: TracedTensor) -> None:
        (axis,) = self.axes
        ends = TracedTensor.make(self.tracer, lanes.meta, lanes.value, lanes.frame)  # it may be changed in place later
        self.tracer.jagged[self.tracer.axes[axis].block] = jagged.Jagged(axis, ends)

    def _bound(self, value: Any) -> Expr | Ref:
        tracer = self.tracer
        if isinstance(value, Dim):
            return value.expr
        if isinstance(value, TracedTensor):
            if value.is_number or (value.is_host and not tracer.in_device and not value.meta.shape):
                hint = "outer loops need bounds that are known when they start"
                return self._bound(tracer.needed(value, "the bound of a tile loop", hint))
            if value.is_host and not value.is_param:
                value = tracer.getitem(value, ())
            if value.meta.shape or value.dtype.is_floating_point or value.dtype is torch.bool:
                tracer.refuse(f"a {tracer.describe(value)} is the bound of a loop", "expected an integer scalar")
            return tracer.use(value)
        if not isinstance(value, int) or isinstance(value, (bool, Tile)):
            tracer.refuse(f"a {type(value).__name__} is the bound of a loop", "expected integers: hl.tile(n), hl.tile([m, n])")
        return value

    def _block(self, size: Any, extent: int) -> int:
        tracer = self.tracer
        if size is None:
            return self._new_block(BlockInfo(None, extent))
        if isinstance(size, Dim) and isinstance(size.expr, Block):
            old = tracer.blocks[size.expr.id]
            tracer.blocks[size.expr.id] = BlockInfo(old.fixed, max(old.extent, extent), old.low, old.high)
            return size.expr.id
        if isinstance(size, (Dim, Tile, bool)) or not isinstance(size, int) or size < 1:
            tracer.refuse(f"block_size={size}", "expected a positive int, or a block size from register_block_size or tile.block_size")
        return self._new_block(BlockInfo(size, extent))

    def _new_block(self, block: BlockInfo) -> int:
        self.tracer.blocks.append(block)
        if block.fixed is None:
            self.tracer.fresh_block()
        return len(self.tracer.blocks) - 1

    def _extent(self, begin: Expr | Ref, end: Expr | Ref, limit: int | None) -> int:
        sizes = [block.fixed if block.fixed is not None else block.extent for block in self.tracer.blocks]
        last = limit if isinstance(end, Ref) else evaluate(end, sizes)
        if last is None:  # nothing bounds it: as long as the longest dimension there is
            return self.tracer.largest
        return max(0, last - (0 if isinstance(begin, Ref) else evaluate(begin, sizes)))

    def _limit(self, ref: Ref) -> int | None:
        """The largest value that a device integer can have, from how it was made."""
        op = self.tracer.made_by.get(ref.id)
        if op is None:
            return None
        if op.name in ("hl.tile_end", "hl.tile_begin"):
            axis = self.tracer.axes[op.args[0]]  # type: ignore[index]
            end = axis.end if isinstance(axis.end, int) else axis.limit
            return end if end is None or op.name == "hl.tile_end" else max(0, end - 1)
        name, args = op.name.split(".")[1], op.args
        bounds = [a if isinstance(a, int) else self._limit(a) if isinstance(a, Ref) else None for a in args[:2]]
        if name == "minimum" or name in ("clamp", "clamp_max"):
            if name == "clamp":
                bounds = [bounds[0], args[2] if len(args) > 2 and isinstance(args[2], int) else None]
            known = [b for b in bounds if b is not None]
            return min(known) if known else None
        if name == "add" and not op.kwargs and None not in bounds:
            return sum(b for b in bounds if b is not None)
        if name == "sub" and not op.kwargs and bounds[0] is not None and isinstance(args[1], int):
            return bounds[0] - args[1]
        if name in ("_to_copy",):
            return bounds[0]
        return None

    # The protocol of the rewritten loop.

    def begin(self, scope: Mapping[str, Any]) -> tuple[Any, ...]:
        self.tracer.stack.append(self.frame)
        if self.kind is tracing.FrameKind.LAUNCH:
            self.tracer.written, self.tracer.loaded = [], []
        return self.carried.enter(scope)

    def __iter__(self) -> Iterator[Any]:
        variables = tuple(self._variable(axis, bound) for axis, bound in zip(self.axes, self.request.bounds, strict=True))
        yield variables if self.request.is_sequence else variables[0]

    def _variable(self, axis: int, bound: Bound) -> Any:
        tile = Tile(self.tracer, axis)
        if not self.request.is_grid:
            return tile
        return tile.begin if bound.step == 1 else tile.begin * bound.step + bound.begin

    def next(self, scope: Mapping[str, Any]) -> tuple[Any, ...]:
        return self.carried.leave(scope)

    def jump(self, what: str, line: int) -> None:
        hint = "use torch.where on values, or bounds of an inner loop"
        self.tracer.refuse(f"'{what}' in a tile loop", hint, line)

    def end(self, scope: Mapping[str, Any]) -> tuple[Any, ...]:
        tracer, carried = self.tracer, self.carried
        nexts = self._nexts() if self.kind is tracing.FrameKind.LOOP else {}
        tracer.stack.pop()
        carried.release()
        if self.kind is tracing.FrameKind.LAUNCH:
            self._finish_launch()
            return tuple(carried.after(name) for name in self.names)
        same = {entry: carried.inits[n].value for n, entry in carried.entry.items() if n not in nexts}
        tracer.used.update(carried.inits[n].value for n in carried.inits if n not in nexts and carried.entry[n] in tracer.used)
        inits = tuple(tracer.use(carried.inits[name]) for name in nexts)
        results = {name: tracer.wrap(carried.inits[name].meta) for name in nexts}
        params = tuple(carried.entry[name] for name in nexts)
        region = Region(tracing.renamed(self.frame.ops, same), params, tuple(nexts.values()))
        tracing.renamed_bounds(tracer.axes, same)
        args: tuple[Arg, ...] = (self.axes, inits)
        tracer.push(Op("hl.loop", args, (), tuple(r.value for r in results.values()), self.line, (region,)))
        return tuple(carried.result(n, results[n]) if n in results else carried.after(n) for n in self.names)

    def _nexts(self) -> dict[str, Ref]:
        """Variables whose placeholder is read and changes, and their next values."""
        tracer, carried = self.tracer, self.carried
        nexts: dict[str, Ref] = {}
        while True:  # yielding one placeholder as the next value of another reads it
            fresh = [n for n in carried.changed() if n not in nexts and carried.entry[n] in tracer.used]
            if not fresh:
                return {name: nexts[name] for name in carried.entry if name in nexts}
            for name in fresh:
                nexts[name] = tracer.use(carried.check_next(name))

    def _finish_launch(self) -> None:
        tracer = self.tracer
        _bound_blocks(tracer)
        written, loaded = tracer.written, tracer.loaded
        roots = [views.root(t) for t in written]
        if len({id(r) for r in roots}) != len(roots):
            tracer.refuse("two views of one tensor are stored to in one loop", "store through one of them", self.line)
        for tensor in loaded:
            if any(views.root(tensor) is r and tensor is not w for r, w in zip(roots, written, strict=True)):
                tracer.refuse("a tensor is read through one view and stored to through another in one loop", "use one view", self.line)
        refs = tuple(tracer.use(t) for t in written)
        results = [tracer.wrap(t.meta, tracer.host) for t in written]
        region = Region(tuple(self.frame.ops))
        tracer.push(Op("hl.launch", (self.axes, refs), (), tuple(r.value for r in results), self.line, (region,)))
        for tensor, result in zip(written, results, strict=True):
            tracer.rebind(tensor, result)
        tracer.written, tracer.loaded = [], []


def _bound_blocks(tracer: Tracer) -> None:
    """Blocks of loops that nothing bounds need not be longer than the dimensions that their tiles index."""
    for block, info in enumerate(tracer.blocks):
        users = [i for i, axis in enumerate(tracer.axes) if axis.block == block]
        unbounded = all(isinstance(a.end, Ref) and a.limit is None for a in (tracer.axes[i] for i in users))
        if users and unbounded and info.fixed is None and all(i in tracer.reach for i in users):
            extent = min(info.extent, max(tracer.reach[i] for i in users))
            tracer.blocks[block] = BlockInfo(None, extent, info.low, info.high)


class NestedLoops:
    """A loop over several axes, of which one has a bound that is known only on the device: one ``hl.loop`` in the other."""

    def __init__(self, tracer: Tracer, request: LoopRequest, names: tuple[str, ...], line: int) -> None:
        requests = [replace(request, bounds=(bound,), is_sequence=False) for bound in request.bounds]
        self.loops = [DeviceLoop(tracer, r, names, line) for r in requests]
        self.names = names

    def begin(self, scope: Mapping[str, Any]) -> tuple[Any, ...]:
        values: tuple[Any, ...] = ()
        for loop in self.loops:
            values = loop.begin(scope)
            scope = {**scope, **dict(zip(self.names, values, strict=True))}
        return values

    def __iter__(self) -> Iterator[Any]:
        yield tuple(next(iter(loop)) for loop in self.loops)

    def next(self, scope: Mapping[str, Any]) -> tuple[Any, ...]:
        return self.loops[-1].next(scope)

    def jump(self, what: str, line: int) -> None:
        self.loops[0].jump(what, line)

    def end(self, scope: Mapping[str, Any]) -> tuple[Any, ...]:
        values = self.loops[-1].end(scope)
        for loop in reversed(self.loops[:-1]):
            scope = {**scope, **dict(zip(self.names, values, strict=True))}
            loop.next(scope)
            values = loop.end(scope)
        return values


def make(
    tracer: Tracer, iterable: Any, names: tuple[str, ...], line: int, obstacle: tuple[str, int] | None
) -> PlainLoop | DeviceLoop | NestedLoops:
    """The loop of a ``for`` statement at ``line`` that assigns ``names``. ``obstacle``: what its body has that a
    device loop cannot do, such as ``yield``, and the line of that."""
    if isinstance(iterable, LoopRequest):
        if obstacle is not None:
            text, at = obstacle
            tracer.refuse(f"{text} in a tile loop", "move it out of the loop", at)
        if len(iterable.bounds) > 1 and tracer.in_device and any(isinstance(b, TracedTensor) for i in iterable.bounds for b in i.ends):
            return NestedLoops(tracer, iterable, names, line)
        return DeviceLoop(tracer, iterable, names, line)
    if isinstance(iterable, range) and any(not isinstance(tracer.hints.decode(n), int) for n in (iterable.start, iterable.stop)):
        tracer.refuse("range over a block size", "use an inner hl.tile loop")
    return PlainLoop(tracer, iterable, names)
