"""The helpers of slices that begin anywhere on a TPU (see ``helpers``).

Along the lanes, and along sublanes that hold narrow values packed, Mosaic reads and writes whole tiles only: the tiles that a
slice touches are read, and rolled to where its elements belong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from .memory_tpu_source import _narrow, _wide
from .own_text import texts_of

if TYPE_CHECKING:  # for people: what runs is the text, in generated source, which imports what it needs
    from jax.experimental.pallas import tpu as pltpu


def _cut(ref, index, dim, begin, size, unit):
    """ref[index], but along dim the size elements from begin on. unit is how many elements a tile has there."""
    held = -(-(unit - 1 + size) // unit) * unit
    at = list(index)
    at[dim] = pl.ds(pl.multiple_of(lax.div(begin, unit) * unit, unit), held)
    rolled = pltpu.roll(_wide(ref[tuple(at)]), lax.rem(held - lax.rem(begin, unit), held), dim)
    return _narrow(lax.slice_in_dim(rolled, 0, size, axis=dim), ref.dtype)


def _paste(ref, index, dim, begin, size, unit, value):
    """The inverse of _cut: writes value there."""
    held = -(-(unit - 1 + size) // unit) * unit
    at = list(index)
    at[dim] = pl.ds(pl.multiple_of(lax.div(begin, unit) * unit, unit), held)
    old, offset = _wide(ref[tuple(at)]), lax.rem(begin, unit)
    rest = jnp.zeros((*value.shape[:dim], held - size, *value.shape[dim + 1 :]), old.dtype)
    new = _wide(value.astype(ref.dtype))
    new = pltpu.roll(new if held == size else jnp.concatenate([new, rest], axis=dim), offset, dim)
    place = lax.broadcasted_iota(jnp.int32, old.shape, dim)
    ref[tuple(at)] = _narrow(jnp.where((place >= offset) & (place < offset + size), new, old), ref.dtype)


HELPERS = texts_of(_cut, _paste)
