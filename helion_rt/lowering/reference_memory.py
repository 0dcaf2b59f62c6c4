"""Loads, stores and atomics of the reference path: tiles of their true sizes, so an element that does not exist is never touched."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..program.expr import BinExpr, Block, evaluate
from ..program.ir import Arg, Op, Program, Ref, Span, TileIndex
from .evaluate import resolve, shape_of
from .helpers import functions
from .masks import Tags
from .memory import SCATTERS, Memory, common_shape, memory_of, selected_dims
from .ops import LOW_PRECISION
from .sizes import common, prefix

Shape = tuple[int, ...]


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


@dataclasses.dataclass(frozen=True)
class Selection:
    """What an index selects of an array, in true sizes.

    The array is first cut to a slice for each of its dimensions (of size 1 where a single position selects); ``kept`` is the
    shape of that with single positions dropped and new dimensions added. Index tensors then apply to dimensions ``dims`` of it.
    """

    starts: tuple[Any, ...]
    sizes: Shape
    steps: Shape
    kept: Shape
    dims: Shape
    positions: tuple[jax.Array, ...]
    shape: Shape  # of what is selected
    full: Shape  # the same as the types have it: what a dimension is recognised by
    inside: Any  # whether all single positions are inside of the array


def select(program: Program, memory: Memory, extents: Shape, state: State, parts: Sequence[Arg] = ()) -> Selection:
    """``parts`` are values that go with the selection: it is cut to the elements that all of them have."""
    full_shape = _full_shape(program, memory, extents, state)
    shape = _true_shape(program, memory, full_shape, state, parts)
    dims = selected_dims(memory.index, lambda v: shape_of(program, v, state.blocks))
    wanted = {s.dim: n for s, n in zip(dims, shape, strict=True) if s.dim is not None}
    common_dims = [n for s, n in zip(dims, shape, strict=True) if s.common is not None]
    starts, sizes, steps, kept, gathers, positions = [], [], [], [], [], []
    inside: Any = True
    dim = 0
    for element in memory.index:
        if element is None:
            kept.append(1)
            continue
        extent = extents[dim]
        start, size, step = 0, extent, 1
        if isinstance(element, TileIndex):
            start, size = state.tiles[element.axis].begin, wanted[dim]
        elif isinstance(element, Span):
            start, _, step = _span(element, extent, state)
            size = (wanted[dim] - 1) * step + 1 if wanted[dim] else 0
        elif isinstance(element, Ref) and state.env[element.id].ndim:
            gathers.append(len(kept))
            at = state.env[element.id]
            at = at[tuple(slice(0, min(n, m)) for n, m in zip(at.shape, common_dims[len(common_dims) - at.ndim :], strict=True))]
            positions.append(at.reshape((1,) * (len(common_dims) - at.ndim) + at.shape))
        elif isinstance(element, Ref):
            position = state.env[element.id].astype(jnp.int32)
            inside = inside & (position >= -extent) & (position < extent)
            start, size = jnp.clip(jnp.where(position < 0, position + extent, position), 0, max(0, extent - 1)), 1
        else:
            value = evaluate(element, state.blocks) if isinstance(element, (int, Block, BinExpr)) else 0
            start, size = value + extent if value < 0 else value, 1
        starts.append(start)
        sizes.append(size)
        steps.append(step)
        if isinstance(element, (TileIndex, Span)) or (gathers and gathers[-1] == len(kept)):
            kept.append(-(-size // step))
        dim += 1
    return Selection(tuple(starts), tuple(sizes), tuple(steps), tuple(kept), tuple(gathers), tuple(positions), shape, full_shape, inside)


def _span(span: Span, extent: int, state: State) -> tuple[int, int, int]:
    first, last = (None if x is None else evaluate(x, state.blocks) for x in (span.start, span.stop))
    start, stop, step = slice(first, last, span.step).indices(extent)
    return start, max(start, stop), step


def _full_shape(program: Program, memory: Memory, extents: Shape, state: State) -> Shape:
    """The shape of what is selected, by the sizes of blocks."""
    shapes = [shape_of(program, e.id, state.blocks) for e in memory.index if isinstance(e, Ref)]
    positions = common_shape(shapes) if shapes else ()
    out = []
    for s in selected_dims(memory.index, lambda v: shape_of(program, v, state.blocks)):
        if s.common is not None:
            out.append(positions[s.common])
        elif isinstance(s.element, TileIndex):
            out.append(state.blocks[program.axes[s.element.axis].block])
        elif isinstance(s.element, Span) and s.dim is not None:
            out.append(len(range(*_span(s.element, extents[s.dim], state))))
        else:
            out.append(1)
    return tuple(out)


def _true_shape(program: Program, memory: Memory, full: Shape, state: State, parts: Sequence[Arg]) -> Shape:
    """What there is of ``full``: tiles, index tensors, and ``parts`` may all have fewer elements."""
    dims = selected_dims(memory.index, lambda v: shape_of(program, v, state.blocks))
    shape = [
        min(n, state.tiles[s.element.axis].size) if isinstance(s.element, TileIndex) else n for s, n in zip(dims, full, strict=True)
    ]
    last = max((d for d, s in enumerate(dims) if s.common is not None), default=0) + 1
    values = [(e, full[:last]) for e in memory.index if isinstance(e, Ref) and state.env[e.id].ndim]
    values += [(p, full) for p in parts if isinstance(p, Ref) and state.env[p.id].ndim]
    for ref, against in values:
        found = common([shape_of(program, ref.id, state.blocks)], [state.env[ref.id].shape], against)
        shape[: len(found)] = map(min, shape, found)
    return tuple(shape)


def _room(program: Program, memory: Memory, array: jax.Array, state: State) -> jax.Array:
    """``array`` with room for tiles that reach past it."""
    pads = []
    for element, extent in zip((e for e in memory.index if e is not None), array.shape, strict=True):
        last = extent
        if isinstance(element, TileIndex):
            axis = program.axes[element.axis]
            bound = axis.limit if isinstance(axis.end, Ref) else evaluate(axis.end, state.blocks)
            last = extent + state.blocks[axis.block] if bound is None else bound
        pads.append((0, max(0, last - extent)))
    return jnp.pad(array, pads) if any(n for _, n in pads) else array


def _cut(array: jax.Array, at: Selection) -> jax.Array:
    """The slice of ``array``, in shape ``at.kept``."""
    if all(isinstance(s, int) for s in at.starts):
        part = lax.slice(array, at.starts, [a + n for a, n in zip(at.starts, at.sizes, strict=True)])
    else:
        part = lax.dynamic_slice(array, [jnp.asarray(s, jnp.int32) for s in at.starts], at.sizes)
    return part[tuple(slice(None, None, s) for s in at.steps)].reshape(at.kept)


def _write_back(array: jax.Array, at: Selection, part: jax.Array, old: jax.Array) -> jax.Array:
    """``array`` with its slice replaced by ``part`` (of shape ``at.kept``), without the room it was given."""
    sizes = tuple(-(-n // s) for n, s in zip(at.sizes, at.steps, strict=True))
    part = part.reshape(sizes)
    if set(at.steps) <= {1}:
        array = lax.dynamic_update_slice(array, part, [jnp.asarray(s, jnp.int32) for s in at.starts])
    else:
        slices = tuple(
            lax.convert_element_type(start + step * lax.broadcasted_iota(jnp.int32, sizes, d), jnp.int32)
            for d, (start, step) in enumerate(zip(at.starts, at.steps, strict=True))
        )
        array = array.at[slices].set(part)
    return array if array.shape == old.shape else lax.slice(array, (0,) * old.ndim, old.shape)


def _fitted(program: Program, value: Arg, at: Selection, dtype: Any, state: State) -> jax.Array:
    """``value`` broadcast to what is selected, elements that others lack left out."""
    if not isinstance(value, Ref):
        return jnp.full(at.shape, resolve(value, state.blocks), dtype)
    array = jnp.asarray(state.env[value.id], dtype)
    if array.ndim:
        kept = prefix(shape_of(program, value.id, state.blocks), array.shape, at.shape, at.full)
        array = lax.slice(array, (0,) * array.ndim, kept)
    return jnp.broadcast_to(array, at.shape)


def load(program: Program, op: Op, state: State) -> jax.Array:
    memory = _memory(op)
    array = _room(program, memory, state.env[memory.tensor.id], state)
    at = select(program, memory, array.shape, state, (memory.mask,))
    if 0 in array.shape:
        return jnp.zeros(at.shape, array.dtype)
    return _masked(program, memory, _selected(_cut(array, at), at), at, state)


def _selected(part: jax.Array, at: Selection) -> jax.Array:
    return functions()["_take"](part, at.dims, at.positions) if at.dims else part


def _masked(program: Program, memory: Memory, taken: jax.Array, at: Selection, state: State) -> jax.Array:
    if memory.mask is None:
        return taken
    return jnp.where(_fitted(program, memory.mask, at, jnp.bool_, state), taken, jnp.zeros((), taken.dtype))


def _keep(program: Program, memory: Memory, at: Selection, state: State) -> jax.Array:
    mask: Arg = True if memory.mask is None else memory.mask
    return _fitted(program, mask, at, jnp.bool_, state) & at.inside


def store(program: Program, op: Op, state: State) -> None:
    memory = _memory(op)
    old = state.env[memory.tensor.id]
    if 0 in old.shape:
        return
    array = _room(program, memory, old, state)
    at = select(program, memory, array.shape, state, (memory.value, memory.mask))
    value, held, keep = _fitted(program, memory.value, at, array.dtype, state), _cut(array, at), _keep(program, memory, at, state)
    part = functions()["_put"](held, at.dims, at.positions, value, keep) if at.dims else jnp.where(keep, value, held)
    state.env[memory.tensor.id] = _write_back(array, at, part, old)


CHANGES: dict[str, Callable[..., jax.Array]] = {
    "add": lambda held, new: held + new, "max": jnp.maximum, "min": jnp.minimum,
    "and": lambda held, new: held & new, "or": lambda held, new: held | new, "xor": lambda held, new: held ^ new,
    "xchg": lambda held, new: new, "cas": lambda held, new, expected: jnp.where(held == expected, new, held),
}  # fmt: skip


def atomic(program: Program, op: Op, state: State) -> jax.Array:
    """Applies the atomic; returns what the elements held before. Where one comes twice, each turn sees what the last one left."""
    memory = _memory(op)
    assert memory.kind is not None
    old = state.env[memory.tensor.id]
    array = _room(program, memory, old, state)
    given = [memory.value] if memory.kind != "cas" else [memory.value, memory.expected]
    at = select(program, memory, array.shape, state, (*given, memory.mask))
    if 0 in array.shape:
        return jnp.zeros(at.shape, array.dtype)
    held, keep, change = _cut(array, at), _keep(program, memory, at, state), CHANGES[memory.kind]
    values = [_fitted(program, x, at, array.dtype, state) for x in given]
    if at.dims:
        # Sums of a narrow type are rounded once. What is unused of this (the loop, or its sums) the compiler drops.
        wide = jnp.float32 if memory.kind == "add" and array.dtype.name in LOW_PRECISION else array.dtype
        wider = tuple(v.astype(wide) for v in values)
        part, before = functions()["_each"](held.astype(wide), at.dims, at.positions, wider, keep, change)
        part, before = part.astype(array.dtype), before.astype(array.dtype)
        if memory.kind in SCATTERS:
            part = functions()["_put"](held, at.dims, at.positions, values[0], keep, SCATTERS[memory.kind])
    else:
        part, before = jnp.where(keep, change(held, *values), held), held
    state.env[memory.tensor.id] = _write_back(array, at, part, old)
    return _masked(program, memory, before, at, state)


def _memory(op: Op) -> Memory:
    memory = memory_of(op)
    assert memory is not None
    return memory


__all__ = ["State", "Tile", "atomic", "load", "store"]
