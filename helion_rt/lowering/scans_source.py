"""The helpers of scans, as source text (see ``helpers``).

A scan takes log2(n) steps (Hillis and Steele, 1986): in each an element is combined with the one ``d`` places before it. Elements
that have none there stay as they are, so no identity is needed, and elements that do not exist, which come last, reach no other.
"""

from __future__ import annotations

SCAN = '''
def _scan(combine, xs, dim, reverse, size, rolled=False):
    """The inclusive scans of xs, arrays of one shape, along dim, of which size elements exist.

    combine takes the left elements of each, then the right ones; in reverse the left ones are those further back.
    rolled: the steps are a loop, which is less to compile, and needs slices at places known only at run time.
    """
    n = xs[0].shape[dim]
    position = lax.broadcasted_iota(jnp.int32, xs[0].shape, dim)

    def shifted(x, d):
        narrow = x.dtype.itemsize < 4  # moved as 32 bits, in which a TPU can move them by any number of places
        wide = x if not narrow else x.astype(jnp.float32 if jnp.issubdtype(x.dtype, jnp.floating) else jnp.int32)
        cut = d if reverse else n - d
        if rolled:
            moved = lax.dynamic_slice_in_dim(jnp.concatenate([wide, wide], axis=dim), cut, n, axis=dim)
        else:
            parts = [lax.slice_in_dim(wide, cut, n, axis=dim), lax.slice_in_dim(wide, 0, cut, axis=dim)]
            moved = jnp.concatenate(parts, axis=dim)
        return moved if not narrow else moved != 0 if x.dtype == jnp.bool_ else moved.astype(x.dtype)

    def step(d, xs):
        here = position + d < size if reverse else position >= d
        combined = combine(*(shifted(x, d) for x in xs), *xs)
        return tuple(
            (here & new) | (~here & x) if x.dtype == jnp.bool_ else jnp.where(here, new, x)
            for new, x in zip(combined, xs)
        )

    steps = max(0, n - 1).bit_length()
    if rolled:
        return lax.fori_loop(0, steps, lambda i, xs: step(1 << i, xs), tuple(xs))
    for i in range(steps):
        xs = step(1 << i, xs)
    return tuple(xs)
'''

LAST = '''
def _last(x, dim, size):
    """The last of the size elements of x along dim that exist; the dimension stays, with one element."""
    if isinstance(size, int):
        return lax.slice_in_dim(x, size - 1, size, axis=dim)
    narrow = x.dtype.itemsize < 4
    wide = x if not narrow else x.astype(jnp.float32 if jnp.issubdtype(x.dtype, jnp.floating) else jnp.int32)
    found = jnp.where(lax.broadcasted_iota(jnp.int32, x.shape, dim) == size - 1, wide, 0)
    total = jnp.sum(found, axis=dim, keepdims=True)
    return total if not narrow else total != 0 if x.dtype == jnp.bool_ else total.astype(x.dtype)
'''

HELPERS = {"_scan": SCAN, "_last": LAST}
