"""Tables that kernels read their indices from (scalar prefetch): their contents in SMEM, where a caller knows them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .scalar import OPERAND_SHIFT

_OPERAND = re.compile(r"inlined_call_operand\.(?:<no memory space>|\w+) \[shape: (\w+)\[([\d,]*)\], index: (\d+), kind: input")

# Arrays with more elements are no tables, and would take long to compute.
LARGEST = 1 << 22


@dataclass(frozen=True, slots=True)
class Table:
    """The first operands of one kernel, in order: bounds of its grid that are not constants, then what is prefetched to SMEM."""

    operands: tuple[np.ndarray, ...]


@dataclass(frozen=True, slots=True)
class Contents:
    """What a kernel finds in its first operands: ``copy_in`` fills SMEM as its copies do, ``scalar`` is a number that is passed."""

    operands: tuple[np.ndarray, ...]

    def scalar(self, index: int) -> int:
        return int(self.operands[index].reshape(-1)[0]) & 0xFFFFFFFF if index < len(self.operands) else 0

    def copy_in(self, memory: dict[int, int], source: int | None, dest: int | None) -> None:
        if source is None or dest is None:
            return
        index = (source >> OPERAND_SHIFT) - 1
        if index >= len(self.operands):
            index = (source >> (OPERAND_SHIFT + 4)) - 1  # the address in units of a sixteenth
        if 0 <= index < len(self.operands):
            memory.update(enumerate(words(self.operands[index]).tolist(), dest))


def matching(text: str, tables: Sequence[Table]) -> Table | None:
    """The table with the shapes of the first operands of the kernel in ``text``."""
    shapes = {int(index): tuple(int(n) for n in dims.split(",") if n) for _, dims, index in _OPERAND.findall(text)}
    for table in tables:
        if table.operands and all(shapes.get(index) == operand.shape for index, operand in enumerate(table.operands)):
            return table
    return None


def words(array: np.ndarray) -> np.ndarray:
    """An array as SMEM holds it: 32-bit words in tiles of 128 columns, narrower elements of neighbouring rows packed into a word."""
    packed = 4 // array.dtype.itemsize if array.dtype.itemsize < 4 else 1
    if array.ndim < 2:
        return array.reshape(-1).astype(np.int64).astype(np.uint32)
    matrix = array.reshape(-1, array.shape[-1])
    rows, columns = matrix.shape
    tall, wide = -(-rows // packed), -(-columns // 128)
    padded = np.zeros((tall * packed, wide * 128), np.int64)
    padded[:rows, :columns] = matrix
    width = 32 // packed
    parts = padded.reshape(tall, packed, wide, 128) & ((1 << width) - 1)
    shifts = (np.arange(packed) * width).reshape(1, packed, 1, 1)
    return (parts << shifts).sum(axis=1).astype(np.uint32).reshape(-1)


def known(jaxpr: Any, arguments: Sequence[Any]) -> list[Table]:
    """The tables of the Pallas kernels in a closed jaxpr, as far as they follow from constants and from ``arguments`` that are arrays.

    ``arguments``: one an input, arrays or None (unknown). Small integer computations are done, on the CPU; everything else is unknown.
    """
    found: list[Table] = []
    _walk(jaxpr.jaxpr, jaxpr.consts, arguments, found)
    return found


def _walk(jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any], found: list[Table]) -> list[Any]:
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True)) | dict(zip(jaxpr.invars, arguments, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if hasattr(atom, "val") else values.get(atom)

    for equation in jaxpr.eqns:
        inputs = [read(atom) for atom in equation.invars]
        values.update(zip(equation.outvars, _results(equation, inputs, found), strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _results(equation: Any, inputs: list[Any], found: list[Table]) -> list[Any]:
    """What an equation gives, None for what is unknown; records the table of a kernel."""
    unknown = [None] * len(equation.outvars)
    name = equation.primitive.name
    if name == "pallas_call":
        mapping = equation.params["grid_mapping"]
        first = inputs[: mapping.num_dynamic_grid_bounds + mapping.num_index_operands]
        if first and all(value is not None for value in first):
            found.append(Table(tuple(np.asarray(value) for value in first)))
        return unknown
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = equation.params.get(key)
        if name not in ("scan", "while", "cond") and inner is not None and hasattr(inner, "consts"):
            return _walk(inner.jaxpr, inner.consts, inputs, found)
    small = all(getattr(out.aval, "size", LARGEST + 1) <= LARGEST for out in equation.outvars)
    if equation.effects or not small or any(value is None for value in inputs):
        return unknown
    return _computed(equation, inputs, unknown)


def _computed(equation: Any, inputs: list[Any], unknown: list[Any]) -> list[Any]:
    import jax

    try:
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            out = equation.primitive.bind(*inputs, **equation.params)
    except Exception:  # a primitive without a CPU form: its result is unknown, which is no error
        return unknown
    return list(out) if equation.primitive.multiple_results else [out]
