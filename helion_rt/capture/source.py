"""The source of a kernel: text, syntax tree, place."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..exc import SourceUnavailable, Unsupported


@dataclass(frozen=True)
class KernelSource:
    """A function as written. ``tree`` has the line numbers of the file; ``text`` is dedented, decorators included."""

    name: str
    file: str
    first_line: int
    last_line: int
    text: str
    tree: ast.FunctionDef

    def parse(self) -> ast.FunctionDef:
        """A fresh tree, to be changed."""
        return _parse(self.text, self.first_line, self.name, self.file)


def plain_function(fn: Any) -> Any:
    """``fn`` itself, without ``functools.wraps`` around it."""
    return inspect.unwrap(fn)


def get_source(fn: Callable[..., Any], name: str | None = None) -> KernelSource:
    """The source of ``fn``. Raises ``SourceUnavailable`` if there is none, ``Unsupported`` if it is no plain ``def``."""
    fn = plain_function(fn)
    name = str(name or getattr(fn, "__name__", repr(fn)))
    if not inspect.isfunction(fn):
        raise Unsupported(f"a kernel must be a Python function defined with 'def', not a {type(fn).__name__}", kernel=name)
    code = fn.__code__
    try:
        lines, first = inspect.getsourcelines(fn)
    except (OSError, TypeError, IndentationError, SyntaxError) as error:
        raise SourceUnavailable(
            "the source of the kernel cannot be had",
            kernel=name, file=code.co_filename, line=code.co_firstlineno,
            hint="write it in a file or a notebook cell; functions typed at the plain Python prompt or made with exec() keep no source",
        ) from error  # fmt: skip
    text = textwrap.dedent("".join(lines))
    tree = _parse(text, first, name, code.co_filename)
    return KernelSource(name, code.co_filename, first, first + len(lines) - 1, text, tree)


def _parse(text: str, first: int, name: str, file: str) -> ast.FunctionDef:
    try:
        module = ast.parse(text)
    except SyntaxError as error:
        if "lambda" in text:
            raise Unsupported("a kernel must be a function defined with 'def'", kernel=name, file=file, line=first) from error
        raise SourceUnavailable("the file has changed since the kernel was defined", kernel=name, file=file, line=first) from error
    found = module.body[0] if module.body else None
    if not isinstance(found, ast.FunctionDef):
        raise Unsupported("a kernel must be a function defined with 'def'", kernel=name, file=file, line=first)
    ast.increment_lineno(found, first - 1)
    return found
