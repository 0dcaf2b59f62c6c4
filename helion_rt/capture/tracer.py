"""The tracer: records what kernel code does as operations of a program."""

from __future__ import annotations

import enum
import functools
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch

from ..exc import CaptureError, DTypeError, ShapeMismatch, Unsupported
from ..program.expr import Block, Expr
from ..program.ir import Arg, Axis, BlockInfo, DType, Op, Ref, Region, Span, TensorType, TileIndex
from . import aten, indexing, loops, tiles, views
from .hints import Hints, make_dim
from .source import KernelSource
from .tensors import TracedTensor
from .tiles import Tile


class Restart(BaseException):
    """Capture again, knowing more. Not an ``Exception``: the kernel's own ``except`` must not stop it."""


@dataclass
class Knowledge:
    """What earlier attempts at the same capture found out."""

    all_static: bool = False  # Python code needs the values of scalars
    promoted: dict[tuple[int, str], torch.dtype] = field(default_factory=dict)  # (line of loop, variable): carried as a tensor
    poisoned: set[tuple[int, str]] = field(default_factory=set)  # (line of loop, variable): changes, and cannot be carried


class FrameKind(enum.Enum):
    HOST = enum.auto()
    LAUNCH = enum.auto()
    LOOP = enum.auto()


@dataclass(eq=False)
class Frame:
    """A region being recorded."""

    kind: FrameKind
    axes: tuple[int, ...] = ()
    ops: list[Op] = field(default_factory=list)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@functools.cache
def _supported(name: str) -> bool:
    from ..lowering.legalize import is_supported  # late: the one thing that capture asks of the lowering

    return is_supported(name)


class Tracer:
    """One attempt at capturing one kernel. Implements what the language asks for (``language._active.Tracer``)."""

    def __init__(self, source: KernelSource, name: str, hints: Hints, knowledge: Knowledge, largest: int) -> None:
        self.source, self.name, self.hints, self.knowledge, self.largest = source, name, hints, knowledge, largest
        self.types: list[TensorType] = []
        self.blocks: list[BlockInfo] = []
        self.axes: list[Axis] = []
        self.host = Frame(FrameKind.HOST)
        self.stack = [self.host]
        self.used: set[int] = set()
        self.made_by: dict[int, Op] = {}
        self.limits: dict[int, int | None] = {}  # of values that are known not to exceed something
        self.written: list[TracedTensor] = []  # host tensors that the current launch stores to
        self.loaded: list[TracedTensor] = []
        self.decomposing = 0
        self.has_scalars = False  # there are SCALAR params

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

    def needed(self, tensor: TracedTensor, use: str, hint: str) -> NoReturn:
        """Python code needs the data of ``tensor``. Captures again with static scalars if that can help."""
        if self.has_scalars and not tensor.meta.shape:  # perhaps it is made of nothing but scalars
            self.knowledge.all_static = True
            raise Restart
        self.refuse(f"a {self.describe(tensor)} is {use}: its data is known only at run time", hint)

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
        return self.hints.tile(self.block_hint(axis))

    def block_size(self, tile: Tile) -> int:
        return self.dim(self.block_expr(tile.axis))

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
            self.refuse("a value computed inside of a tile loop that has ended is used", "store it to a tensor, or carry it in a variable")
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
        special = aten.SPECIAL.get(func)
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
        for item in step if isinstance(step, (list, tuple)) else [step]:
            if item is not None and (not isinstance(item, int) or item != 1):
                self.refuse("hl.grid with a step other than 1 is not supported yet", "loop over fewer positions and multiply: i * step")
        return tiles.make_request(self, begin, end, None, is_grid=True)

    def register_block_size(self, low: int, high: int | None, extent: Any) -> int:
        if not all(isinstance(n, int) and not isinstance(n, (Tile,)) for n in (low, extent)):
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
        sizes = self.plain_sizes(list(shape))
        dtype = torch.float32 if dtype is None else dtype
        if isinstance(value, TracedTensor):
            return value.to(dtype).expand(sizes)
        return torch.full(sizes, value, dtype=dtype)

    def cast(self, value: TracedTensor, dtype: torch.dtype) -> TracedTensor:
        return self.record(torch.ops.aten._to_copy.default, (value,), {"dtype": dtype})

    def dot(self, a: Any, b: Any, acc: Any, out_dtype: torch.dtype | None) -> Any:
        if not isinstance(a, TracedTensor) or not isinstance(b, TracedTensor) or not (acc is None or isinstance(acc, TracedTensor)):
            self.refuse("hl.dot takes tensors")
        if a.is_host or b.is_host or (acc is not None and acc.is_host):
            self.refuse("hl.dot takes tiles, not whole tensors", "subscript them first, e.g. w[:, :]")
        wide = torch.int32 if torch.int8 in (a.dtype, b.dtype) else torch.float32
        dtype = acc.dtype if acc is not None else out_dtype or wide
        if a.dtype != b.dtype and not (a.dtype.itemsize == b.dtype.itemsize == 1):
            raise self.error(DTypeError, f"hl.dot of {dtype_name(a.dtype)} and {dtype_name(b.dtype)}", "convert one with .to(dtype)")
        sa, sb = tuple(a.meta.shape), tuple(b.meta.shape)
        good = len(sa) == len(sb) and len(sa) in (2, 3) and sa[-1] == sb[-2] and sa[:-2] == sb[:-2]
        shape = (*sa[:-1], sb[-1])
        if not good or (acc is not None and tuple(acc.meta.shape) != shape):
            given = f"{self.describe(a)} and {self.describe(b)}" + (f", acc {self.describe(acc)}" if acc is not None else "")
            expected = "expected [m, k] @ [k, n] (+ [m, n]), or the same with a batch dimension first"
            raise self.error(ShapeMismatch, f"hl.dot of {given}", expected)
        result = self.wrap(self.meta(shape, dtype))
        self.emit("hl.dot", (self.use(a), self.use(b), None if acc is None else self.use(acc), DType(dtype_name(dtype))), [result])
        return result

    def specialize(self, value: Any) -> Any:
        if isinstance(value, TracedTensor):
            return self.needed(value, "specialised", "hl.specialize takes ints and floats among the arguments")
        if isinstance(value, (tuple, list)):
            return type(value)(self.specialize(v) for v in value)
        return value

    def load(self, tensor: Any, index: Any) -> Any:
        if not isinstance(tensor, TracedTensor):
            self.refuse("hl.load takes a tensor")
        return self.getitem(tensor, index)

    def store(self, tensor: Any, index: Any, value: Any) -> None:
        if not isinstance(tensor, TracedTensor):
            self.refuse("hl.store takes a tensor")
        self.setitem(tensor, index, value)

    def getitem(self, tensor: TracedTensor, index: Any) -> Any:
        if self.in_device and tensor.is_host and not tensor.is_param:
            return indexing.load(self, tensor, index)
        return torch.Tensor.__getitem__(tensor, indexing.plain_index(self, index))

    def setitem(self, tensor: TracedTensor, index: Any, value: Any) -> None:
        if self.in_device and tensor.is_host:
            return indexing.store(self, tensor, index, value)
        torch.Tensor.__setitem__(tensor, indexing.plain_index(self, index), value)

    def tile_index(self, tile: Tile) -> TracedTensor:
        return self._tile_value(tile.axis, "index", (self.block_hint(tile.axis),))

    def tile_scalar(self, tile: Tile, what: str) -> TracedTensor:
        return self._tile_value(tile.axis, what, ())

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

    def loop(self, iterable: Any, names: tuple[str, ...], line: int, obstacle: str | None) -> Any:
        """What a ``for`` statement of the kernel iterates over (see ``rewrite``)."""
        return loops.make(self, iterable, names, line, obstacle)


__all__ = ["Frame", "FrameKind", "Knowledge", "Restart", "Span", "TileIndex", "Tracer", "dtype_name"]
