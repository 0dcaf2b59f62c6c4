"""What a program computes, as 32 bytes; and the simplification that makes equal programs look equal."""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import replace
from typing import Any

from .codec import encode
from .ir import Arg, Axis, Op, Param, Program, Ref, Region, output_leaves, refs_in
from .regions import CARRYING, bodies_of, has_effect, inits_of, reads_of


def fingerprint(program: Program) -> str:
    """SHA-256 (hex) of what ``program`` computes. Names, files, lines, source text and unused operations do not count."""

    program = simplify(program)
    params = tuple(replace(p, name="") for p in program.params)
    constraints = tuple(replace(c, line=0) for c in program.constraints)
    plain = replace(
        program, name="", file="", first_line=0, source="", params=params, notes=(), host=_without_lines(program.host),
        constraints=constraints, probes=(),
    )  # fmt: skip
    return hashlib.sha256(b"helion_rt program 1\0" + encode(plain)).hexdigest()


def source_digest(fn: Any) -> str:
    """SHA-256 (hex) of the source of the function of an ``hl.inline``. Raises ``OSError`` or ``TypeError`` if there is none."""
    return hashlib.sha256(inspect.getsource(fn).encode()).hexdigest()


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
        if not needed.intersection(op.results) and not has_effect(op):
            continue
        if op.name in CARRYING:
            op = _live_carrier(op, needed, axes)
        elif op.regions:
            op = replace(op, regions=tuple(_live(inner, needed, axes) for inner in op.regions))
        needed.update(r.id for r in reads_of(op, axes))
        kept.append(op)
    return replace(region, ops=tuple(reversed(kept)))


def _live_carrier(op: Op, needed: set[int], axes: tuple[Axis, ...]) -> Op:
    """A loop, branch or while whose carried variables are those whose result, or whose placeholder in a region, is read."""
    keep = [r in needed for r in op.results]

    def chosen(items: Any) -> tuple[Any, ...]:
        return tuple(item for item, k in zip(items, keep, strict=True) if k)

    bodies = bodies_of(op)
    while True:
        inside = set(needed)
        regions = []
        for region in op.regions:
            results = chosen(region.results) if any(region is body for body in bodies) else region.results
            regions.append(_live(replace(region, results=results), inside, axes))
        fresh = [k or any(r.params[i] in inside for r in op.regions) for i, k in enumerate(keep)]
        if fresh == keep:
            break
        keep = fresh
    needed |= inside
    regions = [replace(region, params=chosen(region.params)) for region in regions]
    return replace(op, args=(*op.args[:-1], chosen(inits_of(op))), results=chosen(op.results), regions=tuple(regions))


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
