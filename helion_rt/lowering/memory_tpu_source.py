"""The helpers of gathers, scatters and atomics on a TPU (see ``helpers``): one position after the other.

Mosaic has no gather and no scatter. A position is taken out of its vector as a scalar; what is there is read, and written, by a
dynamic slice of the reference where that is possible (major dimensions, and rows of 32-bit words), else by comparing positions
along an aligned part of the dimension. ``index`` is the subscript of the reference, ``dims`` its dimensions that index tensors
index, ``extents`` how long the tensor is there. Index tensors' common shape is dimensions ``first`` to ``first + rank`` of what
is selected, of shape ``shape``.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from .own_text import texts_of


def _wide(x):
    """x in 32 bits: what a TPU selects, sums and shifts."""
    return x if x.dtype.itemsize == 4 else x.astype(jnp.float32 if jnp.issubdtype(x.dtype, jnp.floating) else jnp.int32)


def _narrow(x, dtype):
    """The inverse of _wide."""
    return x if x.dtype == dtype else x != 0 if dtype == jnp.bool_ else x.astype(dtype)


def _hit(shape, places):
    """Where a position is that of places, pairs of (dimension, position)."""
    tests = [lax.broadcasted_iota(jnp.int32, shape, dim) == at for dim, at in places]
    return functools.reduce(jnp.logical_and, tests) if tests else jnp.full(shape, True)


def _pick(x, places):
    """x at places, pairs of (dimension, position); these dimensions stay, with one element."""
    places = [(dim, at) for dim, at in places if x.shape[dim] > 1]
    dims = tuple(dim for dim, _ in places)
    return jnp.sum(jnp.where(_hit(x.shape, places), _wide(x), 0), axis=dims, keepdims=True) if dims else _wide(x)


def _coordinates(i, sizes):
    """The coordinates of element i of an array of these sizes, in row-major order."""
    out = []
    for size in reversed(sizes):
        out.append(lax.rem(i, size) if len(out) < len(sizes) - 1 else i)
        i = lax.div(i, size)
    return out[::-1]


def _scalar_at(x, which):
    """The element of an array of integers that broadcasts against coordinates which, as a scalar (which x may be already)."""
    if jnp.ndim(x) == 0:
        return x
    places = [(d, which[d - x.ndim]) for d, n in enumerate(x.shape) if n > 1]
    return jnp.sum(_pick(x, places))


def _wrapped_at(position, extent):
    """A scalar position, where negative ones count from the end, and whether it is inside."""
    position = jnp.where(position < 0, position + extent, position)
    return jnp.clip(position, 0, extent - 1), (position >= 0) & (position < extent)


def _part(ref, index, dims, at, write):
    """The subscript of the part of ref that has positions at along dims, and the places of these in it."""
    index, places, rows = list(index), [], 32 // ref.dtype.itemsize
    for dim, position in zip(dims, at, strict=True):
        if dim < len(index) - 2 or (dim == len(index) - 2 and ref.dtype.itemsize == 4 and not write):
            index[dim] = pl.ds(position, 1)
        elif dim == len(index) - 2 and ref.shape[dim] % rows == 0:
            index[dim] = pl.ds(pl.multiple_of(lax.div(position, rows) * rows, rows), rows)
            places.append((dim, lax.rem(position, rows)))
        else:
            index[dim] = slice(None)
            places.append((dim, position))
    return tuple(index), places


def _each_in_turn(sizes, step, out):
    """out after step(i, out) for each element i of an array of these sizes."""
    count = functools.reduce(lambda a, b: a * b, sizes, 1)
    return step(0, out) if count == 1 else lax.fori_loop(0, count, step, out)


def _rows(shape, first, rank):
    """shape with one element along the dimensions of the index tensors."""
    return tuple(1 if first <= d < first + rank else n for d, n in enumerate(shape))


def _take_each(ref, index, dims, extents, positions, shape, first, rank):
    """What is at positions along dims."""
    sizes = shape[first : first + rank]

    def step(i, out):
        which = _coordinates(i, sizes)
        at = [_wrapped_at(_scalar_at(p, which), n)[0] for p, n in zip(positions, extents, strict=True)]
        part, places = _part(ref, index, dims, at, False)
        row = _pick(ref[part], places).reshape(_rows(shape, first, rank))
        own = [(first + d, n) for d, n in enumerate(which) if shape[first + d] > 1]
        return jnp.where(_hit(shape, own), row, out) if own else row

    out = _each_in_turn(sizes, step, jnp.zeros(shape, _wide(jnp.zeros((), ref.dtype)).dtype))
    return _narrow(out, ref.dtype)


def _put_each(ref, index, dims, extents, positions, values, keep, shape, first, rank, change, before):
    """Writes change(held, *values) at positions along dims where keep (int32, or None) is not 0; gives what was there if before."""
    sizes, dtype = shape[first : first + rank], ref.dtype

    def step(i, out):
        which = _coordinates(i, sizes)
        own = [(first + d, n) for d, n in enumerate(which)]
        at, inside = zip(*(_wrapped_at(_scalar_at(p, which), n) for p, n in zip(positions, extents, strict=True)), strict=True)
        part, places = _part(ref, index, dims, at, True)
        held = _wide(ref[part])
        unit = tuple(1 if d in dims else n for d, n in enumerate(held.shape))
        new = [_pick(v, own).reshape(unit) for v in values]
        inside = functools.reduce(jnp.logical_and, inside)
        hit = _hit(held.shape, [(dim, jnp.where(inside, n, -1)) for dim, n in places or [(dims[0], 0)]])
        if keep is not None:
            hit = hit & (_pick(keep, own).reshape(unit) != 0)
        ref[part] = _narrow(jnp.where(hit, change(held, *new), held), dtype)
        if not before:
            return out
        row = _pick(held, places).reshape(_rows(shape, first, rank))
        return jnp.where(_hit(shape, own), row, out)

    out = jnp.zeros(shape if before else (1, 1), _wide(jnp.zeros((), dtype)).dtype)
    out = _each_in_turn(sizes, step, out)
    return _narrow(out, dtype) if before else None


HELPERS = texts_of(_wide, _narrow, _hit, _pick, _coordinates, _scalar_at, _wrapped_at, _part, _each_in_turn, _rows, _take_each, _put_each)
