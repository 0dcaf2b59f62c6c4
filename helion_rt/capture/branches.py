"""Branches on conditions that are known only on the device: ``hl.if``.

Both branches are captured. A variable that either of them assigns has afterwards the value of the branch that was taken, if
both give it a tensor of one shape and dtype (numbers become such); else it has none, and says why when it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from ..exc import DTypeError
from ..program.ir import Arg, Op, Ref, Region
from . import tracer as tracing
from .effects import Reach
from .hints import Dim
from .tensors import TracedTensor
from .tiles import Tile
from .undefined import Undefined

if TYPE_CHECKING:
    from .tracer import Frame, Tracer

_PURE_TILE_OPS = frozenset(("hl.tile_index", "hl.tile_begin", "hl.tile_end", "hl.tile_id"))


def on_device(tracer: Tracer, test: Any) -> bool:
    """Whether Python cannot decide on ``test``, but the device can: a traced value in device code.

    What depends on nothing but Python numbers among the arguments is left to Python (the numbers become static).
    """
    return isinstance(test, TracedTensor) and tracer.in_device and not (tracer.has_scalars and tracer.from_scalars(test))


def as_bool(tracer: Tracer, test: Any) -> Any:
    """A condition as a bool of rank 0."""
    if test.is_host and not test.is_param:
        if test.meta.shape:
            tracer.refuse(f"a whole {tracer.describe(test)} is used as a condition", "subscript it first; reduce it with .any() or .all()")
        test = tracer.getitem(test, ())
    if test.meta.shape:
        if any(tracer.hints.decode(n) != 1 for n in test.meta.shape):
            tracer.refuse(f"a {tracer.describe(test)} is used as a condition", "reduce it with .any() or .all(), or use torch.where")
        test = test.reshape(())
    return test if test.dtype is torch.bool else test != 0


class PlainIf:
    """An ``if`` that Python decides."""

    device = False

    def __init__(self, test: bool) -> None:
        self.first, self.second = test, not test

    def jump(self, what: str, line: int) -> None:
        """Leaving the branch is as in Python."""


class DeviceIf:
    """An ``if`` that the device decides: both branches are captured, one after the other."""

    device = first = second = True

    def __init__(self, tracer: Tracer, test: Any, names: tuple[str, ...], line: int) -> None:
        self.tracer, self.names, self.line = tracer, names, line
        self.condition = tracer.use(as_bool(tracer, test))
        self.before: dict[str, Any] = {}
        self.branches: list[_Branch] = []
        self.reach = Reach({}, ())  # what a branch could change beside its variables

    def enter(self, scope: Mapping[str, Any]) -> tuple[Any, ...]:
        if not self.branches:
            self.before = {name: scope[name] if name in scope else self._none(name) for name in self.names}
            self.reach = Reach(scope, self.names)
        branch = _Branch(self.tracer, self.before)
        self.branches.append(branch)
        return tuple(branch.start[name] for name in self.names)

    def _none(self, name: str) -> Undefined:
        return Undefined(self.tracer, name, "is used before it has a value")

    def leave(self, scope: Mapping[str, Any]) -> tuple[Any, ...]:
        self.reach.check(self.tracer, scope, "a branch on a value of the device", self.line)
        self.branches[-1].finish({name: scope.get(name, self._none(name)) for name in self.names})
        return tuple(self.before[name] for name in self.names)

    def end(self, scope: Mapping[str, Any]) -> tuple[Any, ...]:
        while len(self.branches) < 2:  # no 'else'
            self.enter(scope)
            self.branches[-1].finish(self.branches[-1].start)
        first, second = self.branches
        merged = _Merge(self.tracer, first, second, self.line)
        after = {name: merged.add(name, self.before[name]) for name in self.names}
        results = merged.emit(self.condition)
        return tuple(self._result(name, results[value] if isinstance(value, _Slot) else value) for name, value in after.items())

    def _result(self, name: str, result: Any) -> Any:
        """What a name means after the branch. A tensor changed in place is the same for every name of it."""
        before = self.before[name]
        changed = [b.start[name].mutated for b in self.branches if isinstance(before, TracedTensor) and b.start[name] is not before]
        if not any(changed):
            return result
        same = [n for n in self.names if self.before[n] is before and all(b.last[n] is b.start[n] for b in self.branches)]
        if name in same and isinstance(result, TracedTensor):
            self.tracer.rebind(before, result)
            return before
        if not same:
            before.frame = self.branches[0].frame  # other names of it would be stale: they may not be used any more
        return result

    def jump(self, what: str, line: int) -> None:
        hint = "turn the condition round and put the rest into its branch, or use torch.where on values"
        self.tracer.refuse(f"'{what}' under a condition that is known only on the device", hint, line)


class _Branch:
    """One branch while it is captured, and what it leaves behind."""

    def __init__(self, tracer: Tracer, before: dict[str, Any]) -> None:
        self.tracer, self.before = tracer, before
        self.frame = tracing.Frame(tracing.FrameKind.BRANCH)
        tracer.stack.append(self.frame)
        lent = {id(value): self._lent(value) for value in before.values()}  # one for all names of a tensor
        self.start = {name: lent[id(value)] for name, value in before.items()}
        self.last: dict[str, Any] = {}

    def _lent(self, value: Any) -> Any:
        """The same value as a tensor of this branch, which may be changed in place."""
        if not isinstance(value, TracedTensor) or value.is_host:
            return value
        lent = TracedTensor.make(self.tracer, value.meta, value.value, self.frame)
        lent.origin, lent.parent, lent.view_call, lent.children = value.origin, value.parent, value.view_call, list(value.children)
        lent.is_number = value.is_number
        value.loaned, value.read_on_loan = lent, False
        return lent

    def finish(self, last: dict[str, Any]) -> None:
        tracer = self.tracer
        assert tracer.frame is self.frame
        tracer.stack.pop()
        self.last = last
        for name, value in self.before.items():
            lent = self.start[name]
            if lent is not value:
                if value.read_on_loan and lent.mutated:
                    tracer.refuse(f"'{name}' is changed in place while another name for it is read", "assign: x = x + 1")
                value.loaned = None

    def unchanged(self, name: str) -> bool:
        last, start = self.last[name], self.start[name]
        return last is start and not (isinstance(start, TracedTensor) and start is not self.before[name] and start.mutated)

    @contextmanager
    def open(self) -> Iterator[Frame]:
        """The branch is what is being recorded again: a conversion at its end."""
        self.tracer.stack.append(self.frame)
        yield self.frame
        self.tracer.stack.pop()


class _Slot(int):
    """The place of a result among those of an ``hl.if``."""


class _Merge:
    """The results of a branch: one for each variable whose value it decides."""

    def __init__(self, tracer: Tracer, first: _Branch, second: _Branch, line: int) -> None:
        self.tracer, self.pair, self.line = tracer, (first, second), line
        self.yields: tuple[list[TracedTensor], list[TracedTensor]] = ([], [])

    def add(self, name: str, before: Any) -> Any:
        """The value of variable ``name`` afterwards: a ``_Slot`` where the branch decides it."""
        if all(branch.unchanged(name) for branch in self.pair):
            return before
        return self.join(name, *(branch.last[name] for branch in self.pair))

    def join(self, name: str, first: Any, second: Any) -> Any:
        if first is second or _same_plain(first, second):
            return first
        if isinstance(first, Tile) and isinstance(second, Tile) and first.axis == second.axis:
            return first
        for value in (first, second):
            if isinstance(value, Undefined):
                why = f"is assigned in one branch only of the 'if' of line {self.line}, whose condition is known only on the device"
                return Undefined(self.tracer, name, why, "give it a value before the 'if'")
        pair = [self._tensor(branch, mine, other) for branch, mine, other in zip(self.pair, (first, second), (second, first), strict=True)]
        if None in pair:
            what = " or a ".join(type(v).__name__ for v in (first, second))
            why = f"is a {what}, by the branch taken at line {self.line}, whose condition is known only on the device"
            return Undefined(self.tracer, name, why, "only tensors and numbers can depend on such a condition")
        one, two = pair
        assert one is not None and two is not None
        if one.meta.shape != two.meta.shape or one.dtype != two.dtype:
            kinds = [self.tracer.describe(t) for t in (one, two)]
            why = f"is a {kinds[0]} in one branch of the 'if' of line {self.line} and a {kinds[1]} in the other"
            return Undefined(self.tracer, name, why, "give it one shape and dtype in both")
        self.yields[0].append(one)
        self.yields[1].append(two)
        return _Slot(len(self.yields[0]) - 1)

    def _tensor(self, branch: _Branch, value: Any, other: Any) -> TracedTensor | None:
        """``value`` as a tensor that ``branch`` can yield; numbers take the shape and dtype of ``other``."""
        tracer = self.tracer
        if isinstance(value, Tile):
            return None
        with branch.open():
            if isinstance(value, TracedTensor):
                if value.is_host and not value.is_param:
                    return None if value.meta.shape else tracer.getitem(value, ())
                return value
            if isinstance(value, Dim) or not isinstance(value, (bool, int, float)):
                return None
            if isinstance(other, TracedTensor):
                _check_number(tracer, value, other)
                return tracer.full(tuple(other.meta.shape), value, other.dtype)
            kinds = {type(v) for v in (value, other)}
            dtype = torch.bool if kinds == {bool} else torch.float32 if float in kinds else torch.int32
            return tracer.full((), value, dtype)

    def emit(self, condition: Ref) -> list[TracedTensor]:
        """Records the ``hl.if``; its results in the order of their slots."""
        tracer = self.tracer
        kinds = [(tuple(t.meta.shape), t.dtype) for t in self.yields[0]]
        inits: tuple[Arg, ...] = tuple(tracer.use(tracer.full(shape, 0, dtype)) for shape, dtype in kinds)
        regions = []
        for branch, yields in zip(self.pair, self.yields, strict=True):
            with branch.open():
                results = tuple(tracer.use(t) for t in yields)
            params = tuple(tracer.new_value(t.meta) for t in yields)
            regions.append(Region(tuple(branch.frame.ops), params, results))
        outs = [tracer.wrap(t.meta) for t in self.yields[0]]
        if outs or any(branch.frame.ops for branch in self.pair):
            tracer.push(Op("hl.if", (condition, inits), (), tuple(o.value for o in outs), self.line, tuple(regions)))
        return outs


def _same_plain(first: Any, second: Any) -> bool:
    plain = (bool, int, float, str, type(None), torch.dtype)
    return type(first) is type(second) and isinstance(first, plain) and not isinstance(first, (Dim, Tile)) and first == second


def _check_number(tracer: Tracer, number: float, like: TracedTensor) -> None:
    """A number takes the dtype of the tensor that it may be instead of, which must have its kind."""
    rank = 0 if isinstance(number, bool) else 2 if isinstance(number, float) else 1
    if rank > (0 if like.dtype is torch.bool else 2 if like.dtype.is_floating_point else 1):
        message = f"a variable is {number} in one branch of an 'if' and a {tracer.describe(like)} in the other"
        raise tracer.error(DTypeError, message, "give it one dtype in both")


def choose(tracer: Tracer, test: TracedTensor, first: Callable[[], Any], second: Callable[[], Any]) -> Any:
    """``first() if test else second()``. A selection where both only compute, an ``hl.if`` where one does more."""
    condition = as_bool(tracer, test)
    line = tracer.line()
    pair: list[_Branch] = []
    for value in (first, second):
        branch = _Branch(tracer, {})
        try:
            result = value()
        finally:
            branch.finish({})
        branch.last["the value of the conditional expression"] = result
        pair.append(branch)
    merge = _Merge(tracer, pair[0], pair[1], line)
    (name,) = pair[0].last
    slot = merge.join(name, pair[0].last[name], pair[1].last[name])
    pure = all(_only_computes(branch) for branch in pair)
    if isinstance(slot, _Slot) and pure:
        one, two = (_spliced(tracer, branch, yields[0]) for branch, yields in zip(pair, merge.yields, strict=True))
        return torch.where(condition, one, two)
    results = [] if pure else merge.emit(tracer.use(condition))
    if isinstance(slot, Undefined):
        bool(slot)  # says why
    return results[slot] if isinstance(slot, _Slot) else slot


def _only_computes(branch: _Branch) -> bool:
    return all((op.name.startswith("aten.") and not op.regions) or op.name in _PURE_TILE_OPS for op in branch.frame.ops)


def _spliced(tracer: Tracer, branch: _Branch, result: TracedTensor) -> TracedTensor:
    """The operations of the branch, without the branch; its result."""
    tracer.frame.ops.extend(branch.frame.ops)
    return TracedTensor.make(tracer, result.meta, result.value, tracer.frame)


__all__ = ["DeviceIf", "PlainIf", "as_bool", "choose", "on_device"]
