"""The reference path: a program in plain ``jax.numpy``, tile loop by tile loop, without Pallas and without masks.

It judges every candidate and is the last resort of every call. Tiles have their true sizes: full ones in a
``fori_loop``, the ragged last one by itself, so no element that does not exist is ever computed (see ``sizes``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..exc import PlanError
from ..program.expr import blocks_in, evaluate
from ..program.ir import Op, Program, Ref, Region, TileIndex, output_leaves, refs_in, walk
from ..program.regions import WRITES, has_effect, inits_of, target_of
from . import constraints, inline, scans
from .evaluate import apply, count, resolve, shape_of
from .legalize import legalize
from .masks import infer_tags
from .ops import Kind, kind_of
from .reference_memory import State, Tile, atomic, load, store

_BLOCK = 128  # tile size of the reference path: small enough for memory, large enough that few tiles are walked
_WHOLE = 16  # blocks for whose every smaller size a last tile has a program, needed or not
_MOST_WHOLE = 256  # and where it is needed


def depends_on_blocks(program: Program) -> bool:
    """Whether a result can depend on block sizes: then a candidate is judged with its own, else with any."""
    shapes = any(blocks_in(d) for op in program.host.ops for r in op.results for d in program.types[r].shape)
    return shapes or any(op.name in ("hl.tile_id", "hl.tile_end") for op in walk(program.host))


def reference(program: Program, blocks: Sequence[int] | None = None) -> Callable[..., tuple[jax.Array, ...]]:
    """A pure JAX function of ``program``: one array a TENSOR or SCALAR param -> flat tuple of arrays.

    ``blocks``: sizes of the tunable blocks (default: moderate ones). Raises ``PlanError`` if an operation has no lowering.
    """
    legal = legalize(program)
    if blocks is None:
        tunable = program.tunable_blocks
        blocks = [min(_BLOCK if i >= len(tunable) - 2 else 8, max(1, program.blocks[b].extent)) for i, b in enumerate(tunable)]
        blocks = constraints.satisfying(program, blocks)
    sizes = program.block_sizes(tuple(blocks))

    def run(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        env: dict[int, Any] = {}
        for param, array in zip(program.array_params, arrays, strict=True):
            assert param.value is not None
            env[param.value] = jnp.asarray(array)
        state = State(env, {}, sizes)
        _run_region(legal, legal.host, state)
        wanted = [*output_leaves(program.outputs), *(ref for _, ref in program.mutated)]
        return tuple(state.env[ref.id] for ref in wanted)

    run.__name__ = "reference"
    return run


def _run_region(program: Program, region: Region, state: State) -> tuple[Any, ...]:
    for op in region.ops:
        _run_op(program, op, state)
    return tuple(_value(state, r) for r in region.results)


def _value(state: State, x: Any) -> Any:
    return state.env[x.id] if isinstance(x, Ref) else x


def _run_op(program: Program, op: Op, state: State) -> None:
    match op.name:
        case "hl.launch":
            _launch(program, op, state)
        case "hl.loop":
            _loop(program, op, state)
        case "hl.if":
            _branch(program, op, state)
        case "hl.while":
            _while(program, op, state)
        case "hl.load":
            state.env[op.results[0]] = load(program, op, state)
        case "hl.store":
            store(program, op, state)
        case "hl.atomic":
            state.env[op.results[0]] = atomic(program, op, state)
        case "hl.tile_index":
            tile = state.tiles[_axis_arg(op)]
            state.env[op.results[0]] = tile.begin + jnp.arange(tile.size, dtype=jnp.int32)
        case "hl.tile_begin":
            state.env[op.results[0]] = jnp.asarray(state.tiles[_axis_arg(op)].begin, jnp.int32)
        case "hl.tile_end":
            tile = state.tiles[_axis_arg(op)]
            state.env[op.results[0]] = jnp.asarray(tile.begin + tile.size, jnp.int32)
        case "hl.tile_id":
            state.env[op.results[0]] = jnp.asarray(state.tiles[_axis_arg(op)].id, jnp.int32)
        case "hl.count":
            state.env[op.results[0]] = jnp.asarray(count(op, state.env[op.args[0].id].shape), program.types[op.results[0]].dtype)  # type: ignore[union-attr]
        case "hl.scan":
            state.env.update(zip(op.results, _scan(program, op, state), strict=True))
        case "hl.print":
            inline.show(op, [_value(state, x) for x in op.args[1:]])
        case "hl.inline":
            args = [resolve(_value(state, x), state.blocks) for x in _tuple(op.args[2])]
            state.env.update(zip(op.results, inline.inline(op, args, [program.types[r] for r in op.results]), strict=True))
        case "hl.last":
            state.env[op.results[0]] = scans.last(op, _value(state, op.args[0]))
        case _:
            state.env[op.results[0]] = _of_tiles(op, apply(program, op, state.env, state.blocks), state)


def _of_tiles(op: Op, value: jax.Array, state: State) -> jax.Array:
    """``value``; what is allocated in the shape of tiles has their true sizes."""
    tiles = dict(op.kwargs).get("tiles")
    if not isinstance(tiles, tuple):
        return value
    size = [min(n, state.tiles[t.axis].size) if isinstance(t, TileIndex) else n for n, t in zip(value.shape, tiles, strict=True)]
    return lax.slice(value, (0,) * len(size), size)


def _tuple(arg: Any) -> tuple[Any, ...]:
    assert isinstance(arg, tuple)
    return arg


def _scan(program: Program, op: Op, state: State) -> tuple[jax.Array, ...]:
    region = op.regions[0]

    def combine(*sides: jax.Array) -> tuple[jax.Array, ...]:
        inner = State({**state.env, **dict(zip(region.params, sides, strict=True))}, state.tiles, state.blocks, state.tags)
        return _run_region(program, region, inner)

    return scans.scan(op, [state.env[ref.id] for ref in scans.scan_args(op)[0]], combine)


def _axis_arg(op: Op) -> int:
    axis = op.args[0]
    assert isinstance(axis, int)
    return axis


def _launch(program: Program, op: Op, state: State) -> None:
    axes, writes = op.args
    assert isinstance(axes, tuple) and isinstance(writes, tuple)
    targets = [w.id for w in writes]
    state.tags = infer_tags(program, op.regions[0], lambda value: shape_of(program, value, state.blocks), lambda axis: True, strict=False)
    _walk_axes(program, axes, op.regions[0], state, [], targets)
    for target, result in zip(targets, op.results, strict=True):
        state.env[result] = state.env[target]


def _loop(program: Program, op: Op, state: State) -> None:
    axes, inits = op.args
    assert isinstance(axes, tuple) and isinstance(inits, tuple)
    region = op.regions[0]
    carried = [_first_carry(program, state, x, p) for x, p in zip(inits, region.params, strict=True)]
    last = _walk_axes(program, axes, region, state, carried, _stored(op))
    for result, value in zip(op.results, last, strict=True):
        state.env[result] = value


def _first_carry(program: Program, state: State, init: Any, param: int) -> jax.Array:
    """A carried variable at the start of a loop. It has no more elements than the tiles around the loop give it."""
    value = jnp.asarray(_value(state, init), program.types[param].dtype)
    full = shape_of(program, param, state.blocks)
    bound = [
        min([n, *(state.tiles[tag.axis].size * tag.factor for tag in tags if tag.axis in state.tiles)])
        for n, tags in zip(full, state.tags[param], strict=True)
    ]
    if value.ndim == 0:
        return jnp.broadcast_to(value, bound)
    size = tuple(map(min, bound, value.shape))
    return lax.slice(value, (0,) * len(size), size)


def _stored(op: Op) -> list[int]:
    """Host tensors that the regions of ``op`` write to, by value id."""
    found = (target_of(inner) for region in op.regions for inner in walk(region) if inner.name in WRITES)
    return list(dict.fromkeys(target.id for target in found if target is not None))


def _inside(state: State, region: Region, values: Sequence[Any], stored: Sequence[int], contents: Sequence[Any]) -> State:
    """What is known inside of ``region`` when it is entered with these values and contents of the tensors it writes to."""
    env = {**state.env, **dict(zip(region.params, values, strict=True)), **dict(zip(stored, contents, strict=True))}
    return State(env, state.tiles, state.blocks, state.tags)


def _branch(program: Program, op: Op, state: State) -> None:
    stored, regions = _stored(op), op.regions

    def side(region: Region) -> Callable[[Any], Any]:
        def run(packed: tuple[list[Any], list[Any]]) -> tuple[list[Any], list[Any]]:
            inner = _inside(state, region, packed[0], stored, packed[1])
            out = _run_region(program, region, inner)
            # Both sides yield what the tiles around the branch give a variable, even where one of them has more.
            values = [_first_carry(program, state, v, p) for v, p in zip(out, region.params, strict=True)]
            return values, [inner.env[t] for t in stored]

        return run

    first = [_first_carry(program, state, x, p) for x, p in zip(inits_of(op), regions[0].params, strict=True)]
    packed = (first, [state.env[t] for t in stored])
    values, contents = lax.cond(_value(state, op.args[0]), side(regions[0]), side(regions[1]), packed)
    state.env.update(zip((*op.results, *stored), (*values, *contents), strict=True))


def _while(program: Program, op: Op, state: State) -> None:
    stored, (test, body) = _stored(op), op.regions

    def holds(packed: tuple[list[Any], list[Any]]) -> Any:
        return jnp.asarray(_run_region(program, test, _inside(state, test, packed[0], stored, packed[1]))[0], jnp.bool_)

    def again(packed: tuple[list[Any], list[Any]]) -> tuple[list[Any], list[Any]]:
        inner = _inside(state, body, packed[0], stored, packed[1])
        out = _run_region(program, body, inner)
        return [_next_carry(v, c) for v, c in zip(out, packed[0], strict=True)], [inner.env[t] for t in stored]

    first = [_first_carry(program, state, x, p) for x, p in zip(inits_of(op), body.params, strict=True)]
    values, contents = lax.while_loop(holds, again, (first, [state.env[t] for t in stored]))
    state.env.update(zip((*op.results, *stored), (*values, *contents), strict=True))


def _walk_axes(program: Program, axes: tuple[Any, ...], region: Region, state: State, carried: list[Any], stored: list[int]) -> list[Any]:
    """Runs ``region`` for every tile of ``axes``, the first axis outermost; returns the carried values."""
    if not axes:
        inner = _inside(state, region, carried, (), ())
        out = _run_region(program, region, inner)
        for target in stored:
            state.env[target] = inner.env[target]
        return [_next_carry(v, c) for v, c in zip(out, carried, strict=True)]
    axis = program.axes[axes[0]]
    begin, end, size = _bound(axis.begin, state), _bound(axis.end, state), state.blocks[axis.block]

    def step(tile: Tile, packed: tuple[list[Any], list[Any]]) -> tuple[list[Any], list[Any]]:
        values, contents = packed
        local = State({**state.env, **dict(zip(stored, contents, strict=True))}, {**state.tiles, axes[0]: tile}, state.blocks, state.tags)
        values = _walk_axes(program, axes[1:], region, local, values, stored)
        return values, [local.env[t] for t in stored]

    packed = (carried, [state.env[t] for t in stored])
    packed = _tiles(begin, end, size, step, packed, _is_whole(program, axes[0], region, state))
    for target, content in zip(stored, packed[1], strict=True):
        state.env[target] = content
    return packed[0]


def _next_carry(value: Any, carry: jax.Array) -> jax.Array:
    """``value`` as the next ``carry``. Elements that the ragged last tile of the loop does not have keep what they held."""
    value = jnp.asarray(value, carry.dtype)
    if value.ndim == 0 or value.shape == carry.shape:
        return jnp.broadcast_to(value, carry.shape)
    part = tuple(slice(0, min(n, m)) for n, m in zip(value.shape, carry.shape, strict=True))
    return carry.at[part].set(value[part])


def _is_whole(program: Program, axis: int, region: Region, state: State) -> bool:
    """Whether a last tile of ``axis`` is to be run as one, if its size is known only at run time: one program for each size.

    It is if results may depend on what is one tile. Those may that scan or select along the tile, that use its number, or that
    write and mix elements of the tile: the body is not understood. With a small block, whose size somebody chose or which
    shows in a result, any may. Raises ``PlanError`` where that would be too many programs: in pieces it could be wrong.
    """
    block = program.axes[axis].block
    chosen = program.blocks[block].fixed is not None or depends_on_blocks(program)
    if chosen and state.blocks[block] <= _WHOLE:
        return True
    body = list(walk(region))

    def mixes(ops: Iterable[Op]) -> bool:
        values = [ref.id for op in ops for ref in refs_in(op.args)]
        return any(tag.axis == axis for value in values for tags in state.tags.get(value, ()) for tag in tags)

    numbered = any(op.name == "hl.tile_id" and op.args[0] == axis for op in body)
    ordered = mixes(op for op in body if op.name == "hl.scan" or kind_of(op.name) is Kind.OTHER)
    reduced = any(map(has_effect, region.ops)) and mixes(op for op in body if kind_of(op.name) in (Kind.REDUCTION, Kind.CONTRACT))
    whole = numbered or ordered or reduced
    if whole and state.blocks[block] > _MOST_WHOLE:
        raise PlanError(
            f"the reference path has no way to run a last tile whose size is known only at run time of blocks of {state.blocks[block]}",
            kernel=program.name,
            file=program.file,
            line=program.first_line,
            hint=f"results may depend on what is one tile; with blocks of up to {_MOST_WHOLE} it has one",
        )
    return whole


def _tiles(begin: Any, end: Any, size: int, step: Callable[[Tile, Any], Any], packed: Any, is_whole: bool) -> Any:
    """``step`` for every tile. ``is_whole``: the last one is not cut in pieces."""
    if isinstance(begin, int) and isinstance(end, int):
        extent = max(0, end - begin)
        full, tail = divmod(extent, min(size, extent) or 1)
        size = min(size, extent)
        if full == 1:
            packed = step(Tile(begin, size, 0), packed)
        elif full:
            packed = lax.fori_loop(0, full, lambda i, p: step(Tile(begin + i * size, size, i), p), packed)
        return step(Tile(begin + full * size, tail, full), packed) if tail else packed
    # Bounds known only at run time: the full tiles, then what is left.
    extent = jnp.maximum(0, jnp.asarray(end, jnp.int32) - jnp.asarray(begin, jnp.int32))
    full = extent // size
    packed = lax.fori_loop(0, full, lambda i, p: step(Tile(begin + i * size, size, i), p), packed)
    at, left = begin + full * size, extent % size
    if is_whole:
        tails = [lambda p, n=n: step(Tile(at, n, full), p) for n in range(1, size)]
        return lax.switch(left, [lambda p: p, *tails], packed)
    return _pieces(at, left, size, full, step, packed)


def _pieces(at: Any, left: Any, size: int, number: Any, step: Callable[[Tile, Any], Any], packed: Any) -> Any:
    """A last tile of ``left`` elements, less than ``size``, in pieces of powers of two, each run or not: few programs to compile."""
    piece = 1 << max(0, (size - 1).bit_length() - 1)
    while piece and size > 1:
        run = (left & piece) != 0
        packed = lax.cond(run, lambda p, at=at, piece=piece: step(Tile(at, piece, number), p), lambda p: p, packed)
        at = at + jnp.where(run, piece, 0)
        piece >>= 1
    return packed


def _bound(bound: Any, state: State) -> Any:
    if isinstance(bound, Ref):
        return state.env[bound.id]
    return evaluate(bound, state.blocks)
