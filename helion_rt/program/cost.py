"""What a program costs at least: floating point operations and bytes to and from memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .expr import Expr, evaluate
from .ir import Axis, Op, Program, Ref, Region, TensorType, walk
from .regions import axes_of, target_of

_BITS = {"bool": 8}
_MOVES = frozenset(
    """view expand permute transpose t unsqueeze squeeze slice select full empty arange clone alias cat stack split
    _to_copy scalar_tensor""".split()
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cost:
    """``flops``: products count 2 m n k, any other arithmetic 1 an element of its largest operand or result.
    ``dot_flops``: those of products alone. ``bytes``: each argument and each written tensor moved once."""

    flops: int
    dot_flops: int
    bytes: int


def cost(program: Program) -> Cost:
    """The cost of one run. It does not depend on the block sizes: tiles are counted at their share of the extent.

    Loops whose bounds are known only at run time are counted at their limit (or the extent of their block), a branch as its
    dearer side, and a while as one round.
    """
    blocks = [b.fixed if b.fixed is not None else max(1, min(b.extent, b.high or b.extent)) for b in program.blocks]
    dots, others = _region(program, program.host, blocks, 1.0)
    return Cost(round(dots + others), round(dots), _bytes(program))


def _bytes(program: Program) -> int:
    read = {r.id for op in walk(program.host) for r in _host_reads(op)}
    moved = sum(_size(program.type_of(p.value)) for p in program.params if p.value is not None and p.value in read)
    return moved + sum(_size(program.type_of(r)) for op in program.launches for r in op.results)


def _host_reads(op: Op) -> list[Ref]:
    """Tensors whose elements an operation reads (allocations and stores read none)."""
    if op.name in ("hl.load", "hl.atomic"):
        target = target_of(op)
        return [] if target is None else [target]
    if op.name.startswith("hl."):
        return []
    return [a for a in op.args if isinstance(a, Ref)]


def _size(kind: TensorType) -> int:
    return math.prod(n for n in kind.shape if isinstance(n, int)) * bytes_of(kind.dtype)


def bytes_of(dtype: str) -> int:
    """Bytes of an element of a dtype, by its name (``float32``, ``bfloat16``, ``bool``, ``float8_e4m3fn``)."""
    if dtype in _BITS:
        return _BITS[dtype] // 8
    digits = "".join(c if c.isdigit() else " " for c in dtype.split("_")[0]).split()
    if not digits:
        raise ValueError(f"unknown dtype {dtype!r}")
    return int(digits[0]) // 8


def _region(program: Program, region: Region, blocks: list[int], times: float) -> tuple[float, float]:
    """(flops of products, of everything else) of ``region``, run ``times`` times."""
    dots = others = 0.0
    for op in region.ops:
        if op.name == "hl.scan":
            others += times * _elements(program, op, blocks) * len(op.regions[0].ops)
            continue
        if op.regions:
            trips = math.prod(_trips(program, program.axes[axis], blocks) for axis in axes_of(op))
            # The dearer branch of an hl.if; one round of an hl.while.
            inner = [_region(program, region, blocks, times * trips) for region in op.regions]
            found = max(inner, key=sum) if op.name == "hl.if" else tuple(map(sum, zip(*inner, strict=True)))
            dots, others = dots + found[0], others + found[1]
            continue
        product = _product(program, op, blocks)
        if product is not None:
            dots += times * product
        elif not op.name.startswith("hl.") and op.name.split(".")[1] not in _MOVES:
            others += times * _elements(program, op, blocks)
    return dots, others


def _trips(program: Program, axis: Axis, blocks: list[int]) -> float:
    """Tiles of an axis, a ragged last one as the fraction that it is."""
    info = program.blocks[axis.block]
    begin = 0 if isinstance(axis.begin, Ref) else evaluate(axis.begin, blocks)
    if isinstance(axis.end, Ref):
        end = axis.limit if axis.limit is not None else info.extent
    else:
        end = evaluate(axis.end, blocks)
    return max(0, end - begin) / blocks[axis.block]


def _numbers(shape: tuple[Expr, ...], blocks: list[int]) -> list[int]:
    return [evaluate(n, blocks) for n in shape]


def _product(program: Program, op: Op, blocks: list[int]) -> float | None:
    """Flops of a matrix product; None if ``op`` is none."""
    base = op.name.split(".")[1] if "." in op.name else op.name
    first = {"dot": 0, "mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}.get(base)
    if first is None:
        return None
    a = op.args[first]
    if not isinstance(a, Ref):
        return None
    return 2.0 * math.prod(_numbers(program.types[op.results[0]].shape, blocks)) * _numbers(program.type_of(a).shape, blocks)[-1]


def _elements(program: Program, op: Op, blocks: list[int]) -> float:
    refs = [a.id for a in op.args if isinstance(a, Ref)] + list(op.results)
    return float(max((math.prod(_numbers(program.types[r].shape, blocks)) for r in refs), default=0))


__all__ = ["Cost", "bytes_of", "cost"]
