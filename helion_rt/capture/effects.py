"""Python's own lists, dicts and objects, seen from a loop or branch of the device.

Such a body runs once while it is captured, whatever the device does later. What it assigns to variables is carried; what it
changes in a list would be changed once and for good. So what is in reach when the body begins must be the same at its end.
"""

from __future__ import annotations

import operator
import types
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from .tracer import Tracer

_PLAIN = (bool, int, float, str, bytes, type(None))
_OPAQUE = (torch.Tensor, torch.dtype, torch.device, type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
_HIDDEN = "_rt"  # names that the rewriting adds
_HINT = "assign to a variable of its own, which is carried: c = c + 1"


class _Found(NamedTuple):
    value: Any
    name: str  # of the variable that leads to it
    content: tuple[Any, ...]


class Reach:
    """What a body can change beside the variables ``names``, which it assigns: all that the others lead to."""

    def __init__(self, scope: Mapping[str, Any], names: Collection[str]) -> None:
        self._variables = {n: v for n, v in scope.items() if n not in names and not n.startswith(_HIDDEN)}
        self._found = list(_containers({n: v for n, v in scope.items() if not n.startswith(_HIDDEN)}))

    def check(self, tracer: Tracer, scope: Mapping[str, Any], what: str, line: int) -> None:
        """Refuses a change since the beginning of the body, at the first line of its statement."""
        for name, before in self._variables.items():
            if type(scope.get(name, before)) in _PLAIN and not _same(scope.get(name, before), before):  # tensors tell where they come from
                tracer.refuse(f"'{name}' is changed by a function that is called in {what}", _HINT, line)
        for value, name, content in self._found:
            now = _content(value)
            if now is None or len(now) != len(content) or not all(map(_same, now, content)):
                kind = type(value).__name__
                tracer.refuse(f"a {kind} that is made before {what} is changed in it ('{name}' leads to it)", _HINT, line)


def _same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and type(a) in _PLAIN and a == b)


def _content(value: Any) -> tuple[Any, ...] | None:
    """What there is in ``value``, None if it is no container."""
    if isinstance(value, (list, tuple, deque)):
        return tuple(value)
    if isinstance(value, dict):
        return (*value.keys(), *value.values())
    if isinstance(value, (set, frozenset)):
        return tuple(sorted(value, key=id))
    if isinstance(value, (*_PLAIN, *_OPAQUE)):
        return None
    if isinstance(value, Iterator) and hasattr(value, "__length_hint__"):
        return (operator.length_hint(value),)
    kind = type(value)
    if kind.__module__.split(".")[0] in ("builtins", "torch", "helion_rt"):
        return None
    own = getattr(value, "__dict__", None)
    # What the class has by that name (a cached property) is the same whenever it is computed.
    return None if not isinstance(own, dict) else tuple(x for n, v in own.items() if not hasattr(kind, n) for x in (n, v))


def _containers(scope: Mapping[str, Any]) -> Iterator[_Found]:
    """The containers that the variables of ``scope`` lead to, each once."""
    seen: set[int] = set()
    pending = [(value, name) for name, value in scope.items()]
    while pending:
        value, name = pending.pop()
        if isinstance(value, types.FunctionType) and id(value) not in seen:
            seen.add(id(value))
            pending += [(cell.cell_contents, name) for cell in value.__closure__ or () if cell != types.CellType()]
            continue
        content = None if id(value) in seen else _content(value)
        if content is not None:
            seen.add(id(value))
            yield _Found(value, name, content)
            pending += [(item, name) for item in content]


__all__ = ["Reach"]
