"""The tracer: records what kernel code does as operations of a program."""

from __future__ import annotations

import enum
import functools
import sys
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import torch

from ..exc import CaptureError, DTypeError, ShapeMismatch, Unsupported
from ..program.expr import Block, Expr
from ..program.ir import Arg, Axis, BlockInfo, Constraint, DType, Op, Ref, Region, Relation, Span, TensorType, TileIndex, inputs_of
from . import aten, draws, indexing, inline, jagged, memory, products, rng, scans, tiles, views
from .hints import FIRST_HINTS, Hints, make_dim
from .probes import Probes
from .source import KernelSource
from .tensors import TracedTensor
from .tiles import Tile


class Restart(BaseException):
    """Capture again, knowing more. Not an ``Exception``: the kernel's own ``except`` must not stop it."""


@dataclass
class Knowledge:
    """What earlier attempts at the same capture found out."""

    tunables: Mapping[str, Any] = field(default_factory=dict)  # of the kernel's own config, for hl.register_tunable
    all_static: bool = False  # Python code needs the values of scalars
    looks_at_types: bool = False  # Python code may tell a tensor from a number
    numbers: set[int] = field(default_factory=set)  # that were read from arguments, and are no hints
    promoted: dict[tuple[int, str], torch.dtype] = field(default_factory=dict)  # (line of loop, variable): carried as a tensor
    poisoned: set[tuple[int, str]] = field(default_factory=set)  # (line of loop, variable): changes, and cannot be carried
    declared: dict[str, Any] = field(default_factory=dict)  # fragments of tunables, by name


class FrameKind(enum.Enum):
    HOST = enum.auto()
    LAUNCH = enum.auto()
    LOOP = enum.auto()
    BRANCH = enum.auto()
    COMBINE = enum.auto()  # the combine function of a scan


@dataclass(eq=False)
class Frame:
    """A region being recorded."""

    kind: FrameKind
    axes: tuple[int, ...] = ()
    ops: list[Op] = field(default_factory=list)
    repeats: bool = False  # the test or the body of a ``while``: runs again with nothing that counts the rounds


def renamed(ops: Sequence[Op], names: Mapping[int, int]) -> tuple[Op, ...]:
    """``ops`` that read other values: ``names`` maps value ids."""

    def arg(value: Arg) -> Arg:
        if isinstance(value, Ref):
            return Ref(names.get(value.id, value.id))
        return tuple(map(arg, value)) if isinstance(value, tuple) else value

    def region(inner: Region) -> Region:
        return Region(renamed(inner.ops, names), inner.params, tuple(map(arg, inner.results)))

    if not names:
        return tuple(ops)
    return tuple(
        replace(op, args=tuple(map(arg, op.args)), kwargs=tuple((k, arg(v)) for k, v in op.kwargs), regions=tuple(map(region, op.regions)))
        for op in ops
    )


def renamed_bounds(axes: list[Axis], names: Mapping[int, int]) -> None:
    """The same for the bounds of loops, in place."""

    def bound(value: Expr | Ref) -> Expr | Ref:
        return Ref(names.get(value.id, value.id)) if isinstance(value, Ref) else value

    if names:
        axes[:] = [replace(axis, begin=bound(axis.begin), end=bound(axis.end)) for axis in axes]


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@functools.cache
def _supported(name: str) -> bool:
    from ..lowering.legalize import is_supported  # late: the one thing that capture asks of the lowering

    return is_supported(name)


class Tracer:
    """One attempt at capturing one kernel. Implements what the language asks for (``language._active.Tracer``)."""

    def __init__(self, source: KernelSource, name: str, hints: Hints, knowledge: Knowledge, largest: int, probes: Probes) -> None:
        self.source, self.name, self.hints, self.knowledge, self.largest = source, name, hints, knowledge, largest
        self.types: list[TensorType] = []
        self.blocks: list[BlockInfo] = []
        self.axes: list[Axis] = []
        self.axis_of_tile: dict[int, int] = {}  # by the hint that stands for the tile in shapes
        self.constraints: list[Constraint] = []
        self.probes = probes
        self.host = Frame(FrameKind.HOST)
        self.stack = [self.host]
        self.used: set[int] = set()
        self.made_by: dict[int, Op] = {}
        self.reach: dict[int, int] = {}  # the longest dimension that an axis indexes
        self.limits: dict[int, int | None] = {}  # of values that are known not to exceed something
        self.written: list[TracedTensor] = []  # host tensors that the current launch stores to
        self.loaded: list[TracedTensor] = []
        self.jagged: dict[int, jagged.Jagged] = {}  # by block
        self.guarding = False  # operations are recorded that make others safe for jagged tiles
        self.decomposing = 0
        self.tunables: dict[str, Any] = {}  # that the kernel has asked for
        self.seeds = draws.Seeds()
        self.scalars: set[int] = set()  # the SCALAR params

    @property
    def has_scalars(self) -> bool:
        return bool(self.scalars)

    # Where we are, and what is wrong there.

    @property
    def frame(self) -> Frame:
        return self.stack[-1]

    @property
    def in_device(self) -> bool:
        return len(self.stack) > 1

    def line(self) -> int:
        """The line of the kernel that is being executed."""
        frame = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename == self.source.file and self.source.first_line <= frame.f_lineno <= self.source.last_line:
                return frame.f_lineno
            frame = frame.f_back
        return self.source.first_line

    def error(self, kind: type[CaptureError], message: str, hint: str | None = None, line: int | None = None) -> CaptureError:
        return kind(message, kernel=self.name, file=self.source.file, line=line or self.line(), hint=hint)

    def refuse(self, message: str, hint: str | None = None, line: int | None = None) -> NoReturn:
        raise self.error(Unsupported, message, hint, line)

    def describe(self, tensor: TracedTensor) -> str:
        shape = ", ".join(str(self.hints.decode(n)) for n in tensor.meta.shape)
        return f"{'host' if tensor.is_host else 'device'} tensor {dtype_name(tensor.dtype)}[{shape}]"

    def needed(self, tensor: TracedTensor, use: str, hint: str) -> Any:
        """The data of ``tensor``, which Python code needs: a number or nested tuples. The program is specialised to it.

        Captures again with static scalars if that can help.
        """
        if self.probes.can_read(self, tensor):
            value = self.probes.value(self, tensor)
            self._avoid(value)
            return value
        if self.has_scalars and not tensor.meta.shape:  # perhaps it is made of nothing but scalars
            self.knowledge.all_static = True
            raise Restart
        self.refuse(f"a {self.describe(tensor)} is {use}: its data is known only at run time", hint)

    def _avoid(self, value: Any) -> None:
        """Captures again where a number that was read could be taken for a block size (see ``hints``)."""
        if isinstance(value, tuple):
            for item in value:
                self._avoid(item)
        elif isinstance(value, int) and abs(value) >= FIRST_HINTS[0] and value not in self.knowledge.numbers:
            self.knowledge.numbers.add(value)
            raise Restart

    def number(self, tensor: TracedTensor) -> Any:
        """``tensor.item()``: a tensor still, so that nothing is specialised to a value that Python code does not look at."""
        if self.knowledge.looks_at_types or tensor.numel() != 1 or not self.probes.can_read(self, tensor):
            return tensor._one("read with .item()", "keep it a tensor")
        result = tensor.reshape(()) if tensor.meta.shape else tensor.detach()
        assert isinstance(result, TracedTensor)
        result.is_number = True
        return result

    def from_scalars(self, tensor: TracedTensor) -> bool:
        """Whether ``tensor`` is made of nothing but the SCALAR params of the kernel."""

        seen: dict[int, bool] = {}

        def known(value: int) -> bool:
            if value not in seen:
                op = self.made_by.get(value)
                is_plain = op is not None and op.name.startswith("aten.") and all(known(ref.id) for ref in inputs_of(op))
                seen[value] = is_plain or value in self.scalars
            return seen[value]

        return known(tensor.value)

    def axes_of(self, value: int) -> set[int]:
        """The axes whose ``tile.index`` a device value is computed from."""
        found: set[int] = set()
        seen: set[int] = set()
        stack = [value]
        while stack:
            op = self.made_by.get(stack.pop())
            if op is None or op.results[0] in seen:
                continue
            seen.add(op.results[0])
            if op.name == "hl.tile_index":
                found.add(op.args[0])  # type: ignore[arg-type]
            elif op.name.startswith("aten."):
                stack.extend(ref.id for ref in inputs_of(op))
        return found

    # Dimensions.

    def dim(self, expr: Expr) -> int:
        return make_dim(expr, self.hints, self.refuse)

    def shape_of(self, tensor: TracedTensor) -> tuple[int, ...]:
        if self.decomposing:  # PyTorch's own code compares sizes; a hint that leaks shows when we capture again
            return tensor.meta.shape
        dims = [self.dim(self.hints.decode(n)) for n in tensor.meta.shape]
        return torch.Size(dims) if all(type(d) is int for d in dims) else tuple(dims)

    def plain_sizes(self, sizes: Any) -> Any:
        """Sizes as PyTorch takes them: tiles replaced by their dimension."""
        if isinstance(sizes, (tuple, list)):
            return tuple(self.plain_sizes(s) for s in sizes)
        return self.hints.size_of(int.__index__(sizes)) if isinstance(sizes, Tile) else sizes

    def block_expr(self, axis: int) -> Expr:
        block = self.axes[axis].block
        fixed = self.blocks[block].fixed
        return fixed if fixed is not None else Block(block)

    def block_hint(self, axis: int) -> int:
        return self.hints.encode(self.block_expr(axis))

    def tile_hint(self, axis: int) -> int:
        hint = self.hints.tile(self.block_hint(axis))
        self.axis_of_tile[hint] = axis
        return hint

    def block_size(self, tile: Tile) -> int:
        return self.dim(self.block_expr(tile.axis))

    def constrain(self, relation: Relation, a: Expr, b: Expr, line: int) -> None:
        """The kernel asserts ``a relation b`` of its block sizes."""
        constraint = Constraint(relation, a, b, line)
        if constraint not in self.constraints:
            self.constraints.append(constraint)

    # Values and operations.

    def new_value(self, meta: torch.Tensor) -> int:
        if meta.dtype.is_complex:
            message = f"{dtype_name(meta.dtype)} is not supported"
            raise self.error(DTypeError, message, "keep real and imaginary parts in tensors of their own")
        self.types.append(TensorType(tuple(self.hints.decode(n) for n in meta.shape), dtype_name(meta.dtype)))
        return len(self.types) - 1

    def wrap(self, meta: torch.Tensor, frame: Frame | None = None) -> TracedTensor:
        """A new value, not defined by an operation yet."""
        return TracedTensor.make(self, meta, self.new_value(meta), frame or self.frame)

    @staticmethod
    def meta(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        with torch._C._DisableTorchDispatch():
            return torch.empty(tuple(shape), dtype=dtype, device="meta")

    def push(self, op: Op, frame: Frame | None = None) -> None:
        (frame or self.frame).ops.append(op)
        for result in op.results:
            self.made_by[result] = op

    def emit(
        self, name: str, args: tuple[Arg, ...], results: Sequence[TracedTensor] = (), *, kwargs: tuple[tuple[str, Arg], ...] = (),
        regions: tuple[Region, ...] = (), frame: Frame | None = None, line: int | None = None,
    ) -> None:  # fmt: skip
        """Records an operation whose arguments are already those of a program."""
        self.push(Op(name, args, kwargs, tuple(r.value for r in results), line or self.line(), regions), frame)

    def use(self, tensor: TracedTensor) -> Ref:
        """A use of a tensor's current value, which must be visible here."""
        if tensor.tracer is not self:
            self.refuse("a tensor of another kernel is used", "pass it as an argument")
        if tensor.frame not in self.stack:
            message = "a value computed inside of a tile loop or branch that has ended is used"
            self.refuse(message, "store it to a tensor, or carry it in a variable")
        if tensor.loaned is not None:
            tensor.read_on_loan = True
        self.used.add(tensor.value)
        return Ref(tensor.value)

    def arg(self, value: Any) -> Arg:
        """An argument of an ATen operation as one of the program."""
        if isinstance(value, TracedTensor):
            return self.use(value)
        if value is None or isinstance(value, (bool, float, str)):
            return value
        if isinstance(value, int):
            return self.hints.decode(int.__index__(value))
        if isinstance(value, torch.dtype):
            return DType(dtype_name(value))
        if isinstance(value, (list, tuple)):
            return tuple(self.arg(item) for item in value)
        if isinstance(value, (torch.device, torch.layout, torch.memory_format)):
            return None
        self.refuse(f"an operation has an argument of type {type(value).__name__}")

    # ATen.

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An ATen operation that the kernel caused: recorded, its result as traced tensors."""
        if self.jagged and not self.guarding:
            guarded = jagged.guard(self, func, args, kwargs)
            if isinstance(guarded, TracedTensor):
                return guarded
            args = guarded
        special = aten.SPECIAL.get(func) or draws.SPECIAL.get(func)
        if special is not None:
            return special(self, func, args, kwargs)
        info = aten.info(func)
        if info.refusal:
            self.refuse(f"{info.name} is not supported: {info.refusal}", "compute it outside and pass it as an argument")
        if info.mutates:
            return aten.in_place(self, func, args, kwargs)
        return self.record(func, args, kwargs)

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Records ``func`` (functional), decomposed if the lowering does not know it."""
        info = aten.info(func)
        tensors = [t for t in aten.tensors_in((args, kwargs)) if isinstance(t, TracedTensor)]
        frame = self.frame
        if self.in_device and tensors and all(t.is_host for t in tensors):
            if info.is_view and tensors[0].meta.shape:
                frame = self.host  # views of whole tensors belong before the launch
            else:
                args, kwargs = aten.load_scalars(self, info.name, args, kwargs)
        elif self.in_device:
            args, kwargs = aten.load_scalars(self, info.name, args, kwargs)
        args = aten.check_args(self, func, args)
        if not _supported(info.name):
            decomposed = aten.decompose(self, func, args, kwargs)
            if decomposed is not NotImplemented:
                return decomposed
            self.refuse(f"{info.name} is not supported yet", "write it with simpler operations")
        outs = aten.run_on_meta(self, func, args, kwargs)
        results = [self.wrap(out, frame) for out in (outs if isinstance(outs, (tuple, list)) else [outs])]
        recorded = tuple((k, self.arg(v)) for k, v in kwargs.items() if k not in aten.DROPPED)
        recorded = tuple((k, v) for k, v in recorded if v is not None)
        self.emit(info.name, self._args(info, args, results), results, kwargs=recorded, frame=frame)
        if info.is_view:
            for result in results:
                self.link(result, func, args, kwargs)
        return results[0] if not isinstance(outs, (tuple, list)) else type(outs)(results) if type(outs) in (tuple, list) else tuple(results)

    def _args(self, info: aten.OpInfo, args: tuple[Any, ...], results: list[TracedTensor]) -> tuple[Arg, ...]:
        if info.base in ("view", "expand"):  # no -1 in the program
            return (self.arg(args[0]), self.types[results[0].value].shape)
        return tuple(self.arg(a) for a in args)

    def link(self, view: TracedTensor, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Remembers that ``view`` shares the elements of ``args[0]``."""
        view.parent, view.view_call = args[0], (func, args[1:], kwargs)
        args[0].children.append(weakref.ref(view))

    # The language.

    def tile(self, begin: Any, end: Any, block_size: Any) -> tiles.LoopRequest:
        return tiles.make_request(self, begin, end, block_size, is_grid=False)

    def grid(self, begin: Any, end: Any, step: Any) -> tiles.LoopRequest:
        return tiles.make_request(self, begin, end, None, is_grid=True, step=step)

    def register_block_size(self, low: int, high: int | None, extent: Any) -> int:
        low, high, extent = (self.specialize(n) for n in (low, high, extent))
        if not all(type(n) is int for n in (low, extent)):
            self.refuse("hl.register_block_size takes integers")
        if (high is not None and high < low) or low < 1:
            self.refuse(f"hl.register_block_size({low}, {high}): the bounds must be 1 <= low <= high")
        self.blocks.append(BlockInfo(None, extent, low, high))
        return self.dim(self.fresh_block())

    def fresh_block(self) -> Expr:
        """The block that was appended last, as a dimension; its hint is made."""
        block = Block(len(self.blocks) - 1)
        self.hints.encode(block)
        return block

    def full(self, shape: Sequence[Any], value: Any, dtype: torch.dtype | None) -> Any:
        dtype = torch.float32 if dtype is None else dtype
        if isinstance(value, TracedTensor):
            return torch.zeros(list(shape), dtype=dtype) + value.to(dtype)
        return torch.full(list(shape), value, dtype=dtype)

    def cast(self, value: TracedTensor, dtype: torch.dtype) -> TracedTensor:
        return self.record(torch.ops.aten._to_copy.default, (value,), {"dtype": dtype})

    def dot(self, a: Any, b: Any, acc: Any, out_dtype: torch.dtype | None) -> Any:
        if not isinstance(a, TracedTensor) or not isinstance(b, TracedTensor) or not (acc is None or isinstance(acc, TracedTensor)):
            self.refuse("hl.dot takes tensors")
        if a.is_host or b.is_host or (acc is not None and acc.is_host):
            self.refuse("hl.dot takes tiles, not whole tensors", "subscript them first, e.g. w[:, :]")
        a, b = jagged.product(self, a, b)
        wide = torch.int32 if torch.int8 in (a.dtype, b.dtype) and not (a.is_floating_point() or b.is_floating_point()) else torch.float32
        dtype = acc.dtype if acc is not None else out_dtype or wide
        if a.dtype != b.dtype and not (a.dtype.itemsize == b.dtype.itemsize == 1):
            raise self.error(DTypeError, f"hl.dot of {dtype_name(a.dtype)} and {dtype_name(b.dtype)}", "convert one with .to(dtype)")
        sa, sb = tuple(a.meta.shape), tuple(b.meta.shape)
        try:
            shape = products.dot_shape(sa, sb)
        except ValueError:
            shape = None
        if shape is None or (acc is not None and tuple(acc.meta.shape) != shape):
            given = f"{self.describe(a)} and {self.describe(b)}" + (f", acc {self.describe(acc)}" if acc is not None else "")
            expected = "expected [m, k] @ [k, n] (+ [m, n]), or the same with batch dimensions first"
            raise self.error(ShapeMismatch, f"hl.dot of {given}", expected)
        result = self.wrap(self.meta(shape, dtype))
        self.emit("hl.dot", (self.use(a), self.use(b), None if acc is None else self.use(acc), DType(dtype_name(dtype))), [result])
        return result

    def associative_scan(self, combine: Any, inputs: Any, dim: int, reverse: bool) -> Any:
        return scans.associative_scan(self, combine, inputs, dim, reverse)

    def reduce(self, combine: Any, inputs: Any, dim: int | None, other: Any, keep_dims: bool) -> Any:
        return scans.reduce(self, combine, inputs, dim, keep_dims)

    def cumulative(self, name: str, x: Any, dim: int, reverse: bool) -> Any:
        return scans.cumulative(self, name, x, dim, reverse)

    def rand(self, shape: Sequence[Any], seed: Any) -> Any:
        return rng.rand(self, shape, seed)

    def randint(self, shape: Sequence[Any], low: int, high: int, seed: Any) -> Any:
        return rng.randint(self, shape, low, high, seed)

    def rand4x(self, seed: Any, offsets: Any) -> Any:
        return rng.rand4x(self, seed, offsets)

    def device_print(self, prefix: str, values: Sequence[Any]) -> None:
        inline.device_print(self, prefix, values)

    def inline(self, fn: Any, args: Sequence[Any], output_like: Any, elementwise: bool) -> Any:
        return inline.call(self, fn, args, output_like, elementwise)

    def register_tunable(self, name: str, fragment: Any) -> Any:
        return inline.register_tunable(self, name, fragment)

    def specialize(self, value: Any) -> Any:
        if isinstance(value, TracedTensor):
            return self.needed(value, "specialised", "hl.specialize takes ints and floats among the arguments")
        if isinstance(value, (tuple, list)):
            return type(value)(self.specialize(v) for v in value)
        return value

    def load(self, tensor: Any, index: Any, mask: Any = None) -> Any:
        self._check_access("hl.load", tensor)
        return memory.load(self, tensor, index, mask)

    def store(self, tensor: Any, index: Any, value: Any, mask: Any = None) -> None:
        self._check_access("hl.store", tensor)
        memory.store(self, tensor, index, value, mask)

    def _check_access(self, name: str, tensor: Any) -> None:
        if not isinstance(tensor, TracedTensor) or not tensor.is_host or tensor.is_param:
            self.refuse(f"{name} takes a whole tensor and an index")
        if not self.in_device:
            self.refuse(f"{name} outside of a tile loop", "use t[...]")

    def atomic(self, kind: str, tensor: Any, index: Any, value: Any, expected: Any = None) -> Any:
        return memory.atomic(self, kind, tensor, index, value, expected)

    def jagged_tile(self, parent: Any) -> tiles.LoopRequest:
        end = jagged.begin(self, parent)
        return tiles.LoopRequest(self, (tiles.Bound(0, end, None),), False, False, parent)

    def barrier(self) -> None:
        if self.in_device:
            self.refuse("hl.barrier in a tile loop", "call it between the outer tile loops, which run one after the other")

    def getitem(self, tensor: TracedTensor, index: Any) -> Any:
        if self.in_device and tensor.is_host and not tensor.is_param:
            return memory.load(self, tensor, index)
        return torch.Tensor.__getitem__(tensor, indexing.plain_index(self, index))

    def setitem(self, tensor: TracedTensor, index: Any, value: Any) -> None:
        if self.in_device and tensor.is_host:
            return memory.store(self, tensor, index, value)
        torch.Tensor.__setitem__(tensor, indexing.plain_index(self, index), value)

    def tile_index(self, tile: Tile) -> TracedTensor:
        return self._tile_value(tile.axis, "index", (self.block_hint(tile.axis),))

    def tile_scalar(self, tile: Tile, what: str) -> TracedTensor:
        return self._tile_value(tile.axis, what, ())

    def tile_count(self, tile: Tile) -> TracedTensor:
        """How many tiles a loop has whose bounds are known only on the device, int32 []."""
        info, size = self.axes[self.active(tile.axis)], self.block_size(tile)
        begin, end = (self.value_of(b) if isinstance(b, Ref) else self.dim(b) for b in (info.begin, info.end))
        count: Any = (end - begin + size - 1) // size
        return count.clamp(min=0).to(torch.int32)

    def value_of(self, ref: Ref) -> TracedTensor:
        """A value of the program that is still visible, as a tensor again."""
        kind = self.types[ref.id]
        meta = self.meta([self.hints.encode(d) for d in kind.shape], getattr(torch, kind.dtype))
        return TracedTensor.make(self, meta, ref.id, self.frame)

    def _tile_value(self, axis: int, what: str, shape: tuple[int, ...]) -> TracedTensor:
        self.active(axis)
        result = self.wrap(self.meta(shape, torch.int32))
        self.emit(f"hl.tile_{what}", (axis,), [result])
        result.origin = (what, axis)
        return result

    def active(self, axis: int) -> int:
        """``axis``, whose loop must still be going on."""
        if not any(axis in frame.axes for frame in self.stack):
            self.refuse("a tile is used after its loop has ended")
        return axis

    def rebind(self, tensor: TracedTensor, value: TracedTensor) -> None:
        """``tensor`` was changed in place: it now holds the value of ``value`` (same shape and dtype)."""
        tensor.value, tensor.frame, tensor.origin, tensor.mutated = value.value, value.frame, None, True
        if tensor.is_host:
            views.propagate(self, tensor)


__all__ = ["Frame", "FrameKind", "Knowledge", "Restart", "Span", "TileIndex", "Tracer", "dtype_name"]
