"""What a kernel asserts of its block sizes: checked in every plan, and heeded where the reference path chooses its own."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ..exc import PlanError
from ..program.expr import BinExpr, Block, Expr, evaluate
from ..program.ir import Constraint, Program

_MAX_TRIED = 4096


def check(program: Program, blocks: Sequence[int]) -> None:
    """Raise ``PlanError`` at the line of an assertion that does not hold for ``blocks`` (of all blocks, tunable or not)."""
    found = _broken(program, blocks)
    if found is not None:
        a, b = (_spelled(e, program, blocks) for e in (found.a, found.b))
        raise PlanError(
            f"the kernel asserts {a} {found.relation.value} {b}", kernel=program.name, file=program.file, line=found.line,
            hint="choose block sizes for which it holds",
        )  # fmt: skip


def _broken(program: Program, blocks: Sequence[int]) -> Constraint | None:
    for constraint in program.constraints:
        try:
            holds = constraint.relation.holds(evaluate(constraint.a, blocks), evaluate(constraint.b, blocks))
        except ZeroDivisionError:
            holds = False
        if not holds:
            return constraint
    return None


def _spelled(expr: Expr, program: Program, blocks: Sequence[int]) -> str:
    """``expr`` with the sizes that its blocks have."""
    if isinstance(expr, Block):
        return f"{blocks[expr.id]} (block size {expr.id})"
    if isinstance(expr, BinExpr):
        a, b = _spelled(expr.a, program, blocks), _spelled(expr.b, program, blocks)
        return f"{expr.op}({a}, {b})" if expr.op in ("min", "max") else f"{a} {expr.op} {b}"
    return str(expr)


def satisfying(program: Program, preferred: Sequence[int]) -> tuple[int, ...]:
    """Sizes of the tunable blocks that the assertions allow: ``preferred`` if they do. Raises ``PlanError`` if none is found."""
    first = tuple(preferred)
    if not program.constraints or _broken(program, program.block_sizes(first)) is None:
        return first
    sizes = [_sizes(program, block, size) for block, size in zip(program.tunable_blocks, first, strict=True)]
    for choice in itertools.islice(itertools.product(*sizes), _MAX_TRIED):
        if _broken(program, program.block_sizes(choice)) is None:
            return choice
    check(program, program.block_sizes(first))
    raise AssertionError("unreachable: what is broken was raised")


def _sizes(program: Program, block: int, preferred: int) -> list[int]:
    """Sizes to try for a tunable block, the nearest to ``preferred`` first: divisors of its extent, and powers of two."""
    info = program.blocks[block]
    extent = max(1, info.extent)
    high = min(extent, info.high or extent)
    divisors = {d for n in range(1, int(extent**0.5) + 1) if extent % n == 0 for d in (n, extent // n)}
    powers = {1 << i for i in range(high.bit_length())}
    return sorted((n for n in divisors | powers if info.low <= n <= high), key=lambda n: abs(n - preferred)) or [preferred]
