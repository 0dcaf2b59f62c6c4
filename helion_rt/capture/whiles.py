"""``while``: Python's own where its test is known at capture, ``hl.while`` where only the device knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..program.ir import Arg, Op, Region
from . import tracer as tracing
from .branches import as_bool, on_device
from .carry import Carried
from .tensors import TracedTensor
from .undefined import Undefined

if TYPE_CHECKING:
    from .tracer import Tracer


class While:
    """One ``while`` statement. Its test is probed first, to see who decides it."""

    def __init__(self, tracer: Tracer, names: tuple[str, ...], line: int, has_else: bool) -> None:
        self.tracer, self.names, self.line, self.has_else = tracer, names, line, has_else
        self.knows = True  # the answer to the next test
        self.answer = False
        self.device: _DeviceWhile | None = None
        if tracer.in_device:  # what the probe records is dropped
            tracer.stack.append(tracing.Frame(tracing.FrameKind.BRANCH))

    def probe(self, test: Any) -> None:
        """The test, as it is before the first round."""
        tracer = self.tracer
        if not tracer.in_device or tracer.frame.kind is not tracing.FrameKind.BRANCH:
            self.answer = bool(test)
            return
        device = on_device(tracer, test)
        if not device:
            self.answer = bool(test)
        tracer.stack.pop()
        if device:
            if self.has_else:
                tracer.refuse("'else' of a 'while' that the device decides", "put it after the loop", self.line)
            self.device, self.knows = _DeviceWhile(tracer, self.names, self.line), False

    def begin(self, scope: Mapping[str, Any]) -> tuple[Any, ...]:
        return self._same(scope) if self.device is None else self.device.begin(scope)

    def known(self) -> bool:
        self.knows = self.device is not None
        return self.answer

    def go(self, test: Any) -> bool:
        if self.device is None:
            return bool(test)
        self.device.tested(test)
        return True

    def body(self, scope: Mapping[str, Any]) -> tuple[Any, ...]:
        return self._same(scope) if self.device is None else self.device.body()

    def next(self, scope: Mapping[str, Any]) -> tuple[Any, ...]:
        if self.device is None:
            return self._same(scope)
        self.knows, self.answer = True, False  # one round is enough
        return self.device.next(scope)

    def end(self, scope: Mapping[str, Any]) -> tuple[Any, ...]:
        return self._same(scope) if self.device is None else self.device.end()

    def jump(self, what: str, line: int) -> None:
        if self.device is not None:
            self.tracer.refuse(f"'{what}' in a loop that the device decides", "make it part of the condition of the 'while'", line)

    def _same(self, scope: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(scope[n] if n in scope else Undefined(self.tracer, n, "is used before it has a value") for n in self.names)


class _DeviceWhile:
    """Records the test and one round of the body."""

    def __init__(self, tracer: Tracer, names: tuple[str, ...], line: int) -> None:
        self.tracer, self.line = tracer, line
        self.test, self.round = (tracing.Frame(tracing.FrameKind.BRANCH, repeats=True) for _ in range(2))
        self.carried = Carried(tracer, names, line, "a 'while' loop")
        self.condition: Arg = None
        self.tested_entry: dict[str, int] = {}

    def begin(self, scope: Mapping[str, Any]) -> tuple[Any, ...]:
        self.tracer.stack.append(self.test)
        return self.carried.enter(scope)

    def tested(self, test: Any) -> None:
        tracer = self.tracer
        if not isinstance(test, TracedTensor):
            tracer.refuse("the test of a 'while' is sometimes known at capture and sometimes not", None, self.line)
        self.condition = tracer.use(as_bool(tracer, test))
        if any(p.mutated for p in self.carried.placeholders.values()):
            tracer.refuse("the test of a 'while' changes a variable in place", None, self.line)
        tracer.stack.pop()
        tracer.stack.append(self.round)

    def body(self) -> tuple[Any, ...]:
        self.tested_entry = dict(self.carried.entry)
        return self.carried.enter_again()

    def next(self, scope: Mapping[str, Any]) -> tuple[Any, ...]:
        return self.carried.leave(scope)

    def end(self) -> tuple[Any, ...]:
        tracer, carried = self.tracer, self.carried
        values = {name: carried.check_next(name) for name in carried.changed()}
        nexts = tuple(tracer.use(v) for v in values.values())
        tracer.stack.pop()
        carried.release()
        invariant = [n for n in carried.entry if n not in values]
        same = {entry[n]: carried.inits[n].value for entry in (self.tested_entry, carried.entry) for n in invariant}
        test = Region(tracing.renamed(self.test.ops, same), tuple(self.tested_entry[n] for n in values), (self.condition,))
        round_ = Region(tracing.renamed(self.round.ops, same), tuple(carried.entry[n] for n in values), nexts)
        tracing.renamed_bounds(tracer.axes, same)
        inits = tuple(tracer.use(carried.inits[n]) for n in values)
        results = {name: tracer.wrap(carried.inits[name].meta) for name in values}
        tracer.push(Op("hl.while", (inits,), (), tuple(r.value for r in results.values()), self.line, (test, round_)))
        for name in invariant:
            tracer.used.add(carried.inits[name].value)
        return tuple(carried.result(n, results[n]) if n in results else carried.after(n) for n in carried.names)
