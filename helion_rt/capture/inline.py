"""What leaves the language: printing, JAX functions on tiles, tunable values."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..program.fingerprint import source_digest
from .hints import Dim
from .tensors import TracedTensor
from .tiles import Tile

if TYPE_CHECKING:
    from .tracer import Tracer


def device_print(tracer: Tracer, prefix: str, values: Sequence[Any]) -> None:
    """``hl.device_print``: an operation with an effect, in the order of the program."""
    if not isinstance(prefix, str):
        tracer.refuse(f"hl.device_print with a {type(prefix).__name__} first", "give a string first, then tensors")
    if not tracer.in_device:
        tracer.refuse("hl.device_print outside of a tile loop", "use print for what is known when the kernel is captured")
    shown = [_on_device(tracer, v, "hl.device_print") for v in values]
    tracer.emit("hl.print", (prefix, *shown))


def call(tracer: Tracer, fn: Any, args: Sequence[Any], output_like: Any, elementwise: bool) -> Any:
    """``hl.inline_pallas``: the results of a JAX function, of the shapes and dtypes of ``output_like``."""
    if not tracer.in_device:
        tracer.refuse("hl.inline_pallas outside of a tile loop", "call the JAX function on what the kernel returns")
    module, name, digest = function_identity(tracer, fn)
    is_tuple = isinstance(output_like, (tuple, list))
    like = list(output_like) if is_tuple else [output_like]
    if not like or not all(isinstance(t, TracedTensor) for t in like):
        tracer.refuse("hl.inline_pallas without output_like", "give a tensor (or a tuple of them) of the shape and dtype of the result")
    operands = tuple(_on_device(tracer, a, "hl.inline_pallas") for a in args)
    results = [tracer.wrap(tracer.meta(t.meta.shape, t.dtype)) for t in like]
    tracer.emit("hl.inline", (module, name, operands, (digest, bool(elementwise))), results)
    return tuple(results) if is_tuple else results[0]


def function_identity(tracer: Tracer, fn: Any) -> tuple[str, str, str]:
    """(module, name, hash of its source) of a function that generated code can import."""
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", "")
    hint = "define it with 'def' at the top of a module that can be imported"
    if not inspect.isfunction(fn) or not name.isidentifier():
        tracer.refuse(f"hl.inline_pallas of {name or fn!r}, which is no function of a module", hint)
    if not module or module == "__main__" or not all(part.isidentifier() for part in module.split(".")):
        tracer.refuse(f"hl.inline_pallas of {name}, which is defined in {module}", hint)
    try:
        return module, name, source_digest(fn)
    except (OSError, TypeError):
        tracer.refuse(f"hl.inline_pallas of {name}, whose source cannot be had", hint)


def _on_device(tracer: Tracer, value: Any, name: str) -> Any:
    if isinstance(value, Tile):
        value = value.index
    if isinstance(value, TracedTensor):
        if value.is_host and not value.is_param:
            if value.meta.shape:
                tracer.refuse(f"{name} of a whole {tracer.describe(value)}", "subscript it first: t[tile]")
            value = tracer.getitem(value, ())
        return tracer.use(value)
    if isinstance(value, (bool, int, float)) and not isinstance(value, Dim):
        return value
    if isinstance(value, Dim):
        return value.expr
    tracer.refuse(f"{name} of a {type(value).__name__}", "expected tensors and numbers")


def register_tunable(tracer: Tracer, name: str, fragment: Any) -> Any:
    """``hl.register_tunable``: the value of the kernel's own config, else the default; a plain Python value."""
    if not isinstance(name, str) or not callable(getattr(fragment, "default", None)):
        tracer.refuse("hl.register_tunable takes a name and a fragment", "for example hl.register_tunable('k', PowerOfTwoFragment(1, 64))")
    value = tracer.knowledge.tunables.get(name)
    if value is None:
        value = fragment.default()
    elif not getattr(fragment, "allows", lambda _: True)(value):
        tracer.refuse(f"the config of the kernel has {name}={value!r}, which {fragment} does not allow")
    if type(value) not in (bool, int, float, str):
        tracer.refuse(f"tunable {name!r} has the value {value!r}", "expected a bool, int, float or str")
    tracer.tunables[name] = value
    tracer.knowledge.declared[name] = fragment
    return value
