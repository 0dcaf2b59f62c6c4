"""Evaluates one operation on arrays, through the same text that the generated source has (see ``ops``)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..exc import PlanError
from ..program.expr import BinExpr, Block, Expr, evaluate
from ..program.ir import Arg, DType, Op, Program, Ref
from . import ops
from .ops import Kind, Operand, Result


@functools.lru_cache(maxsize=4096)
def _compiled(text: str, count: int) -> Callable[..., jax.Array]:
    # The text comes from ``ops`` alone: numbers, dtypes of a closed list and our own names.
    names = ", ".join(f"a{i}" for i in range(count))
    return eval(f"lambda {names}: {text}", {"jax": jax, "jnp": jnp, "lax": lax})


def shape_of(program: Program, value: int, blocks: Sequence[int]) -> tuple[int, ...]:
    return tuple(evaluate(d, blocks) for d in program.types[value].shape)


def apply(program: Program, op: Op, env: Mapping[int, jax.Array], blocks: Sequence[int]) -> jax.Array:
    """The result of ``op`` on the arrays in ``env``; dimensions are taken from the arrays, block sizes from ``blocks``."""
    arrays: list[jax.Array] = []

    def operand(x: Any) -> Any:
        if isinstance(x, Ref):
            array = env[x.id]
            arrays.append(array)
            return Operand(f"a{len(arrays) - 1}", array.shape, array.shape, str(array.dtype))
        return tuple(operand(i) for i in x) if isinstance(x, tuple) else resolve(x, blocks)

    args = [operand(a) for a in op.args]
    kwargs = {k: operand(v) for k, v in op.kwargs}
    type_ = program.types[op.results[0]]
    shape = shape_of(program, op.results[0], blocks)
    text = expression(op.name, args, kwargs, Result(shape, shape, type_.dtype))
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
        return ops.emit_dot(a, b, acc if isinstance(acc, Operand) else None, out)
    if kind is Kind.OTHER:
        return ops.emit_other(base, args, kwargs, out)
    raise PlanError(f"operation {name} has no lowering")


__all__ = ["DType", "apply", "expression", "resolve", "resolved_shape", "shape_of"]
