"""What a kernel may say: ``import helion_rt.language as hl``.

The names and their meaning are Helion's. A name of Helion's that is not here is refused with ``Unsupported`` when used.
Outside of a kernel every name raises ``HelionError``; in one, arguments that do not fit raise a ``CaptureError`` at its line:
``ShapeMismatch``, ``DTypeError``, else ``Unsupported``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from ..exc import Unsupported
from ._active import ACTIVE, tracer
from ._tile import Tile
from .atomics import atomic_add, atomic_and, atomic_cas, atomic_max, atomic_min, atomic_or, atomic_xchg, atomic_xor
from .extras import device_print, inline_pallas, join, register_tunable, split
from .rng import rand, rand4x, randint
from .scans import associative_scan, cumprod, cumsum, reduce

if TYPE_CHECKING:
    import torch


class constexpr:
    """Annotation: the argument's value is part of the signature (``block: hl.constexpr``)."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __class_getitem__(cls, item: object) -> type[constexpr]:
        return cls


def tile(begin_or_end: Any, end_or_none: Any = None, /, block_size: Any = None) -> Any:
    """Iterates over tiles of a range, whose size a config chooses: ``for tile in hl.tile(n)``.

    ``tile(end)``, ``tile(begin, end)``; sequences give an n-dimensional loop whose variable is a tuple of tiles.
    ``block_size`` fixes the size: an int, or what ``register_block_size`` or ``tile.block_size`` gave; None leaves it
    to the config; a sequence gives one for each dimension. The outermost loop runs its tiles in any order; inner ones in
    order, carrying the variables that they assign. Bounds of inner loops may be device integers such as ``tile.end``.
    """
    begin, end = (None, begin_or_end) if end_or_none is None else (begin_or_end, end_or_none)
    return tracer("tile").tile(begin, end, block_size)


def grid(begin_or_end: Any, end_or_none: Any = None, /, step: Any = None) -> Any:
    """Iterates over single positions: like ``tile`` with blocks of one element, the loop variable an int32 scalar."""
    begin, end = (None, begin_or_end) if end_or_none is None else (begin_or_end, end_or_none)
    return tracer("grid").grid(begin, end, step)


def static_range(begin_or_end: int, end_or_none: int | None = None, /, step: int = 1) -> range:
    """``range`` of constants: the body is repeated in the program for each value."""
    begin, end = (0, begin_or_end) if end_or_none is None else (begin_or_end, end_or_none)
    return range(begin, end, step)


def register_block_size(min_or_max: int, max_or_none: int | None = None, /) -> Any:
    """A tunable block size, to be given to several ``tile(..., block_size=...)`` and used as a dimension.

    ``register_block_size(extent)``: for loops over at most ``extent``; ``register_block_size(low, high)``: within bounds.
    """
    low, high = (1, None) if max_or_none is None else (min_or_max, max_or_none)
    return tracer("register_block_size").register_block_size(low, high, min_or_max if max_or_none is None else max_or_none)


def zeros(shape: Sequence[Any], dtype: torch.dtype | None = None, device: object = None) -> Any:
    """A tensor of zeros, float32 by default. Dimensions are ints, tiles or block sizes."""
    return tracer("zeros").full(shape, 0, dtype)


def full(shape: Sequence[Any], value: Any, dtype: torch.dtype | None = None, device: object = None) -> Any:
    """A tensor of ``value`` (a number or a device scalar), float32 by default."""
    return tracer("full").full(shape, value, dtype)


def arange(*args: Any, dtype: torch.dtype | None = None, device: object = None) -> Any:
    """``torch.arange``: [n], int32 by default. Sizes may be block sizes."""
    import torch

    tracer("arange")
    return torch.arange(*args, dtype=torch.int32 if dtype is None else dtype)


def dot(mat1: Any, mat2: Any, acc: Any = None, out_dtype: torch.dtype | None = None) -> Any:
    """``mat1 @ mat2`` (+ ``acc``): [m, k] @ [k, n], or batched [b, m, k] @ [b, k, n].

    Accumulated in float32 (int32 for int8). The result has the dtype of ``acc``, else ``out_dtype``, else float32
    (int32 for int8). ``acc`` has the shape of the product. Raises ``ShapeMismatch``, and ``DTypeError`` where the operands differ.
    """
    return tracer("dot").dot(mat1, mat2, acc, out_dtype)


def load(tensor: Any, index: Sequence[Any], extra_mask: Any = None, eviction_policy: str | None = None) -> Any:
    """``tensor[index]`` in device code, in the dtype of ``tensor``; 0 where ``extra_mask`` (bool, broadcasts to the result) does not hold.

    Index tensors (integers) gather: those of one dimension form a grid ([n] and [m] give [n, m]), else neighbours broadcast together.
    """
    return tracer("load").load(tensor, tuple(index), extra_mask)


def store(tensor: Any, index: Sequence[Any], value: Any, extra_mask: Any = None) -> None:
    """``tensor[index] = value`` in device code, where ``extra_mask`` (bool, broadcasts to the selection) holds.

    ``value``, a tile or a number, broadcasts to the selection and is converted to the dtype of ``tensor``.
    """
    tracer("store").store(tensor, tuple(index), value, extra_mask)


def barrier() -> None:
    """Nothing: outer tile loops run one after the other. Refused in a tile loop."""
    tracer("barrier").barrier()


def jagged_tile(parent: Any) -> Any:
    """A tile loop whose end differs from lane to lane: ``for tile_k in hl.jagged_tile(lengths[tile_b])``.

    ``parent``: an integer for each lane of outer tiles, e.g. int32 [block]. The loop runs to the longest lane.
    Where a value has a jagged dimension, elements past the end of their lane are not read (0), not written, and count for
    nothing in reductions and products over it.
    """
    return tracer("jagged_tile").jagged_tile(parent)


def subscript(tensor: Any, index: Sequence[Any]) -> Any:
    """``tensor[index]`` with ``None`` and ``:`` only: adds dimensions to a tile."""
    active = tracer("subscript")
    if any(item is not None and not (isinstance(item, slice) and item == slice(None)) for item in index):
        active.refuse("hl.subscript takes None and ':' only", "use tensor[index]")
    return tensor[tuple(index)]


def specialize(value: Any) -> Any:
    """``value`` (an int, float, or a sequence of them) as a constant: another value gives another program."""
    return tracer("specialize").specialize(value)


def cdiv(a: Any, b: Any) -> Any:
    """``ceil(a / b)`` of integers or dimensions."""
    return (a + b - 1) // b


def tile_index(tile: Any) -> Any:
    """``tile.index``: the positions of the tile, int32 [block]."""
    return tile.index


def tile_begin(tile: Any) -> Any:
    """``tile.begin``: the first position of the tile, an int32 scalar."""
    return tile.begin


def tile_end(tile: Any) -> Any:
    """``tile.end``: one past the last position of the tile, an int32 scalar."""
    return tile.end


def tile_id(tile: Any) -> Any:
    """``tile.id``: the number of the tile, an int32 scalar."""
    return tile.id


def tile_count(tile: Any) -> Any:
    """``tile.count``: how many tiles the loop has."""
    return tile.count


def tile_block_size(tile: Any) -> Any:
    """``tile.block_size``: the size of full tiles, a dimension."""
    return tile.block_size


_ESCAPE = "write that part as a JAX function on tiles and call it with hl.inline_pallas"
_ALONE = "a kernel here runs on one device; communicate outside of it, with JAX's collectives"
_WIDEN = "unpack with &, >> and torch.where, or convert outside of the kernel"
# Helion's names that are not supported, and what to do instead: refused one by one, so that a typo still is an AttributeError.
_REFUSED = {
    **dict.fromkeys(("inline_asm_elementwise", "inline_triton", "triton_kernel"), f"it is code for a GPU; {_ESCAPE}"),
    **dict.fromkeys(("AsyncCopyDescriptor", "ProcessGroupName", "make_async_remote_copy", "remote_barrier", "signal", "wait"), _ALONE),
    **dict.fromkeys(("StackTensor", "stacktensor_like"), "pass one tensor that holds them all, or a list of tensors"),
    **dict.fromkeys(("pdl_launch_dependents", "pdl_wait"), "leave it out: launches follow one another here"),
    "breakpoint": "set HELION_RT_REFERENCE=1 and use Python's own",
    "dot_scaled": "multiply the operands by their scales, then hl.dot",
    "float4_e2m1fn_x2_to_float32": _WIDEN, "load_bfloat16_x16_to_float16": _WIDEN, "load_float4_e2m1fn_x16_to_float16": _WIDEN,
}  # fmt: skip


def __getattr__(name: str) -> NoReturn:
    if name not in _REFUSED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    active = ACTIVE.get()
    if active is not None:
        active.refuse(f"hl.{name} is not supported", _REFUSED[name])
    raise Unsupported(f"hl.{name} is not supported", hint=_REFUSED[name])


__all__ = [
    "Tile", "arange", "associative_scan", "atomic_add", "atomic_and", "atomic_cas", "atomic_max", "atomic_min", "atomic_or", "atomic_xchg",
    "atomic_xor", "barrier", "cdiv", "constexpr", "cumprod", "cumsum", "device_print", "dot", "full", "grid", "inline_pallas",
    "jagged_tile", "join", "load", "rand", "rand4x", "randint", "reduce", "register_block_size", "register_tunable", "specialize", "split",
    "static_range", "store", "subscript", "tile", "tile_begin", "tile_block_size", "tile_count",
    "tile_end", "tile_id", "tile_index", "zeros",
]  # fmt: skip
