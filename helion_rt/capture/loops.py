"""Loops: what a rewritten ``for`` statement talks to.

A plain Python loop just runs. A device loop runs its body once: variables that it assigns are given placeholders, and
those whose placeholder is read are carried from tile to tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from ..exc import CaptureError, DTypeError, ShapeMismatch
from ..program.expr import Block, Expr, evaluate
from ..program.ir import Arg, Axis, BlockInfo, Op, Ref, Region
from . import tracer as tracing
from . import views
from .hints import Dim
from .tensors import TracedTensor
from .tiles import Bound, LoopRequest, Tile
from .undefined import Undefined

if TYPE_CHECKING:
    from .tracer import Tracer

_PLAIN = (bool, int, float, str, type(None), torch.dtype)


class PlainLoop:
    """A loop over a Python iterable: runs as it is."""

    def __init__(self, tracer: Tracer, iterable: Any, names: tuple[str, ...]) -> None:
        self.tracer, self.iterable, self.names = tracer, iterable, names

    def _values(self, scope: Mapping[str, Any]) -> tuple[Any, ...]:
        missing = object()
        found = [(name, scope.get(name, missing)) for name in self.names]
        return tuple(Undefined(self.tracer, name, "is used before it has a value") if v is missing else v for name, v in found)

    begin = next = end = _values

    def __iter__(self) -> Iterator[Any]:
        return iter(self.iterable)


class DeviceLoop:
    """One ``hl.tile`` or ``hl.grid`` loop: a launch in host code, an inner loop in device code."""

    def __init__(self, tracer: Tracer, request: LoopRequest, names: tuple[str, ...], line: int) -> None:
        self.tracer, self.request, self.names, self.line = tracer, request, names, line
        self.kind = tracing.FrameKind.LOOP if tracer.in_device else tracing.FrameKind.LAUNCH
        self.outer = tracer.frame
        self.axes = tuple(self._axis(bound) for bound in request.bounds)
        self.frame = tracing.Frame(self.kind, self.axes)
        self.first: dict[str, Any] = {}  # what each variable held before
        self.inits: dict[str, TracedTensor] = {}
        self.placeholders: dict[str, TracedTensor] = {}
        self.entry: dict[str, int] = {}  # value ids of the placeholders
        self.poison: dict[str, Undefined] = {}
        self.last: dict[str, Any] = {}

    # Axes.

    def _axis(self, bound: Bound) -> int:
        tracer = self.tracer
        begin, end = self._bound(bound.begin), self._bound(bound.end)
        limit = self._limit(end) if isinstance(end, Ref) else None
        extent = self._extent(begin, end, limit)
        if self.request.is_grid:
            block = self._new_block(BlockInfo(1, extent))
        else:
            block = self._block(bound.block_size, extent)
        tracer.axes.append(Axis(block, begin, end, self.request.is_grid, limit))
        return len(tracer.axes) - 1

    def _bound(self, value: Any) -> Expr | Ref:
        tracer = self.tracer
        if isinstance(value, Dim):
            return value.expr
        if isinstance(value, TracedTensor):
            if value.is_host and not tracer.in_device:
                tracer.needed(value, "the bound of an outer tile loop", "outer loops need bounds that are known when they start")
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
        return tuple(self._enter(name, scope) for name in self.names)

    def _enter(self, name: str, scope: Mapping[str, Any]) -> Any:
        tracer, knowledge, key = self.tracer, self.tracer.knowledge, (self.line, name)
        if name not in scope:
            scope = {name: Undefined(tracer, name, "is used before it has a value")}
        value = self.first[name] = scope[name]
        if key in knowledge.poisoned:
            what = type(value).__name__ if not isinstance(value, TracedTensor) else "tensor of the host part"
            where = "from tile to tile of an outer loop, which have no order" if self.kind is tracing.FrameKind.LAUNCH else "by a tile loop"
            hint = "carry tensors, one variable each" if self.kind is tracing.FrameKind.LOOP else "use an inner tile loop"
            self.poison[name] = Undefined(tracer, name, f"({what}) would be carried {where}", hint)
            return self.poison[name]
        if self.kind is tracing.FrameKind.LAUNCH:
            return value
        if key in knowledge.promoted and isinstance(value, (bool, int, float)):
            tracer.stack.pop()
            value = tracer.full((), value, knowledge.promoted[key])
            tracer.stack.append(self.frame)
        if not isinstance(value, TracedTensor) or value.is_host:
            return value
        placeholder = tracer.wrap(value.meta, self.frame)
        self.inits[name], self.placeholders[name], self.entry[name] = value, placeholder, placeholder.value
        value.loaned, value.read_on_loan = placeholder, False
        return placeholder

    def __iter__(self) -> Iterator[Any]:
        tracer = self.tracer
        variables: list[Any] = []
        for axis in self.axes:
            tile = Tile(tracer, axis)
            variables.append(tile.begin if self.request.is_grid else tile)
        yield tuple(variables) if self.request.is_sequence else variables[0]

    def next(self, scope: Mapping[str, Any]) -> tuple[Any, ...]:
        for name in self.names:
            value = scope.get(name, Undefined(self.tracer, name, "was deleted"))
            self.last[name] = self._leave(name, value)
        return tuple(self.last[name] for name in self.names)

    def _leave(self, name: str, value: Any) -> Any:
        """The value of a variable at the end of the body. Starts again if it has to be treated otherwise."""
        tracer, first, key = self.tracer, self.first[name], (self.line, name)
        if name in self.poison or isinstance(first, Undefined) or value is first or name in self.placeholders:
            return value
        if isinstance(first, _PLAIN) and type(first) is type(value) and first == value:
            return value
        if self.kind is tracing.FrameKind.LOOP and isinstance(first, (bool, int, float)) and not isinstance(first, (Dim, Tile)):
            if isinstance(value, TracedTensor) and not value.is_host:
                tracer.knowledge.promoted[key] = value.dtype
                raise tracing.Restart
            if isinstance(value, (bool, int, float)) and not isinstance(value, (Dim, Tile)):
                kind = torch.float32 if isinstance(value, float) or isinstance(first, float) else torch.int32
                tracer.knowledge.promoted[key] = kind
                raise tracing.Restart
        tracer.knowledge.poisoned.add(key)
        raise tracing.Restart

    def end(self, scope: Mapping[str, Any]) -> tuple[Any, ...]:
        tracer = self.tracer
        carried = self._carried() if self.kind is tracing.FrameKind.LOOP else {}
        tracer.stack.pop()
        for init in self.inits.values():
            init.loaned = None
        if self.kind is tracing.FrameKind.LAUNCH:
            self._finish_launch()
            return tuple(self._after(name) for name in self.names)
        inits = tuple(tracer.use(self.inits[name]) for name in carried)
        results = {name: tracer.wrap(self.inits[name].meta) for name in carried}
        params = tuple(self.entry[name] for name in carried)
        region = Region(tuple(self.frame.ops), params, tuple(carried.values()))
        args: tuple[Arg, ...] = (self.axes, inits)
        tracer.push(Op("hl.loop", args, (), tuple(r.value for r in results.values()), self.line, (region,)))
        return tuple(self._result(name, results[name]) if name in results else self._after(name) for name in self.names)

    def _carried(self) -> dict[str, Ref]:
        """Variables whose placeholder is read, and their next values."""
        tracer = self.tracer
        carried: dict[str, Ref] = {}
        while True:  # yielding one placeholder as the next value of another reads it
            fresh = [n for n, entry in self.entry.items() if n not in carried and entry in tracer.used and self._changed(n)]
            if not fresh:
                return {name: carried[name] for name in self.entry if name in carried}
            for name in fresh:
                carried[name] = tracer.use(self._check_next(name))

    def _changed(self, name: str) -> bool:
        value = self.last[name]
        return not (isinstance(value, TracedTensor) and value.value == self.entry[name])

    def _check_next(self, name: str) -> TracedTensor:
        """The next value of a carried variable, of the type that it came in with."""
        tracer, value, init = self.tracer, self.last[name], self.inits[name]
        if init.read_on_loan and self.placeholders[name].mutated:
            tracer.refuse(f"'{name}' is changed in place while another name for it is read", "assign: x = x + 1", self.line)
        if isinstance(value, (bool, int, float)) and not isinstance(value, (Tile, Dim)):
            value = tracer.full(tuple(init.meta.shape), value, init.dtype)
        if not isinstance(value, TracedTensor) or value.is_host:
            what = "has no value at the end of the body" if isinstance(value, Undefined) else f"becomes a {type(value).__name__}"
            tracer.refuse(f"variable '{name}', carried by a tile loop, {what}; expected a {tracer.describe(init)}", None, self.line)
        for kind, same in ((ShapeMismatch, value.meta.shape == init.meta.shape), (DTypeError, value.dtype == init.dtype)):
            if not same:
                raise self._mismatch(kind, name, value)
        return value

    def _mismatch(self, kind: type[CaptureError], name: str, value: TracedTensor) -> CaptureError:
        message = f"variable '{name}' enters the tile loop as {self.tracer.describe(self.inits[name])} and leaves its body as "
        hint = "convert it with .to(dtype)" if kind is DTypeError else "give it its shape before the loop, e.g. hl.zeros([tile, n])"
        return self.tracer.error(kind, message + self.tracer.describe(value), hint, self.line)

    def _result(self, name: str, result: TracedTensor) -> TracedTensor:
        placeholder, init = self.placeholders[name], self.inits[name]
        if placeholder.mutated and self.last[name] is placeholder:
            self.tracer.rebind(init, result)  # every name of the tensor sees the change
            return init
        return result

    def _after(self, name: str) -> Any:
        """What a variable that is not carried holds after the loop."""
        first, last = self.first[name], self.last[name]
        if name in self.placeholders:
            if not self._changed(name):
                return self.inits[name]
        elif last is first or last is self.poison.get(name):
            return first
        elif isinstance(last, _PLAIN) and not isinstance(last, (Dim, Tile)):
            return last
        return Undefined(
            self.tracer, name,
            f"is assigned in the tile loop of line {self.line} and read after it: it has the value of the last tile only",
            "store tiles to a tensor, or carry the variable through an inner loop",
        )  # fmt: skip

    def _finish_launch(self) -> None:
        tracer = self.tracer
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


def make(tracer: Tracer, iterable: Any, names: tuple[str, ...], line: int, obstacle: str | None) -> PlainLoop | DeviceLoop:
    """The loop of a ``for`` statement at ``line`` that assigns ``names``. ``obstacle`` is what its body has that a
    device loop cannot do, such as ``break``."""
    if isinstance(iterable, LoopRequest):
        if obstacle is not None:
            text, _, at = obstacle.rpartition("@")
            tracer.refuse(f"{text} in a tile loop", "use torch.where on values, or bounds of an inner loop", int(at))
        return DeviceLoop(tracer, iterable, names, line)
    if isinstance(iterable, range) and any(not isinstance(tracer.hints.decode(n), int) for n in (iterable.start, iterable.stop)):
        tracer.refuse("range over a block size", "use an inner hl.tile loop")
    return PlainLoop(tracer, iterable, names)
