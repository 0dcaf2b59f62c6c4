"""ATen operations: which are special, how in-place ones become functional, what PyTorch says about shapes and dtypes."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..exc import CaptureError, DTypeError, ShapeMismatch
from ..program.ir import Arg, DType, TileIndex
from . import compositions, shapes
from .tensors import CaptureMode, TracedTensor

if TYPE_CHECKING:
    from .tracer import Tracer

_aten = torch.ops.aten
DROPPED = frozenset(("device", "layout", "pin_memory", "memory_format", "non_blocking"))
_RENAMED_IN_PLACE = {"__iand__": "bitwise_and", "__ior__": "bitwise_or", "__ixor__": "bitwise_xor"}
_RENAMED_IN_PLACE |= {"__ilshift__": "bitwise_left_shift", "__irshift__": "bitwise_right_shift"}


@dataclass(frozen=True)
class OpInfo:
    """What is asked about an operation again and again."""

    name: str
    base: str
    mutates: bool
    is_view: bool
    refusal: str | None
    number_args: frozenset[int]  # positions of arguments where an int is a number, not a size


@functools.cache
def info(func: Any) -> OpInfo:
    schema = func._schema
    name, base = str(func), schema.name.split("::")[1]
    if base in ("_unsafe_view", "_reshape_alias"):
        name = base = "view"
        name = "aten.view.default"
    if func is _aten.view.dtype:  # the same bits, not the same elements
        base = "bitcast"
    refusal = None
    if torch.Tag.nondeterministic_seeded in func.tags:
        refusal = "of torch's random functions a kernel has rand, randn, randint, bernoulli and dropout, without generator="
    elif torch.Tag.dynamic_output_shape in func.tags:
        refusal = "the shape of its result depends on data"
    elif torch.Tag.data_dependent_output in func.tags:
        refusal = "it needs data that is known only at run time"
    is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    numbers = frozenset(i for i, a in enumerate(schema.arguments) if "number" in str(a.type).lower() or "Tensor" in str(a.type))
    return OpInfo(name, base, schema.is_mutable, is_view, refusal, numbers)


def tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from tensors_in(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from tensors_in(item)


def _map(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    if isinstance(tree, (tuple, list)):
        return type(tree)(_map(item, leaf) for item in tree) if type(tree) in (tuple, list) else [_map(item, leaf) for item in tree]
    return leaf(tree)


def load_scalars(tracer: Tracer, name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Arguments for device code: host tensors of rank 0 are loaded, larger ones refused."""

    def leaf(value: Any) -> Any:
        if not isinstance(value, TracedTensor) or not value.is_host or value.is_param:
            return value
        if not value.meta.shape:
            return tracer.getitem(value, ())
        tracer.refuse(
            f"{name} in a tile loop on a whole {tracer.describe(value)}",
            "subscript it first: t[tile] or t[:, :]; or compute it before the loop",
        )

    return _map(args, leaf), {k: _map(v, leaf) for k, v in kwargs.items()}


def check_args(tracer: Tracer, func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Positional arguments with tiles turned into sizes. Refuses data that is not the program's."""
    numbers = info(func).number_args

    def leaf_at(position: int) -> Callable[[Any], Any]:
        def leaf(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and not isinstance(value, TracedTensor):
                tracer.refuse(
                    f"a tensor {tuple(value.shape)} from outside of the kernel is used (a global, a closure or a constant)",
                    "pass it as an argument",
                )
            if isinstance(value, int) and not isinstance(value, bool) and tracer.hints.is_tile(value):
                if position in numbers:
                    tracer.refuse("a tile is used as a number", "use tile.index for its positions, tile.block_size for its size")
                return tracer.hints.size_of(value)
            return value

        return leaf

    return tuple(_map(arg, leaf_at(i)) for i, arg in enumerate(args))


def run_on_meta(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of ``func`` as meta tensors. PyTorch's own complaint becomes an error at the user's line."""
    unwrap = functools.partial(_map, leaf=lambda v: v.meta if isinstance(v, TracedTensor) else v)
    kwargs = {k: unwrap(v) for k, v in kwargs.items() if k != "pin_memory"}
    if "device" in kwargs or (not any(True for _ in tensors_in((args, kwargs)))):
        kwargs["device"] = "meta"
    try:
        with torch._C._DisableTorchDispatch():
            if func is _aten.native_layer_norm.default:
                return shapes.layer_norm(*unwrap(args))
            if func in _ARANGES:
                bounds = args if len(args) > 1 else (0, *args)
                return shapes.arange(*bounds, dtype=kwargs.get("dtype"))
            metas = unwrap(args)
            if func in _ACCUMULATING:
                # A product accumulates in its accumulator's dtype, as in Helion (eager torch wants one dtype for all three).
                metas = (metas[0], *(m.to(metas[0].dtype) for m in metas[1:3]), *metas[3:])
            result = shapes.infer(func, metas, kwargs)
            return func(*metas, **kwargs) if result is NotImplemented else result
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        raise explain(tracer, error, args, info(func).name) from error


def explain(tracer: Tracer, error: Exception, args: Any, name: str | None = None, line: int | None = None) -> Exception:
    """PyTorch's error in the terms of the kernel: hints replaced by the names of blocks, shapes of the operands added."""
    text = str(error).split("\n")[0]
    text = re.sub(r"\d{4,}", lambda m: str(tracer.hints.decode(tracer.hints.size_of(int(m.group())))), text)
    operands = ", ".join(tracer.describe(t) for t in tensors_in(args) if isinstance(t, TracedTensor))
    message = text + (f" ({name} of {operands})" if name and operands else "")
    lower = text.lower()
    kind: type[CaptureError] = CaptureError
    if isinstance(error, (AttributeError, NameError)):
        pass
    elif "dtype" in lower or "same type" in lower:
        kind = DTypeError
    elif any(word in lower for word in ("size", "shape", "dimension", "index", "product", "added", "put together")):
        kind = ShapeMismatch
    hint = "B0, B1, ... are block sizes, in the order of the tile loops" if re.search(r"\bB\d", message) else None
    return tracer.error(kind, message, hint, line)


_ACCUMULATING = (_aten.addmm.default, _aten.baddbmm.default)
_ARANGES = (_aten.arange.default, _aten.arange.start, _aten.arange.start_step)

# In-place operations.


def in_place(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.op_(...)``: the functional operation, then ``x`` holds its result."""
    name = func._schema.name.split("::")[1]
    functional_name = _RENAMED_IN_PLACE.get(name, name[:-1] if name.endswith("_") else None)
    if functional_name is None or not args or "out" in kwargs:
        tracer.refuse(f"{func} writes to its arguments", "use the form that returns its result")
    target = args[0]
    if not isinstance(target, TracedTensor):
        tracer.refuse("a tensor from outside of the kernel is changed in place", "pass it as an argument")
    _check_target(tracer, target)
    if functional_name == "copy":
        result = args[1]
    elif functional_name in ("fill", "zero"):
        result = args[1] if len(args) > 1 else 0
        if not isinstance(result, TracedTensor):
            result = tracer.record(_aten.full.default, (list(target.meta.shape), result), {"dtype": target.dtype})
    else:
        functional = getattr(getattr(_aten, functional_name, None), func._overloadname, None)
        if functional is None:
            tracer.refuse(f"{func} is not supported", "use the form that returns its result")
        result = tracer.dispatch(functional, args, kwargs)
    tracer.rebind(target, _as_like(tracer, result, target, str(func)))
    return target


def _as_like(tracer: Tracer, value: Any, target: TracedTensor, name: str) -> TracedTensor:
    if not isinstance(value, TracedTensor):
        tracer.refuse(f"{name}: the source is no tensor of the kernel", "pass it as an argument")
    if value.is_host and tracer.in_device and not value.is_param:
        (value,), _ = load_scalars(tracer, name, (value,), {})
    if value.dtype != target.dtype:
        if not name.startswith("aten.copy_") and not torch.can_cast(value.dtype, target.dtype):
            raise tracer.error(DTypeError, f"{name}: the result is {value.dtype}, the tensor changed in place is {target.dtype}")
        value = tracer.record(_aten._to_copy.default, (value,), {"dtype": target.dtype})
    if value.meta.shape != target.meta.shape:
        value = tracer.record(_aten.expand.default, (value, list(target.meta.shape)), {})
    return value


def _check_target(tracer: Tracer, target: TracedTensor) -> None:
    if target.is_host and tracer.in_device:
        tracer.refuse(f"a whole {tracer.describe(target)} is changed in place in a tile loop", "write t[tile] = value")
    if target.is_host:
        return
    if target.parent is not None or any(child() is not None for child in target.children):
        tracer.refuse("a tile that shares its elements with another is changed in place", "assign a new value: x = x + 1")
    if target.frame is not tracer.frame:
        tracer.refuse("a value of an outer loop is changed in place", "assign to the variable, so that the loop carries it: x = x + 1")


# Operations that are not simply recorded.


def _alias(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``detach``, ``alias``: the same value, sharing its elements."""
    source = args[0]
    if not isinstance(source, TracedTensor):
        check_args(tracer, func, args)
    result = TracedTensor.make(tracer, source.meta, source.value, source.frame)
    result.origin, result.is_param = source.origin, source.is_param
    tracer.link(result, None, (source,), {})
    return result


def _lift(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.tensor(3.0)``: a constant with data."""
    value = args[0]
    if isinstance(value, TracedTensor):
        return _alias(tracer, func, args, kwargs)
    if value.numel() != 1:
        tracer.refuse(f"torch.tensor of {value.numel()} elements", "pass it as an argument")
    return tracer.record(_aten.full.default, (list(value.shape), value.item()), {"dtype": value.dtype})


def _clone(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """On tiles the same value (values do not change); on host tensors a real copy: it may be stored to."""
    source = args[0]
    if not isinstance(source, TracedTensor) or source.is_host:
        return tracer.record(func, args, kwargs)
    tracer.use(source)
    return TracedTensor.make(tracer, run_on_meta(tracer, func, args, kwargs), source.value, source.frame)


def _to_copy(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    dtype = kwargs.get("dtype")
    if dtype is None or (isinstance(args[0], TracedTensor) and args[0].dtype == dtype):
        return _clone(tracer, _aten.clone.default, args, {})
    return tracer.record(func, args, {"dtype": dtype})


def _item(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    check_args(tracer, func, args)
    return args[0]._one("turned into a Python number", "keep it a tensor, or hl.specialize the argument")


def _split(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``split``, ``chunk``: one slice each."""
    source, sizes, dim = args[0], args[1], args[2] if len(args) > 2 else kwargs.get("dim", 0)
    total = source.meta.shape[dim]
    if isinstance(sizes, int):
        sizes = [min(sizes, total - at) for at in range(0, total, sizes)] if sizes else [total]
    ends = list(itertools.accumulate(sizes))
    return [tracer.record(_aten.slice.Tensor, (source, dim, end - size, end), {}) for size, end in zip(sizes, ends, strict=True)]


def _unbind(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    source, dim = args[0], args[1] if len(args) > 1 else kwargs.get("dim", 0)
    size = source.meta.shape[dim]
    if not isinstance(tracer.hints.decode(size), int):
        tracer.refuse("unbind of a dimension that is a tile", "use operations on the whole tile")
    return [tracer.record(_aten.select.int, (source, dim, i), {}) for i in range(size)]


def _index(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if any(t.dtype in (torch.bool, torch.uint8) for t in tensors_in(args[1])):
        tracer.refuse("a boolean mask as an index: the shape of its result depends on data", "use torch.where(mask, value, 0)")
    return tracer.record(func, args, kwargs)


def _filled(value: float | bool | int | None) -> Callable[..., Any]:
    """Allocations, in one form: ``full(size, value, dtype)``, ``empty(size, dtype)``."""

    def special(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bounds = _bounds(tracer, func, args)
        args = check_args(tracer, func, args)
        meta = _allocation(tracer, func, args, kwargs)
        if value is not None:
            fill: Any = value
        elif func in (_aten.full.default, _aten.full_like.default):
            fill = args[1]
        elif func is _aten.new_full.default:
            fill = args[2]
        else:
            fill = args[0]
        return _make_full(tracer, meta, fill, bounds)

    return special


def _bounds(tracer: Tracer, func: Any, args: tuple[Any, ...]) -> tuple[tuple[str, Arg], ...]:
    """What says how many elements of a new tile exist in a ragged last tile: the tiles in its shape, or the tile it is made like."""
    if not tracer.in_device or not args:
        return ()
    like = args[0] if isinstance(args[0], TracedTensor) else None
    if like is not None and not info(func).base.startswith("new_"):
        return () if like.is_host or not like.meta.shape else (("like", tracer.use(like)),)
    sizes = args[0] if like is None else args[1]
    axes = [tracer.axis_of_tile.get(n) if type(n) is int else None for n in sizes] if isinstance(sizes, (tuple, list)) else []
    if all(axis is None for axis in axes):
        return ()
    return (("tiles", tuple(None if axis is None else TileIndex(tracer.active(axis)) for axis in axes)),)


def _allocation(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """What is allocated, as a meta tensor."""
    like = args[0] if args and isinstance(args[0], TracedTensor) else None
    if like is not None:  # PyTorch's meta kernels of these are Python that imports sympy
        sizes = args[1] if info(func).base.startswith("new_") else like.meta.shape
        return tracer.meta(sizes, kwargs.get("dtype") or like.dtype)
    return run_on_meta(tracer, func, args, kwargs)


def _make_full(tracer: Tracer, meta: torch.Tensor, fill: Any, bounds: tuple[tuple[str, Arg], ...] = ()) -> TracedTensor:
    fill = bool(fill) if meta.dtype is torch.bool else float(fill) if meta.dtype.is_floating_point and not _is_hint(tracer, fill) else fill
    result = tracer.wrap(_dense(tracer, meta))
    dtype = DType(tracer.types[result.value].dtype)
    tracer.emit("aten.full.default", (tracer.types[result.value].shape, tracer.arg(fill)), [result], kwargs=(("dtype", dtype), *bounds))
    return result


def _is_hint(tracer: Tracer, value: Any) -> bool:
    return isinstance(value, int) and not isinstance(tracer.hints.decode(value), int)


def _empty(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    bounds = _bounds(tracer, func, args)
    meta = _allocation(tracer, func, check_args(tracer, func, args), kwargs)
    result = tracer.wrap(_dense(tracer, meta))
    kind = tracer.types[result.value]
    tracer.emit("aten.empty.memory_format", (kind.shape,), [result], kwargs=(("dtype", DType(kind.dtype)), *bounds))
    return result


def _dense(tracer: Tracer, meta: torch.Tensor) -> torch.Tensor:
    return meta if meta.is_contiguous() else tracer.meta(meta.shape, meta.dtype)


def decompose(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``func`` by simpler operations, from PyTorch's own table; NotImplemented if it has none."""
    decomposition = compositions.OWN.get(info(func).base)
    tracer.decomposing += 1
    try:
        with CaptureMode(tracer):
            if decomposition is not None:
                return decomposition(*args, **kwargs)
            result = func.decompose(*args, **kwargs)  # PyTorch's own C++ or Python, where it is nothing but other operations
            if result is not NotImplemented:
                return result
            from torch._decomp import core_aten_decompositions, decomposition_table  # late: seconds, and common kernels need none

            decomposition = core_aten_decompositions().get(func) or decomposition_table.get(func)
            return NotImplemented if decomposition is None else decomposition(*args, **kwargs)
    finally:
        tracer.decomposing -= 1


_zeros, _ones, _given = _filled(0), _filled(1), _filled(None)
SPECIAL: dict[Any, Callable[..., Any]] = {
    _aten.detach.default: _alias,
    _aten.alias.default: _alias,
    _aten.lift_fresh.default: _lift,
    _aten.lift.default: _lift,
    _aten.clone.default: _clone,
    _aten._to_copy.default: _to_copy,
    _aten.split.Tensor: _split,
    _aten.split_with_sizes.default: _split,
    _aten.unbind.int: _unbind,
    _aten.index.Tensor: _index,
    _aten._local_scalar_dense.default: _item,
    _aten.is_nonzero.default: _item,
    _aten.zeros.default: _zeros,
    _aten.zeros_like.default: _zeros,
    _aten.new_zeros.default: _zeros,
    _aten.ones.default: _ones,
    _aten.ones_like.default: _ones,
    _aten.new_ones.default: _ones,
    _aten.full.default: _given,
    _aten.full_like.default: _given,
    _aten.new_full.default: _given,
    _aten.scalar_tensor.default: _given,
    _aten.empty.memory_format: _empty,
    _aten.empty_like.default: _empty,
    _aten.new_empty.default: _empty,
    _aten.empty_strided.default: _empty,
    _aten.new_empty_strided.default: _empty,
}
__all__ = ["DROPPED", "SPECIAL", "OpInfo", "check_args", "decompose", "explain", "in_place", "info", "load_scalars", "tensors_in"]
