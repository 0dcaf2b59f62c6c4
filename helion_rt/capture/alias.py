"""``alias``: a hash that finds the program of a function again without capturing it.

It covers the normalised source of the function and of every helper, and the value of every global, closure cell and default
that they read. What has no stable value makes the alias None: then the function is captured every time.
"""

from __future__ import annotations

import ast
import dis
import enum
import functools
import hashlib
import inspect
import math
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from .._version import __version__
from ..exc import CaptureError
from ..program.signature import Fact
from .reach import MISSING, contents, is_array, look_up
from .source import get_source, plain_function

# Packages whose functions are known by name and version; everything else is read.
_KNOWN_PACKAGES = ("torch", "jax", "jaxlib", "numpy", "math", "builtins", "operator", "functools", "itertools", "typing")
_NUMBERS = (type(None), bool, int, str, bytes)


class _NoAlias(Exception):
    """Something that is read has no stable value."""


def alias(
    fn: Callable[..., Any], facts: Sequence[Fact] = (), settings: Any = None, tunables: Mapping[str, Any] | None = None
) -> str | None:
    """A hash (hex) of what a capture of ``fn`` with ``facts`` depends on; None if that cannot be told.

    ``fn`` is a kernel's function, or a callable that is an argument of one. ``settings`` and ``tunables`` as for
    ``capture``.
    """
    precision = getattr(getattr(settings, "dot_precision", None), "value", None)
    versions = [torch.__version__, __version__, ".".join(map(str, sys.version_info[:2]))]
    fn = plain_function(fn)
    try:
        reader = _Reader()
        said = [fn.__name__, *reader.function(fn)] if inspect.isfunction(fn) else list(reader.value(fn))
        parts = [repr(tuple(facts)), repr(precision), *versions, *said]
        if tunables:
            parts.append(repr(sorted(tunables.items())))
    except (_NoAlias, CaptureError):
        return None
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class _Reader:
    def __init__(self) -> None:
        self._seen: dict[int, int] = {}  # functions, by id: helpers may be recursive
        self._keep: list[Any] = []  # keeps ids valid

    def function(self, fn: Any) -> Iterator[str]:
        """What a Python function depends on."""
        if id(fn) in self._seen:
            yield f"function {self._seen[id(fn)]} again"
            return
        self._seen[id(fn)] = len(self._seen)
        self._keep.append(fn)
        tree = _tree(fn)
        yield _normalised(tree)
        cells = contents(fn)
        for chain in sorted(_chains(tree, _outer_names(fn.__code__))):
            yield ".".join(chain)
            yield from self.value(look_up(chain, fn, cells)[0])
        for default in (*(fn.__defaults__ or ()), *((fn.__kwdefaults__ or {}).values())):
            yield from self.value(default)

    def value(self, value: Any) -> Iterator[str]:
        """What the value of a name says."""
        if value is MISSING:
            yield "missing"
        elif is_array(value):  # a parameter of the program: the facts have its shape and dtype
            yield "array"
        elif type(value) in _NUMBERS:
            yield f"{type(value).__name__} {value!r}"
        elif type(value) in (float, complex):
            yield f"{type(value).__name__} {value!r}" if not math.isnan(abs(value)) else "nan"
        elif isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
            yield repr(value)
        elif isinstance(value, types.ModuleType):
            yield f"module {value.__name__}"
        elif isinstance(value, enum.Enum):
            yield f"{type(value).__module__}.{type(value).__qualname__}.{value.name} {value.value!r}"
        elif type(value) in (tuple, list):
            yield f"{type(value).__name__} of {len(value)}"
            for item in value:
                yield from self.value(item)
        elif type(value) is dict and all(type(k) in _NUMBERS for k in value):
            yield f"dict of {len(value)}"
            for key, item in value.items():
                yield repr(key)
                yield from self.value(item)
        else:
            yield from self._callable(value)

    def _callable(self, value: Any) -> Iterator[str]:
        if _is_known(value):
            yield f"{_module(value)}.{getattr(value, '__qualname__', getattr(value, '__name__', None))}"
        elif isinstance(value, functools.partial):
            yield "partial"
            for item in (value.func, value.args, value.keywords):
                yield from self.value(item)
        elif inspect.isfunction(value):
            yield "function"
            yield from self.function(value)
        elif callable(value) and inspect.isfunction(getattr(value, "__wrapped__", None)):
            yield "wrapped"
            yield from self.function(value.__wrapped__)
        else:
            raise _NoAlias


def _module(value: Any) -> str:
    module = getattr(value, "__module__", None)
    if module is None and isinstance(value, (types.BuiltinFunctionType, types.MethodDescriptorType)):
        owner = getattr(value, "__self__", None) or getattr(value, "__objclass__", None)
        module = getattr(owner, "__module__", None) or getattr(owner, "__name__", None)
    return module if isinstance(module, str) else ""


def _is_known(value: Any) -> bool:
    """Whether ``value`` is a class or function of a package that its name and version pin."""
    module = _module(value)
    if module.startswith(("helion_rt.language", "helion_rt.autotuner")):
        return True
    package = module.split(".")[0]
    if not package and type(value).__module__.split(".")[0] == "torch":
        package = "torch"  # torch.ops and the like
    named = inspect.isfunction(value) or inspect.isbuiltin(value) or inspect.isclass(value) or inspect.ismethoddescriptor(value)
    named = named or type(value).__module__.split(".")[0] in ("torch", "numpy", "jax", "jaxlib")
    has_name = isinstance(getattr(value, "__name__", getattr(value, "__qualname__", None)), str)
    return named and has_name and package.lstrip("_") in (*_KNOWN_PACKAGES, "_operator") and not isinstance(value, torch.Tensor)


def _tree(fn: Any) -> ast.AST:
    """The function's own syntax tree, a lambda's too."""
    if fn.__name__ != "<lambda>":
        return get_source(fn).tree
    try:
        lines, first = inspect.getsourcelines(fn)
        module = ast.parse(inspect.cleandoc("".join(lines)).strip())
    except (OSError, SyntaxError, TypeError) as error:
        module, first = _whole_file(fn, error), 1
    found = _lambdas(module, fn.__code__.co_firstlineno - first + 1)
    if len(found) > 1:  # several on a line: the columns tell
        found = [n for n in _lambdas(_whole_file(fn), fn.__code__.co_firstlineno) if _covers(n.body, fn.__code__)]
    if len(found) != 1:
        raise _NoAlias
    return found[0]


def _lambdas(module: ast.Module, line: int) -> list[ast.Lambda]:
    return [n for n in ast.walk(module) if isinstance(n, ast.Lambda) and n.lineno == line]


def _covers(node: ast.expr, code: types.CodeType) -> bool:
    """Do the instructions of ``code`` come from ``node``, as far as they have a place?"""
    places = [p for p in code.co_positions() if None not in p and p[3]]  # the first instruction is at column 0, of width 0
    begin, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
    inside = [begin <= (p[0], p[2]) and (p[1], p[3]) <= end for p in places]  # pyright: ignore[reportOperatorIssue]
    return bool(inside) and all(inside) and (min((p[0], p[2]) for p in places), max((p[1], p[3]) for p in places)) == (begin, end)


def _whole_file(fn: Any, error: Exception | None = None) -> ast.Module:
    """A lambda inside of a call that spans lines is no statement by itself: the file is."""
    try:
        lines, _ = inspect.findsource(fn)
        return ast.parse("".join(lines))
    except (OSError, SyntaxError, TypeError):
        raise _NoAlias from error


def _normalised(tree: ast.AST) -> str:
    """The tree without places, comments, docstring, decorators and the function's own name."""
    if not isinstance(tree, ast.FunctionDef):
        return ast.dump(tree)
    body = tree.body[1:] if ast.get_docstring(tree, clean=False) is not None else tree.body
    return "\n".join([ast.dump(tree.args), *(ast.dump(statement) for statement in body)])


def _outer_names(code: types.CodeType) -> set[str]:
    """Names that the function, or one defined inside of it, takes from its closure or its globals."""
    found = set(code.co_freevars)
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            found.add(instruction.argval)
        elif instruction.opname in ("STORE_GLOBAL", "IMPORT_NAME"):
            raise _NoAlias
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            # Its free variables are the function's own locals, or are in co_freevars of the function too.
            found |= _outer_names(constant) - (set(constant.co_freevars) - set(code.co_freevars))
    return found


def _chains(tree: ast.AST, outer: set[str]) -> set[tuple[str, ...]]:
    """Every dotted name that is read, ``("hl", "tile")``, whose root is one of ``outer``."""
    found: set[tuple[str, ...]] = set()
    skipped = {id(n) for root in getattr(tree, "decorator_list", []) for n in ast.walk(root)}

    def visit(node: ast.AST, tail: tuple[str, ...]) -> None:
        if id(node) in skipped:
            return
        if isinstance(node, ast.Attribute):
            visit(node.value, (node.attr, *tail))
        elif isinstance(node, ast.Name):
            found.add((node.id, *tail))
        else:
            for child in ast.iter_child_nodes(node):
                visit(child, ())

    visit(tree, ())
    return {chain for chain in found if chain[0] in outer}
