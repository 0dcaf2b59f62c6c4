"""The helpers of gathers, scatters and atomics (see ``helpers``): their source is written into the kernels that call them.

Untyped, as they are to be read there. ``dims`` are the dimensions that index tensors index, in ascending order.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp
from jax import lax

from .own_text import texts_of


def _exist(shape, *bounds):
    """Which elements of shape exist. A bound is (dimension, first position, end)."""
    tests = [begin + lax.broadcasted_iota(jnp.int32, shape, dim) < end for dim, begin, end in bounds]
    return functools.reduce(jnp.logical_and, tests)


def _wrap(position, extent):
    """Positions along a dimension, where negative ones count from its end; those that are outside become extent."""
    position = position.astype(jnp.int32)
    position = jnp.where(position < 0, position + extent, position)
    return jnp.where((position < 0) | (position > extent), extent, position)


def _offsets(ndim, dims, rank):
    """Where the dimensions that are not in dims are in what is selected, where rank dimensions take the place of the first of dims."""
    rest = [d for d in range(ndim) if d not in dims]
    return [n if d < dims[0] else n + rank for n, d in enumerate(rest)]


def _take(x, dims, positions, starts=None, sizes=None, over=()):
    """x at positions along dims; their common shape takes the place of the first of dims. What is outside gives anything.

    Along each other dimension: sizes elements from starts (None: all); those of over may reach past the end.
    """
    rank, common = max(at.ndim for at in positions), jnp.broadcast_shapes(*(at.shape for at in positions))
    starts, sizes = list(starts or [0] * x.ndim), list(sizes or x.shape)
    offsets, shifts = _offsets(x.ndim, dims, rank), []
    for dim, offset in zip([d for d in range(x.ndim) if d not in dims], offsets, strict=True):
        if dim in over:
            held = min(sizes[dim], x.shape[dim])
            begin = jnp.clip(starts[dim], 0, x.shape[dim] - held)
            shifts.append((offset, sizes[dim], starts[dim] - begin))
            starts[dim], sizes[dim] = begin, held
    for dim, at in zip(dims, positions, strict=True):
        starts[dim], sizes[dim] = jnp.minimum(_wrap(at, x.shape[dim]), x.shape[dim] - 1), 1
    moving = [d for d in range(x.ndim) if not isinstance(starts[d], int) or starts[d]]
    index = jnp.stack([jnp.broadcast_to(jnp.asarray(starts[d], jnp.int32), common) for d in moving], -1)
    numbers = lax.GatherDimensionNumbers(offset_dims=tuple(offsets), collapsed_slice_dims=dims, start_index_map=tuple(moving))
    taken = lax.gather(x, index, numbers, tuple(sizes), mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS)
    for dim, size, shift in shifts:
        taken = jnp.pad(taken, [(0, size if d == dim else 0) for d in range(taken.ndim)])
        taken = lax.dynamic_slice_in_dim(taken, shift, size, dim)
    return taken


def _put(x, dims, positions, value, keep=None, how="set", starts=None):
    """x with value at positions along dims (laid out as _take gives it) where keep holds; what is outside is dropped.

    how: set, add, max or min. Where a position comes twice, set keeps the last value, the others combine all. Along each
    other dimension the value begins at starts (None: 0).
    """
    first, rank = dims[0], max(at.ndim for at in positions)
    common = value.shape[first : first + rank]
    places = [jnp.broadcast_to(_wrap(at, x.shape[dim]), common) for dim, at in zip(dims, positions, strict=True)]
    starts, offsets = list(starts or [0] * x.ndim), _offsets(x.ndim, dims, rank)
    if keep is not None and any(n > 1 for d, n in enumerate(keep.shape) if not first <= d < first + rank):
        # Some elements of a row are kept and some are not: each is put by itself.
        index = [None] * x.ndim
        for dim, offset in zip([d for d in range(x.ndim) if d not in dims], offsets, strict=True):
            index[dim] = starts[dim] + lax.broadcasted_iota(jnp.int32, value.shape, offset)
        for dim, at in zip(dims, places, strict=True):
            index[dim] = jnp.broadcast_to(at.reshape((1,) * first + common + (1,) * (value.ndim - first - rank)), value.shape)
        index[first] = jnp.where(keep, index[first], x.shape[first])
        index, moving, offsets, dims = jnp.stack(index, -1), tuple(range(x.ndim)), (), tuple(range(x.ndim))
    else:
        if keep is not None:
            places[0] = jnp.where(keep.reshape(keep.shape[first : first + rank]), places[0], x.shape[first])
        for dim, at in zip(dims, places, strict=True):
            starts[dim] = at
        moving = tuple(d for d in range(x.ndim) if not isinstance(starts[d], int) or starts[d])
        index = jnp.stack([jnp.broadcast_to(jnp.asarray(starts[d], jnp.int32), common) for d in moving], -1)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(offsets), inserted_window_dims=dims, scatter_dims_to_operand_dims=moving
    )
    narrow = how == "add" and jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4
    target = x.astype(jnp.float32) if narrow else x
    scatter = {"set": lax.scatter, "add": lax.scatter_add, "max": lax.scatter_max, "min": lax.scatter_min}[how]
    mode = lax.GatherScatterMode.FILL_OR_DROP
    return scatter(target, index, value.astype(target.dtype), numbers, mode=mode).astype(x.dtype)


def _each(x, dims, positions, values, keep, change):
    """x after change(held, *values) at positions along dims, one position after the other, where keep holds.

    Also what each position held before its turn, laid out as _take gives it.
    """
    first, rank = dims[0], max(at.ndim for at in positions)
    places = jnp.broadcast_arrays(*(_wrap(at, x.shape[dim]) for dim, at in zip(dims, positions, strict=True)))
    shape, count = places[0].shape, places[0].size
    places = [at.reshape(count) for at in places]
    sizes = [1 if d in dims else n for d, n in enumerate(x.shape)]
    out = values[0].shape
    to, back = range(first, first + rank), range(rank)
    moved = [jnp.moveaxis(v, to, back).reshape(count, *sizes) for v in (*values, jnp.broadcast_to(keep, out))]

    def step(i, state):
        x, before = state
        inside = functools.reduce(jnp.logical_and, [at[i] < x.shape[dim] for dim, at in zip(dims, places, strict=True)])
        start = [0] * x.ndim
        for dim, at in zip(dims, places, strict=True):
            start[dim] = at[i]
        held = lax.dynamic_slice(x, start, sizes)
        *new, kept = [v[i] for v in moved]
        x = lax.dynamic_update_slice(x, jnp.where(kept & inside, change(held, *new), held), start)
        return x, lax.dynamic_update_slice(before, held[None], [i] + [0] * x.ndim)

    x, before = lax.fori_loop(0, count, step, (x, jnp.zeros((count, *sizes), x.dtype)))
    rest = [n for d, n in enumerate(x.shape) if d not in dims]
    return x, jnp.moveaxis(before.reshape(*shape, *rest), back, to)


HELPERS = texts_of(_exist, _wrap, _offsets, _take, _put, _each)
