"""Integer expressions over block sizes: the dimensions of values whose tiles are not chosen yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Union


@dataclass(frozen=True, slots=True)
class Block:
    """The size of block ``id``, one of the program's tunable (or fixed) tile sizes."""

    id: int

    def __str__(self) -> str:
        return f"B{self.id}"


@dataclass(frozen=True, slots=True)
class BinExpr:
    """``a op b`` with Python's integer semantics; ``op`` is a key of ``OPERATORS``."""

    op: str
    a: Expr
    b: Expr

    def __str__(self) -> str:
        if self.op in ("min", "max"):
            return f"{self.op}({self.a}, {self.b})"
        return f"({self.a} {self.op} {self.b})"


Expr = Union[int, Block, BinExpr]

OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "min": min,
    "max": max,
}


def binary(op: str, a: Expr, b: Expr) -> Expr:
    """Build ``a op b``, folding what is already known, so that equal dimensions print and hash the same."""
    if isinstance(a, int) and isinstance(b, int):
        return OPERATORS[op](a, b)
    if op == "+" and a == 0:
        return b
    if op in ("+", "-") and b == 0:
        return a
    if op == "*" and (a == 1 or b == 1):
        return b if a == 1 else a
    if op == "*" and (a == 0 or b == 0):
        return 0
    if op == "//" and b == 1:
        return a
    if op == "//" and a == b:
        return 1
    if op == "//" and isinstance(a, BinExpr) and a.op == "*":
        if a.b == b:
            return a.a
        if a.a == b:
            return a.b
    if op == "-" and a == b:
        return 0
    return BinExpr(op, a, b)


def evaluate(expr: Expr, block_sizes: Sequence[int]) -> int:
    """The value of ``expr`` when block ``i`` has ``block_sizes[i]`` elements."""
    if isinstance(expr, int):
        return expr
    if isinstance(expr, Block):
        return block_sizes[expr.id]
    return OPERATORS[expr.op](evaluate(expr.a, block_sizes), evaluate(expr.b, block_sizes))


def blocks_in(expr: Expr) -> frozenset[int]:
    """Ids of the blocks that ``expr`` depends on."""
    if isinstance(expr, int):
        return frozenset()
    if isinstance(expr, Block):
        return frozenset((expr.id,))
    return blocks_in(expr.a) | blocks_in(expr.b)
