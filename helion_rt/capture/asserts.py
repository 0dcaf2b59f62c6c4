"""``assert`` in the rewritten kernel: what it says of block sizes becomes a constraint of the program.

``assert a % b == 0 and c <= d, text`` becomes ``assert _rt_claim(line, "==", a % b, 0), text`` and
``assert _rt_claim(line, "<=", c, d), text``. Conditions of any other form stay as they are.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .numbers import CLAIM

_NAMES: dict[type[ast.cmpop], str] = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}


def split(node: ast.Assert) -> list[ast.stmt]:
    """The same assertion, a statement for each comparison. New nodes have no place yet."""
    return [ast.Assert(_claimed(test, node.lineno), node.msg) for test in _conjuncts(node.test)]


def _conjuncts(test: ast.expr) -> Iterator[ast.expr]:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        for value in test.values:
            yield from _conjuncts(value)
    elif isinstance(test, ast.Compare) and all(isinstance(c, (ast.Name, ast.Constant)) for c in test.comparators[:-1]):
        # a <= b <= c, with a b that may be read twice
        lefts = [test.left, *test.comparators]
        for left, op, right in zip(lefts, test.ops, test.comparators, strict=False):
            yield ast.Compare(left, [op], [right])
    else:
        yield test


def _claimed(test: ast.expr, line: int) -> ast.expr:
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or type(test.ops[0]) not in _NAMES:
        return test
    name = _NAMES[type(test.ops[0])]
    return ast.Call(ast.Name(CLAIM, ast.Load()), [ast.Constant(line), ast.Constant(name), test.left, test.comparators[0]], [])
