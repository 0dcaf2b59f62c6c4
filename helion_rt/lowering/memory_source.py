"""The helpers of gathers, scatters and atomics (see ``helpers``): their source is written into the kernels that call them.

Untyped, as they are to be read there. ``dims`` are the dimensions that index tensors index, in ascending order.
"""

from __future__ import annotations

import functools
import inspect

import jax.numpy as jnp
from jax import lax


def _exist(shape, *bounds):
    """Which elements of shape exist. A bound is (dimension, first position, end)."""
    tests = [begin + lax.broadcasted_iota(jnp.int32, shape, dim) < end for dim, begin, end in bounds]
    return functools.reduce(jnp.logical_and, tests)


def _wrap(position, extent):
    """Positions along a dimension, where negative ones count from its end; those that are outside become extent."""
    position = position.astype(jnp.int32)
    position = jnp.where(position < 0, position + extent, position)
    return jnp.where((position < 0) | (position > extent), extent, position)


def _take(x, dims, *positions):
    """x at positions along dims; their common shape takes the place of the first of dims. What is outside gives anything."""
    index = [slice(None)] * x.ndim
    for dim, at in zip(dims, positions, strict=True):
        index[dim] = _wrap(at, x.shape[dim])
    taken = x.at[tuple(index)].get(mode="clip")
    if dims[-1] - dims[0] == len(dims) - 1:
        return taken
    rank = max(at.ndim for at in positions)
    return jnp.moveaxis(taken, range(rank), range(dims[0], dims[0] + rank))


def _put(x, dims, positions, value, keep=None, how="set"):
    """x with value at positions along dims (laid out as _take gives it) where keep holds; what is outside is dropped.

    how: set, add, max or min. Where a position comes twice, set keeps the last value, the others combine all.
    """
    first, rank = dims[0], max(at.ndim for at in positions)
    places = jnp.broadcast_arrays(*(_wrap(at, x.shape[dim]) for dim, at in zip(dims, positions, strict=True)))
    index = [slice(None)] * x.ndim
    rows = keep is None or all(first <= d < first + rank for d, n in enumerate(keep.shape) if n > 1)
    if rows:
        if keep is not None:
            places[0] = jnp.where(keep.reshape(keep.shape[first : first + rank]), places[0], x.shape[first])
        if dims[-1] - first != len(dims) - 1:
            value = jnp.moveaxis(value, range(first, first + rank), range(rank))
    else:
        # Some elements of a row are kept and some are not: each is put by itself.
        rest = [d for d in range(x.ndim) if d not in dims]
        for n, dim in enumerate(rest):
            index[dim] = lax.broadcasted_iota(jnp.int32, value.shape, n if dim < first else n + rank)
        places = [at.reshape((1,) * first + at.shape + (1,) * (value.ndim - first - rank)) for at in places]
        places[0] = jnp.where(keep, places[0], x.shape[first])
    for dim, at in zip(dims, places, strict=True):
        index[dim] = at
    narrow = how == "add" and jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4
    target = x.astype(jnp.float32) if narrow else x
    return getattr(target.at[tuple(index)], how)(value.astype(target.dtype), mode="drop").astype(x.dtype)


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


HELPERS = {f.__name__: "\n" + inspect.getsource(f) for f in (_exist, _wrap, _take, _put, _each)}
