"""True sizes of values in the reference path: the last tile of an axis is smaller than its block, and types only know full sizes.

A dimension is recognised by its full size, from the types: one that is 1 there broadcasts, one that only happens to be 1
in a last tile does not. Where two tiles meet, the elements that both have are what exists.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..exc import PlanError
from ..program.ir import Op, Program
from . import ops
from .ops import Kind

Shape = tuple[int, ...]


def fit(program: Program, op: Op, full: Sequence[Shape], true: Sequence[Shape], result: Shape) -> tuple[list[Shape], Shape]:
    """To which sizes the operands of ``op`` are cut so that they go together, and the true shape of its result.

    ``full`` and ``true`` are the shapes of its tensor operands in order, ``result`` is the full shape of the result.
    """
    kind, base, cut = ops.kind_of(op.name), ops.base_name(op.name), list(true)
    if kind is Kind.ELEMENTWISE:
        shape = common(full, true, result)
        return [prefix(f, t, shape, result) for f, t in zip(full, true, strict=True)], shape
    if kind in (Kind.EXPAND, Kind.CREATE):
        return cut, common(full, true, result)
    if kind is Kind.REDUCTION:
        dims = ops.reduced_dims(op.args, dict(op.kwargs), len(true[0]))
        if len(result) == len(true[0]):
            return cut, tuple(1 if d in dims else n for d, n in enumerate(true[0]))
        return cut, tuple(n for d, n in enumerate(true[0]) if d not in dims)
    if kind is Kind.PERMUTE:
        return cut, tuple(true[0][d] for d in ops.permutation(base, op.args, len(true[0])))
    if kind is Kind.VIEW:
        return cut, _viewed(program, op, full[0], true[0], result)
    if kind is Kind.CONTRACT:
        return _contracted(full, true, result)
    if kind is Kind.OTHER:
        return _moved(program, op, base, full, true)
    return cut, result


def common(full: Sequence[Shape], true: Sequence[Shape], result: Shape) -> Shape:
    """The shape of what all operands have, broadcast: for each dimension of ``result`` the smallest true size."""
    shape = list(result)
    for f, t in zip(full, true, strict=True):
        at = len(result) - len(f)
        for d, (n, size) in enumerate(zip(f, t, strict=True), at):
            if n == result[d]:
                shape[d] = min(shape[d], size)
    return tuple(shape)


def prefix(full: Shape, true: Shape, shape: Shape, result: Shape) -> Shape:
    """What is kept of an operand that meets others in ``shape`` (of which ``result`` is the full form)."""
    at = len(result) - len(full)
    return tuple(min(t, shape[at + d]) if n == result[at + d] else t for d, (n, t) in enumerate(zip(full, true, strict=True)))


def _refused(program: Program, op: Op, what: str) -> PlanError:
    hint = "choose a block size that divides the dimension"
    return PlanError(what, kernel=program.name, file=program.file, line=op.line, hint=hint)


def _viewed(program: Program, op: Op, full: Shape, true: Shape, result: Shape) -> Shape:
    """The true shape after a reshape. Dimensions that are merged or split may be short in the first of them only."""
    if full == true:
        return result
    shape: list[int] = []
    i = j = 0
    while i < len(full) or j < len(result):
        if i < len(full) and j < len(result) and full[i] == result[j]:
            shape.append(true[i])
            i, j = i + 1, j + 1
        elif j < len(result) and result[j] == 1:
            shape.append(1)
            j += 1
        elif i < len(full) and full[i] == 1:
            i += 1
        else:
            start_i, start_j, size_in, size_out = i, j, full[i], result[j]
            while size_in != size_out:
                if size_in < size_out:
                    i += 1
                    size_in *= full[i]
                else:
                    j += 1
                    size_out *= result[j]
            rest = math.prod(result[start_j + 1 : j + 1])
            first, left = divmod(math.prod(true[start_i : i + 1]), rest or 1)
            if true[start_i + 1 : i + 1] != full[start_i + 1 : i + 1] or left:
                raise _refused(program, op, "a reshape merges or splits a ragged tile")
            shape += [first, *result[start_j + 1 : j + 1]]
            i, j = i + 1, j + 1
    return tuple(shape)


def _contracted(full: Sequence[Shape], true: Sequence[Shape], result: Shape) -> tuple[list[Shape], Shape]:
    a, b = true[0], true[1]
    inner = min(a[-1], b[-2])
    shape = (*common([full[0][:-2], full[1][:-2]], [a[:-2], b[:-2]], result[:-2]), a[-2], b[-1])
    if len(true) > 2:  # the accumulator may broadcast
        shape = common([result, full[2]], [shape, true[2]], result)
    batches = (prefix(f[:-2], t[:-2], shape[:-2], result[:-2]) for f, t in zip(full[:2], (a, b), strict=True))
    cut = [(*next(batches), shape[-2], inner), (*next(batches), inner, shape[-1])]
    return [*cut, *(prefix(f, t, shape, result) for f, t in zip(full[2:], true[2:], strict=True))], shape


def _moved(program: Program, op: Op, base: str, full: Sequence[Shape], true: Sequence[Shape]) -> tuple[list[Shape], Shape]:
    cut, given = list(true), [*op.args[1:2], dict(op.kwargs).get("dim", 0)]
    dim = given[0] if isinstance(given[0], int) else 0
    at = dim % max(1, len(true[0]))
    if base == "cat":
        least = [min(sizes) for sizes in zip(*true, strict=True)]
        cut = [tuple(t[d] if d == at else n for d, n in enumerate(least)) for t in true]
        return cut, tuple(sum(t[at] for t in true) if d == at else n for d, n in enumerate(least))
    if base == "select":
        position: Any = op.args[2]
        if true[0][at] != full[0][at] and position != 0:
            raise _refused(program, op, "an element of a ragged tile is selected by its position")
        return cut, true[0][:at] + true[0][at + 1 :]
    if base == "slice":
        start, stop, step = slice(*([*op.args[2:5], None, None, None][:3])).indices(true[0][at])
        return cut, tuple(len(range(start, stop, step)) if d == at else n for d, n in enumerate(true[0]))
    return cut, true[0]
