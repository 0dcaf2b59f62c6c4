"""What a program computes, as 32 bytes; and the simplification that makes equal programs look equal."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from .codec import encode
from .ir import Arg, Axis, Op, Param, Program, Ref, Region, output_leaves, refs_in


def fingerprint(program: Program) -> str:
    """SHA-256 (hex) of what ``program`` computes. Names, files, lines, source text and unused operations do not count."""

    program = simplify(program)
    params = tuple(replace(p, name="") for p in program.params)
    plain = replace(program, name="", file="", first_line=0, source="", params=params, notes=(), host=_without_lines(program.host))
    return hashlib.sha256(b"helion_rt program 1\0" + encode(plain)).hexdigest()


def _without_lines(region: Region) -> Region:
    return replace(region, ops=tuple(replace(op, line=0, regions=tuple(map(_without_lines, op.regions))) for op in region.ops))


def simplify(program: Program) -> Program:
    """The same program without operations whose results nobody needs, values numbered in order of definition.

    Also drops carried variables that only feed themselves.
    """
    needed: set[int] = {r.id for r in output_leaves(program.outputs)} | {r.id for _, r in program.mutated}
    host = _live(program.host, needed, program.axes)
    order: dict[int, int] = {}
    for param in program.params:
        if param.value is not None:
            order[param.value] = len(order)
    _number(host, order)
    types = tuple(program.types[old] for old in order)

    def map_param(param: Param) -> Param:
        return param if param.value is None else replace(param, value=order[param.value])

    def bound(value: Any) -> Any:
        # A bound of a loop that is gone may have no value any more; nothing reads it then.
        return Ref(order[value.id]) if isinstance(value, Ref) and value.id in order else 0 if isinstance(value, Ref) else value

    axes = tuple(Axis(a.block, bound(a.begin), bound(a.end), a.is_grid, a.limit) for a in program.axes)
    return replace(
        program,
        params=tuple(map_param(p) for p in program.params),
        types=types,
        axes=axes,
        host=_renumber(host, order),
        outputs=_map_refs(program.outputs, order),
        mutated=tuple((i, Ref(order[r.id])) for i, r in program.mutated),
    )


def _live(region: Region, needed: set[int], axes: tuple[Axis, ...]) -> Region:
    """``region`` without dead operations; adds what the rest reads to ``needed``, which holds what is read after it."""
    needed.update(r.id for r in refs_in(region.results))
    kept: list[Op] = []
    for op in reversed(region.ops):
        if op.name != "hl.store" and not needed.intersection(op.results) and not (op.name == "hl.loop" and _has_store(op)):
            continue
        if op.name == "hl.loop":
            op = _live_loop(op, needed, axes)
        elif op.regions:
            op = replace(op, regions=tuple(_live(inner, needed, axes) for inner in op.regions))
        needed.update(r.id for r in _reads(op, axes))
        kept.append(op)
    return replace(region, ops=tuple(reversed(kept)))


def _reads(op: Op, axes: tuple[Axis, ...]) -> Iterable[Ref]:
    """Refs among the arguments, and the bounds of the axes that the operation runs over."""
    yield from refs_in((op.args, tuple(v for _, v in op.kwargs)))
    if op.name in ("hl.loop", "hl.launch"):
        for axis in op.args[0]:  # type: ignore[union-attr]
            yield from refs_in((axes[axis].begin, axes[axis].end))  # type: ignore[index]


def _has_store(op: Op) -> bool:
    return any(inner.name == "hl.store" or _has_store(inner) for region in op.regions for inner in region.ops)


def _live_loop(op: Op, needed: set[int], axes: tuple[Axis, ...]) -> Op:
    """A loop whose carried variables are those whose result is read, or whose placeholder the rest of the body reads."""
    (region,) = op.regions
    keep = [r in needed for r in op.results]
    while True:
        results = tuple(r for r, k in zip(region.results, keep, strict=True) if k)
        inside = set(needed)
        body = _live(replace(region, results=results), inside, axes)
        fresh = [k or p in inside for k, p in zip(keep, region.params, strict=True)]
        if fresh == keep:
            break
        keep = fresh
    needed |= inside

    def chosen(items: Any) -> tuple[Any, ...]:
        return tuple(item for item, k in zip(items, keep, strict=True) if k)

    body = replace(body, params=chosen(region.params))
    return replace(op, args=(op.args[0], chosen(op.args[1])), results=chosen(op.results), regions=(body,))


def _number(region: Region, order: dict[int, int]) -> None:
    for value in region.params:
        order[value] = len(order)
    for op in region.ops:
        for inner in op.regions:
            _number(inner, order)
        for value in op.results:
            order[value] = len(order)


def _map_refs(arg: Any, order: dict[int, int]) -> Any:
    if isinstance(arg, Ref):
        return Ref(order[arg.id])
    return tuple(_map_refs(a, order) for a in arg) if isinstance(arg, tuple) else arg


def _renumber(region: Region, order: dict[int, int]) -> Region:
    def one(op: Op) -> Op:
        kwargs: tuple[tuple[str, Arg], ...] = tuple((k, _map_refs(v, order)) for k, v in op.kwargs)
        results = tuple(order[r] for r in op.results)
        return Op(op.name, _map_refs(op.args, order), kwargs, results, op.line, tuple(_renumber(r, order) for r in op.regions))

    params = tuple(order[p] for p in region.params)
    return Region(tuple(one(op) for op in region.ops), params, _map_refs(region.results, order))
