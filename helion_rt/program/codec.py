"""Programs as bytes: msgpack of plain lists, every field checked on the way in.

Nothing that is read is trusted: sizes and depths are capped, unknown fields, tags and types are refused, and every value
must be defined before it is used, so that what ``decode`` returns is a well-formed program or ``ValueError`` is raised.
"""

from __future__ import annotations

from typing import Any, NoReturn

import msgpack

from .expr import OPERATORS, BinExpr, Block, Expr
from .ir import (
    Arg,
    ArgKind,
    Axis,
    BlockInfo,
    Constraint,
    DType,
    Op,
    Param,
    Probe,
    Program,
    Ref,
    Region,
    Relation,
    Span,
    TensorType,
    TileIndex,
    refs_in,
)  # fmt: skip
from .regions import REGIONS

VERSION = 1
MAX_BYTES = 16 << 20
_MAX_DEPTH = 64
_MAX_INT = 1 << 63
# Tags of what msgpack has no type for: lists that begin with one of these strings. Tuples begin with "t".
_REF, _BLOCK, _BIN, _TILE, _SPAN, _DTYPE, _TUPLE = "r", "b", "e", "i", "s", "d", "t"


def encode(program: Program) -> bytes:
    """``program`` as bytes. Raises ``ValueError`` if it is too large or holds what a program cannot hold."""
    try:
        packed = msgpack.packb(_pack_program(program), use_bin_type=True)
    except (OverflowError, TypeError, RecursionError) as error:
        raise ValueError(f"the program cannot be encoded: {error}") from error
    assert isinstance(packed, bytes)
    if len(packed) > MAX_BYTES:
        raise ValueError(f"the program is too large: {len(packed)} bytes")
    return packed


def _pack_program(program: Program) -> list[Any]:
    return [
        VERSION, program.name, program.file, program.first_line, program.source,
        [[p.name, list(p.path), p.kind.value, p.value, _pack(p.static)] for p in program.params],
        [[[_pack(d) for d in t.shape], t.dtype] for t in program.types],
        [[b.fixed, b.extent, b.low, b.high] for b in program.blocks],
        [[a.block, _pack(a.begin), _pack(a.end), a.is_grid, a.limit] for a in program.axes],
        _pack_region(program.host), _pack(program.outputs), [[i, r.id] for i, r in program.mutated],
        program.numerics, [[k, _pack(v)] for k, v in program.notes],
        [[c.relation.value, _pack(c.a), _pack(c.b), c.line] for c in program.constraints],
        [[_pack_program(p.program), _pack(p.value)] for p in program.probes],
    ]  # fmt: skip


def _pack(arg: Any) -> Any:
    if arg is None or isinstance(arg, (bool, int, float, str)):
        return arg
    if isinstance(arg, Ref):
        return [_REF, arg.id]
    if isinstance(arg, Block):
        return [_BLOCK, arg.id]
    if isinstance(arg, BinExpr):
        return [_BIN, arg.op, _pack(arg.a), _pack(arg.b)]
    if isinstance(arg, TileIndex):
        return [_TILE, arg.axis]
    if isinstance(arg, Span):
        return [_SPAN, _pack(arg.start), _pack(arg.stop), arg.step]
    if isinstance(arg, DType):
        return [_DTYPE, arg.name]
    if isinstance(arg, tuple):
        return [_TUPLE, *(_pack(a) for a in arg)]
    raise ValueError(f"a {type(arg).__name__} is no part of a program")


def _pack_region(region: Region) -> Any:
    ops = [
        [op.name, _pack(op.args), [[k, _pack(v)] for k, v in op.kwargs], list(op.results), op.line, [_pack_region(r) for r in op.regions]]
        for op in region.ops
    ]
    return [ops, list(region.params), _pack(region.results)]


def decode(data: bytes) -> Program:
    """The program that ``data`` encodes. Raises ``ValueError`` for anything else."""
    if not isinstance(data, bytes) or len(data) > MAX_BYTES:
        raise ValueError("an encoded program is bytes, and at most 16 MiB of them")
    try:
        raw = msgpack.unpackb(data, raw=False, strict_map_key=True, use_list=True)
        return _Reader(raw).program
    except ValueError as error:
        raise ValueError(f"not an encoded program: {error}") from error
    except (msgpack.exceptions.UnpackException, RecursionError, OverflowError) as error:
        raise ValueError("not an encoded program: malformed msgpack") from error


def _bad(what: str, value: object) -> NoReturn:
    raise ValueError(f"{what}: {value!r:.80}")


def _list(value: Any, what: str, length: int | None = None) -> list[Any]:
    if not isinstance(value, list) or (length is not None and len(value) != length):
        _bad(what, value)
    return value


def _int(value: Any, what: str, low: int = 0, high: int = _MAX_INT) -> int:
    if type(value) is not int or not low <= value < high:
        _bad(what, value)
    return value


def _optional(value: Any, what: str, low: int = 0) -> int | None:
    return None if value is None else _int(value, what, low)


def _str(value: Any, what: str) -> str:
    if type(value) is not str:
        _bad(what, value)
    return value


class _Reader:
    """Checks one program. ``visible`` holds the values that may be used where the reader is."""

    def __init__(self, raw: Any, is_probe: bool = False) -> None:
        fields = _list(raw, "fields", 16)
        (version, name, file, first_line, source, params, types, blocks, axes, host, outputs, mutated, numerics, notes, constraints,
         probes) = fields  # fmt: skip
        if is_probe and probes != []:
            _bad("probe", "it has probes of its own")
        if type(version) is not int or version != VERSION:
            _bad("version", version)
        self.blocks = tuple(self._block(b) for b in _list(blocks, "blocks"))
        self.types = tuple(self._type(t) for t in _list(types, "types"))
        self.defined: set[int] = set()
        self.visible: set[int] = set()
        self.axes = tuple(self._axis(a) for a in _list(axes, "axes"))
        read_params = tuple(self._param(p) for p in _list(params, "params"))
        region = self._region(host, 0)
        if region.params or region.results:
            _bad("host region", "it has parameters or results")
        self.program = Program(
            name=_str(name, "name"), file=_str(file, "file"), first_line=_int(first_line, "first_line"), source=_str(source, "source"),
            params=read_params, types=self.types, blocks=self.blocks, axes=self.axes, host=region,
            outputs=self._outputs(outputs), mutated=tuple(self._mutated(m, read_params) for m in _list(mutated, "mutated")),
            numerics=_str(numerics, "numerics"), notes=tuple(self._pair(n, "note") for n in _list(notes, "notes")),
            constraints=tuple(self._constraint(c) for c in _list(constraints, "constraints")),
            probes=tuple(self._probe(p) for p in _list(probes, "probes")),
        )  # fmt: skip

    def _block(self, raw: Any) -> BlockInfo:
        fixed, extent, low, high = _list(raw, "block", 4)
        return BlockInfo(_optional(fixed, "fixed", 1), _int(extent, "extent"), _int(low, "low", 1), _optional(high, "high", 1))

    def _type(self, raw: Any) -> TensorType:
        shape, dtype = _list(raw, "type", 2)
        return TensorType(tuple(self._expr(d, 0) for d in _list(shape, "shape")), _str(dtype, "dtype"))

    def _axis(self, raw: Any) -> Axis:
        block, begin, end, is_grid, limit = _list(raw, "axis", 5)
        if type(is_grid) is not bool:
            _bad("is_grid", is_grid)
        number = _int(block, "block", 0, len(self.blocks))
        return Axis(number, self._bound(begin), self._bound(end), is_grid, _optional(limit, "limit", -_MAX_INT))

    def _constraint(self, raw: Any) -> Constraint:
        relation, a, b, line = _list(raw, "constraint", 4)
        kinds = {r.value: r for r in Relation}
        if type(relation) is not str or relation not in kinds:
            _bad("constraint", raw)
        return Constraint(kinds[relation], self._expr(a, 0), self._expr(b, 0), _int(line, "line"))

    def _probe(self, raw: Any) -> Probe:
        program, value = _list(raw, "probe", 2)
        inner = _Reader(program, is_probe=True).program
        if not isinstance(inner.outputs, Ref) or inner.mutated or any(op.regions for op in inner.host.ops):
            _bad("probe", "it is no expression")
        read = self._arg(value, 0)
        if any(refs_in(read)):
            _bad("probe", value)
        return Probe(inner, read)

    def _bound(self, raw: Any) -> Expr | Ref:
        if isinstance(raw, list) and len(raw) == 2 and raw[0] == _REF:
            return Ref(_int(raw[1], "bound", 0, len(self.types)))  # visibility is checked where the loop is
        return self._expr(raw, 0)

    def _param(self, raw: Any) -> Param:
        name, path, kind, value, static = _list(raw, "param", 5)
        steps = tuple(s if type(s) is str else _int(s, "path") for s in _list(path, "path"))
        kinds = {k.value: k for k in ArgKind}
        if type(kind) is not str or kind not in kinds:
            _bad("kind", kind)
        if (kinds[kind] is ArgKind.STATIC) != (value is None):
            _bad("param", raw)
        if value is not None:
            self._define(value)
        arg = self._arg(static, 0)
        if any(refs_in(arg)):
            _bad("static", static)
        return Param(_str(name, "name"), steps, kinds[kind], value, arg)

    def _define(self, value: Any) -> int:
        if _int(value, "value", 0, len(self.types)) in self.defined:
            _bad("defined twice", value)
        self.defined.add(value)
        self.visible.add(value)
        return value

    def _region(self, raw: Any, depth: int) -> Region:
        if depth > _MAX_DEPTH:
            _bad("regions", "nested too deeply")
        ops, params, results = _list(raw, "region", 3)
        outside = set(self.visible)
        read_params = tuple(self._define(p) for p in _list(params, "params"))
        read_ops = tuple(self._op(op, depth) for op in _list(ops, "ops"))
        read_results = self._tuple(results, "results")
        if depth:
            self.visible = outside
        return Region(read_ops, read_params, read_results)

    def _op(self, raw: Any, depth: int) -> Op:
        name, args, kwargs, results, line, regions = _list(raw, "op", 6)
        read_args = self._tuple(args, "args")
        read_kwargs = tuple(self._pair(k, "kwarg") for k in _list(kwargs, "kwargs"))
        expected = REGIONS.get(_str(name, "op"), 0)
        read_regions = tuple(self._region(r, depth + 1) for r in _list(regions, "regions", expected))
        if expected:
            self._check_regions(name, read_args, read_regions, results, depth)
        read_results = tuple(self._define(r) for r in _list(results, "results"))
        return Op(_str(name, "op"), read_args, read_kwargs, read_results, _int(line, "line"), read_regions)

    def _check_regions(self, name: str, args: tuple[Arg, ...], regions: tuple[Region, ...], results: Any, depth: int) -> None:
        if (name == "hl.launch") != (depth == 0) or len(args) != {"hl.while": 1, "hl.scan": 3}.get(name, 2):
            _bad(name, args)
        values = args[0] if name in ("hl.while", "hl.scan") else args[1]
        if not isinstance(values, tuple) or not all(isinstance(v, Ref) for v in values):
            _bad(name, args)
        if name in ("hl.launch", "hl.loop"):
            self._check_axes(name, args[0])
        if name == "hl.if" and not isinstance(args[0], Ref):
            _bad(name, args)
        count = len(values)
        # (parameters, results) of each region
        wanted = {
            "hl.launch": [(0, 0)], "hl.loop": [(count, count)], "hl.if": [(count, count)] * 2,
            "hl.while": [(count, 1), (count, count)], "hl.scan": [(2 * count, count)],
        }[name]  # fmt: skip
        found = [(len(r.params), len(r.results)) for r in regions]
        if len(_list(results, "results")) != count or found != wanted:
            _bad(name, "results, parameters and values do not match")

    def _check_axes(self, name: str, axes: Arg) -> None:
        if not isinstance(axes, tuple) or not axes:
            _bad(name, axes)
        for axis in axes:
            at = self.axes[_int(axis, "axis", 0, len(self.axes))]
            if any(r.id not in self.visible for r in refs_in((at.begin, at.end))):
                _bad("bound of axis", axis)

    def _pair(self, raw: Any, what: str) -> tuple[str, Arg]:
        key, value = _list(raw, what, 2)
        return _str(key, what), self._arg(value, 0)

    def _tuple(self, raw: Any, what: str) -> tuple[Arg, ...]:
        value = self._arg(raw, 0)
        if not isinstance(value, tuple):
            _bad(what, raw)
        return value

    def _outputs(self, raw: Any) -> Any:
        return self._arg(raw, 0)

    def _mutated(self, raw: Any, params: tuple[Param, ...]) -> tuple[int, Ref]:
        index, value = _list(raw, "mutated", 2)
        if params[_int(index, "mutated", 0, len(params))].kind is not ArgKind.TENSOR:
            _bad("mutated", raw)
        return index, self._ref(value)

    def _ref(self, raw: Any) -> Ref:
        if _int(raw, "value", 0, len(self.types)) not in self.visible:
            _bad("used where it is not defined", raw)
        return Ref(raw)

    def _expr(self, raw: Any, depth: int) -> Expr:
        if type(raw) is int:
            return _int(raw, "dimension", -_MAX_INT)
        items = _list(raw, "expression")
        if len(items) == 2 and items[0] == _BLOCK:
            return Block(_int(items[1], "block", 0, len(self.blocks)))
        if len(items) != 4 or items[0] != _BIN or depth > _MAX_DEPTH or type(items[1]) is not str or items[1] not in OPERATORS:
            _bad("expression", raw)
        return BinExpr(items[1], self._expr(items[2], depth + 1), self._expr(items[3], depth + 1))

    def _arg(self, raw: Any, depth: int) -> Any:
        if raw is None or type(raw) in (bool, float, str):
            return raw
        if type(raw) is int:
            return _int(raw, "number", -_MAX_INT, 2 * _MAX_INT)
        items = _list(raw, "argument")
        tag = items[0] if items else None
        if depth > _MAX_DEPTH:
            _bad("argument", "nested too deeply")
        if tag == _TUPLE:
            return tuple(self._arg(item, depth + 1) for item in items[1:])
        if tag == _REF and len(items) == 2:
            return self._ref(items[1])
        if tag in (_BLOCK, _BIN):
            return self._expr(raw, depth)
        if tag == _TILE and len(items) == 2:
            return TileIndex(_int(items[1], "axis", 0, len(self.axes)))
        if tag == _SPAN and len(items) == 4:
            start, stop = (None if i is None else self._expr(i, depth) for i in items[1:3])
            return Span(start, stop, _int(items[3], "step", 1))
        if tag == _DTYPE and len(items) == 2:
            return DType(_str(items[1], "dtype"))
        _bad("argument", raw)
