"""Scans, and the last element that exists: ``hl.scan`` and ``hl.last``, whose helpers are in ``scans_source``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
from jax import lax

from ..program.ir import Op, Ref
from . import ops
from .helpers import functions
from .layout import Form, phys_shape
from .ops import Operand, dtype_text, literal
from .philox import write_word

if TYPE_CHECKING:
    from .writer import KernelWriter


def scan_args(op: Op) -> tuple[tuple[Ref, ...], int, bool]:
    """(inputs, dim, reverse) of ``hl.scan``."""
    inputs, dim, reverse = op.args
    assert isinstance(inputs, tuple) and isinstance(dim, int)
    return tuple(x for x in inputs if isinstance(x, Ref)), dim, bool(reverse)


def write_scan(w: KernelWriter, op: Op) -> None:
    """Writes the combine function and the scan, and binds every result."""
    inputs, dim, reverse = scan_args(op)
    operands: list[Operand] = [w.operand(x, Form.ROW) for x in inputs]
    combine = w.name("combine")
    region = op.regions[0]
    params = [w.name(f"{side}{i}") for side in ("left", "right") for i in range(len(inputs))]
    with w.function(f"def {combine}({', '.join(params)}):"):
        for param, name in zip(region.params, params, strict=True):
            w.bind((param, Form.ROW), name)
        for inner in region.ops:
            if not w.is_free(inner):
                w.define(inner, inner.results[0], Form.ROW)
        texts = [_combined(w, r, p) for r, p in zip(region.results, region.params, strict=False)]
        w.out.add(f"return ({', '.join(texts)},)")
    names = [w.name("scan") for _ in op.results]
    at, size = operands[0].phys_dim(dim), size_text(w, inputs, dim) if reverse else str(w.shape(inputs[0].id)[dim])
    arrays = ", ".join(x.text for x in operands)
    w.out.add(f"{', '.join(names)}, = _scan({combine}, ({arrays},), {at}, {reverse}, {size}, {not w.plan.target.is_tpu})")
    for result, name in zip(op.results, names, strict=True):
        w.bind((result, Form.ROW), name)


def _combined(w: KernelWriter, x: Any, param: int) -> str:
    """A result of the combine function, in the type of the input it belongs to."""
    type_, phys = w.type(param), phys_shape(w.shape(param), Form.ROW)
    if not isinstance(x, Ref):
        return f"jnp.full({phys}, {literal(x, type_.dtype)}, {dtype_text(type_.dtype)})"
    operand: Operand = w.operand(x, Form.ROW)
    text = operand.cast(type_.dtype)
    return text if operand.phys == phys else f"jnp.broadcast_to({text}, {phys})"


def write_cumulative(w: KernelWriter, op: Op) -> None:
    """``cumsum`` and ``cumprod`` as a scan: Mosaic has no such operations."""
    x = op.args[0]
    assert isinstance(x, Ref)
    out = w.type(op.results[0]).dtype
    operand: Operand = w.operand(x, Form.ROW)
    dim: Any = op.args[1] if len(op.args) > 1 else dict(op.kwargs)["dim"]
    wide, at = "float32" if out in ops.LOW_PRECISION else out, operand.phys_dim(dim)
    sign = "+" if ops.base_name(op.name) == "cumsum" else "*"
    text = f"_scan(lambda a, b: (a {sign} b,), ({operand.cast(wide)},), {at}, False, {operand.phys[at]})[0]"
    w.assign((op.results[0], Form.ROW), ops.base_name(op.name), text if wide == out else f"{text}.astype({dtype_text(out)})")


def write_last(w: KernelWriter, op: Op) -> None:
    x, dim = op.args
    assert isinstance(x, Ref) and isinstance(dim, int)
    operand: Operand = w.operand(x, Form.ROW)
    text = f"_last({operand.text}, {operand.phys_dim(dim)}, {size_text(w, (x,), dim)})"
    w.assign((op.results[0], Form.ROW), "last", text)


def size_text(w: KernelWriter, values: tuple[Ref, ...], dim: int) -> str:
    """How many elements along ``dim`` all of ``values`` have, those of a ragged last tile."""
    dim %= len(w.shape(values[0].id))
    return w.held(w.shape(values[0].id)[dim], frozenset().union(*(w.tag(x, dim) for x in values)))


# Operations that are written here; those of ATen only for a TPU.
WRITERS: dict[str, Callable[[KernelWriter, Op], None]] = {
    "hl.philox_word": write_word, "hl.scan": write_scan, "hl.last": write_last, "cumsum": write_cumulative, "cumprod": write_cumulative,
}  # fmt: skip


def scan(op: Op, arrays: list[jax.Array], combine: Callable[..., tuple[jax.Array, ...]]) -> tuple[jax.Array, ...]:
    """``hl.scan`` of arrays that have nothing but elements that exist."""
    _, dim, reverse = scan_args(op)
    sizes = tuple(map(min, zip(*(x.shape for x in arrays), strict=True)))
    arrays = [x if x.shape == sizes else lax.slice(x, (0,) * x.ndim, sizes) for x in arrays]
    dim %= len(sizes)
    return functions()["_scan"](combine, tuple(arrays), dim, reverse, sizes[dim], jax.default_backend() == "cpu")


def last(op: Op, x: jax.Array) -> jax.Array:
    """``hl.last`` of an array that has nothing but elements that exist."""
    dim: Any = op.args[1]
    return functions()["_last"](x, dim % x.ndim, x.shape[dim])
