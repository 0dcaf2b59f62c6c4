"""Evaluates one operation on arrays, through the same text that the generated source has (see ``ops``)."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..exc import PlanError
from ..program.expr import BinExpr, Block, Expr, evaluate
from ..program.ir import Arg, DType, Op, Program, Ref, refs_in
from . import helpers, ops
from .ops import Kind, Operand, Result
from .sizes import fit


@functools.lru_cache(maxsize=4096)
def _compiled(text: str, count: int) -> Callable[..., jax.Array]:
    # The text comes from ``ops`` alone: numbers, dtypes of a closed list and our own names.
    names = ", ".join(f"a{i}" for i in range(count))
    return eval(f"lambda {names}: {text}", {"jax": jax, "jnp": jnp, "lax": lax, **helpers.functions()})


def shape_of(program: Program, value: int, blocks: Sequence[int]) -> tuple[int, ...]:
    return tuple(evaluate(d, blocks) for d in program.types[value].shape)


def count(op: Op, shape: Sequence[int]) -> float:
    """What ``hl.count`` gives for an operand of ``shape``."""
    _, dims, correction = op.args
    assert isinstance(dims, tuple) and isinstance(correction, (int, float))
    return math.prod(shape[d] for d in dims if isinstance(d, int)) - correction


def apply(program: Program, op: Op, env: Mapping[int, jax.Array], blocks: Sequence[int]) -> jax.Array:
    """The result of ``op`` on the arrays in ``env``, which may be those of a last tile: smaller than their types with ``blocks``."""
    refs = [*refs_in(op.args), *(r for _, v in op.kwargs for r in refs_in(v))]
    full, true = [shape_of(program, r.id, blocks) for r in refs], [env[r.id].shape for r in refs]
    result = shape_of(program, op.results[0], blocks)
    cut, shape = (true, result) if full == true else fit(program, op, full, true, result)
    arrays = [env[r.id] if t == c else lax.slice(env[r.id], (0,) * len(c), c) for r, t, c in zip(refs, true, cut, strict=True)]
    count = itertools.count()

    def operand(x: Any) -> Any:
        if isinstance(x, Ref):
            n = next(count)
            return Operand(f"a{n}", arrays[n].shape, arrays[n].shape, str(arrays[n].dtype))
        return tuple(operand(i) for i in x) if isinstance(x, tuple) else resolve(x, blocks)

    args = [operand(a) for a in op.args]
    kwargs = {k: operand(v) for k, v in op.kwargs}
    text = expression(op.name, args, kwargs, Result(shape, shape, program.types[op.results[0]].dtype, jax.default_backend() == "cpu"))
    return jnp.asarray(_compiled(text, len(arrays))(*arrays))


def resolve(x: Arg, blocks: Sequence[int]) -> Any:
    """``x`` with its block-size expressions replaced by numbers."""
    if isinstance(x, (Block, BinExpr)):
        return evaluate(x, blocks)
    return tuple(resolve(i, blocks) for i in x) if isinstance(x, tuple) else x


def resolved_shape(shape: tuple[Expr, ...], blocks: Sequence[int]) -> tuple[int, ...]:
    return tuple(evaluate(d, blocks) for d in shape)


def expression(name: str, args: list[Any], kwargs: dict[str, Any], out: Result) -> str:
    """The JAX expression for an operation whose operands have their final physical shapes."""
    base, kind = ops.base_name(name), ops.kind_of(name)
    if kind is Kind.ELEMENTWISE:
        return ops.ELEMENTWISE[base](args, kwargs, out)
    if kind is Kind.REDUCTION:
        dims = ops.reduced_dims(args, kwargs, len(args[0].shape))
        return ops.emit_reduction(base, args[0], dims, out)
    if kind is Kind.VIEW:
        return ops.emit_view(args[0], out)
    if kind is Kind.PERMUTE:
        order = ops.permutation(base, args, len(args[0].shape))
        return args[0].text if order == tuple(range(len(order))) else f"jnp.transpose({args[0].text}, {order})"
    if kind is Kind.EXPAND:
        return f"jnp.broadcast_to({args[0].text}, {out.phys})"
    if kind is Kind.CREATE:
        return ops.emit_create(base, args, kwargs, out)
    if kind is Kind.CONTRACT:
        a, b, acc = args[:3]
        return ops.emit_dot(a, b, acc if isinstance(acc, Operand) else None, out, kwargs.get("transposed", (False, False)))
    if kind is Kind.OTHER:
        return ops.emit_other(base, args, kwargs, out)
    raise PlanError(f"operation {name} has no lowering")


__all__ = ["DType", "apply", "count", "expression", "resolve", "resolved_shape", "shape_of"]
