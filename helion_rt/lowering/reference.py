"""The reference path: a program in plain ``jax.numpy``, tile loop by tile loop, without Pallas and without masks.

It judges every candidate and is the last resort of every call. Tiles have their true sizes: full ones in a
``fori_loop``, the ragged last one by itself, so no element that does not exist is ever computed (see ``sizes``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..exc import PlanError
from ..program.expr import BinExpr, Block, blocks_in, evaluate
from ..program.ir import Axis, Op, Program, Ref, Region, Span, TileIndex, output_leaves, walk
from .evaluate import apply, count, shape_of
from .legalize import legalize
from .masks import Tags, infer_tags

_BLOCK = 128  # tile size of the reference path: small enough for memory, large enough that few tiles are walked


@dataclasses.dataclass(frozen=True)
class Tile:
    """The current tile of an axis: ``begin`` and ``id`` may be traced, ``size`` is a number."""

    begin: Any
    size: int
    id: Any


@dataclasses.dataclass
class State:
    """What evaluation knows: values by id, the current tile of each axis, the present contents of host tensors."""

    env: dict[int, Any]
    tiles: dict[int, Tile]
    blocks: Sequence[int]
    tags: dict[int, Tags] = dataclasses.field(default_factory=dict)  # which axes bound the values of the current launch


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
        case "hl.load":
            state.env[op.results[0]] = _load(program, op, state)
        case "hl.store":
            _store(program, op, state)
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
        case _:
            state.env[op.results[0]] = apply(program, op, state.env, state.blocks)


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
    last = _walk_axes(program, axes, region, state, carried, _stored(region))
    for result, value in zip(op.results, last, strict=True):
        state.env[result] = value


def _first_carry(program: Program, state: State, init: Any, param: int) -> jax.Array:
    """A carried variable at the start of a loop. It has no more elements than the tiles around the loop give it."""
    value = jnp.asarray(_value(state, init), program.types[param].dtype)
    full = shape_of(program, param, state.blocks)
    bound = [min([n, *(state.tiles[a].size for a in axes if a in state.tiles)]) for n, axes in zip(full, state.tags[param], strict=True)]
    if value.ndim == 0:
        return jnp.broadcast_to(value, bound)
    size = tuple(map(min, bound, value.shape))
    return lax.slice(value, (0,) * len(size), size)


def _stored(region: Region) -> list[int]:
    """Host tensors that a region stores to, by value id."""
    found: dict[int, None] = {}
    for op in walk(region):
        if op.name == "hl.store" and isinstance(op.args[0], Ref):
            found[op.args[0].id] = None
    return list(found)


def _walk_axes(program: Program, axes: tuple[Any, ...], region: Region, state: State, carried: list[Any], stored: list[int]) -> list[Any]:
    """Runs ``region`` for every tile of ``axes``, the first axis outermost; returns the carried values."""
    if not axes:
        inner = State({**state.env}, state.tiles, state.blocks, state.tags)
        inner.env.update(zip(region.params, carried, strict=True))
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
    packed = _tiles(axis, begin, end, size, step, packed)
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


def _tiles(axis: Axis, begin: Any, end: Any, size: int, step: Callable[[Tile, Any], Any], packed: Any) -> Any:
    if isinstance(begin, int) and isinstance(end, int):
        extent = max(0, end - begin)
        full, tail = divmod(extent, min(size, extent) or 1)
        size = min(size, extent)
        if full == 1:
            packed = step(Tile(begin, size, 0), packed)
        elif full:
            packed = lax.fori_loop(0, full, lambda i, p: step(Tile(begin + i * size, size, i), p), packed)
        return step(Tile(begin + full * size, tail, full), packed) if tail else packed
    # Bounds known only at run time: the full tiles, then what is left in pieces of powers of two, each run or not.
    extent = jnp.maximum(0, jnp.asarray(end, jnp.int32) - jnp.asarray(begin, jnp.int32))
    full = extent // size
    packed = lax.fori_loop(0, full, lambda i, p: step(Tile(begin + i * size, size, i), p), packed)
    at, left = begin + full * size, extent % size
    piece = 1 << max(0, (size - 1).bit_length() - 1)
    while piece and size > 1:
        run = (left & piece) != 0
        packed = lax.cond(run, lambda p, at=at, piece=piece: step(Tile(at, piece, full), p), lambda p: p, packed)
        at = at + jnp.where(run, piece, 0)
        piece >>= 1
    return packed


def _bound(bound: Any, state: State) -> Any:
    if isinstance(bound, Ref):
        return state.env[bound.id]
    return evaluate(bound, state.blocks)


@dataclasses.dataclass(frozen=True)
class Window:
    """Where an index points: slice starts and sizes for each dimension, those to drop, and at most one gather."""

    starts: tuple[Any, ...]
    sizes: tuple[int, ...]
    shape: tuple[int, ...]  # of the slice, dropped and added dimensions applied, before the gather
    gather: tuple[int, Any] | None  # (dimension after dropping, indices)
    step: tuple[int, ...]
    keep: tuple[bool, ...]  # which dimensions of the tensor are not dropped


def _window(index: tuple[Any, ...], shape: tuple[int, ...], state: State) -> Window:
    starts, sizes, kept, steps, keeps = [], [], [], [], []
    gather = None
    dim = 0
    for element in index:
        if element is None:
            kept.append(1)
            continue
        start, size, step, keep = 0, shape[dim], 1, True
        if isinstance(element, TileIndex):
            tile = state.tiles[element.axis]
            start, size = tile.begin, tile.size
        elif isinstance(element, Span):
            first, stop = (None if x is None else evaluate(x, state.blocks) for x in (element.start, element.stop))
            start, stop, step = slice(first, stop, element.step).indices(shape[dim])
            size = max(0, stop - start)
        elif isinstance(element, Ref) and state.env[element.id].ndim > 0:
            if gather is not None:
                raise PlanError("more than one index tensor in a subscript is not supported yet")
            gather = (len(kept), state.env[element.id])
        else:
            dynamic = isinstance(element, Ref)
            start = _wrapped(state.env[element.id], shape[dim]) if dynamic else _static_index(element, shape[dim], state)
            size, keep = 1, False
        starts.append(start)
        sizes.append(size)
        steps.append(step)
        keeps.append(keep)
        if keep:
            kept.append(-(-size // step))
        dim += 1
    return Window(tuple(starts), tuple(sizes), tuple(kept), gather, tuple(steps), tuple(keeps))


def _static_index(element: Any, extent: int, state: State) -> int:
    value = evaluate(element, state.blocks) if isinstance(element, (int, Block, BinExpr)) else int(element)
    return value + extent if value < 0 else value


def _wrapped(position: jax.Array, extent: int) -> jax.Array:
    """A position known only at run time by PyTorch's rule: negative ones count from the end. Never outside of the tensor."""
    return jnp.clip(jnp.where(position < 0, position + extent, position), 0, max(0, extent - 1))


def _slice(array: jax.Array, window: Window) -> jax.Array:
    if all(isinstance(s, int) for s in window.starts):
        return lax.slice(array, window.starts, [a + n for a, n in zip(window.starts, window.sizes, strict=True)], window.step)
    part = lax.dynamic_slice(array, [jnp.asarray(s, jnp.int32) for s in window.starts], window.sizes)
    return part if set(window.step) <= {1} else part[tuple(slice(None, None, s) for s in window.step)]


def _room(program: Program, index: tuple[Any, ...], array: jax.Array, state: State) -> jax.Array:
    """``array`` with room for tiles that reach past it, where an axis is longer than the dimension."""
    pads = []
    for element, extent in zip((e for e in index if e is not None), array.shape, strict=True):
        last: int | None = extent
        if isinstance(element, TileIndex):
            axis = program.axes[element.axis]
            last = axis.limit if isinstance(axis.end, Ref) else evaluate(axis.end, state.blocks)
        pads.append((0, max(0, (last or extent) - extent)))
    return jnp.pad(array, pads) if any(n for _, n in pads) else array


def _load(program: Program, op: Op, state: State) -> jax.Array:
    tensor, index = op.args[0], op.args[1]
    assert isinstance(tensor, Ref) and isinstance(index, tuple)
    array = _room(program, index, state.env[tensor.id], state)
    window = _window(index, array.shape, state)
    part = _slice(array, window).reshape(window.shape)
    if window.gather is None:
        return part
    dim, positions = window.gather
    return jnp.take(part, _wrapped(positions, part.shape[dim]), axis=dim)


def _store(program: Program, op: Op, state: State) -> None:
    tensor, index, value = op.args[:3]
    assert isinstance(tensor, Ref) and isinstance(index, tuple)
    old = state.env[tensor.id]
    array = _room(program, index, old, state)
    window = _window(index, array.shape, state)
    if window.gather is not None:
        raise PlanError("storing through an index tensor is not supported yet", file=program.file, line=op.line)
    part, sizes = _cut_to_window(program, state, value, window, array.dtype)
    if set(window.step) <= {1}:
        array = lax.dynamic_update_slice(array, part.reshape(sizes), [jnp.asarray(s, jnp.int32) for s in window.starts])
    else:
        slices = tuple(slice(a, a + n, s) for a, n, s in zip(window.starts, sizes, window.step, strict=True))
        array = array.at[slices].set(part.reshape(array[slices].shape))
    state.env[tensor.id] = array if array is old or array.shape == old.shape else lax.slice(array, (0,) * old.ndim, old.shape)


def _cut_to_window(program: Program, state: State, value: Any, window: Window, dtype: Any) -> tuple[jax.Array, tuple[int, ...]]:
    """What is stored, broadcast to the window, and the sizes that are written: elements that ``value`` does not have are not."""
    array = jnp.asarray(_value(state, value), dtype)
    if not isinstance(value, Ref) or array.ndim == 0:
        return jnp.broadcast_to(array, window.shape), window.sizes
    at = len(window.shape) - array.ndim
    full = shape_of(program, value.id, state.blocks)
    have = [n if f == 1 else min(n, m) for f, n, m in zip(full, window.shape[at:], array.shape, strict=True)]
    array = lax.slice(array, (0,) * array.ndim, [m if f == 1 else n for f, n, m in zip(full, have, array.shape, strict=True)])
    shape = (*window.shape[:at], *have)
    if shape == window.shape:
        return jnp.broadcast_to(array, shape), window.sizes
    kept = iter(shape)
    return jnp.broadcast_to(array, shape), tuple(next(kept) if k else n for n, k in zip(window.sizes, window.keep, strict=True))
