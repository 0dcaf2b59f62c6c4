"""What Python does with numbers by comparing them, for numbers that the tracer holds: ``min``, ``max``, and ``assert``."""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..program.ir import Relation
from .hints import Dim, join
from .tensors import TracedTensor
from .tiles import Tile

if TYPE_CHECKING:
    from .tracer import Tracer

# Names that ``assert`` comparisons and the builtins have in the rewritten function.
CLAIM = "_rt_claim"
BUILTINS = ("min", "max")

_RELATIONS: dict[str, Relation] = {r.value: r for r in Relation}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def _extreme(name: str, of_tensors: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    plain = getattr(builtins, name)

    def of_two(a: Any, b: Any) -> Any:
        tensors = [v for v in (a, b) if isinstance(v, TracedTensor)]
        if len(tensors) == 2:
            return of_tensors(a, b)
        if tensors:
            number = b if isinstance(a, TracedTensor) else a
            if not isinstance(number, (int, float)):
                return plain(a, b)
            return torch.clamp(tensors[0], max=number) if name == "min" else torch.clamp(tensors[0], min=number)
        if isinstance(a, Dim) or isinstance(b, Dim):
            return join(name, a, b)
        return plain(a, b)

    def extreme(*args: Any, **kwargs: Any) -> Any:
        items = tuple(args[0]) if len(args) == 1 and isinstance(args[0], (tuple, list)) else args
        traced = any(isinstance(v, (TracedTensor, Dim, Tile)) for v in items)
        if kwargs or len(items) < 2 or not traced or _all_params_of_two_kinds(items):
            return plain(*args, **kwargs)
        result, *rest = (v.index if isinstance(v, Tile) else v for v in items)
        for item in rest:
            result = of_two(result, item)
        return result

    return extreme


least = _extreme("min", torch.minimum)  # ``min`` as kernel code calls it
greatest = _extreme("max", torch.maximum)


def _all_params_of_two_kinds(items: tuple[Any, ...]) -> bool:
    """Numbers of which Python would give back one, an int or a float: only their values tell which."""
    if not all(isinstance(v, (int, float)) or (isinstance(v, TracedTensor) and v.is_param) for v in items):
        return False
    return len({v.dtype.is_floating_point if isinstance(v, TracedTensor) else isinstance(v, float) for v in items}) > 1


def claim(tracer: Tracer) -> Callable[..., Any]:
    """What the comparison of an ``assert`` calls: block sizes must satisfy it, anything else is compared."""

    def claimed(line: int, op: str, a: Any, b: Any) -> Any:
        sizes = isinstance(a, (int, Dim)) and isinstance(b, (int, Dim)) and not isinstance(a, Tile) and not isinstance(b, Tile)
        if not sizes or not (isinstance(a, Dim) or isinstance(b, Dim)):
            return _COMPARE[op](a, b)
        left, right = (v.expr if isinstance(v, Dim) else int(v) for v in (a, b))
        tracer.constrain(_RELATIONS[op], left, right, line)
        return True

    return claimed


__all__ = ["BUILTINS", "CLAIM", "claim", "greatest", "least"]
