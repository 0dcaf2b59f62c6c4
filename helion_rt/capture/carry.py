"""Variables that a loop assigns: which it carries from round to round, and what they hold after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from ..exc import CaptureError, DTypeError, ShapeMismatch
from . import tracer as tracing
from .effects import Reach
from .hints import Dim
from .tensors import TracedTensor
from .tiles import Tile
from .undefined import Undefined

if TYPE_CHECKING:
    from .tracer import Tracer

_PLAIN = (bool, int, float, str, type(None), torch.dtype)


class Carried:
    """The variables ``names`` of one loop of the device. The body runs once: they are given placeholders, which show whether they are read.

    ``is_launch``: an outer loop, whose rounds have no order: nothing can be carried.
    """

    def __init__(self, tracer: Tracer, names: tuple[str, ...], line: int, what: str, is_launch: bool = False) -> None:
        self.tracer, self.names, self.line, self.what, self.is_launch = tracer, names, line, what, is_launch
        self.first: dict[str, Any] = {}  # what each variable held before
        self.inits: dict[str, TracedTensor] = {}
        self.placeholders: dict[str, TracedTensor] = {}
        self.entry: dict[str, int] = {}  # value ids of the placeholders
        self.poison: dict[str, Undefined] = {}
        self.last: dict[str, Any] = {}
        self.reach = Reach({}, ())  # what else the body could change

    def enter(self, scope: Mapping[str, Any]) -> tuple[Any, ...]:
        """Values of the variables at the start of the body, whose frame is open."""
        self.reach = Reach(scope, self.names)
        return tuple(self._enter(name, scope) for name in self.names)

    def _enter(self, name: str, scope: Mapping[str, Any]) -> Any:
        tracer, knowledge, key = self.tracer, self.tracer.knowledge, (self.line, name)
        value = scope[name] if name in scope else Undefined(tracer, name, "is used before it has a value")
        self.first[name] = value
        if key in knowledge.poisoned:
            what = type(value).__name__ if not isinstance(value, TracedTensor) else "tensor of the host part"
            where = "from tile to tile of an outer loop, which have no order" if self.is_launch else f"by {self.what}"
            hint = "use an inner tile loop" if self.is_launch else "carry tensors, one variable each"
            self.poison[name] = Undefined(tracer, name, f"({what}) would be carried {where}", hint)
            return self.poison[name]
        if self.is_launch:
            return value
        if key in knowledge.promoted and isinstance(value, (bool, int, float)):
            body = tracer.stack.pop()
            value = tracer.full((), value, knowledge.promoted[key])
            tracer.stack.append(body)
        if not isinstance(value, TracedTensor) or value.is_host:
            return value
        self.inits[name] = value
        return self._placeholder(name)

    def _placeholder(self, name: str) -> TracedTensor:
        tracer, value = self.tracer, self.inits[name]
        placeholder = tracer.wrap(value.meta, tracer.frame)
        self.placeholders[name], self.entry[name] = placeholder, placeholder.value
        value.loaned, value.read_on_loan = placeholder, False
        return placeholder

    def enter_again(self) -> tuple[Any, ...]:
        """Placeholders for a second region of the same loop."""
        return tuple(self._placeholder(n) if n in self.inits else self.poison.get(n, self.first[n]) for n in self.names)

    def leave(self, scope: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values at the end of the body. Raises ``Restart`` if one has to be treated otherwise."""
        self.reach.check(self.tracer, scope, self.what, self.line)
        for name in self.names:
            self.last[name] = scope.get(name, Undefined(self.tracer, name, "was deleted"))
            self._check_kind(name)
        self._check_aliases()
        return tuple(self.last[name] for name in self.names)

    def _check_aliases(self) -> None:
        """Two names of one tensor have two placeholders: a change in place of one would not be seen by the other."""
        names: dict[int, str] = {}
        for name, init in self.inits.items():
            other = names.setdefault(id(init), name)
            if other != name and (self.placeholders[name].mutated or self.placeholders[other].mutated):
                text = f"'{name}' and '{other}' are names of one tensor, which is changed in place in the loop"
                self.tracer.refuse(text, "assign: x = x + 1", self.line)

    def _check_kind(self, name: str) -> None:
        tracer, first, value, key = self.tracer, self.first[name], self.last[name], (self.line, name)
        if name in self.poison or isinstance(first, Undefined) or value is first or name in self.placeholders:
            return
        if isinstance(first, (Tile, Dim)) or isinstance(value, (Tile, Dim)):
            pass
        elif isinstance(first, _PLAIN) and type(first) is type(value) and first == value:
            return
        elif not self.is_launch and isinstance(first, (bool, int, float)):
            if isinstance(value, TracedTensor) and not value.is_host:
                tracer.knowledge.promoted[key] = value.dtype
                raise tracing.Restart
            if isinstance(value, (bool, int, float)):
                kinds = {type(first), type(value)}
                tracer.knowledge.promoted[key] = torch.float32 if float in kinds else torch.bool if kinds == {bool} else torch.int32
                raise tracing.Restart
        tracer.knowledge.poisoned.add(key)
        raise tracing.Restart

    def changed(self) -> list[str]:
        """Variables that are tensors before the loop and have another value at the end of the body."""
        return [name for name in self.entry if self.is_changed(name)]

    def is_changed(self, name: str) -> bool:
        value = self.last[name]
        return not (isinstance(value, TracedTensor) and value.value == self.entry[name])

    def release(self) -> None:
        """The loop is over: what was before it may be read by its own names again."""
        for init in self.inits.values():
            init.loaned = None

    def check_next(self, name: str) -> TracedTensor:
        """The next value of a carried variable, of the type that it came in with."""
        tracer, value, init = self.tracer, self.last[name], self.inits[name]
        if init.read_on_loan and self.placeholders[name].mutated:
            tracer.refuse(f"'{name}' is changed in place while another name for it is read", "assign: x = x + 1", self.line)
        if isinstance(value, (bool, int, float)) and not isinstance(value, (Tile, Dim)):
            value = tracer.full(tuple(init.meta.shape), value, init.dtype)
        if not isinstance(value, TracedTensor) or value.is_host:
            what = "has no value at the end of the body" if isinstance(value, Undefined) else f"becomes a {type(value).__name__}"
            tracer.refuse(f"variable '{name}', carried by {self.what}, {what}; expected a {tracer.describe(init)}", None, self.line)
        for kind, same in ((ShapeMismatch, value.meta.shape == init.meta.shape), (DTypeError, value.dtype == init.dtype)):
            if not same:
                raise self._mismatch(kind, name, value)
        return value

    def _mismatch(self, kind: type[CaptureError], name: str, value: TracedTensor) -> CaptureError:
        enters = f"enters {self.what.replace('a ', 'the ', 1)} as {self.tracer.describe(self.inits[name])}"
        hint = "convert it with .to(dtype)" if kind is DTypeError else "give it its shape before the loop, e.g. hl.zeros([tile, n])"
        message = f"variable '{name}' {enters} and leaves its body as {self.tracer.describe(value)}"
        return self.tracer.error(kind, message, hint, self.line)

    def result(self, name: str, result: TracedTensor) -> TracedTensor:
        """What a carried variable holds after the loop."""
        placeholder, init = self.placeholders[name], self.inits[name]
        if placeholder.mutated and self.last[name] is placeholder:
            self.tracer.rebind(init, result)  # every name of the tensor sees the change
            return init
        return result

    def after(self, name: str) -> Any:
        """What a variable that is not carried holds after the loop."""
        first, last = self.first[name], self.last[name]
        if name in self.placeholders:
            if not self.is_changed(name):
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
