"""Device integers as sums: what is known of ``tile.begin * 2 + tile.block_size`` without knowing ``tile.begin``."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from ..program.expr import BinExpr, Block, Expr, binary
from ..program.ir import Arg, Ref
from .hints import Dim
from .tensors import TracedTensor

if TYPE_CHECKING:
    from .tracer import Tracer

# Coefficients of terms. A term is an expression over block sizes, or names a device value; the constant's is ``()``.
Sum = dict[Hashable, int]
_TILE_OPS = frozenset(("hl.tile_begin", "hl.tile_end", "hl.tile_id"))


def linear(tracer: Tracer, value: Any) -> Sum:
    """``value``, an int, a dimension or an integer tensor of rank 0, as a sum of terms."""
    if isinstance(value, TracedTensor):
        return _of(tracer, tracer.use(value))
    return _of(tracer, value.expr if isinstance(value, Dim) else int(value))


def minus(a: Sum, b: Sum) -> Sum:
    return _add(a, b, -1)


def as_expr(total: Sum) -> Expr | None:
    """The sum as an expression over block sizes; None if it has a device value in it."""
    result: Expr = total.get((), 0)
    for term, factor in total.items():
        if isinstance(term, (Block, BinExpr)):
            result = binary("+", binary("*", term, factor), result)
        elif term != ():
            return None
    return result


def tile_multiple(total: Sum) -> tuple[int, int, int] | None:
    """(axis, factor, constant) if the sum is ``tile.begin * factor + constant``."""
    terms = [t for t in total if t != ()]
    if len(terms) == 1 and isinstance(terms[0], tuple) and terms[0][0] == "hl.tile_begin" and total[terms[0]] > 0:
        return terms[0][1][0], total[terms[0]], total.get((), 0)
    return None


def _add(a: Sum, b: Sum, factor: int) -> Sum:
    result = dict(a)
    for term, count in b.items():
        result[term] = result.get(term, 0) + factor * count
    return {term: count for term, count in result.items() if count}


def _scaled(a: Sum, factor: int) -> Sum:
    return _add({}, a, factor)


def _times(a: Sum, b: Sum) -> Sum | None:
    for one, other in ((a, b), (b, a)):
        if not one or set(one) == {()}:
            return _scaled(other, one.get((), 0))
    return None


def _of(tracer: Tracer, arg: Arg) -> Sum:
    if isinstance(arg, int):
        return {(): int(arg)} if arg else {}
    if isinstance(arg, BinExpr) and arg.op in ("+", "-", "*"):
        return _combined(arg.op, _of(tracer, arg.a), _of(tracer, arg.b)) or {arg: 1}
    if isinstance(arg, Ref):
        op = tracer.made_by.get(arg.id)
        name = "" if op is None else op.name
        if op is not None and not tracer.types[arg.id].dtype.startswith(("float", "bfloat")):
            kind = {"aten.add": "+", "aten.sub": "-", "aten.mul": "*"}.get(".".join(name.split(".")[:2]))
            if kind is not None and not op.kwargs and len(op.args) == 2:
                found = _combined(kind, _of(tracer, op.args[0]), _of(tracer, op.args[1]))
                if found is not None:
                    return found
            if name.startswith("aten._to_copy") and isinstance(op.args[0], Ref) and _is_integer(tracer, op.args[0]):
                return _of(tracer, op.args[0])
            if name.startswith("aten.neg"):
                return _scaled(_of(tracer, op.args[0]), -1)
        return {_name(tracer, arg): 1}
    return {arg: 1}


def _is_integer(tracer: Tracer, ref: Ref) -> bool:
    return tracer.types[ref.id].dtype.startswith(("int", "uint"))


def _combined(op: str, a: Sum, b: Sum) -> Sum | None:
    return _times(a, b) if op == "*" else _add(a, b, 1 if op == "+" else -1)


def _name(tracer: Tracer, arg: Any) -> Hashable:
    """Equal for values that are computed alike. Loads are not: what they read may have changed."""
    if isinstance(arg, tuple):
        return tuple(_name(tracer, a) for a in arg)
    if not isinstance(arg, Ref):
        return arg
    op = tracer.made_by.get(arg.id)
    if op is None or op.regions or len(op.results) != 1 or not (op.name.startswith("aten.") or op.name in _TILE_OPS):
        return ("value", arg.id)
    return (op.name, _name(tracer, op.args), *(_name(tracer, v) for v in op.kwargs))
