"""Rewrites composite ATen operations into the few kinds of ``ops``, so that planning and masks see plain reductions.

The program that is stored and fingerprinted is the captured one; this is the first step of every lowering. It adds one
operation: ``hl.count`` ``(x, dims, correction)``, the number of elements of ``x`` along ``dims`` less ``correction``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from ..exc import PlanError
from ..program.expr import Expr
from ..program.ir import Arg, Axis, DType, Op, Program, Ref, Region, TensorType, output_leaves, refs_in, walk
from ..program.regions import axes_of, has_effect, reads_of, target_of
from .bounds import bound
from .ops import FLOATS, LOW_PRECISION, Kind, base_name, kind_of, reduced_dims


class Builder:
    """Emits replacement operations at the place of one operation."""

    def __init__(self, types: list[TensorType], op: Op):
        self.types, self.op = types, op
        self.args: tuple[Any, ...] = op.args
        self.ops: list[Op] = []

    def type(self, ref: Arg) -> TensorType:
        return self.types[ref.id] if isinstance(ref, Ref) else TensorType((), "float32" if isinstance(ref, float) else "int32")

    def emit(self, name: str, args: tuple[Arg, ...], shape: tuple[Expr, ...], dtype: str, result: int | None = None, **kwargs: Arg) -> Ref:
        if result is None:
            self.types.append(TensorType(shape, dtype))
            result = len(self.types) - 1
        self.ops.append(Op(name, args, tuple(kwargs.items()), (result,), self.op.line))
        return Ref(result)

    def like(self, name: str, *args: Arg, dtype: str | None = None, result: int | None = None, **kwargs: Arg) -> Ref:
        """An elementwise operation; its shape is that of the operand of highest rank (broadcast unit dimensions aside)."""
        shapes = [self.type(a).shape for a in args if isinstance(a, Ref)]
        rank = max(len(s) for s in shapes)
        padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
        shape = tuple(next((d for d in dims if d != 1), 1) for dims in zip(*padded, strict=True))
        first = next(self.type(a).dtype for a in args if isinstance(a, Ref))
        return self.emit(f"aten.{name}.default", args, shape, dtype or first, result, **kwargs)

    def to(self, x: Ref, dtype: str, result: int | None = None) -> Ref:
        if self.type(x).dtype == dtype and result is None:
            return x
        return self.emit("aten._to_copy.default", (x,), self.type(x).shape, dtype, result)

    def reduce(self, name: str, x: Ref, dims: tuple[int, ...], keepdim: bool, dtype: str | None = None, result: int | None = None) -> Ref:
        shape = self.type(x).shape
        kept = tuple(1 if i in dims else d for i, d in enumerate(shape) if keepdim or i not in dims)
        return self.emit(f"aten.{name}.default", (x, dims, keepdim), kept, dtype or self.type(x).dtype, result)

    def count(self, x: Ref, dims: tuple[int, ...], correction: float = 0) -> Ref:
        """How many elements ``x`` has along ``dims``, less ``correction``: in a ragged last tile, those that exist."""
        return self.emit("hl.count", (x, dims, correction), (), self.type(x).dtype)

    def wide(self, dtype: str) -> str:
        return "float32" if dtype in LOW_PRECISION else dtype


def _kwargs(op: Op) -> dict[str, Any]:
    return dict(op.kwargs)


def _softmax(b: Builder, log: bool) -> None:
    x, dim = b.args[0], b.args[1]
    dims = (dim % len(b.type(x).shape),)
    out = b.types[b.op.results[0]].dtype
    x = b.to(x, b.wide(b.type(x).dtype))
    shifted = b.like("sub", x, b.reduce("amax", x, dims, True))
    exp = b.like("exp", shifted)
    total = b.reduce("sum", exp, dims, True)
    value = b.like("sub", shifted, b.like("log", total)) if log else b.like("div", exp, total)
    b.to(value, out, b.op.results[0])


def _mean(b: Builder) -> None:
    x, kwargs = b.args[0], _kwargs(b.op)
    rank = len(b.type(x).shape)
    dims = reduced_dims(b.args[:2], kwargs, rank)
    keepdim = bool(b.args[2] if len(b.args) > 2 else kwargs.get("keepdim", False))
    out = b.types[b.op.results[0]].dtype
    x = b.to(x, b.wide(out))
    total = b.reduce("sum", x, dims, keepdim)
    b.to(b.like("div", total, b.count(x, dims)), out, b.op.results[0])


def _centred(b: Builder, x: Ref, dims: tuple[int, ...]) -> tuple[Ref, Ref]:
    """(x - mean, mean), dimensions kept. Two passes: the mean first, as numerically safe as torch's own."""
    mean = b.like("div", b.reduce("sum", x, dims, True), b.count(x, dims))
    return b.like("sub", x, mean), mean


def _variance(b: Builder, x: Ref, dims: tuple[int, ...], correction: Any, keepdim: bool, result: int | None = None) -> Ref:
    centred, _ = _centred(b, x, dims)
    total = b.reduce("sum", b.like("mul", centred, centred), dims, keepdim)
    return b.like("div", total, b.count(x, dims, correction), result=result)


def _var(b: Builder, *, with_mean: bool) -> None:
    x, kwargs = b.args[0], _kwargs(b.op)
    dims = reduced_dims(b.args[:2], kwargs, len(b.type(x).shape))
    correction = kwargs.get("correction", 1)
    keepdim = bool(kwargs.get("keepdim", False))
    out = b.types[b.op.results[0]].dtype
    wide = b.to(x, b.wide(out))
    b.to(_variance(b, wide, dims, 1 if correction is None else correction, keepdim), out, b.op.results[0])
    if with_mean:
        total = b.reduce("sum", wide, dims, keepdim)
        b.to(b.like("div", total, b.count(wide, dims)), out, b.op.results[1])


def _layer_norm(b: Builder) -> None:
    x, shape, weight, bias, eps = b.args
    rank = len(b.type(x).shape)
    dims = tuple(range(rank - len(shape), rank))
    out = b.types[b.op.results[0]].dtype
    wide = b.to(x, b.wide(b.type(x).dtype))
    centred, mean = _centred(b, wide, dims)
    square = b.like("mul", centred, centred)
    variance = b.like("div", b.reduce("sum", square, dims, True), b.count(x, dims))
    rstd = b.like("rsqrt", b.like("add", variance, float(eps)))
    value = b.like("mul", centred, rstd)
    if weight is not None:
        value = b.like("mul", value, b.to(weight, b.type(wide).dtype))
    if bias is not None:
        value = b.like("add", value, b.to(bias, b.type(wide).dtype))
    b.to(value, out, b.op.results[0])
    b.to(mean, b.types[b.op.results[1]].dtype, b.op.results[1])
    b.to(rstd, b.types[b.op.results[2]].dtype, b.op.results[2])


def _rms_norm(b: Builder) -> None:
    x, shape = b.args[:2]
    weight, eps = (*b.args[2:], None, None)[:2]
    rank = len(b.type(x).shape)
    dims = tuple(range(rank - len(shape), rank))
    out = b.types[b.op.results[0]].dtype
    wide = b.to(x, b.wide(b.type(x).dtype))
    square = b.like("div", b.reduce("sum", b.like("mul", wide, wide), dims, True), b.count(x, dims))
    epsilon = float(eps) if eps is not None else (1.1920928955078125e-07 if b.type(wide).dtype == "float32" else 2.220446049250313e-16)
    rstd = b.like("rsqrt", b.like("add", square, epsilon))
    value = b.like("mul", wide, rstd)
    if weight is not None:
        value = b.like("mul", value, b.to(weight, b.type(wide).dtype))
    b.to(value, out, b.op.results[0])
    if len(b.op.results) > 1:
        b.to(rstd, b.types[b.op.results[1]].dtype, b.op.results[1])


def _logsumexp(b: Builder) -> None:
    x, kwargs = b.args[0], _kwargs(b.op)
    rank = len(b.type(x).shape)
    dims = reduced_dims(b.args[:2], kwargs, rank)
    keepdim = bool(b.args[2] if len(b.args) > 2 else kwargs.get("keepdim", False))
    out = b.types[b.op.results[0]].dtype
    x = b.to(x, b.wide(out))
    top = b.reduce("amax", x, dims, True)
    # A row of -inf has no finite maximum; subtracting it would give NaN where torch gives -inf.
    safe = b.like("where", b.like("isinf", top, dtype="bool"), 0.0, top, dtype=b.type(top).dtype)
    total = b.reduce("sum", b.like("exp", b.like("sub", x, safe)), dims, True)
    value = b.like("add", b.like("log", total), safe)
    if not keepdim:
        shape = tuple(d for i, d in enumerate(b.type(x).shape) if i not in dims)
        value = b.emit("aten.view.default", (value, shape), shape, b.type(value).dtype)
    b.to(value, out, b.op.results[0])


def _extreme(b: Builder, value: str, index: str) -> None:
    """``max.dim`` / ``min.dim`` (value and position), or ``max.default`` / ``max.other``."""
    x = b.args[0]
    if len(b.op.results) == 1 and len(b.args) == 1:
        b.reduce(value, x, tuple(range(len(b.type(x).shape))), False, result=b.op.results[0])
        return
    if len(b.op.results) == 1:
        name = "maximum" if value == "amax" else "minimum"
        b.emit(f"aten.{name}.default", b.args[:2], b.types[b.op.results[0]].shape, b.types[b.op.results[0]].dtype, b.op.results[0])
        return
    dim = b.args[1] % max(1, len(b.type(x).shape))
    keepdim = bool(b.args[2] if len(b.args) > 2 else _kwargs(b.op).get("keepdim", False))
    b.reduce(value, x, (dim,), keepdim, result=b.op.results[0])
    b.reduce(index, x, (dim,), keepdim, b.types[b.op.results[1]].dtype, b.op.results[1])


def _dot(b: Builder, a: Ref, c: Ref, acc: Arg) -> None:
    b.emit("hl.dot", (a, c, acc, DType(b.types[b.op.results[0]].dtype)), b.types[b.op.results[0]].shape,
           b.types[b.op.results[0]].dtype, b.op.results[0])  # fmt: skip


def _matmul(b: Builder) -> None:
    _dot(b, b.args[0], b.args[1], None)


def _addmm(b: Builder) -> None:
    acc, a, c = b.args[:3]
    kwargs = _kwargs(b.op)
    alpha, beta = kwargs.get("alpha", 1), kwargs.get("beta", 1)
    out = b.types[b.op.results[0]]
    wide = "float32" if out.dtype in FLOATS else "int32"
    if alpha == 1 and beta == 1:
        _dot(b, a, c, acc)
        return
    product = b.emit("hl.dot", (a, c, None, DType(wide)), out.shape, wide)
    scaled = b.like("mul", product, alpha) if alpha != 1 else product
    if beta != 0:
        scaled = b.like("add", scaled, b.like("mul", b.to(acc, wide), beta))
    b.to(scaled, out.dtype, b.op.results[0])


def _addc(b: Builder, name: str) -> None:
    """``addcmul`` and ``addcdiv``."""
    x, t1, t2 = b.args[:3]
    out = b.types[b.op.results[0]].dtype
    product = b.like(name, t1, t2, dtype=out)
    b.emit("aten.add.Tensor", (x, product), b.types[b.op.results[0]].shape, out, b.op.results[0], alpha=_kwargs(b.op).get("value", 1))


def _stack(b: Builder) -> None:
    tensors = b.args[0]
    dim = b.args[1] if len(b.args) > 1 else 0
    out = b.types[b.op.results[0]]
    dim = dim % len(out.shape)
    shape = tuple(1 if i == dim else d for i, d in enumerate(out.shape))
    parts = tuple(b.emit("aten.view.default", (t, shape), shape, b.type(t).dtype) for t in tensors)
    b.emit("aten.cat.default", (parts, dim), out.shape, out.dtype, b.op.results[0])


def _reduction_defaults(b: Builder) -> None:
    """``sum.default`` and the like carry a dtype keyword that the result's type already says."""
    b.ops.append(dataclasses.replace(b.op, kwargs=tuple((k, v) for k, v in b.op.kwargs if k != "dtype")))


def _philox(b: Builder) -> None:
    """A word at a time, so that each is an elementwise operation like others."""
    for word, result in enumerate(b.op.results):
        b.emit("hl.philox_word", (*b.args, word), b.types[result].shape, "int32", result)


REWRITES: dict[str, Callable[[Builder], None]] = {
    "_softmax": lambda b: _softmax(b, log=False),
    "_log_softmax": lambda b: _softmax(b, log=True),
    "mean": _mean,
    "var": lambda b: _var(b, with_mean=False),
    "var_mean": lambda b: _var(b, with_mean=True),
    "native_layer_norm": _layer_norm,
    "_fused_rms_norm": _rms_norm,
    "logsumexp": _logsumexp,
    "max": lambda b: _extreme(b, "amax", "argmax"),
    "min": lambda b: _extreme(b, "amin", "argmin"),
    "mm": _matmul,
    "bmm": _matmul,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "addcmul": lambda b: _addc(b, "mul"),
    "addcdiv": lambda b: _addc(b, "div"),
    "stack": _stack,
    "sum": _reduction_defaults,
    "hl.philox": _philox,
}


def is_supported(name: str) -> bool:
    """Whether capture may record ATen operation ``name`` as it is (else it is decomposed first)."""
    return kind_of(name) is not None or base_name(name) in REWRITES


def is_elementwise(name: str) -> bool:
    """Whether ATen operation ``name`` treats every element by itself."""
    return kind_of(name) is Kind.ELEMENTWISE or base_name(name) in ("full", "expand", "scalar_tensor", "addcmul", "addcdiv")


def legalize(program: Program) -> Program:
    """``program`` in terms of the kinds of ``ops`` only. Raises ``PlanError`` for an operation nobody knows."""
    types = list(program.types)

    def region(r: Region) -> Region:
        ops: list[Op] = []
        for op in r.ops:
            if op.regions:
                op = dataclasses.replace(op, regions=tuple(region(inner) for inner in op.regions))
            rewrite = REWRITES.get(base_name(op.name))
            if rewrite is not None:
                builder = Builder(types, op)
                rewrite(builder)
                ops += builder.ops
            elif op.name.startswith("hl.") or kind_of(op.name) is not None:
                ops.append(op)
            else:
                raise PlanError(f"{program.file}:{op.line}: operation {op.name} has no lowering")
        return dataclasses.replace(r, ops=tuple(ops))

    host = region(program.host)
    axes = list(program.axes)
    host = dataclasses.replace(host, ops=tuple(_launch(op, types, axes) if op.name == "hl.launch" else op for op in host.ops))
    program = dataclasses.replace(program, axes=tuple(axes))
    narrowed = tuple(dataclasses.replace(t, dtype=narrow(t.dtype)) for t in types)
    return without_dead(dataclasses.replace(program, host=host, types=narrowed))


def _launch(launch: Op, types: list[TensorType], axes: list[Axis]) -> Op:
    launch = _load_scalars(launch, types, axes)
    return bound(launch, axes, types)


def _load_scalars(launch: Op, types: list[TensorType], axes: list[Axis]) -> Op:
    """Numbers of the host that device code uses as they are become loads at the start of the launch. ``axes`` follow."""
    region = launch.regions[0]
    inside = {r for op in walk(region) for r in (*op.results, *(p for inner in op.regions for p in inner.params))}
    loaded: dict[int, Ref] = {}

    def swap(x: Any) -> Any:
        if isinstance(x, Ref) and x.id not in inside:
            if x.id not in loaded:
                types.append(types[x.id])
                loaded[x.id] = Ref(len(types) - 1)
            return loaded[x.id]
        return tuple(swap(i) for i in x) if isinstance(x, tuple) else x

    def visit(r: Region) -> Region:
        ops = []
        for op in r.ops:
            target = target_of(op)
            args = tuple(a if a is target else swap(a) for a in op.args)
            for a in axes_of(op):
                axes[a] = dataclasses.replace(axes[a], begin=swap(axes[a].begin), end=swap(axes[a].end))
            kwargs = tuple((k, swap(v)) for k, v in op.kwargs)
            ops.append(dataclasses.replace(op, args=args, kwargs=kwargs, regions=tuple(visit(inner) for inner in op.regions)))
        return dataclasses.replace(r, ops=tuple(ops), results=swap(r.results))

    region = visit(region)
    loads = tuple(Op("hl.load", (Ref(value), ()), (), (ref.id,), launch.line) for value, ref in loaded.items())
    return dataclasses.replace(launch, regions=(dataclasses.replace(region, ops=(*loads, *region.ops)),))


def narrow(dtype: str) -> str:
    """int64 is int32 on a TPU and under JAX's default; the door has checked that the values fit."""
    return "int32" if dtype == "int64" else dtype


def _live_roots(program: Program) -> set[int]:
    return {r.id for r in output_leaves(program.outputs)} | {r.id for _, r in program.mutated}


def without_dead(program: Program) -> Program:
    """``program`` without operations whose results nothing reads."""
    return dataclasses.replace(program, host=_without_dead(program, program.host, _live_roots(program)))


def _without_dead(program: Program, region: Region, live: set[int]) -> Region:
    """Drops operations whose results nothing reads. ``live`` is updated with what the region reads."""
    live.update(r.id for r in refs_in(region.results))
    kept: list[Op] = []
    for op in reversed(region.ops):
        if op.name != "hl.launch" and not live.intersection(op.results) and not has_effect(op):
            continue
        if op.regions:
            op = dataclasses.replace(op, regions=tuple(_without_dead(program, r, live) for r in op.regions))
        live.update(r.id for r in reads_of(op, program.axes))
        kept.append(op)
    return dataclasses.replace(region, ops=tuple(reversed(kept)))
