"""``hl.print`` and ``hl.inline``: what a kernel asks for that is not of this language."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from ..exc import PlanError
from ..program.fingerprint import source_digest
from ..program.ir import Op, Ref, TensorType
from .evaluate import resolve
from .layout import Form, phys_shape
from .ops import dtype_text, literal

if TYPE_CHECKING:
    from .writer import KernelWriter


def _parts(op: Op) -> tuple[str, str, tuple[Any, ...], str, bool]:
    """(module, name, operands, hash of the source, whether it is elementwise) of ``hl.inline``. Raises ``PlanError``."""
    module, name, operands, statics = op.args
    assert isinstance(operands, tuple) and isinstance(statics, tuple)
    # These become source text: nothing but a dotted name may.
    if not isinstance(module, str) or not isinstance(name, str) or not all(p.isidentifier() for p in (*module.split("."), name)):
        raise PlanError(f"hl.inline_pallas of {module!r}.{name!r}, which is no name of a function")
    return module, name, operands, str(statics[0]), bool(statics[1])


def imported(op: Op) -> Callable[..., Any]:
    """The function that ``hl.inline`` calls, which must still be the one that was captured. Raises ``PlanError``."""
    module, name, _, digest, _ = _parts(op)
    try:
        fn = getattr(importlib.import_module(module), name)
        same = source_digest(fn) == digest
    except (ImportError, AttributeError, OSError, TypeError) as error:
        raise PlanError(f"hl.inline_pallas of {module}.{name}, which cannot be imported", line=op.line) from error
    if not same:
        raise PlanError(f"hl.inline_pallas of {module}.{name}, whose source has changed since the kernel was captured", line=op.line)
    return fn


def is_elementwise(op: Op) -> bool:
    return _parts(op)[4]


def write_inline(w: KernelWriter, op: Op) -> None:
    """Writes the call, and binds every result."""
    imported(op)
    module, name, operands, _, elementwise = _parts(op)
    local = w.imports.get((module, name)) or w.imports.setdefault((module, name), w.name(name))
    texts = []
    for x in operands:
        if not isinstance(x, Ref):
            texts.append(literal(resolve(x, w.plan.blocks)))
            continue
        operand = w.operand(x, Form.ROW)
        texts.append(operand.text if elementwise or operand.phys == operand.shape else f"{operand.text}.reshape({operand.shape})")
    names = [w.name(name) for _ in op.results]
    w.out.add(f"{', '.join(names)} = {local}({', '.join(texts)})")
    for result, text in zip(op.results, names, strict=True):
        shape, dtype = w.shape(result), dtype_text(w.type(result).dtype)
        phys = phys_shape(shape, Form.ROW)
        if elementwise:
            w.out.add(f"{text} = jnp.broadcast_to({text}, {phys}).astype({dtype})")
        else:
            w.out.add(f"{text} = {text}.reshape({phys}).astype({dtype})")
        w.bind((result, Form.ROW), text)


def inline(op: Op, args: list[Any], types: list[TensorType]) -> tuple[jax.Array, ...]:
    """``hl.inline`` of arrays."""
    out = imported(op)(*args)
    results = tuple(out) if isinstance(out, (tuple, list)) else (out,)
    if len(results) != len(op.results):
        raise PlanError(f"the function of hl.inline_pallas gives {len(results)} results, output_like has {len(op.results)}", line=op.line)
    return tuple(jnp.asarray(r, type_.dtype) for r, type_ in zip(results, types, strict=True))


def write_print(w: KernelWriter, op: Op) -> None:
    """Prints the operands. A TPU prints scalars only, and vectors without text."""
    prefix, *values = op.args
    assert isinstance(prefix, str)
    texts = [w.operand(x, Form.ROW).text if isinstance(x, Ref) else literal(resolve(x, w.plan.blocks)) for x in values]
    vectors = [x for x in values if isinstance(x, Ref) and w.shape(x.id)]
    if w.plan.target.is_tpu and vectors:
        raise w.error("hl.device_print of a tile on a TPU: only scalars can be printed there", op)
    if w.plan.target.is_tpu:
        # Values follow the text, which must have no placeholders: those are for integers alone.
        shown = prefix.replace("{", "(").replace("}", ")")
        w.out.add(f"pl.debug_print({', '.join([repr(shown), *texts])})")
    else:
        w.out.add(f"jax.debug.callback({', '.join([f'functools.partial(print, {prefix!r})', *texts])})")


def show(op: Op, values: list[Any]) -> None:
    """``hl.print`` of arrays."""
    jax.debug.callback(functools.partial(print, op.args[0]), *values)


__all__ = ["imported", "inline", "is_elementwise", "show", "write_inline", "write_print"]
