"""Rewrites the loops of a kernel, and nothing else, so that CPython can run it under the tracer.

``for target in iterable: body`` becomes::

    h = _rt_loop(iterable, ("a", "b"), line, obstacle)
    (a, b) = h.begin(_rt_locals())
    for target in h:
        body
        (a, b) = h.next(_rt_locals())
    (a, b) = h.end(_rt_locals())

with ``a, b`` the names that the body assigns.
"""

from __future__ import annotations

import ast
import itertools
from typing import Any

LOOP, LOCALS, HANDLE = "_rt_loop", "_rt_locals", "_rt_handle"


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
    return tuple(n for n in finder.names if n not in finder.excluded and n not in excluded and not n.startswith("_rt_"))


class _Jumps(ast.NodeVisitor):
    """The first thing in the body of a loop that leaves it."""

    def __init__(self) -> None:
        self.found: tuple[str, int] | None = None
        self._inner = 0

    def _note(self, what: str, node: ast.AST) -> None:
        if self.found is None:
            self.found = (what, getattr(node, "lineno", 0))

    def _visit_loop(self, node: ast.AST) -> None:
        self._inner += 1
        self.generic_visit(node)
        self._inner -= 1

    visit_For = visit_While = visit_AsyncFor = _visit_loop

    def _visit_scope(self, node: ast.AST) -> None:
        pass

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _visit_scope

    def visit_Break(self, node: ast.Break) -> None:
        if not self._inner:
            self._note("'break'", node)

    def visit_Continue(self, node: ast.Continue) -> None:
        if not self._inner:
            self._note("'continue'", node)

    def visit_Return(self, node: ast.Return) -> None:
        self._note("'return'", node)

    def visit_Yield(self, node: ast.Yield) -> None:
        self._note("'yield'", node)

    visit_YieldFrom = visit_Yield  # type: ignore[assignment]


def obstacle(loop: ast.For) -> str | None:
    """What a tile loop cannot do, as ``what@line``; None if there is nothing of the kind."""
    jumps = _Jumps()
    for statement in loop.body:
        jumps.visit(statement)
    if jumps.found is None and loop.orelse:
        jumps.found = ("'else'", loop.orelse[0].lineno)
    return None if jumps.found is None else f"{jumps.found[0]}@{jumps.found[1]}"


class _Loops(ast.NodeTransformer):
    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._globals: list[frozenset[str]] = [frozenset()]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        declared = frozenset(n for s in ast.walk(node) if isinstance(s, ast.Global) for n in s.names)
        self._globals.append(declared)
        self.generic_visit(node)
        self._globals.pop()
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        return node  # no kernel code

    def visit_For(self, node: ast.For) -> Any:
        names = assigned_names(node.body, self._globals[-1])
        blocked = obstacle(node)
        self.generic_visit(node)
        handle = f"{HANDLE}{next(self._numbers)}"

        def load(name: str) -> ast.expr:
            return ast.Name(name, ast.Load())

        def step(method: str) -> ast.stmt:
            call = ast.Call(ast.Attribute(load(handle), method, ast.Load()), [ast.Call(load(LOCALS), [], [])], [])
            if not names:
                return ast.Expr(call)
            return ast.Assign([ast.Tuple([ast.Name(n, ast.Store()) for n in names], ast.Store())], call)

        constants: list[ast.expr] = [
            ast.Tuple([ast.Constant(n) for n in names], ast.Load()), ast.Constant(node.lineno), ast.Constant(blocked)
        ]  # fmt: skip
        make = ast.Assign([ast.Name(handle, ast.Store())], ast.Call(load(LOOP), [node.iter, *constants], []))
        loop = ast.For(node.target, load(handle), [*node.body, step("next")], node.orelse)
        statements: list[ast.stmt] = [make, step("begin"), loop, step("end")]
        for statement in statements:
            _place(statement, node)
        return statements


def _place(new: ast.AST, like: ast.AST) -> None:
    """Gives nodes without a place that of ``like``'s first line."""
    for node in ast.walk(new):
        if isinstance(node, (ast.expr, ast.stmt)) and not hasattr(node, "lineno"):
            node.lineno = node.end_lineno = like.lineno  # type: ignore[attr-defined]
            node.col_offset = node.end_col_offset = like.col_offset  # type: ignore[attr-defined]


def rewrite(function: ast.FunctionDef, free: tuple[str, ...]) -> ast.Module:
    """A module that defines ``_rt_factory(free..., _rt_loop, _rt_locals)``, which holds the rewritten function."""
    inner = _Loops().visit(function)
    inner.decorator_list, inner.returns = [], None
    arguments = inner.args
    for arg in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]:
        if arg is not None:
            arg.annotation = None  # may name things that only the decorator's place could see
    arguments.defaults = [ast.Constant(None) for _ in arguments.defaults]
    arguments.kw_defaults = [None if d is None else ast.Constant(None) for d in arguments.kw_defaults]
    params = [ast.arg(name) for name in (*free, LOOP, LOCALS)]
    factory = ast.FunctionDef(
        "_rt_factory", ast.arguments([], params, None, [], [], None, []), [inner, ast.Return(ast.Name(inner.name, ast.Load()))], []
    )
    module = ast.Module([factory], [])
    _place(factory, function)
    return ast.fix_missing_locations(module)
