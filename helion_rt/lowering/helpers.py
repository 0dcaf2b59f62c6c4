"""Functions that generated source carries along, each where something calls it. The reference path runs the very same text."""

from __future__ import annotations

import builtins
import functools
import re
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from . import functions_source, memory_source, memory_tpu_source, philox, scans_source, unaligned_source

MASK = '''
def _mask(x, fill, *bounds):
    """x, with fill where an element does not exist. A bound is (dimension, first position, end)."""
    for dim, begin, end in bounds:
        if isinstance(begin, int) and isinstance(end, int) and begin + x.shape[dim] <= end:
            continue
        x = jnp.where(begin + lax.broadcasted_iota(jnp.int32, x.shape, dim) < end, x, fill)
    return x
'''

HELPERS: dict[str, str] = {
    "_mask": MASK, **memory_source.HELPERS, **memory_tpu_source.HELPERS, **unaligned_source.HELPERS, **scans_source.HELPERS,
    **philox.HELPERS,
    **functions_source.HELPERS,
}  # fmt: skip

# What the helpers and the generated code use of Python itself.
BUILTINS = {"isinstance", "int", "range", "zip", "tuple"} | {
    name for text in HELPERS.values() for name in re.findall(r"(?<![\w.])[a-z]+(?=[(.])", text) if hasattr(builtins, name)
}


def used(lines: Iterable[str]) -> list[str]:
    """The texts of the helpers that ``lines`` call, and of those that these call."""
    wanted = _called("\n".join(lines))
    while more := {name for w in wanted for name in _called(HELPERS[w])} - wanted:
        wanted |= more
    return [text for name, text in HELPERS.items() if name in wanted]


def _called(text: str) -> set[str]:
    return {name for name in re.findall(r"(?<![\w.])(_[a-z_0-9]+)\(", text) if name in HELPERS}


@functools.cache
def functions() -> dict[str, Callable[..., Any]]:
    """The helpers as functions, by name."""
    from jax.experimental.pallas import tpu as pltpu  # late: it is slow to import

    names: dict[str, Any] = {"functools": functools, "jax": jax, "jnp": jnp, "lax": lax, "pl": pl, "pltpu": pltpu}
    for text in HELPERS.values():
        exec(compile(text, "<helion_rt helpers>", "exec"), names)
    return {name: names[name] for name in HELPERS}
