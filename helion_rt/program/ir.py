"""The program: a captured kernel as plain data. It knows no target and no block size.

A program is a host region (allocations, views, shape arithmetic: core ATen on whole arrays) in which every outer tile
loop is one ``hl.launch``, whose region holds the device code: loads, stores, core ATen on tiles, and nested ``hl.loop``s.
Everything is SSA: a value id is defined once, by one op or one region parameter.

Operations that are not ATen (``aten.*`` names are PyTorch's own overload names, e.g. ``aten.add.Tensor``):

=================  ==========================================================================================
``hl.launch``      args ``(axes, writes)``: axis ids, and the host tensors its region stores to. regions[0] has
                   no parameters and no results. Results: the new contents of ``writes``, in that order.
                   Before the launch a tensor holds its old value; what the region does not store, it keeps.
``hl.loop``        args ``(axes, inits)``: axis ids, and the initial values of the carried variables. regions[0]
                   has one parameter a carried variable and yields their next values. Results: their last values.
``hl.if``          args ``(condition, inits)``: a bool of rank 0, and the initial values of the carried variables.
                   regions ``(then, else)`` each have one parameter a carried variable and yield its next value.
``hl.while``       args ``(inits,)``. regions ``(test, body)``, each with one parameter a carried variable: ``test``
                   yields one bool of rank 0, ``body`` the next values. Results: their last values.
``hl.load``        args ``(tensor, index[, mask])`` -> the tile. Elements outside the tensor are undefined: the lowering
                   masks them where they could reach a result. Where ``mask`` (bool, broadcasts to the tile) does not
                   hold the element is 0 and nothing is read.
``hl.store``       args ``(tensor, index, value[, mask])``; no result. Elements outside the tensor are dropped, and those
                   where ``mask`` does not hold. ``value`` is a Ref or a number and broadcasts to the tile. Where an
                   index tensor names an element twice, one of the values is kept.
``hl.atomic``      args ``(kind, tensor, index, value, mask or None[, expected])`` -> what the elements held before.
                   ``kind``: add, max, min, and, or, xor, xchg, cas (``expected`` is for cas). An element that an index
                   tensor names twice is combined twice, in their order; each gets what the one before it left.
``hl.tile_index``  args ``(axis,)`` -> int32 [block]: the positions of the tile's elements (begin + arange).
``hl.tile_begin``  args ``(axis,)`` -> int32 []. Also the loop variable of ``hl.grid`` (an axis of fixed block 1).
``hl.tile_end``    args ``(axis,)`` -> int32 []: min(begin + block, the axis' end).
``hl.tile_id``     args ``(axis,)`` -> int32 []: the number of the tile, from 0.
``hl.dot``         args ``(a, b, acc or None, out_dtype)`` -> a @ b (+ acc), accumulated in float32 (int32 for int8),
                   given in ``out_dtype``. 2-D, or batched 3-D.
``hl.scan``        args ``(inputs, dim, reverse)``: a tuple of tensors of one shape. regions[0] combines: parameters are
                   the left elements of each input, then the right ones, all of the inputs' own types; it is elementwise,
                   associative, and yields the combined elements. Results: the inclusive scans.
``hl.last``        args ``(x, dim)`` -> the last element along ``dim`` that exists, the dimension kept with size 1.
``hl.philox``      args ``(seed_low, seed_high, offset_low, offset_high)``, int32 bit patterns that broadcast -> the four
                   words of Philox-4x32-10 with counter (offset_low, offset_high, 0, 0), int32 bit patterns.
``hl.print``       args ``(prefix, *values)``; no result.
``hl.inline``      args ``(module, qualname, operands, statics)``: a JAX function on tiles, imported by name -> its outputs.
=================  ==========================================================================================

Allocations in device code (``aten.full``, ``aten.empty``) may have a keyword that bounds them in a ragged last tile: ``tiles``, for each
dimension the ``TileIndex`` of the tile that it is or None, or ``like``, a Ref to a value that has as many elements.

A loop with a bound that is a Ref has one axis; the axes of a launch have none such. Loops inside of ``hl.if`` and
``hl.while`` are loops of the launch like others, but never directly in it.

An index has an element for each dimension of the tensor (``None`` adds one, as in PyTorch):
``TileIndex(axis)`` the tile of an axis; ``Span()`` the whole dimension, ``Span(start, stop, step)`` a static slice;
an ``int``; a ``Ref`` to an integer value: of rank 0 it selects, of higher rank it gathers. Several of these broadcast
together, and their common shape takes the place of the first of them. Negative positions count from the end.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Union

from .expr import Block, Expr


@dataclass(frozen=True, slots=True)
class Ref:
    """A use of value ``id``."""

    id: int

    def __str__(self) -> str:
        return f"%{self.id}"


@dataclass(frozen=True, slots=True)
class TileIndex:
    """The positions of the current tile of axis ``axis``; as many as its block size."""

    axis: int


@dataclass(frozen=True, slots=True)
class Span:
    """A static slice, ``start:stop:step``; ``Span()`` is the whole dimension."""

    start: Expr | None = None
    stop: Expr | None = None
    step: int = 1


@dataclass(frozen=True, slots=True)
class DType:
    """A dtype as an argument of an operation, by its NumPy/ml_dtypes name, e.g. ``float32``, ``bfloat16``, ``bool``."""

    name: str


BOUNDS = frozenset({"tiles", "like"})  # the keywords of allocations that are not PyTorch's

# Arguments of operations: nothing but these, nested in tuples.
Arg = Union[None, bool, int, float, str, Ref, Expr, TileIndex, Span, DType, tuple]


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape (whose dimensions may be expressions over block sizes) and dtype of a value; rank 0 is a scalar."""

    shape: tuple[Expr, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. ``line`` is the line in the user's file (1-based) that caused it."""

    name: str
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...]
    results: tuple[int, ...]
    line: int
    regions: tuple[Region, ...] = ()


@dataclass(frozen=True, slots=True)
class Region:
    """A straight line of operations; ``params`` are defined on entry, ``results`` are yielded at the end."""

    ops: tuple[Op, ...]
    params: tuple[int, ...] = ()
    results: tuple[Arg, ...] = ()


@dataclass(frozen=True, slots=True)
class BlockInfo:
    """A tile size. ``fixed`` where the user gave it; otherwise a config chooses it, in ``Config.block_sizes`` order.

    ``extent`` is the largest extent of the axes that use it (a block need not be larger); ``low`` and ``high`` are the
    user's bounds from ``register_block_size``.
    """

    fixed: int | None
    extent: int
    low: int = 1
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Axis:
    """A tile axis: ``begin`` to ``end`` in steps of block ``block`` (an id into ``Program.blocks``).

    ``begin`` and ``end`` are integers, expressions, or a Ref to a device integer (a bound known only at run time;
    ``limit`` is then the largest value the end can have, or None if nothing bounds it). ``is_grid`` marks ``hl.grid``.
    """

    block: int
    begin: Expr | Ref
    end: Expr | Ref
    is_grid: bool = False
    limit: int | None = None


class ArgKind(enum.Enum):
    """How an argument of the kernel reaches the program."""

    TENSOR = "tensor"
    SCALAR = "scalar"  # a Python int or float whose value is known only at run time: a rank-0 value
    STATIC = "static"  # its value is part of the signature
    SEEDS = "seeds"  # no argument: int32 [draws, 2], drawn from torch's generator at each call; its path is empty


@dataclass(frozen=True, slots=True)
class Param:
    """A leaf of the kernel's arguments. ``path`` leads to it: the parameter's position, then indices into tuples/lists."""

    name: str
    path: tuple[int | str, ...]
    kind: ArgKind
    value: int | None  # value id; None for STATIC
    static: Arg = None  # the value, for STATIC


class Relation(enum.Enum):
    """How an ``assert`` of the kernel compares two sizes."""

    EQ = "=="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="

    def holds(self, a: int, b: int) -> bool:
        return _HOLDS[self](a, b)


_HOLDS = {
    Relation.EQ: operator.eq, Relation.NE: operator.ne, Relation.LT: operator.lt,
    Relation.LE: operator.le, Relation.GT: operator.gt, Relation.GE: operator.ge,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the kernel asserts of its block sizes; a config that breaks it is illegal."""

    relation: Relation
    a: Expr
    b: Expr
    line: int

    def __str__(self) -> str:
        return f"{self.a} {self.relation.value} {self.b}"


@dataclass(frozen=True, slots=True)
class Probe:
    """A value that Python code of the kernel read from its arguments: the program is right only where it is the same.

    ``program`` computes it: host operations alone, one output. ``value``: a number, a bool, or nested tuples of them.
    """

    program: Program
    value: Arg


@dataclass(frozen=True, slots=True)
class Program:
    """A captured kernel.

    ``outputs`` is what the kernel returns: a Ref, a plain value, or nested tuples of them. ``mutated`` lists arguments
    written in place: (index into ``params``, Ref to the new contents). Executables made from a program take one array
    for each param that is not STATIC, in order, and return the flat tuple of the Refs of ``outputs`` (depth first),
    then those of ``mutated``. ``constraints`` is what block sizes must satisfy, ``probes`` what the arguments must hold:
    the program is specialised to it.
    """

    name: str
    file: str
    first_line: int
    source: str
    params: tuple[Param, ...]
    types: tuple[TensorType, ...]  # by value id
    blocks: tuple[BlockInfo, ...]
    axes: tuple[Axis, ...]
    host: Region
    outputs: Any
    mutated: tuple[tuple[int, Ref], ...] = ()
    numerics: str = "default"  # numerics class, part of the signature
    notes: tuple[tuple[str, Arg], ...] = field(default=())
    constraints: tuple[Constraint, ...] = ()
    probes: tuple[Probe, ...] = ()

    @property
    def tunable_blocks(self) -> tuple[int, ...]:
        """Ids of the blocks a config chooses, in the order of ``Config.block_sizes``."""
        return tuple(i for i, block in enumerate(self.blocks) if block.fixed is None)

    @property
    def array_params(self) -> tuple[Param, ...]:
        """The params that executables take, in order."""
        return tuple(p for p in self.params if p.kind is not ArgKind.STATIC)

    @property
    def launches(self) -> tuple[Op, ...]:
        """The outer tile loops, in order; each becomes one ``pallas_call``."""
        return tuple(op for op in self.host.ops if op.name == "hl.launch")

    def type_of(self, value: Ref | int) -> TensorType:
        return self.types[value.id if isinstance(value, Ref) else value]

    def block_sizes(self, tunable: tuple[int, ...] | list[int]) -> tuple[int, ...]:
        """Sizes of all blocks, given those of the tunable ones."""
        chosen = iter(tunable)
        return tuple(b.fixed if b.fixed is not None else next(chosen) for b in self.blocks)


def output_leaves(tree: Any) -> list[Ref]:
    """The Refs of an output tree, depth first."""
    if isinstance(tree, Ref):
        return [tree]
    if isinstance(tree, tuple):
        return [leaf for item in tree for leaf in output_leaves(item)]
    return []


def walk(region: Region) -> Iterator[Op]:
    """Every operation of ``region`` and of the regions inside it, outermost first."""
    for op in region.ops:
        yield op
        for inner in op.regions:
            yield from walk(inner)


def refs_in(arg: Arg) -> Iterator[Ref]:
    """Every Ref in an argument tree."""
    if isinstance(arg, Ref):
        yield arg
    elif isinstance(arg, tuple):
        for item in arg:
            yield from refs_in(item)


def inputs_of(op: Op) -> list[Ref]:
    """Refs an operation reads directly (not those of its regions)."""
    return [*refs_in(op.args), *(r for _, v in op.kwargs for r in refs_in(v))]


__all__ = [
    "BOUNDS", "Arg", "ArgKind", "Axis", "Block", "BlockInfo", "Constraint", "DType", "Expr", "Op", "Param", "Probe", "Program", "Ref",
    "Region", "Relation", "Span", "TensorType", "TileIndex", "inputs_of", "output_leaves", "refs_in", "walk",
]  # fmt: skip
