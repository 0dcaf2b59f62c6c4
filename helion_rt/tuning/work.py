"""The work of a program, counted once: for every loop body what it loads, stores and computes, as functions of the block sizes.

Thousands of configs of one program are ranked, so whatever does not depend on the config is worked out here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from helion_rt.program.cost import bytes_of
from helion_rt.program.expr import Block, Expr, evaluate
from helion_rt.program.ir import Op, Program, Ref, TileIndex, inputs_of
from helion_rt.program.regions import CARRYING, axes_of, target_of

Sizes = Sequence[int]  # of all blocks of a program
Count = Callable[[Sizes], float]

# Vector operations an element that cost more than one, in instructions of a vector unit (TPU and CPU alike, roughly); the rest costs
# one, and what only renames elements nothing.
COSTLY = {
    "div": 4.0, "exp": 8.0, "exp2": 6.0, "log": 8.0, "erf": 20.0, "tanh": 10.0, "sigmoid": 10.0, "rsqrt": 4.0, "sqrt": 6.0, "pow": 20.0,
    "sin": 20.0, "cos": 20.0, "reciprocal": 4.0, "silu": 12.0, "gelu": 24.0, "softmax": 14.0, "log2": 8.0, "log1p": 10.0, "expm1": 10.0,
}  # fmt: skip
FREE = frozenset(
    "view expand permute transpose t unsqueeze squeeze slice select full empty clone alias stack split scalar_tensor detach".split()
)
REDUCTIONS = frozenset("sum amax amin mean prod any all argmax argmin max min cumsum var var_mean logsumexp softmax".split())


@dataclass(frozen=True, slots=True)
class Move:
    """A load or a store: the block's shape (as functions), bytes an element, the axes that move it; ``indirect``: by index tensors.

    ``tensor``: the value id of the host tensor. ``dims``: for each dimension of the block the axis that it is a tile of, or None.
    """

    tensor: int
    shape: tuple[Count, ...]
    dims: tuple[int | None, ...]
    item: int
    moved: frozenset[int]
    indirect: bool


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product: ``batch`` times ``m x k`` by ``k x n``; ``item``: bytes an element of its operands."""

    batch: Count
    m: Count
    n: Count
    k: Count
    item: int


@dataclass(frozen=True, slots=True)
class Vector:
    """An operation on vectors: its largest operand or result, instructions an element, and the elements left if it reduces lanes."""

    elements: Count
    cost: float
    rows: Count | None


@dataclass(slots=True)
class Body:
    """What one step of a launch or loop does itself; what loops inside it do is theirs."""

    axes: tuple[int, ...]
    around: int | None  # number of the body around this one; None for a launch
    loop: int | None  # its place in ``Config.loop_strategies``; None for a launch
    carried: list[Count] = field(default_factory=list)  # elements of the variables that it carries
    loads: list[Move] = field(default_factory=list)
    stores: list[Move] = field(default_factory=list)
    products: list[Product] = field(default_factory=list)
    vectors: list[Vector] = field(default_factory=list)


@dataclass(slots=True)
class Work:
    """All bodies of a program, launches before the loops inside them; ``trips`` of each axis; bytes of each host tensor."""

    bodies: list[Body]
    trips: dict[int, Count]
    tensors: dict[int, float]


_COUNTED: dict[int, tuple[Program, Work]] = {}  # by id of the program, which is kept alive here
_MAX_COUNTED = 8


def count(program: Program) -> Work:
    """The work of ``program``, from a small cache."""
    found = _COUNTED.get(id(program))
    if found is None:
        while len(_COUNTED) >= _MAX_COUNTED:
            _COUNTED.pop(next(iter(_COUNTED)), None)
        found = _COUNTED[id(program)] = (program, _Counter(program).run())
    return found[1]


def volume(shape: Sequence[Expr]) -> Count:
    """Elements of a shape, quickly where its dimensions are numbers and blocks."""
    fixed = math.prod(max(dim, 0) for dim in shape if isinstance(dim, int))
    blocks = [dim.id for dim in shape if isinstance(dim, Block)]
    others = [dim for dim in shape if not isinstance(dim, (int, Block))]
    if others:
        return lambda sizes: fixed * math.prod(sizes[b] for b in blocks) * math.prod(max(evaluate(dim, sizes), 0) for dim in others)
    if not blocks:
        return lambda sizes: fixed
    if len(blocks) == 1:
        (only,) = blocks
        return lambda sizes: fixed * sizes[only]
    return lambda sizes: fixed * math.prod([sizes[b] for b in blocks])


class _Counter:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.bodies: list[Body] = []
        self.loops = 0

    def run(self) -> Work:
        for launch in self.program.launches:
            self.visit(launch, None)
        tensors = {m.tensor: self.bytes_of_tensor(m.tensor) for body in self.bodies for m in (*body.loads, *body.stores)}
        return Work(self.bodies, {axis: self.trips(axis) for axis in range(len(self.program.axes))}, tensors)

    def visit(self, op: Op, around: int | None) -> None:
        """Count a launch, a loop, or a branch or while, whose regions belong to the body around them."""
        if op.name in ("hl.launch", "hl.loop"):
            loop = None
            if op.name == "hl.loop":
                loop, self.loops = self.loops, self.loops + 1
            self.bodies.append(Body(axes_of(op), around, loop))
            around = len(self.bodies) - 1
            if loop is not None:
                self.bodies[around].carried = [volume(self.program.types[r].shape) for r in op.results]
        assert around is not None
        for inner in (op for region in op.regions for op in region.ops):
            if inner.name in CARRYING:
                self.visit(inner, around)
            else:
                self.add(self.bodies[around], inner)

    def add(self, body: Body, op: Op) -> None:
        name = op.name.split(".")[1] if "." in op.name else op.name
        if op.name in ("hl.load", "hl.store", "hl.atomic"):
            (body.loads if op.name == "hl.load" else body.stores).append(self.move(op))
        elif (product := self.product(op, name)) is not None:
            body.products.append(product)
        elif op.results and name not in FREE and (not op.name.startswith("hl.") or name in ("scan", "inline", "philox")):
            types = [self.program.type_of(r) for r in (*inputs_of(op), *op.results)]
            largest = max((t.shape for t in types), key=len, default=())
            rows = None
            if name in REDUCTIONS and largest and self.reduces_lanes(op):
                rows = volume(largest[:-1])
            body.vectors.append(Vector(volume(largest), COSTLY.get(name, 1.0), rows))

    def reduces_lanes(self, op: Op) -> bool:
        """Whether a reduction runs over the last dimension of its operand."""
        rank = len(self.program.type_of(inputs_of(op)[0]).shape) if inputs_of(op) else 0
        dims = op.args[1] if len(op.args) > 1 else None
        dims = dims if isinstance(dims, tuple) else (dims,)
        return any(dim is None or (isinstance(dim, int) and dim % max(rank, 1) == rank - 1) for dim in dims)

    def move(self, op: Op) -> Move:
        tensor = target_of(op)
        assert tensor is not None
        index = op.args[2] if op.name == "hl.atomic" else op.args[1]
        items = [item for item in index if item is not None] if isinstance(index, tuple) else []
        dims = tuple(item.axis if isinstance(item, TileIndex) else None for item in items)
        if op.name == "hl.load":
            shape = self.program.types[op.results[0]].shape
        else:
            shape = tuple(self.stored(item, dim) for item, dim in zip(items, self.program.type_of(tensor).shape, strict=False))
        item = bytes_of(self.program.type_of(tensor).dtype)
        indirect = any(isinstance(item, Ref) and self.program.type_of(item).shape for item in items)
        return Move(tensor.id, tuple(volume((d,)) for d in shape), dims, item, frozenset(d for d in dims if d is not None), indirect)

    def stored(self, item: object, dim: Expr) -> Expr:
        """Elements along one dimension of a tensor that a store with this index touches, at most."""
        if isinstance(item, TileIndex):
            return Block(self.program.axes[item.axis].block)
        return 1 if isinstance(item, (int, Ref)) else dim

    def product(self, op: Op, name: str) -> Product | None:
        first = {"dot": 0, "mm": 0, "bmm": 0, "matmul": 0, "addmm": 1, "baddbmm": 1}.get(name)
        a = op.args[first] if first is not None else None
        if not isinstance(a, Ref) or not op.results:
            return None
        out, left = self.program.types[op.results[0]].shape, self.program.type_of(a)
        if len(out) < 2 or not left.shape:
            return None
        return Product(volume(out[:-2]), volume(out[-2:-1]), volume(out[-1:]), volume(left.shape[-1:]), bytes_of(left.dtype))

    def trips(self, number: int) -> Count:
        """Tiles of an axis; where the end is in the data, half of what the limit allows: the mean of a causal loop."""
        axis = self.program.axes[number]
        block = axis.block
        begin = 0 if isinstance(axis.begin, Ref) else axis.begin
        if isinstance(axis.end, Ref):
            most = axis.limit if axis.limit is not None else self.program.blocks[block].extent
            return lambda sizes: max(-(-most // (2 * max(sizes[block], 1))), 1)
        end = axis.end
        if isinstance(begin, int) and isinstance(end, int):
            extent = end - begin
            return lambda sizes: max(-(-extent // max(sizes[block], 1)), 0)
        return lambda sizes: max(-(-(evaluate(end, sizes) - evaluate(begin, sizes)) // max(sizes[block], 1)), 0)

    def bytes_of_tensor(self, tensor: int) -> float:
        kind = self.program.types[tensor]
        return float(math.prod(d for d in kind.shape if isinstance(d, int)) * bytes_of(kind.dtype))


__all__ = ["Body", "Count", "Move", "Product", "Vector", "Work", "count", "volume"]
