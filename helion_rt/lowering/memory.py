"""Loads, stores and atomics under one view: what they touch, where, and with what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..program.ir import Arg, Op, Ref, Span, TileIndex

Shape = tuple[int, ...]

SCATTERS = {"add": "add", "max": "max", "min": "min", "xchg": "set"}  # the atomics that JAX has a scatter for


@dataclass(frozen=True)
class Memory:
    """An operation on a host tensor. ``kind`` names the atomic; loads have no ``value``."""

    tensor: Ref
    index: tuple[Arg, ...]
    reads: bool
    writes: bool
    value: Arg = None
    mask: Ref | None = None
    kind: str | None = None
    expected: Arg = None  # of cas

    def gathers(self, shape_of: Callable[[int], Shape]) -> list[Ref]:
        """The index tensors (of rank 1 or more), in the order of the dimensions they index."""
        return [e for e in self.index if isinstance(e, Ref) and shape_of(e.id)]


def memory_of(op: Op) -> Memory | None:
    """``op`` as an access of memory, or None if it is none."""
    if op.name not in ("hl.load", "hl.store", "hl.atomic"):
        return None
    kind, args = (str(op.args[0]), op.args[1:]) if op.name == "hl.atomic" else (None, op.args)
    tensor, index, *rest = args
    assert isinstance(tensor, Ref) and isinstance(index, tuple)
    value = None if op.name == "hl.load" else rest.pop(0)
    mask, expected = (*rest, None, None)[:2]
    assert mask is None or isinstance(mask, Ref)
    return Memory(tensor, index, op.name != "hl.store", op.name != "hl.load", value, mask, kind, expected)


@dataclass(frozen=True)
class Selected:
    """One dimension of what an index selects: by an element of the index, or the ``n``-th of the index tensors' common shape."""

    element: Arg
    dim: int | None  # of the tensor; None for a new dimension, and for those of index tensors
    common: int | None = None


def selected_dims(index: Sequence[Arg], shape_of: Callable[[int], Shape]) -> tuple[Selected, ...]:
    """The dimensions of what ``index`` selects, in order: index tensors' common shape takes the place of the first of them."""
    ranks = [len(shape_of(e.id)) for e in index if isinstance(e, Ref)]
    out: list[Selected] = []
    placed, dim = False, 0
    for element in index:
        if element is None:
            out.append(Selected(None, None))
            continue
        if isinstance(element, (TileIndex, Span)):
            out.append(Selected(element, dim))
        elif isinstance(element, Ref) and shape_of(element.id) and not placed:
            placed = True
            out += [Selected(None, None, n) for n in range(max(ranks))]
        dim += 1
    return tuple(out)


def common_shape(shapes: Sequence[Shape]) -> Shape:
    """What ``shapes`` broadcast to."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    return tuple(next((n for n in sizes if n != 1), 1) for sizes in zip(*padded, strict=True))
