"""Scans, and reductions with a combine function of the user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._active import tracer


def associative_scan(combine_fn: Callable[..., Any], input_tensor: Any, dim: int, reverse: bool = False) -> Any:
    """Inclusive scans of a tile along ``dim``: each element is all before it and itself, combined.

    ``combine_fn`` is associative and elementwise: ``f(left, right)``. For a tuple of tiles of one shape it takes two tuples, or all
    left elements and then all right ones, and returns as many. Results have the shapes and dtypes of the inputs. ``reverse``: from the
    last element to the first.
    """
    return tracer("associative_scan").associative_scan(combine_fn, input_tensor, dim, reverse)


def reduce(combine_fn: Callable[..., Any], input_tensor: Any, dim: int | None = None, other: Any = 0, keep_dims: bool = False) -> Any:
    """A tile, or a tuple of them, reduced along ``dim`` (None: all) with ``combine_fn``, as for ``associative_scan``.

    Results have the dtypes of the inputs, and their shapes without ``dim`` (with it, of size 1, if ``keep_dims``). ``other`` is
    accepted and not needed: elements that do not exist are not combined.
    """
    return tracer("reduce").reduce(combine_fn, input_tensor, dim, other, keep_dims)


def cumsum(input_tensor: Any, dim: int, reverse: bool = False) -> Any:
    """Cumulative sums of a tile along ``dim``, in its own dtype."""
    return tracer("cumsum").cumulative("cumsum", input_tensor, dim, reverse)


def cumprod(input_tensor: Any, dim: int, reverse: bool = False) -> Any:
    """Cumulative products of a tile along ``dim``, in its own dtype."""
    return tracer("cumprod").cumulative("cumprod", input_tensor, dim, reverse)
