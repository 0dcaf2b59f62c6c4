"""Rewrites the control flow of a kernel, and nothing else, so that CPython can run it under the tracer.

``for target in iterable: body`` becomes::

    h = _rt.loop(iterable, ("a", "b"), line, obstacle)
    (a, b) = h.begin(_rt_locals())
    for target in h:
        body
        (a, b) = h.next(_rt_locals())
    (a, b) = h.end(_rt_locals())

with ``a, b`` the names that the body assigns. ``if test: body else: other`` becomes::

    h = _rt.branch(test, ("a", "b"), line)
    if h.first:
        if h.device: (a, b) = h.enter(_rt_locals())
        body
        if h.device: (a, b) = h.leave(_rt_locals())
    if h.second:
        (the same with other)
    if h.device: (a, b) = h.end(_rt_locals())

and ``while test: body``::

    h = _rt.repeat(("a", "b"), line)
    h.probe(test)
    (a, b) = h.begin(_rt_locals())
    while h.known() if h.knows else h.go(test):
        (a, b) = h.body(_rt_locals())
        body
        (a, b) = h.next(_rt_locals())
    (a, b) = h.end(_rt_locals())

``break``, ``continue``, ``return`` and ``raise`` first tell the handles whose bodies they leave (``h.jump``). ``x if c else y``, ``and``,
``or``, ``not`` and ``a < b < c`` become calls that know conditions on the device; ``assert`` see ``asserts``.
"""

from __future__ import annotations

import ast
import itertools
from dataclasses import dataclass
from typing import Any

from . import asserts
from .numbers import BUILTINS, CLAIM

RUNTIME, LOCALS, HANDLE = "_rt", "_rt_locals", "_rt_handle"


class _Assigned(ast.NodeVisitor):
    """Names that statements bind in the function they belong to."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self.excluded: set[str] = set()

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self.names[node.id] = None

    def visit_Global(self, node: ast.Global) -> None:
        self.excluded.update(node.names)

    def _visit_definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self.names[node.name] = None  # what is inside has names of its own

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _visit_definition

    def visit_Lambda(self, node: ast.Lambda) -> None:
        pass

    def _visit_comprehension(self, node: ast.AST) -> None:
        for inner in ast.walk(node):
            if isinstance(inner, ast.NamedExpr):
                self.names[inner.target.id] = None

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension

    def visit_alias(self, node: ast.alias) -> None:
        self.names[(node.asname or node.name).split(".")[0]] = None

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self.names[node.name] = None
        self.generic_visit(node)

    def _visit_capture(self, node: Any) -> None:
        if node.name:
            self.names[node.name] = None
        self.generic_visit(node)

    visit_MatchAs = visit_MatchStar = _visit_capture


def assigned_names(body: list[ast.stmt], excluded: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """The names that ``body`` binds, in order of appearance."""
    finder = _Assigned()
    for statement in body:
        finder.visit(statement)
    return tuple(n for n in finder.names if n not in finder.excluded and n not in excluded and not n.startswith(RUNTIME))


class _Yields(ast.NodeVisitor):
    """The first ``yield`` in the body of a loop."""

    def __init__(self) -> None:
        self.line: int | None = None

    def _visit_scope(self, node: ast.AST) -> None:
        pass

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _visit_scope

    def visit_Yield(self, node: ast.Yield) -> None:
        self.line = node.lineno if self.line is None else self.line

    visit_YieldFrom = visit_Yield  # type: ignore[assignment]


def obstacle(loop: ast.For) -> tuple[str, int] | None:
    """What a tile loop cannot have, and its line; None if there is nothing of the kind."""
    yields = _Yields()
    for statement in loop.body:
        yields.visit(statement)
    if yields.line is not None:
        return "'yield'", yields.line
    return ("'else'", loop.orelse[0].lineno) if loop.orelse else None


def without_continue(body: list[ast.stmt]) -> list[ast.stmt]:
    """The body of a loop in which ``if c: a; continue`` before ``rest`` is ``if c: a`` ``else: rest``: that works on the device too."""
    result: list[ast.stmt] = []
    for i, statement in enumerate(body):
        if isinstance(statement, ast.Continue):
            return result or [ast.copy_location(ast.Pass(), statement)]
        if isinstance(statement, ast.If):
            first, second, rest = statement.body, statement.orelse, body[i + 1 :]
            leaves = [bool(b) and isinstance(b[-1], ast.Continue) for b in (first, second)]
            if any(leaves) or not rest:
                first = without_continue(first if leaves[0] else first + rest)
                second = without_continue(second if leaves[1] else second + rest)
                return [*result, ast.copy_location(ast.If(statement.test, first, second), statement)]
        result.append(statement)
    return result


@dataclass(frozen=True)
class _Open:
    """A statement whose body is being rewritten."""

    handle: str
    is_loop: bool
    names: tuple[str, ...]


class _Statements(ast.NodeTransformer):
    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._globals: list[frozenset[str]] = [frozenset()]
        self._open: list[_Open] = []

    # Functions and classes inside of the kernel.

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        declared = frozenset(n for s in ast.walk(node) if isinstance(s, ast.Global) for n in s.names)
        self._globals.append(declared)
        outer, self._open = self._open, []
        self.generic_visit(node)
        self._open = outer
        self._globals.pop()
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        return node  # no kernel code

    # Statements.

    def _enter(self, node: ast.For | ast.While | ast.If, body: list[ast.stmt]) -> _Open:
        names = assigned_names(body, self._globals[-1])
        return _Open(f"{HANDLE}{next(self._numbers)}", not isinstance(node, ast.If), names)

    def _body(self, statements: list[ast.stmt], around: _Open) -> list[ast.stmt]:
        self._open.append(around)
        result: list[ast.stmt] = []
        for statement in statements:
            new = self.visit(statement)
            result.extend(new if isinstance(new, list) else [new])
        self._open.pop()
        return result

    def visit_For(self, node: ast.For) -> Any:
        node.iter = self.visit(node.iter)
        node.target = self.visit(node.target)
        found = obstacle(node)
        blocked = ast.Constant(None) if found is None else ast.Tuple([ast.Constant(part) for part in found], ast.Load())
        body = without_continue(node.body)
        me = self._enter(node, body)
        make = _assign(me.handle, _call(RUNTIME, "loop", [node.iter, _names(me), ast.Constant(node.lineno), blocked]))
        loop = ast.For(node.target, _load(me.handle), [*self._body(body, me), _step(me, "next")], self._rest(node.orelse))
        return _placed([make, _step(me, "begin"), loop, _step(me, "end")], node)

    def visit_While(self, node: ast.While) -> Any:
        body = without_continue(node.body)
        me = self._enter(node, body)
        node.test = self.visit(node.test)
        blocked = ast.Constant(bool(node.orelse))
        make = _assign(me.handle, _call(RUNTIME, "repeat", [_names(me), ast.Constant(node.lineno), blocked]))
        probe = ast.Expr(_call(me.handle, "probe", [node.test]))
        go = ast.IfExp(_attribute(me.handle, "knows"), _call(me.handle, "known", []), _call(me.handle, "go", [node.test]))
        loop = ast.While(go, [_step(me, "body"), *self._body(body, me), _step(me, "next")], self._rest(node.orelse))
        return _placed([make, probe, _step(me, "begin"), loop, _step(me, "end")], node)

    def visit_If(self, node: ast.If) -> Any:
        node.test = self.visit(node.test)
        me = self._enter(node, [*node.body, *node.orelse])
        statements = [_assign(me.handle, _call(RUNTIME, "branch", [node.test, _names(me), ast.Constant(node.lineno)]))]
        for which, body in (("first", node.body), ("second", node.orelse)):
            if body:
                inner = [_on_device(me, "enter"), *self._body(body, me), _on_device(me, "leave")]
                statements.append(ast.If(_attribute(me.handle, which), inner, []))
        return _placed([*statements, _on_device(me, "end")], node)

    def _rest(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        found = [self.visit(s) for s in statements]
        return [s for new in found for s in (new if isinstance(new, list) else [new])]

    def _leave(self, node: ast.stmt, what: str, count: int) -> list[ast.stmt]:
        """Tells the innermost ``count`` handles that ``what`` leaves their bodies."""
        inner = self._open[len(self._open) - count :]
        return [ast.Expr(_call(o.handle, "jump", [ast.Constant(what), ast.Constant(node.lineno)])) for o in reversed(inner)]

    def _to_loop(self) -> int:
        """How many handles a ``break`` leaves: those up to the loop."""
        return next((n for n, o in enumerate(reversed(self._open), 1) if o.is_loop), 0)

    def visit_Break(self, node: ast.Break) -> Any:
        return _placed([*self._leave(node, "break", self._to_loop()), node], node)

    def visit_Continue(self, node: ast.Continue) -> Any:
        count = self._to_loop()
        if not count:
            return node
        return _placed([*self._leave(node, "continue", count - 1), _step(self._open[-count], "next"), node], node)

    def visit_Return(self, node: ast.Return) -> Any:
        self.generic_visit(node)
        return _placed([*self._leave(node, "return", len(self._open)), node], node)

    def visit_Raise(self, node: ast.Raise) -> Any:
        self.generic_visit(node)
        return _placed([*self._leave(node, "raise", len(self._open)), node], node)

    def visit_Assert(self, node: ast.Assert) -> Any:
        statements = _placed(asserts.split(node), node)
        for statement in statements:
            self.generic_visit(statement)
        return _placed(statements, node)

    # Expressions.

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        self.generic_visit(node)
        if not _can_wait(node.body, node.orelse):
            return node
        return _placed_expr(_call(RUNTIME, "choose", [node.test, _later(node.body), _later(node.orelse)]), node)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        self.generic_visit(node)
        if not _can_wait(*node.values):
            return node
        method = "both" if isinstance(node.op, ast.And) else "either"
        return _placed_expr(_call(RUNTIME, method, [_later(v) for v in node.values]), node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        self.generic_visit(node)
        return _placed_expr(_call(RUNTIME, "negate", [node.operand]), node) if isinstance(node.op, ast.Not) else node

    def visit_Compare(self, node: ast.Compare) -> Any:
        middle = node.comparators[:-1]
        if middle and all(isinstance(m, (ast.Name, ast.Constant)) for m in middle):
            sides = [node.left, *node.comparators]
            pairs: list[ast.expr] = [
                ast.copy_location(ast.Compare(a, [op], [b]), node) for a, op, b in zip(sides, node.ops, sides[1:], strict=False)
            ]
            return self.visit(_placed_expr(ast.BoolOp(ast.And(), pairs), node))
        self.generic_visit(node)
        return node


def _load(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def _attribute(name: str, attribute: str) -> ast.expr:
    return ast.Attribute(_load(name), attribute, ast.Load())


def _call(name: str, method: str, args: list[ast.expr]) -> ast.expr:
    return ast.Call(_attribute(name, method), args, [])


def _assign(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _names(statement: _Open) -> ast.expr:
    return ast.Tuple([ast.Constant(n) for n in statement.names], ast.Load())


def _step(statement: _Open, method: str) -> ast.stmt:
    """``(a, b) = h.method(_rt_locals())``."""
    call = _call(statement.handle, method, [ast.Call(_load(LOCALS), [], [])])
    if not statement.names:
        return ast.Expr(call)
    return ast.Assign([ast.Tuple([ast.Name(n, ast.Store()) for n in statement.names], ast.Store())], call)


def _on_device(statement: _Open, method: str) -> ast.stmt:
    return ast.If(_attribute(statement.handle, "device"), [_step(statement, method)], [])


def _later(value: ast.expr) -> ast.expr:
    return ast.Lambda(ast.arguments([], [], None, [], [], None, []), value)


def _can_wait(*values: ast.expr) -> bool:
    """Whether the values can become lambdas: they bind no names and do not wait."""
    unfit = (ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Await)
    return not any(isinstance(n, unfit) for v in values for n in ast.walk(v))


def _placed(statements: list[ast.stmt], like: ast.stmt) -> list[ast.stmt]:
    for statement in statements:
        _place(statement, like)
    return statements


def _placed_expr(value: Any, like: ast.expr) -> Any:
    _place(value, like)
    return value


def _place(new: ast.AST, like: Any) -> None:
    """Gives nodes without a place that of ``like``'s first line."""
    for node in ast.walk(new):
        if isinstance(node, (ast.expr, ast.stmt)) and not hasattr(node, "lineno"):
            node.lineno = node.end_lineno = like.lineno  # type: ignore[attr-defined]
            node.col_offset = node.end_col_offset = like.col_offset  # type: ignore[attr-defined]


def rewrite(function: ast.FunctionDef, free: tuple[str, ...]) -> ast.Module:
    """A module that defines ``_rt_factory(free..., _rt, ...)``, which holds the rewritten function."""
    inner = _Statements().visit(function)
    inner.decorator_list, inner.returns = [], None
    arguments = inner.args
    for arg in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]:
        if arg is not None:
            arg.annotation = None  # may name things that only the decorator's place could see
    arguments.defaults = [ast.Constant(None) for _ in arguments.defaults]
    arguments.kw_defaults = [None if d is None else ast.Constant(None) for d in arguments.kw_defaults]
    params = [ast.arg(name) for name in dict.fromkeys((*free, RUNTIME, LOCALS, CLAIM, *BUILTINS))]
    factory = ast.FunctionDef(
        "_rt_factory", ast.arguments([], params, None, [], [], None, []), [inner, ast.Return(ast.Name(inner.name, ast.Load()))], []
    )
    module = ast.Module([factory], [])
    _place(factory, function)
    return ast.fix_missing_locations(module)
