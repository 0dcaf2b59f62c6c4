"""Physical shapes of values in a kernel.

A vector register is two-dimensional. A value of logical shape ``(..., n)`` can lie along the lanes (``ROW``: its own shape;
rank 1 is ``(1, n)``) or along the sublanes (``COLUMN``: one unit dimension more, ``(..., n, 1)``). Reducing a row's last
dimension gives a column for nothing, and ``v[:, None]`` of a column is free; going from one to the other moves every
element. So the form of a value follows from how it came about, and a loop carries what its body produces. A value made
from nothing (a constant, an iota) is ``FLEXIBLE``: it is written where it is used, in the form that is wanted there.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from ..program.ir import Arg, Op, Program, Ref, Region, refs_in
from ..program.regions import CARRYING, bodies_of, inits_of
from . import ops
from .ops import Kind


class Form(enum.Enum):
    ROW = "row"
    COLUMN = "column"
    FLEXIBLE = "flexible"


Shape = tuple[int, ...]


def phys_shape(shape: Shape, form: Form) -> Shape:
    """The physical shape of a value of logical ``shape``."""
    if not shape:
        return ()
    if form is Form.COLUMN:
        return (*shape, 1)
    return (1, *shape) if len(shape) == 1 else shape


def infer_forms(program: Program, region: Region, shape_of: Callable[[int], Shape]) -> dict[int, Form]:
    """The form of every value defined in ``region`` and below (FLEXIBLE ones are decided where they are used)."""
    forms: dict[int, Form] = {}
    _infer(program, region, shape_of, forms)
    return forms


def _infer(program: Program, region: Region, shape_of: Callable[[int], Shape], forms: dict[int, Form]) -> None:
    for op in region.ops:
        if op.name in CARRYING:
            _infer_carried(program, op, shape_of, forms)
        else:
            for inner in op.regions:  # the combine function of a scan
                forms.update(dict.fromkeys(inner.params, Form.ROW))
                _infer(program, inner, shape_of, forms)
            for result in op.results:
                forms[result] = _form(op, result, shape_of, forms) if shape_of(result) else Form.ROW


def _infer_carried(program: Program, op: Op, shape_of: Callable[[int], Shape], forms: dict[int, Form]) -> None:
    """A carried variable has one form: on entry, in every region, and as a result."""
    inits, bodies, count = inits_of(op), bodies_of(op), len(op.results)

    def settle(i: int, form: Form) -> None:
        for region in op.regions:
            forms[region.params[i]] = form
        forms[op.results[i]] = form

    for i, (result, init) in enumerate(zip(op.results, inits, strict=True)):
        settle(i, _of(init, forms) if shape_of(result) else Form.ROW)
    for _ in range(count + 1):  # a change can pass from one carried variable to the next
        for region in op.regions:
            _infer(program, region, shape_of, forms)
        changed = False
        for body in bodies:
            for i, (result, value) in enumerate(zip(op.results, body.results, strict=True)):
                wanted, form = _of(value, forms), forms[result]
                if shape_of(result) and wanted is not Form.FLEXIBLE and form is not wanted and form is not Form.COLUMN:
                    settle(i, wanted)
                    changed = True
        if not changed:
            break
    for i, result in enumerate(op.results):
        if forms[result] is Form.FLEXIBLE:
            settle(i, Form.ROW)
    for region in op.regions:
        _infer(program, region, shape_of, forms)


def _of(x: Arg, forms: dict[int, Form]) -> Form:
    return forms[x.id] if isinstance(x, Ref) and x.id in forms else Form.FLEXIBLE


def _form(op: Op, result: int, shape_of: Callable[[int], Shape], forms: dict[int, Form]) -> Form:
    shape = shape_of(result)
    kind = ops.kind_of(op.name)
    if op.name == "hl.philox_word":
        return Form.ROW  # dear: written once, not wherever it is used
    if op.name == "hl.tile_index" or kind is Kind.CREATE:
        return Form.FLEXIBLE if not any(True for _ in refs_in(op.args)) else Form.ROW
    if kind is Kind.ELEMENTWISE:
        inputs = [r for r in refs_in(op.args) if shape_of(r.id)]
        found = {Form.ROW if _of(r, forms) is Form.COLUMN and len(shape_of(r.id)) < len(shape) else _of(r, forms) for r in inputs}
        if found <= {Form.FLEXIBLE}:
            return Form.FLEXIBLE
        if Form.COLUMN in found and (Form.ROW not in found or len(shape) == 1):
            return Form.COLUMN
        return Form.ROW
    source = next(refs_in(op.args), None)
    if source is None:
        return Form.ROW
    before, form = shape_of(source.id), _of(source, forms)
    if kind is Kind.REDUCTION:
        dims = ops.reduced_dims(op.args, dict(op.kwargs), len(before))
        dropped = len(shape) < len(before)
        if form is Form.COLUMN:
            return Form.COLUMN if dropped else Form.ROW
        return Form.COLUMN if dropped and dims == (len(before) - 1,) else Form.ROW
    if kind is Kind.VIEW and form is Form.ROW and phys_shape(before, form) == phys_shape(shape, Form.COLUMN):
        return Form.COLUMN
    return Form.ROW
