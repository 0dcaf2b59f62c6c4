"""The facts of a call: what is looked up on the hot path, and what a program may depend on."""

from __future__ import annotations

import importlib
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from helion_rt.capture.reach import Opened, is_callable_argument, opened
from helion_rt.exc import InputError
from helion_rt.program.signature import Fact, ScalarFact, StaticFact, TensorFact

from . import door

INT32 = np.iinfo(np.int32)

# Callables that have no stable name are numbered, and kept so that an id is not used again.
UNSTABLE = "callable without a stable name "
_unstable: dict[Any, tuple[int, Any]] = {}

_array_class: type | None = None

# JAX's settings that change what a program computes: (x64, matmul precision) of this thread. Cheap: the hot path asks.
_jax_numerics = operator.attrgetter("jax_enable_x64", "jax_default_matmul_precision")


def jax_numerics() -> tuple[bool, str | None]:
    """Is x64 on, and the default matmul precision."""
    return _jax_numerics(jax.config)


def jit_is_disabled() -> bool:
    """Are we under ``jax.disable_jit()``?"""
    return operator.attrgetter("jax_disable_jit")(jax.config)


def hot_key(args: Sequence[Any]) -> tuple[Any, ...]:
    """The hashable stand-in of a call's arguments: cheap, and different wherever the facts differ.

    Raises ``KeyError`` for what has none (tracers): the slow path deals with it.
    """
    key: list[Any] = [*_jax_numerics(jax.config)]
    for value in args:
        # JAX arrays first and without a call: this line is most of the hot path.
        kind = value.__class__
        key.append(value.aval if kind is _array_class else kind if kind is float or kind is int else _hot_part(value))
    return tuple(key)


def _hot_part(value: Any) -> Any:
    kind = type(value)
    part = _PARTS.get(kind)
    if part is None:
        part = _PARTS[kind] = _classify(kind)
    return part(value)


def _classify(kind: type) -> Callable[[Any], Any]:
    if issubclass(kind, Tracer):
        return _no_part
    if issubclass(kind, jax.Array):
        global _array_class  # JAX does not export its one concrete class of arrays; the first that comes by tells
        _array_class = kind
        return lambda a: a.aval
    if issubclass(kind, (np.ndarray, jax.ShapeDtypeStruct)):
        return lambda a: (kind, a.shape, a.dtype)
    if issubclass(kind, Opened):
        return lambda a: (kind, a.key, *map(_hot_part, a[1:]))
    if issubclass(kind, (tuple, list)):
        return lambda a: (kind, *map(_hot_part, a))
    if door.is_torch_type(kind):
        return lambda a: (kind, a.shape, a.dtype)
    if issubclass(kind, float):  # np.float64
        return lambda a: kind
    return lambda a: (kind, a)  # by value; what is not hashable raises TypeError at the look-up


def _no_part(value: Any) -> Any:
    raise KeyError(type(value))


# Numbers go by type: their value is looked at only where the program asks for it.
_PARTS: dict[type, Callable[[Any], Any]] = {int: lambda v: int, float: lambda v: float}


def fact_of(name: str, value: Any) -> Fact:
    """The fact of one argument. Raises ``InputError`` for what a kernel cannot take."""
    if is_array(value):
        dtype = door.dtype_name(value)
        door.check_dtype(name, dtype)
        return TensorFact(tuple(value.shape), dtype)
    if value is None or isinstance(value, (bool, str)):
        return StaticFact(value)
    if isinstance(value, int):
        return ScalarFact("int")
    if isinstance(value, float):
        return ScalarFact("float")
    if isinstance(value, Opened):
        names = (f"{name}.{inner}" if name else inner for inner in value.names)
        return (StaticFact(static_name(value)), *(fact_of(n, item) for n, item in zip(names, value[1:], strict=True)))
    if isinstance(value, (tuple, list)):
        return tuple(fact_of(f"{name}[{i}]", item) for i, item in enumerate(value))
    if isinstance(value, (Mapping, Set)):
        raise InputError(f"argument '{name}' is a {type(value).__name__}", hint="pass tensors and numbers, or tuples and lists of them")
    if isinstance(value, np.generic):
        raise InputError(f"argument '{name}' is a NumPy scalar ({type(value).__name__})", hint=f"pass {name}.item()")
    return StaticFact(static_name(value))


def static_name(value: Any) -> str:
    """What stands for a dtype or a callable in the facts: the same in every process where that can be told."""
    fn, key = (value[0], value.key) if isinstance(value, Opened) else (value, id(value))
    if not callable(fn):
        return repr(fn)
    name = importlib.import_module("helion_rt.capture.alias").alias(fn)  # late: only kernels that take callables need it
    if name is None:
        number, _ = _unstable.setdefault(key, (len(_unstable), fn))
        return f"{UNSTABLE}{number}"
    return f"callable {name}" + (f" of {value.order}" if isinstance(value, Opened) and value.order else "")


def open_callables(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """``args`` with the callables in it opened, so that what they reach are leaves; itself if there is none."""
    if not any(map(_is_closed, args)):
        return args
    return tuple(_open(value) if _is_closed(value) else value for value in args)


def _is_closed(value: Any) -> bool:
    if type(value) in (tuple, list):
        return any(map(_is_closed, value))
    return is_callable_argument(value)


def _open(value: Any) -> Any:
    return type(value)(map(_open, value)) if type(value) in (tuple, list) else opened(value) if is_callable_argument(value) else value


def has_unstable(facts: Fact) -> bool:
    """Do the facts hold something whose name means nothing in another process?"""
    if isinstance(facts, tuple):
        return any(map(has_unstable, facts))
    return isinstance(facts, StaticFact) and isinstance(facts.value, str) and facts.value.startswith(UNSTABLE)


def values_of(value: Any) -> Any:
    """The Python value of a non-array argument, None for arrays, tuples of them for sequences; an opened callable itself."""
    if isinstance(value, Opened):
        return value
    if isinstance(value, (tuple, list)):
        return tuple(values_of(item) for item in value)
    return None if is_array(value) else value


def is_array(value: Any) -> bool:
    return isinstance(value, (jax.Array, np.ndarray, jax.ShapeDtypeStruct)) or door.is_torch(value)


def concrete(value: Any) -> Any:
    """``value`` if it can be looked at, None for tracers and meta tensors."""
    if isinstance(value, Tracer) or (door.is_torch(value) and value.device.type != "cpu"):
        return None
    return value


def leaves_of(value: Any) -> list[Any]:
    """Arrays and numbers of an argument tree, depth first; a callable's are its own business."""
    if isinstance(value, (tuple, list)) and not isinstance(value, Opened):
        return [leaf for item in value for leaf in leaves_of(item)]
    return [value]


def is_traced(value: Any) -> bool:
    """Is there a value of a JAX trace in the tree, or reached by a callable in it?"""
    if isinstance(value, (tuple, list)):
        return any(map(is_traced, value))
    return isinstance(value, Tracer)


def bind(signature: inspect.Signature, kernel: str, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments in the order of the parameters, defaults filled in. Raises ``InputError`` where they do not fit."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InputError(f"{kernel}{signature}: {error}", kernel=kernel) from None
    bound.apply_defaults()
    return tuple(bound.arguments.values())


def check_int(name: str, value: int) -> None:
    """Raise ``InputError`` for an integer that a 32-bit device value cannot hold."""
    if not INT32.min <= value <= INT32.max:
        raise InputError(f"argument '{name}' is {value}, which does not fit int32", hint="use hl.specialize if it is a size or a constant")


def narrow_number(value: float) -> np.generic:
    """A Python number in the 32 bits that it has in a program; a float that is too large is infinite, as everywhere."""
    with np.errstate(over="ignore"):
        return np.int32(value) if isinstance(value, int) else np.float32(value)


def specialise(facts: Fact, values: Any, paths: Sequence[tuple[int | str, ...]], here: tuple[int, ...] = ()) -> Fact:
    """``facts`` with the scalars at ``paths`` replaced by their values."""
    if isinstance(facts, tuple):
        return tuple(specialise(f, v, paths, (*here, i)) for i, (f, v) in enumerate(zip(facts, values, strict=True)))
    return StaticFact(values) if isinstance(facts, ScalarFact) and here in paths else facts


def at(args: Any, path: Sequence[int | str]) -> Any:
    """The argument leaf that ``path`` leads to."""
    for step in path:
        args = args[step]
    return args


def stable(value: Any) -> Any:
    """A static value as a key that tells 1, 1.0 and True, and 0.0 and -0.0, apart."""
    return (type(value).__name__, repr(value)) if isinstance(value, (int, float)) else value
