"""Operations with regions: which there are, what they carry, and what must run even where nothing reads it."""

from __future__ import annotations

from collections.abc import Iterator

from .ir import Arg, Axis, Op, Ref, Region, refs_in

# How many regions an operation has; those that are not named have none.
REGIONS = {"hl.launch": 1, "hl.loop": 1, "hl.if": 2, "hl.while": 2, "hl.scan": 1}
CARRYING = frozenset({"hl.loop", "hl.if", "hl.while"})  # their last argument is the tuple of initial values
WRITES = frozenset({"hl.store", "hl.atomic"})
EFFECTS = WRITES | {"hl.print"}


def inits_of(op: Op) -> tuple[Arg, ...]:
    """The initial values of the carried variables of a loop, a branch or a while."""
    inits = op.args[-1]
    assert isinstance(inits, tuple)
    return inits


def bodies_of(op: Op) -> tuple[Region, ...]:
    """The regions that yield the next values of carried variables: all but the test of ``hl.while``."""
    return op.regions[1:] if op.name == "hl.while" else op.regions


def axes_of(op: Op) -> tuple[int, ...]:
    """The axes that an operation runs over: those of a launch or a loop."""
    axes = op.args[0] if op.name in ("hl.launch", "hl.loop") else ()
    assert isinstance(axes, tuple)
    return tuple(a for a in axes if isinstance(a, int))


def target_of(op: Op) -> Ref | None:
    """The host tensor that an operation reads or writes elements of."""
    at = {"hl.load": 0, "hl.store": 0, "hl.atomic": 1}.get(op.name)
    target = None if at is None else op.args[at]
    return target if isinstance(target, Ref) else None


def has_effect(op: Op) -> bool:
    """Whether ``op`` does something beside its results."""
    return op.name in EFFECTS or any(has_effect(inner) for region in op.regions for inner in region.ops)


def reads_of(op: Op, axes: tuple[Axis, ...]) -> Iterator[Ref]:
    """Refs among the arguments of ``op``, and the bounds of the axes that it runs over."""
    yield from refs_in((op.args, tuple(v for _, v in op.kwargs)))
    for axis in axes_of(op):
        yield from refs_in((axes[axis].begin, axes[axis].end))


__all__ = ["CARRYING", "EFFECTS", "REGIONS", "WRITES", "axes_of", "bodies_of", "has_effect", "inits_of", "reads_of", "target_of"]
