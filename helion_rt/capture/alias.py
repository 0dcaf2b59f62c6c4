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
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .._version import __version__
from ..exc import CaptureError
from ..program.signature import Fact
from .source import get_source, plain_function

_MISSING = object()
# Packages whose functions are known by name and version; everything else is read.
_KNOWN_PACKAGES = ("torch", "jax", "jaxlib", "numpy", "math", "builtins", "operator", "functools", "itertools", "typing")
_NUMBERS = (type(None), bool, int, str, bytes)


class _NoAlias(Exception):
    """Something that is read has no stable value."""


def alias(fn: Callable[..., Any], facts: Sequence[Fact] = (), settings: Any = None) -> str | None:
    """A hash (hex) of what a capture of ``fn`` with ``facts`` depends on; None if that cannot be told.

    ``fn`` is a kernel's function, or a callable that is an argument of one. ``settings`` as for ``capture``.
    """
    precision = getattr(getattr(settings, "dot_precision", None), "value", None)
    versions = [torch.__version__, __version__, ".".join(map(str, sys.version_info[:2]))]
    fn = plain_function(fn)
    try:
        reader = _Reader()
        said = [fn.__name__, *reader.function(fn)] if inspect.isfunction(fn) else list(reader.value(fn, ()))
        parts = [repr(tuple(facts)), repr(precision), *versions, *said]
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
        cells = {name: _contents(cell) for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)}
        for chain in sorted(_chains(tree, _outer_names(fn.__code__))):
            yield ".".join(chain)
            yield from self.value(*_look_up(chain, fn, cells))
        for default in (*(fn.__defaults__ or ()), *((fn.__kwdefaults__ or {}).values())):
            yield from self.value(default, ())

    def value(self, value: Any, rest: tuple[str, ...]) -> Iterator[str]:
        """What the value of a name says; ``rest`` are attributes of it that are looked up later."""
        if value is _MISSING:
            yield "missing"
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
                yield from self.value(item, ())
        elif type(value) is dict and all(type(k) in _NUMBERS for k in value):
            yield f"dict of {len(value)}"
            for key, item in value.items():
                yield repr(key)
                yield from self.value(item, ())
        else:
            yield from self._callable(value)

    def _callable(self, value: Any) -> Iterator[str]:
        if _is_known(value):
            yield f"{_module(value)}.{getattr(value, '__qualname__', getattr(value, '__name__', None))}"
        elif isinstance(value, functools.partial):
            yield "partial"
            for item in (value.func, value.args, value.keywords):
                yield from self.value(item, ())
        elif inspect.isfunction(value):
            yield "function"
            yield from self.function(value)
        elif callable(value) and inspect.isfunction(getattr(value, "__wrapped__", None)):
            yield "wrapped"
            yield from self.function(value.__wrapped__)
        else:
            raise _NoAlias


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return _MISSING


def _module(value: Any) -> str:
    module = getattr(value, "__module__", None)
    if module is None and isinstance(value, (types.BuiltinFunctionType, types.MethodDescriptorType)):
        owner = getattr(value, "__self__", None) or getattr(value, "__objclass__", None)
        module = getattr(owner, "__module__", None) or getattr(owner, "__name__", None)
    return module if isinstance(module, str) else ""


def _is_known(value: Any) -> bool:
    """Whether ``value`` is a class or function of a package that its name and version pin."""
    module = _module(value)
    if module.startswith("helion_rt.language"):
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
        module = _whole_file(fn, error)
        first = 1
    found = [n for n in ast.walk(module) if isinstance(n, ast.Lambda) and n.lineno + first - 1 == fn.__code__.co_firstlineno]
    if len(found) != 1:  # several on a line cannot be told apart
        raise _NoAlias
    return found[0]


def _whole_file(fn: Any, error: Exception) -> ast.Module:
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


def _look_up(chain: tuple[str, ...], fn: Any, cells: dict[str, Any]) -> tuple[Any, tuple[str, ...]]:
    """The value at the end of a chain, as far as modules, classes and enums lead; the rest are attributes of it."""
    root = chain[0]
    builtin = fn.__globals__.get("__builtins__", {})
    builtin = vars(builtin) if isinstance(builtin, types.ModuleType) else builtin
    value = cells.get(root, fn.__globals__.get(root, builtin.get(root, _MISSING)))
    for i, name in enumerate(chain[1:], 1):
        if not (isinstance(value, types.ModuleType) or inspect.isclass(value)):
            return value, chain[i:]
        value = getattr(value, name, _MISSING)
    return value, ()
