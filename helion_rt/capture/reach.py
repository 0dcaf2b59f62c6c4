"""What a function reaches without being given it: the values of its closure, its globals and its defaults.

Arrays among them become parameters of the program, read anew at each call; everything else is part of the program's
identity. Imports neither torch nor JAX: every call of a kernel that takes callables comes through here.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Chain = tuple[str, ...]  # a dotted name, ("layer", "bias")

MISSING = object()
# Packages whose functions are known by name; everything else is read.
_KNOWN = frozenset(("torch", "jax", "jaxlib", "numpy", "math", "builtins", "operator", "_operator", "functools", "itertools", "typing"))
_NUMBERS = frozenset((type(None), bool, int, str, bytes))
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_ROOTS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_GLOBALS", "LOAD_FROM_DICT_OR_DEREF")


class Opened(tuple):
    """A callable with the arrays that it reaches: ``(callable, *arrays)``.

    ``key`` is hashable and stands for all else that the callable does: its code, the numbers in its cells. Two callables of
    one key do the same with arrays of the same shapes and dtypes. ``names`` are the dotted names of the arrays; ``order`` says
    which array each name stands for, as several names may have the same one.
    """

    key: tuple[Any, ...]
    names: tuple[str, ...]
    order: tuple[int, ...]

    def __repr__(self) -> str:
        return f"<{self[0]!r} with {len(self) - 1} arrays>"


@dataclass(frozen=True, slots=True)
class _Same:
    """An object that is equal to nothing but itself; keeps it alive, so that its id stays its own."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def is_callable_argument(value: Any) -> bool:
    """Is it one whose insides matter: a function or method written in Python, or a ``functools.partial``?"""
    return isinstance(value, (types.FunctionType, types.MethodType, functools.partial))


def opened(fn: Callable[..., Any]) -> Opened:
    """``fn`` with the arrays that it reaches."""
    walk = _Walk()
    walk.value(fn, "")
    result = Opened((fn, *walk.arrays))
    result.key, result.names, result.order = tuple(walk.key), tuple(walk.names), tuple(walk.order)
    return result


def is_array(value: Any) -> bool:
    """Is it an array of torch or JAX? (A NumPy array that is reached is a constant.)"""
    for module, name in (("torch", "Tensor"), ("jax", "Array")):
        loaded = sys.modules.get(module)
        if loaded is not None and isinstance(value, getattr(loaded, name, ())):
            return True
    return False


def is_known(fn: types.FunctionType) -> bool:
    """Is it a function of a package that is not read, or of the language?"""
    module = fn.__module__ or ""
    return module.partition(".")[0] in _KNOWN or module.startswith("helion_rt.language")


@functools.lru_cache(maxsize=4096)
def chains(code: types.CodeType) -> tuple[Chain, ...]:
    """The dotted names that a function, or one defined inside of it, takes from its closure or its globals; sorted."""
    return tuple(sorted(_found(code, frozenset(code.co_freevars))))


def _found(code: types.CodeType, free: frozenset[str]) -> set[Chain]:
    found: set[Chain] = set()
    chain: Chain = ()
    for step in dis.get_instructions(code):
        if chain and step.opname in _ATTRIBUTES:
            chain = (*chain, step.argval)
            continue
        if chain and step.opname in ("CACHE", "EXTENDED_ARG"):
            continue
        if chain:
            found.add(chain)
        reads_global = step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
        chain = (step.argval,) if step.opname in _ROOTS and (reads_global or step.argval in free) else ()
    if chain:
        found.add(chain)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _found(constant, free & set(constant.co_freevars))
    return found


def contents(fn: types.FunctionType) -> dict[str, Any]:
    """The closure of ``fn`` by name; ``MISSING`` for what is not assigned yet."""

    def value(cell: types.CellType) -> Any:
        try:
            return cell.cell_contents
        except ValueError:
            return MISSING

    return {name: value(cell) for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)}


def look_up(chain: Chain, fn: types.FunctionType, cells: Mapping[str, Any]) -> tuple[Any, Chain]:
    """The value at the end of a chain, as far as attributes lead to values; the rest are attributes of it."""
    value: Any = cells.get(chain[0], MISSING)
    if value is MISSING and chain[0] not in cells:
        value = fn.__globals__.get(chain[0], MISSING)
        if value is MISSING:
            builtin = fn.__globals__.get("__builtins__", {})
            value = (vars(builtin) if isinstance(builtin, types.ModuleType) else builtin).get(chain[0], MISSING)
    for i, name in enumerate(chain[1:], 1):
        if _is_leaf(value):
            return value, chain[i:]
        inner = getattr(value, name, MISSING)
        is_module = isinstance(value, types.ModuleType) or inspect.isclass(value)
        if not is_module and (inner is MISSING or isinstance(inner, (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType))):
            return value, chain[i:]
        value = inner
    return value, ()


def _is_leaf(value: Any) -> bool:
    """Do its attributes say nothing beyond the value itself?"""
    kind = type(value)
    return (
        value is MISSING
        or kind in _NUMBERS
        or kind in (float, complex, tuple, list, dict, set, frozenset)
        or isinstance(value, (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial))
        or is_array(value)
    )


class _Walk:
    """Collects the key and the arrays of a value."""

    def __init__(self) -> None:
        self.key: list[Any] = []
        self.arrays: list[Any] = []
        self.names: list[str] = []
        self.order: list[int] = []
        self._arrays: dict[int, int] = {}
        self._functions: dict[int, int] = {}

    def value(self, value: Any, name: str) -> None:
        kind = type(value)
        if kind in _NUMBERS:
            self.key.append((kind, value))
        elif kind in (float, complex):
            self.key.append((kind, repr(value)))
        elif isinstance(value, types.FunctionType):
            self._function(value, name)
        elif is_array(value):
            self._array(value, name)
        elif isinstance(value, functools.partial):
            self.key.append(functools.partial)
            self.value(value.func, name)
            self._items(value.args, name)
            self._mapping(value.keywords, name)
        elif isinstance(value, types.MethodType):
            self.key.append(_Same(value.__self__))
            self.value(value.__func__, name)
        elif kind in (tuple, list):
            self._items(value, name)
        elif kind is dict:
            self._mapping(value, name)
        else:  # classes, modules, dtypes and objects: as good as what they are
            self.key.append(_Same(value))

    def _array(self, value: Any, name: str) -> None:
        number = self._arrays.get(id(value))
        if number is None:
            number = self._arrays[id(value)] = len(self.arrays)
            self.arrays.append(value)
            self.names.append(name)
        self.order.append(number)
        self.key.append(("array", number))

    def _items(self, values: Sequence[Any], name: str) -> None:
        self.key.append((type(values), len(values)))
        for i, item in enumerate(values):
            self.value(item, f"{name}[{i}]")

    def _mapping(self, values: Mapping[Any, Any], name: str) -> None:
        self.key.append((dict, len(values)))
        for key, item in values.items():
            self.key.append(key if type(key) in _NUMBERS else _Same(key))
            self.value(item, f"{name}[{key!r}]")

    def _function(self, fn: types.FunctionType, name: str) -> None:
        if id(fn) in self._functions:
            self.key.append(("function", self._functions[id(fn)]))
            return
        if is_known(fn):
            self.key.append(_Same(fn))
            return
        self._functions[id(fn)] = len(self._functions)
        self.key.append(fn.__code__)
        cells = contents(fn)
        for chain in chains(fn.__code__):
            self.value(look_up(chain, fn, cells)[0], ".".join(chain))
        self._items(fn.__defaults__ or (), f"{name}.defaults")
        self._mapping(fn.__kwdefaults__ or {}, f"{name}.defaults")


class Overlay:
    """An object with some of its attributes replaced; only what reads attributes by name may be given it."""

    def __init__(self, under: Any, over: dict[str, Any]) -> None:
        self._under, self._over = under, over

    def __getattr__(self, name: str) -> Any:
        over = self.__dict__["_over"]
        return over[name] if name in over else getattr(self.__dict__["_under"], name)


def replaced(value: Any, arrays: Mapping[int, Any], memo: dict[int, Any] | None = None) -> Any:
    """``value`` as it would be if the arrays that it reaches were others: ``arrays`` gives, by ``id``, what takes their place.

    The value itself where nothing changes. Functions are made anew; their code is the same.
    """
    memo = {} if memo is None else memo
    if id(value) in arrays:
        return arrays[id(value)]
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, types.FunctionType):
        memo[id(value)] = value  # a function that calls itself finds itself as it was
        memo[id(value)] = result = value if is_known(value) else _function(value, arrays, memo)
        return result
    if isinstance(value, functools.partial):
        parts = (value.func, value.args, value.keywords)
        fn, args, keywords = new = tuple(replaced(part, arrays, memo) for part in parts)
        return value if _all_same(new, parts) else functools.partial(fn, *args, **keywords)
    if isinstance(value, types.MethodType):
        fn = replaced(value.__func__, arrays, memo)
        return value if fn is value.__func__ else types.MethodType(fn, value.__self__)
    if type(value) in (tuple, list):
        items = [replaced(item, arrays, memo) for item in value]
        return value if _all_same(items, value) else type(value)(items)
    if type(value) is dict:
        items = {key: replaced(item, arrays, memo) for key, item in value.items()}
        return value if _all_same(items.values(), value.values()) else items
    return value


def _all_same(new: Iterable[Any], old: Iterable[Any]) -> bool:
    return all(a is b for a, b in zip(new, old, strict=True))


def _function(fn: types.FunctionType, arrays: Mapping[int, Any], memo: dict[int, Any]) -> types.FunctionType:
    cells = contents(fn)
    new = dict(_roots(fn, cells, arrays, memo))
    given = (fn.__defaults__ or (), fn.__kwdefaults__ or {})
    defaults, keywords = changed = tuple(replaced(part, arrays, memo) for part in given)
    if not new and _all_same(changed, given):
        return fn
    outer = {name: value for name, value in new.items() if name not in cells}
    space = {**fn.__globals__, **outer} if outer else fn.__globals__
    closure = tuple(
        types.CellType(new[name]) if name in new else cell for name, cell in zip(cells, fn.__closure__ or (), strict=True)
    )
    result = types.FunctionType(fn.__code__, space, fn.__name__, defaults or None, closure)
    result.__kwdefaults__ = dict(keywords) or None
    result.__dict__.update(fn.__dict__)
    result.__module__, result.__qualname__ = fn.__module__, fn.__qualname__
    return result


def _roots(
    fn: types.FunctionType, cells: Mapping[str, Any], arrays: Mapping[int, Any], memo: dict[int, Any]
) -> Iterator[tuple[str, Any]]:
    """The names whose values change, with their new values."""
    by_root: dict[str, list[Chain]] = {}
    for chain in chains(fn.__code__):
        by_root.setdefault(chain[0], []).append(chain)
    for root, found in by_root.items():
        value, _ = look_up((root,), fn, cells)
        if value is MISSING:
            continue
        new = replaced(value, arrays, memo)
        if new is not value:
            yield root, new
        elif all(len(chain) > 1 for chain in found) and not _is_leaf(value):
            over = _overlaid(value, [chain[1:] for chain in found], arrays, memo)
            if over is not value:
                yield root, over


def _overlaid(value: Any, tails: Sequence[Chain], arrays: Mapping[int, Any], memo: dict[int, Any]) -> Any:
    """``value`` with the attributes at ``tails`` replaced; itself if none is, or if it is also used as a whole."""
    over: dict[str, Any] = {}
    for name in {tail[0] for tail in tails}:
        inner = getattr(value, name, MISSING)
        if inner is MISSING or isinstance(inner, types.MethodType):
            continue
        new = replaced(inner, arrays, memo)
        deeper = [tail[1:] for tail in tails if tail[0] == name]
        if new is inner and all(deeper) and not _is_leaf(inner):
            new = _overlaid(inner, deeper, arrays, memo)
        if new is not inner:
            over[name] = new
    return Overlay(value, over) if over else value


__all__ = [
    "MISSING", "Chain", "Opened", "Overlay", "chains", "contents", "is_array", "is_callable_argument", "look_up", "opened", "replaced",
]  # fmt: skip
