"""Writes the kernel function of one launch: values, forms, masks, and where each name can be seen.

Loads and stores are in ``access``, loops in ``strategies``; this file knows neither.
"""

from __future__ import annotations

import contextlib
import linecache
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..exc import PlanError
from ..program.expr import evaluate
from ..program.ir import BOUNDS, Arg, Op, Ref, Region, TensorType, walk
from . import ops, scans
from .evaluate import count, expression, resolve
from .inline import write_inline
from .layout import Form, infer_forms, phys_shape
from .masks import Tag, Tags, contracted_dims, infer_tags
from .ops import Kind, Operand, Result, dtype_text, literal
from .plan import Launch, Plan
from .scaled import needless

INDENT = "    "


class Lines:
    """Source text in the making."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0

    def add(self, text: str) -> None:
        self.lines.append(INDENT * self.depth + text if text else "")

    @contextlib.contextmanager
    def indented(self) -> Iterator[None]:
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1


@dataclass(frozen=True)
class Position:
    """Where the current tile of an axis is, as text: its number and its first element (``static``: a number when traced).

    ``within``: its number among the tiles of its block.
    """

    id: str
    begin: str
    static: bool = False
    within: str = "0"


@dataclass(frozen=True)
class Scratch:
    """VMEM (or SMEM, for scalars) that outlives a step."""

    name: str
    shape: tuple[int, ...]  # physical; () for a scalar
    dtype: str
    form: Form

    def spec(self) -> str:
        if not self.shape:
            return f"pltpu.SMEM((1,), {dtype_text(_memory_dtype(self.dtype, scalar=True))})"
        return f"pltpu.VMEM({self.shape}, {dtype_text(_memory_dtype(self.dtype))})"

    def read(self) -> str:
        text = f"{self.name}[...]" if self.shape else f"{self.name}[0]"
        stored = _memory_dtype(self.dtype, scalar=not self.shape)
        if stored == self.dtype:
            return text
        return f"({text} != 0)" if self.dtype == "bool" else f"{text}.astype({dtype_text(self.dtype)})"

    def write(self, text: str) -> str:
        stored = _memory_dtype(self.dtype, scalar=not self.shape)
        value = text if stored == self.dtype else f"({text}).astype({dtype_text(stored)})"
        return f"{self.name}[...] = {value}" if self.shape else f"{self.name}[0] = {value}"


def _memory_dtype(dtype: str, *, scalar: bool = False) -> str:
    """What a dtype is kept as: masks and narrow scalars have no memory form of their own."""
    if dtype == "bool":
        return "int32"
    return ("float32" if dtype in ops.FLOATS else "int32") if scalar else dtype


class KernelWriter:
    """The state of writing one kernel function."""

    def __init__(self, plan: Plan, launch: Launch, write_load: Callable[[KernelWriter, Op], None]):
        self.plan, self.launch, self.program = plan, launch, plan.program
        self.write_load = write_load  # loads are written in ``access``, which stands above this file
        self.out = Lines()
        region: Region = launch.op.regions[0]
        self.forms = infer_forms(self.program, region, self.shape)
        self.tags = infer_tags(self.program, region, self.shape, launch.windows.ragged)
        self.defs: dict[int, Op] = {r: op for op in walk(region) for r in op.results}
        self.scopes: list[dict[tuple[Any, ...], str]] = [{}]
        self.positions: dict[int, Position] = {}
        self.scratch: dict[int, Scratch] = {}  # value id -> where it is kept between steps
        self.needless = needless(launch.windows, region)
        self.again: set[int] = set()  # values that are written anew in each step that uses them
        self.taken: set[str] = set()
        self.imports: dict[tuple[str, str], str] = {}  # (module, name) -> the name here
        self.line = 0

    # ---------------------------------------------------------------------------------------- facts

    def shape(self, value: int) -> tuple[int, ...]:
        return tuple(evaluate(d, self.plan.blocks) for d in self.program.types[value].shape)

    def type(self, value: int) -> TensorType:
        return self.program.types[value]

    def error(self, reason: str, op: Op | None = None) -> PlanError:
        return PlanError(reason, kernel=self.program.name, file=self.program.file, line=op.line if op else None)

    # ---------------------------------------------------------------------------------------- names and scopes

    def name(self, stem: str) -> str:
        stem = re.sub(r"\W", "_", stem).strip("_") or "v"
        name, n = stem, 1
        while name in self.taken:
            n += 1
            name = f"{stem}_{n}"
        self.taken.add(name)
        return name

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """What is defined inside is not seen outside: a nested function, or a step that does not always run."""
        self.scopes.append({})
        try:
            yield
        finally:
            self.scopes.pop()

    @contextlib.contextmanager
    def function(self, header: str) -> Iterator[None]:
        self.out.add(header)
        with self.out.indented(), self.scope():
            start = len(self.out.lines)
            yield
            if len(self.out.lines) == start:
                self.out.add("pass")

    @contextlib.contextmanager
    def when(self, condition: str | None) -> Iterator[None]:
        """A block that runs where ``condition`` holds (always, for None)."""
        if condition is None:
            with self.scope():
                yield
            return
        self.out.add(f"@pl.when({condition})")
        with self.function("def _():"):
            yield
        self.out.add("")

    def find(self, *key: Any) -> str | None:
        for scope in reversed(self.scopes):
            if key in scope:
                return scope[key]
        return None

    def bind(self, key: tuple[Any, ...], text: str) -> str:
        self.scopes[-1][key] = text
        return text

    def assign(self, key: tuple[Any, ...], stem: str, text: str) -> str:
        name = self.name(stem)
        self.out.add(f"{name} = {text}")
        return self.bind(key, name)

    def comment(self, line: int) -> None:
        """The user's own line above what it became."""
        if line and line != self.line:
            self.line = line
            source = source_line(self.plan, line)
            if source:
                self.out.add(f"# {line}: {source}")

    # ---------------------------------------------------------------------------------------- values

    def form(self, value: int, fallback: Form = Form.ROW) -> Form:
        form = self.forms.get(value, Form.ROW)
        return fallback if form is Form.FLEXIBLE else form

    def value(self, ref: Ref, form: Form) -> str:
        """The name of a value in ``form``, which is written down here if it is not in sight yet."""
        if not self.shape(ref.id):
            form = Form.ROW
        found = self.find(ref.id, form)
        if found is not None:
            return found
        own = self.form(ref.id, form)
        if own is not form:
            text = self.value(ref, own)
            shape = phys_shape(self.shape(ref.id), form)
            return self.assign((ref.id, form), f"{text}_{form.value}", ops.reshaped(text, self.type(ref.id).dtype, shape))
        if ref.id in self.scratch:
            kept = self.scratch[ref.id]
            return self.assign((ref.id, form), kept.name.removesuffix("_ref"), kept.read())
        op = self.defs.get(ref.id)
        if op is None or not (self.is_free(op) or ref.id in self.again):
            raise AssertionError(f"value %{ref.id} ({op.name if op else 'parameter'}) is not in sight")
        if op.name == "hl.load":
            self.write_load(self, op)
        else:
            self.define(op, ref.id, form)
        found = self.find(ref.id, form)
        assert found is not None
        return found

    def is_free(self, op: Op) -> bool:
        """Whether a value costs nothing to write again: positions, and what is made from nothing."""
        if not op.results:
            return False
        return op.name.startswith("hl.tile_") or all(self.forms.get(r) is Form.FLEXIBLE for r in op.results)

    def operand(self, x: Arg, form: Form) -> Any:
        """An argument of an operation: tensors in ``form``, expressions as numbers."""
        if isinstance(x, Ref):
            op = self.defs.get(x.id)
            if op is not None and op.name == "hl.count" and not self.counted_axes(op):
                return float(count(op, self.shape(op.args[0].id)))  # type: ignore[union-attr]
            shape = self.shape(x.id)
            text = self.value(x, form)
            return Operand(text, shape, phys_shape(shape, form if shape else Form.ROW), self.type(x.id).dtype)
        return tuple(self.operand(i, form) for i in x) if isinstance(x, tuple) else resolve(x, self.plan.blocks)

    def define(self, op: Op, result: int, form: Form) -> None:
        """Writes ``op`` down and binds its result, in ``form``."""
        if op.name.startswith("hl.tile_"):
            self.bind((result, form), self.tile_value(op, form))
            return
        if op.name == "hl.count":
            if self.counted_axes(op):
                self.assign((result, Form.ROW), "count", self.count_text(op))
            return
        own = write_inline if op.name == "hl.inline" else scans.WRITERS.get(ops.base_name(op.name))
        if own is not None and (op.name.startswith("hl.") or self.plan.target.is_tpu):
            own(self, op)
            return
        shape = self.shape(result)
        wanted = Result(shape, phys_shape(shape, form), self.type(result).dtype, not self.plan.target.is_tpu)
        args, kwargs = self.arguments(op, form)
        text = self.renumbered(op, expression(op.name, args, kwargs, wanted))
        self.assign((result, form), ops.base_name(op.name).replace("hl.", ""), text)

    def renumbered(self, op: Op, text: str) -> str:
        """``text``, a position counted over a whole ragged tile, as one among the elements that exist."""
        rule = ops.REDUCTIONS.get(ops.base_name(op.name))
        source = op.args[0] if rule is not None and rule.index else None
        if not isinstance(source, Ref):
            return text
        shape = self.shape(source.id)
        if len(ops.reduced_dims(op.args, dict(op.kwargs), len(shape))) < 2 or not any(self.tag(source, d) for d in range(1, len(shape))):
            return text
        held = ", ".join(self.held(n, self.tag(source, d)) for d, n in enumerate(shape))
        return f"_flat_position({text}, {shape}, ({held}))"

    def arguments(self, op: Op, form: Form) -> tuple[list[Any], dict[str, Any]]:
        """The operands of ``op`` in the forms that it needs to give its result in ``form``, masked where they must be."""
        kind = ops.kind_of(op.name)
        kwargs = {k: self.operand(v, Form.ROW) for k, v in op.kwargs if k not in BOUNDS}
        if kind in (Kind.ELEMENTWISE, Kind.CREATE):
            return [self.operand(a, form) for a in op.args], kwargs
        if kind is Kind.REDUCTION:
            source = op.args[0]
            assert isinstance(source, Ref)
            own = self.form(source.id)
            base, dtype = ops.base_name(op.name), self.type(source.id).dtype
            dims = ops.reduced_dims(op.args, dict(op.kwargs), len(self.shape(source.id)))
            first = self.masked(source, own, dims, ops.REDUCTIONS[base].identity(dtype))
            return [first, *(resolve(a, self.plan.blocks) for a in op.args[1:])], kwargs
        if kind is Kind.VIEW:
            source = op.args[0]
            assert isinstance(source, Ref)
            own = self.view_form(source.id, phys_shape(self.shape(op.results[0]), form))
            return [self.operand(source, own), *(resolve(a, self.plan.blocks) for a in op.args[1:])], kwargs
        if kind is Kind.CONTRACT:
            a, b, acc = op.args[0], op.args[1], op.args[2]
            assert isinstance(a, Ref) and isinstance(b, Ref)
            inner = tuple(len(self.shape(x.id)) + dim for x, dim in zip((a, b), contracted_dims(op), strict=True))
            # An element that one of them does not have must be 0 in both: 0 times what is undefined may be NaN.
            tags = self.tag(a, inner[0]) | self.tag(b, inner[1])
            left, right = (self.masked(x, Form.ROW, (d,), "0", tags) for x, d in zip((a, b), inner, strict=True))
            return [left, right, self.operand(acc, Form.ROW)], kwargs
        return [self.operand(a, Form.ROW) for a in op.args], kwargs

    def view_form(self, value: int, wanted: tuple[int, ...]) -> Form:
        """The form in which a reshape of ``value`` to ``wanted`` moves nothing, if there is a choice."""
        if self.forms.get(value) is not Form.FLEXIBLE:
            return self.form(value)
        return next((f for f in (Form.COLUMN, Form.ROW) if phys_shape(self.shape(value), f) == wanted), Form.ROW)

    # ---------------------------------------------------------------------------------------- masks

    def tag(self, ref: Ref, dim: int) -> frozenset[Tag]:
        """What bounds dimension ``dim`` of a value."""
        tags: Tags = self.tags.get(ref.id, ())
        return tags[dim] if dim < len(tags) else frozenset()

    def masked(self, ref: Ref, form: Form, dims: Sequence[int], fill: str, more: frozenset[Tag] = frozenset()) -> Operand:
        """``ref`` with elements that do not exist along ``dims`` (bounded by ``more`` too) replaced by ``fill``."""
        operand: Operand = self.operand(ref, form)
        bounds = [(d, tag) for d in dims for tag in sorted(self.tag(ref, d) | more)]
        if not bounds:
            return operand
        key = (ref.id, form, fill, tuple(bounds))
        text = self.find(*key)
        if text is None:
            text = self.assign(key, f"{operand.text}_masked", self.mask(operand.text, fill, [(operand.phys_dim(d), a) for d, a in bounds]))
        return Operand(text, operand.shape, operand.phys, operand.dtype)

    def mask(self, text: str, fill: str, bounds: Sequence[tuple[int, Tag]]) -> str:
        """``text`` with ``fill`` where an element along a physical dimension does not exist."""
        tests = ", ".join(self.bound_text(d, tag) for d, tag in bounds)
        return f"_mask({text}, {fill}, {tests})"

    def bound(self, tag: Tag) -> tuple[str, str]:
        """The first position of a dimension, and the end of those that exist."""
        first, end = self.positions[tag.axis].begin, self.end(tag.axis)
        return (first, end) if tag.factor == 1 else (f"({first}) * {tag.factor}", f"({end}) * {tag.factor}")

    def bound_text(self, dim: int, tag: Tag) -> str:
        """A bound as the helpers take it."""
        return f"({dim}, {', '.join(self.bound(tag))})"

    def held(self, size: int, tags: frozenset[Tag]) -> str:
        """How many elements of a dimension of ``size`` exist."""
        text = str(size)
        for first, end in map(self.bound, sorted(tags)):
            text = f"jnp.minimum({text}, {end} - ({first}))"
        return text

    def counted_axes(self, op: Op) -> list[frozenset[Tag]]:
        """What bounds each of the dimensions that ``hl.count`` counts, where any do."""
        x, dims = op.args[:2]
        assert isinstance(x, Ref) and isinstance(dims, tuple)
        tags = self.tags.get(x.id, ())
        return [tags[d] for d in dims if isinstance(d, int) and d < len(tags) and tags[d]]

    def count_text(self, op: Op) -> str:
        """``hl.count`` where a last tile can have fewer elements than its block."""
        x, dims, correction = op.args
        assert isinstance(x, Ref) and isinstance(dims, tuple)
        shape, tags, dtype = self.shape(x.id), self.tags[x.id], dtype_text(self.type(op.results[0]).dtype)
        text = str(math.prod(shape[d] for d in dims if isinstance(d, int) and not tags[d]))
        for d in dims:
            assert isinstance(d, int)
            text = f"{text} * {self.held(shape[d], tags[d])}" if tags[d] else text
        return f"({text}).astype({dtype}) - {literal(correction, self.type(op.results[0]).dtype)}"

    def end(self, axis: int) -> str:
        end = self.program.axes[axis].end
        return self.value(end, Form.ROW) if isinstance(end, Ref) else str(evaluate(end, self.plan.blocks))

    def block(self, axis: int) -> int:
        return self.plan.blocks[self.program.axes[axis].block]

    def begin_of(self, axis: int, id: str) -> str:
        """The first element of tile ``id`` of ``axis``."""
        begin, size = self.program.axes[axis].begin, self.block(axis)
        if isinstance(begin, Ref):
            outer = self.position_of(begin)
            # As it stands, not made a value: JAX cannot lower a slice that begins at a constant array.
            first = self.value(begin, Form.ROW) if outer is None else outer.begin if outer.begin.isdigit() else f"({outer.begin})"
            if first.isdigit() and id.isdigit():
                return str(int(first) + int(id) * size)
            return first if id == "0" else f"{first} + {id} * {size}"
        start = evaluate(begin, self.plan.blocks)
        if id.isdigit():
            return str(start + int(id) * size)
        text = id if size == 1 else f"{id} * {size}"
        return text if start == 0 else f"{start} + {text}"

    def position_of(self, begin: Ref) -> Position | None:
        """The position of the tile that ``begin`` is the begin of; None where it is no tile's."""
        op = self.defs.get(begin.id)
        return self.positions[self.axis_of(op)] if op is not None and op.name == "hl.tile_begin" else None

    @staticmethod
    def axis_of(op: Op) -> int:
        """The axis that ``hl.tile_...`` is about."""
        axis = op.args[0]
        assert isinstance(axis, int)
        return axis

    def tile_value(self, op: Op, form: Form) -> str:
        axis = self.axis_of(op)
        at = self.positions[axis]
        match op.name:
            case "hl.tile_begin":
                return _scalar(at.begin, at)
            case "hl.tile_id":
                return _scalar(at.id, at)
            case "hl.tile_end":
                return f"jnp.minimum({at.begin} + {self.block(axis)}, {self.end(axis)})"
        phys = phys_shape(self.shape(op.results[0]), form)
        dim = 0 if form is Form.COLUMN else 1
        return self.assign((op.results[0], form), "index", f"{at.begin} + lax.broadcasted_iota(jnp.int32, {phys}, {dim})")

    # ---------------------------------------------------------------------------------------- carried variables

    def carried(self, x: Arg, param: int) -> str:
        """``x`` as the next value of carried variable ``param``: in its form, shape and dtype."""
        shape, dtype = self.shape(param), self.type(param).dtype
        form = self.form(param)
        phys = phys_shape(shape, form)
        if not isinstance(x, Ref):
            number = literal(resolve(x, self.plan.blocks), dtype)
            return f"jnp.full({phys}, {number}, {dtype_text(dtype)})" if shape else f"jnp.asarray({number}, {dtype_text(dtype)})"
        operand: Operand = self.operand(x, form)
        text = operand.cast(dtype)
        if not shape:
            return f"jnp.asarray({text}, {dtype_text(dtype)})"
        return text if operand.phys == phys else f"jnp.broadcast_to({text}, {phys})"

    def next_value(self, x: Arg, param: int, axes: tuple[int, ...]) -> str:
        """``carried``; elements that the loop's own ``axes`` do not have keep the value they had."""
        text = self.carried(x, param)
        tags = self.tags.get(x.id, ()) if isinstance(x, Ref) else ()
        bounds = [(d, tag) for d, found in enumerate(tags) for tag in sorted(found) if tag.axis in axes]
        if not bounds:
            return text
        old: Operand = self.operand(Ref(param), self.form(param))
        return self.mask(text, old.text, [(old.phys_dim(d), tag) for d, tag in bounds])


def _scalar(text: str, at: Position) -> str:
    """A position as a value; a number (known now, or when traced) has to be made one, with a dtype."""
    return f"jnp.asarray({text}, jnp.int32)" if at.static or text.isdigit() else f"({text})"


def source_line(plan: Plan, line: int) -> str:
    """The user's source line as one line of comment text."""
    program = plan.program
    lines = program.source.splitlines()
    at = line - program.first_line
    text = lines[at] if 0 <= at < len(lines) else linecache.getline(program.file, line)
    return " ".join(text.split())
