"""What the rewritten kernel calls (``_rt``): loops, branches, and conditions that may be known only on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from . import branches, loops, whiles
from .tensors import TracedTensor

if TYPE_CHECKING:
    from .tracer import Tracer

Later = Callable[[], Any]


class Statements:
    """The runtime of a rewritten kernel. Each method is what one kind of statement or expression became."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def loop(self, iterable: Any, names: tuple[str, ...], line: int, obstacle: tuple[str, int] | None) -> Any:
        """``for ... in iterable``."""
        return loops.make(self._tracer, iterable, names, line, obstacle)

    def branch(self, test: Any, names: tuple[str, ...], line: int) -> branches.PlainIf | branches.DeviceIf:
        """``if test``."""
        if branches.on_device(self._tracer, test):
            return branches.DeviceIf(self._tracer, test, names, line)
        return branches.PlainIf(bool(test))

    def repeat(self, names: tuple[str, ...], line: int, has_else: bool) -> whiles.While:
        """``while``: its test comes later."""
        return whiles.While(self._tracer, names, line, has_else)

    def choose(self, test: Any, first: Later, second: Later) -> Any:
        """``first if test else second``."""
        if branches.on_device(self._tracer, test):
            return branches.choose(self._tracer, test, first, second)
        return first() if test else second()

    def both(self, *values: Later) -> Any:
        """``a and b and c``."""
        return self._joined(values, lambda value, rest: (rest, lambda: False) if value is None else rest() if value else value)

    def either(self, *values: Later) -> Any:
        """``a or b or c``."""
        return self._joined(values, lambda value, rest: (lambda: True, rest) if value is None else value if value else rest())

    def _joined(self, values: tuple[Later, ...], join: Callable[[Any, Later], Any]) -> Any:
        """``join(None, rest)`` gives the two branches for a device value; ``join(value, rest)`` is Python's own answer."""
        first = values[0]()
        if len(values) == 1:
            return first

        def rest() -> Any:
            return self._joined(values[1:], join)

        if not branches.on_device(self._tracer, first):
            return join(first, rest)
        return branches.choose(self._tracer, branches.as_bool(self._tracer, first), *join(None, lambda: self._bool(rest())))

    def _bool(self, value: Any) -> Any:
        """The last operand of ``and`` and ``or`` after one on the device: only its truth is asked for."""
        if isinstance(value, TracedTensor):
            return branches.as_bool(self._tracer, value)
        return bool(value)

    def negate(self, value: Any) -> Any:
        """``not value``."""
        if branches.on_device(self._tracer, value):
            return torch.logical_not(value)
        return not value
