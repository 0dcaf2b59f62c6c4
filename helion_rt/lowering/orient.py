"""Orientation: a rewrite of programs that holds values of a loop with their last two dimensions swapped.

A vector register has 8 sublanes of 128 lanes. With scores held as ``[..., queries, keys]`` (``Orientation.ROWS``, as the kernel
says) a maximum or a sum over the keys goes across the lanes, and each row's statistic is a column. Held as ``[..., keys, queries]``
(``Orientation.COLUMNS``) it goes down the sublanes, one elementwise operation a register, and the statistics are rows.

Swapped values begin at the products of a loop, ``(a @ b)^T = b^T @ a^T``, and at loads of tensors that the host transposed; they
spread through elementwise operations, reductions, views that keep the two dimensions, and carried variables. The matrix unit takes an
operand either way round (the keyword ``transposed`` of ``hl.dot``), so nothing is transposed in the loop for it. What the rewrite
cannot hold swapped it transposes, as far outside as the value is known: a value from before the loop once, before the loop.

The rewritten program is an ordinary one: masks, windows and layouts follow from it like from any other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..config import Orientation
from ..program.ir import Arg, Op, Program, Ref, Region, TensorType, inputs_of, refs_in, walk
from ..program.regions import CARRYING, inits_of
from . import ops
from .legalize import without_dead
from .ops import Kind

Shape = tuple[Any, ...]
Kwargs = tuple[tuple[str, Arg], ...]


def orient(program: Program, orientations: Sequence[Orientation | None]) -> Program:
    """The legalized ``program`` with the loops' values held as ``orientations`` says (one a loop, those not said: ``ROWS``)."""
    if Orientation.COLUMNS not in orientations:
        return program
    inner = [op for launch in program.launches for op in walk(launch.regions[0]) if op.name == "hl.loop"]
    columns = {id(op) for op, o in zip(inner, orientations, strict=False) if o is Orientation.COLUMNS}
    types = list(program.types)
    host = tuple(_Rewriter(program, op, types, columns).run() if op.name == "hl.launch" else op for op in program.host.ops)
    found = dataclasses.replace(program, host=dataclasses.replace(program.host, ops=host), types=tuple(types))
    return without_dead(found)


def applies(op: Op, types: Sequence[TensorType]) -> bool:
    """Whether ``COLUMNS`` does something to the loop ``op``: a matrix product is directly in it."""
    return any(_is_product(inner, types) for inner in op.regions[0].ops)


def gains(op: Op, types: Sequence[TensorType]) -> bool:
    """Whether ``COLUMNS`` is worth a trial for the loop ``op``: what it multiplies it also reduces."""
    reduces = any(ops.kind_of(o.name) is Kind.REDUCTION and _rank(types, o.args[0]) > 1 for o in op.regions[0].ops)
    return reduces and applies(op, types)


def _is_product(op: Op, types: Sequence[TensorType]) -> bool:
    return ops.kind_of(op.name) is Kind.CONTRACT and len(types[op.results[0]].shape) > 1


def _rank(types: Sequence[TensorType], x: Arg) -> int:
    return len(types[x.id].shape) if isinstance(x, Ref) else 0


def _ref(x: Arg) -> Ref:
    assert isinstance(x, Ref)
    return x


def _swap(items: Shape) -> Shape:
    return (*items[:-2], items[-1], items[-2])


def _swapped_dim(dim: int, rank: int) -> int:
    dim %= rank
    return {rank - 1: rank - 2, rank - 2: rank - 1}.get(dim, dim)


def _has_unit(shape: Shape) -> bool:
    """Whether one of the last two dimensions is 1: then the elements are in the same order either way round."""
    return any(isinstance(d, int) and d == 1 for d in shape[-2:])


@dataclass
class _Scope:
    """The region that is being written. ``known``: (value of the old program, swapped) -> what holds it in the new one.

    ``pending``: values that can be made either way round, written when the first that needs them says how.
    """

    columns: bool
    ops: list[Op] = field(default_factory=list)
    known: dict[tuple[int, bool], Ref] = field(default_factory=dict)
    pending: dict[int, Op] = field(default_factory=dict)


class _Rewriter:
    """Rewrites one launch. ``types`` grows."""

    def __init__(self, program: Program, launch: Op, types: list[TensorType], columns: set[int]):
        self.launch, self.types, self.columns = launch, types, columns
        self.scopes: list[_Scope] = []
        self.line = launch.line
        written = {r.id for r in refs_in(launch.args[1])}
        self.transposed = {  # host tensor -> the one whose last two dimensions it has swapped
            op.results[0]: op.args[0]
            for op in program.host.ops
            if ops.kind_of(op.name) is Kind.PERMUTE and isinstance(op.args[0], Ref) and self.swaps(op)
            and not written.intersection((op.results[0], op.args[0].id))
        }  # fmt: skip

    def run(self) -> Op:
        scope = _Scope(False)
        self.enter(scope, self.launch.regions[0])
        return dataclasses.replace(self.launch, regions=(dataclasses.replace(self.launch.regions[0], ops=tuple(scope.ops)),))

    def enter(self, scope: _Scope, region: Region) -> None:
        """Writes the operations of ``region`` into ``scope``, which stays the innermost one: the caller still needs its results."""
        self.scopes.append(scope)
        for op in region.ops:
            self.line = op.line
            self.op(op)

    # ---------------------------------------------------------------------------------------------- values

    def shape(self, x: Ref | int) -> Shape:
        return self.types[x.id if isinstance(x, Ref) else x].shape

    def emit(self, name: str, args: tuple[Arg, ...], shape: Shape, dtype: str, result: int | None = None, kwargs: Kwargs = ()) -> Ref:
        if result is None:
            self.types.append(TensorType(shape, dtype))
            result = len(self.types) - 1
        self.scopes[-1].ops.append(Op(name, args, kwargs, (result,), self.line))
        return Ref(result)

    def new(self, value: int) -> Ref:
        """A value like ``value``, swapped."""
        old = self.types[value]
        self.types.append(TensorType(_swap(old.shape), old.dtype))
        return Ref(len(self.types) - 1)

    def find(self, x: Ref, swapped: bool) -> Ref | None:
        return next((s.known[x.id, swapped] for s in reversed(self.scopes) if (x.id, swapped) in s.known), None)

    def natural(self, x: Arg) -> frozenset[bool]:
        """How ``x`` can be had for nothing: {False} as it was, {True} swapped, or both."""
        if not isinstance(x, Ref) or len(self.shape(x)) < 2:
            return _STRAIGHT
        if _has_unit(self.shape(x)) or any(x.id in s.pending for s in self.scopes):
            return _EITHER
        return frozenset(side for side in (False, True) if self.find(x, side) is not None)

    def need(self, x: Any, swapped: bool = False) -> Any:
        """``x`` (a Ref; tuples of them; other arguments are as they are) held swapped or not, transposed where there is no other way."""
        if isinstance(x, tuple):
            return tuple(self.need(i, swapped) for i in x)
        if not isinstance(x, Ref):
            return x
        swapped = swapped and len(self.shape(x)) > 1
        found = self.find(x, swapped)
        if found is not None:
            return found
        at = next((n for n in reversed(range(len(self.scopes))) if self.is_held(self.scopes[n], x)), None)
        if at is None:
            return x  # a tensor of the host
        inside, self.scopes = self.scopes, self.scopes[: at + 1]  # it is made where it is known: before the loop, if it can be
        try:
            scope = self.scopes[-1]
            op = scope.pending.get(x.id)
            ref = self.make(op, swapped) if op is not None else self.turned(scope.known[x.id, not swapped], x)
            scope.known[x.id, swapped] = ref
        finally:
            self.scopes = inside
        return ref

    @staticmethod
    def is_held(scope: _Scope, x: Ref) -> bool:
        return x.id in scope.pending or any((x.id, side) in scope.known for side in (False, True))

    def turned(self, held: Ref, x: Ref) -> Ref:
        """``held``, which is ``x`` one way round, the other way round."""
        shape, dtype = _swap(self.shape(held)), self.types[x.id].dtype
        if _has_unit(shape):
            return self.emit("aten.view.default", (held, shape), shape, dtype)
        if dtype != "bool":
            return self.emit("aten.transpose.int", (held, -2, -1), shape, dtype)
        numbers = self.emit("aten._to_copy.default", (held,), self.shape(held), "int32")  # masks do not move between lanes
        return self.emit("aten.ne.Scalar", (self.emit("aten.transpose.int", (numbers, -2, -1), shape, "int32"), 0), shape, "bool")

    def in_order(self, x: Ref) -> Ref:
        """``x`` any way round that has its elements in the same order."""
        swapped = self.find(x, True) if _has_unit(self.shape(x)) else None
        return swapped if swapped is not None and self.find(x, False) is None else self.need(x)

    # ---------------------------------------------------------------------------------------------- operations

    def op(self, op: Op) -> None:
        """Writes ``op`` down, or notes how it could be."""
        if op.name == "hl.loop":
            self.loop(op)
        elif op.name in CARRYING:
            self.branch(op)
        elif op.regions or not op.results or op.name == "hl.atomic":
            self.as_it_is(op)
        elif op.name == "hl.load":
            self.load(op)
        elif op.name == "hl.count":
            self.count(op)
        else:
            self.value(op)

    def value(self, op: Op) -> None:
        kind, one = ops.kind_of(op.name), len(op.results) == 1
        if kind in (None, Kind.OTHER) or not one:
            self.as_it_is(op)
        elif kind is Kind.CONTRACT:
            self.product(op)
        elif kind is Kind.REDUCTION:
            self.reduction(op)
        elif kind is Kind.PERMUTE:
            self.permute(op)
        elif len(self.shape(op.results[0])) < 2:
            self.as_it_is(op) if kind is not Kind.VIEW else self.hold(op, False)
        else:
            sides = self.sides(op, kind)
            if sides == _EITHER:
                self.scopes[-1].pending[op.results[0]] = op
            else:
                self.hold(op, True in sides)

    def sides(self, op: Op, kind: Kind | None) -> frozenset[bool]:
        """How the result of an operation on single elements, a view, an expansion or a creation is best held."""
        result = self.shape(op.results[0])
        if kind is Kind.CREATE:
            return _STRAIGHT if inputs_of(op) else _EITHER
        if kind is Kind.VIEW:
            source = _ref(op.args[0])
            if len(self.shape(source)) > 1 and self.shape(source)[-2:] == result[-2:]:
                return self.natural(source)
            return _EITHER if _has_unit(result) and False in self.natural(source) else _STRAIGHT
        if kind not in (Kind.ELEMENTWISE, Kind.EXPAND):
            return _STRAIGHT
        found = [self.natural(r) for r in refs_in(op.args) if len(self.shape(r)) > 1]
        if _SWAPPED in found:
            return _SWAPPED
        return _EITHER if all(sides == _EITHER for sides in found) else _STRAIGHT

    def hold(self, op: Op, swapped: bool) -> None:
        self.scopes[-1].known[op.results[0], swapped] = self.make(op, swapped)

    def make(self, op: Op, swapped: bool) -> Ref:
        """Writes ``op``, on single elements, a view, an expansion or a creation, with its result that way round."""
        line, self.line = self.line, op.line
        (result,) = op.results
        shape, dtype = self.shape(result), self.types[result].dtype
        shape, id = (_swap(shape), None) if swapped else (shape, result)
        kind = ops.kind_of(op.name)
        if kind is Kind.CREATE and swapped:
            fill = ops.fill_of(ops.base_name(op.name), op.args, dict(op.kwargs))
            kwargs = tuple((k, _swap(v)) for k, v in op.kwargs if k == "tiles" and isinstance(v, tuple))
            ref = self.emit("aten.full.default", (shape, fill), shape, dtype, id, kwargs)
        elif kind is Kind.VIEW:
            source = _ref(op.args[0])
            keeps = swapped and len(self.shape(source)) > 1 and self.shape(source)[-2:] == self.shape(result)[-2:]
            ref = self.emit("aten.view.default", (self.need(source, True) if keeps else self.in_order(source), shape), shape, dtype, id)
        elif kind is Kind.EXPAND and swapped:
            ref = self.emit("aten.expand.default", (self.aligned(op.args[0], True), shape), shape, dtype, id)
        elif kind is Kind.ELEMENTWISE:
            args = tuple(self.aligned(a, swapped) for a in op.args)
            ref = self.emit(op.name, args, shape, dtype, id, tuple((k, self.aligned(v, swapped)) for k, v in op.kwargs))
        else:
            ref = self.emit(op.name, self.need(op.args), shape, dtype, id, tuple((k, self.need(v)) for k, v in op.kwargs))
        self.line = line
        return ref

    def aligned(self, x: Arg, swapped: bool) -> Arg:
        """An operand of rank 2 or more that way round; a row, which is broadcast, as a column where ``swapped``."""
        if not swapped or not isinstance(x, Ref) or len(self.shape(x)) != 1:
            return self.need(x, swapped)
        shape = (*self.shape(x), 1)
        return self.emit("aten.view.default", (self.need(x), shape), shape, self.types[x.id].dtype)

    def as_it_is(self, op: Op) -> None:
        """Writes ``op`` with everything as it was."""
        inside = {r for o in walk_regions(op) for r in o.results} | {p for region in op.regions for p in region.params}
        read = [*(r for o in walk_regions(op) for r in inputs_of(o)), *(r for region in op.regions for r in refs_in(region.results))]
        outer = {r.id: self.need(r) for r in read if r.id not in inside}
        regions = tuple(_renamed(region, outer) for region in op.regions)
        kwargs = tuple((k, self.need(v)) for k, v in op.kwargs)
        self.scopes[-1].ops.append(dataclasses.replace(op, args=self.need(op.args), kwargs=kwargs, regions=regions))
        self.scopes[-1].known.update({(r, False): Ref(r) for r in op.results})

    def load(self, op: Op) -> None:
        """A load of a tensor that the host transposed becomes one of the tensor as it was."""
        tensor, index, *rest = op.args
        source = self.transposed.get(tensor.id) if isinstance(tensor, Ref) else None
        assert isinstance(index, tuple)
        plain = None not in index and not any(isinstance(e, (Ref, int)) for e in index[-2:])
        if source is None or rest or not plain or not self.scopes[-1].columns or any(len(self.shape(r)) for r in refs_in(index)):
            self.as_it_is(op)
            return
        result = self.new(op.results[0])
        self.scopes[-1].ops.append(dataclasses.replace(op, args=(source, self.need(_swap(index))), results=(result.id,)))
        self.scopes[-1].known[op.results[0], True] = result

    def count(self, op: Op) -> None:
        """``hl.count`` asks for nothing but the size of its operand, either way round."""
        x, dims, correction = op.args
        assert isinstance(x, Ref) and isinstance(dims, tuple)
        swapped = self.find(x, True) if self.find(x, False) is None else None
        if swapped is not None:
            rank = len(self.shape(x))
            op = dataclasses.replace(op, args=(swapped, tuple(_swapped_dim(d, rank) for d in dims if isinstance(d, int)), correction))
            self.scopes[-1].ops.append(op)
            self.scopes[-1].known[op.results[0], False] = Ref(op.results[0])
        else:
            self.as_it_is(op)

    def product(self, op: Op) -> None:
        a, b, acc, dtype = op.args
        (result,) = op.results
        shape, wanted = self.shape(result), self.scopes[-1].columns and len(self.shape(result)) > 1
        if wanted:
            (left, over), (right, under) = self.operand(b, True), self.operand(a, True)
        else:
            (left, over), (right, under) = self.operand(a, False), self.operand(b, False)
        args = (left, right, self.need(acc, wanted), dtype)
        kwargs: Kwargs = (("transposed", (over, under)),) if over or under else ()
        shape, id = (_swap(shape), None) if wanted else (shape, result)
        ref = self.emit("hl.dot", args, shape, self.types[result].dtype, id, kwargs)
        self.scopes[-1].known[result, wanted] = ref

    def operand(self, x: Arg, swapped: bool) -> tuple[Ref, bool]:
        """An operand of a product, wanted that way round; and whether the matrix unit has to turn it."""
        assert isinstance(x, Ref)
        before = not self.is_held(self.scopes[-1], x) and self.scopes[-1].columns  # known before the loop: turned once, there
        if swapped in self.natural(x) or before:
            return self.need(x, swapped), False
        return self.need(x, not swapped), True

    def reduction(self, op: Op) -> None:
        source, *rest = op.args
        assert isinstance(source, Ref)
        rank, (result,) = len(self.shape(source)), op.results
        dims = ops.reduced_dims(op.args, {}, rank)
        positions = ops.REDUCTIONS[ops.base_name(op.name)].index and len(dims) > 1
        if self.natural(source) != _SWAPPED or op.kwargs or positions:
            self.as_it_is(op)
            return
        given = rest[0] if rest else None
        moved = tuple(_swapped_dim(d, rank) for d in dims)
        dims_given: Arg = given if given is None or given == () else moved[0] if isinstance(given, int) else moved
        args = (self.need(source, True), dims_given, *rest[1:])
        shape = self.shape(result)
        swapped = len(shape) > 1 and (len(shape) == rank or not {rank - 1, rank - 2}.intersection(dims))
        shape, id = (_swap(shape), None) if swapped else (shape, result)
        self.scopes[-1].known[result, swapped] = self.emit(op.name, args, shape, self.types[result].dtype, id)

    def permute(self, op: Op) -> None:
        source, (result,) = op.args[0], op.results
        assert isinstance(source, Ref)
        known = self.scopes[-1].known
        if self.swaps(op) and self.natural(source) == _SWAPPED:
            known[result, False] = self.need(source, True)
        elif self.swaps(op) and self.scopes[-1].columns and self.natural(source) == _STRAIGHT:
            known[result, True] = self.need(source)
        else:
            self.as_it_is(op)

    def swaps(self, op: Op) -> bool:
        """Whether a permutation swaps the last two dimensions and moves no other."""
        rank = len(self.shape(op.results[0]))
        order = ops.permutation(ops.base_name(op.name), op.args, rank)
        return rank > 1 and order == _swap(tuple(range(rank)))

    # ---------------------------------------------------------------------------------------------- regions

    def loop(self, op: Op) -> None:
        """A carried variable is held swapped where its next value is; that can make others swapped, until none changes."""
        region, before = op.regions[0], len(self.scopes)
        swapped: set[int] = set()
        while True:
            scope = _Scope(id(op) in self.columns)
            scope.known = {(p, n in swapped): self.new(p) if n in swapped else Ref(p) for n, p in enumerate(region.params)}
            params = [next(ref for (value, _), ref in scope.known.items() if value == p) for p in region.params]
            self.enter(scope, region)
            more = {n for n, x in enumerate(region.results) if n not in swapped and self.natural(x) == _SWAPPED}
            if not more:
                break
            swapped |= more
            del self.scopes[before:]
        results = tuple(self.need(x, n in swapped) for n, x in enumerate(region.results))
        del self.scopes[before:]
        inits = tuple(self.need(x, n in swapped) for n, x in enumerate(inits_of(op)))
        last = [self.new(r) if n in swapped else Ref(r) for n, r in enumerate(op.results)]
        body = Region(tuple(scope.ops), tuple(p.id for p in params), results)
        self.scopes[-1].ops.append(dataclasses.replace(op, args=(*op.args[:-1], inits), results=tuple(r.id for r in last), regions=(body,)))
        self.scopes[-1].known.update({(r, n in swapped): ref for n, (r, ref) in enumerate(zip(op.results, last, strict=True))})

    def branch(self, op: Op) -> None:
        """``hl.if`` and ``hl.while`` carry everything as it was."""
        before, regions = len(self.scopes), []
        args = self.need(op.args)
        for region in op.regions:
            scope = _Scope(self.scopes[-1].columns, known={(p, False): Ref(p) for p in region.params})
            self.enter(scope, region)
            results = self.need(region.results)
            del self.scopes[before:]
            regions.append(Region(tuple(scope.ops), region.params, results))
        self.scopes[-1].ops.append(dataclasses.replace(op, args=args, regions=tuple(regions)))
        self.scopes[-1].known.update({(r, False): Ref(r) for r in op.results})


def walk_regions(op: Op) -> Iterator[Op]:
    for region in op.regions:
        yield from walk(region)


def _renamed(region: Region, names: dict[int, Any]) -> Region:
    """``region`` with the values it takes from outside under their new names."""

    def swap(x: Any) -> Any:
        return tuple(swap(i) for i in x) if isinstance(x, tuple) else names.get(x.id, x) if isinstance(x, Ref) else x

    inner = tuple(
        dataclasses.replace(op, args=swap(op.args), kwargs=swap(op.kwargs), regions=tuple(_renamed(r, names) for r in op.regions))
        for op in region.ops
    )
    return dataclasses.replace(region, ops=inner, results=swap(region.results))


_STRAIGHT, _SWAPPED, _EITHER = frozenset({False}), frozenset({True}), frozenset({False, True})

__all__ = ["applies", "gains", "orient"]
