"""``capture``: a Python function and the facts of a call become a program."""

from __future__ import annotations
import __future__

import ast
import builtins
import inspect
import os
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from ..exc import CaptureError, HelionError, source_line
from ..language._active import ACTIVE
from ..program.codec import encode
from ..program.fingerprint import simplify
from ..program.ir import Arg, ArgKind, DType, Param, Program, Ref, Region
from ..program.signature import Fact, ScalarFact, StaticFact, TensorFact
from . import aten
from .hints import FIRST_HINTS, Hints
from .numbers import CLAIM, claim, greatest, least
from .probes import Probes, Read
from .products import Products
from .reach import Opened, replaced
from .rewrite import LOCALS, RUNTIME, rewrite
from .source import KernelSource, get_source, plain_function
from .statements import Statements
from .tensors import CaptureMode, TracedTensor
from .tracer import Knowledge, Restart, Tracer, dtype_name

_MAX_ATTEMPTS = 200
_LOOKS_AT_TYPES = frozenset(("isinstance", "type", "issubclass"))


def capture(
    fn: Callable[..., Any],
    facts: Sequence[Fact],
    values: Sequence[Any] = (),
    settings: Any = None,
    kernel_name: str | None = None,
    tunables: Mapping[str, Any] | None = None,
    read: Read | None = None,
    declared: dict[str, Any] | None = None,
) -> Program:
    """The program of ``fn`` for a call with these facts.

    Args:
        fn: the user's function, undecorated.
        facts: one for each parameter of ``fn``, in order, defaults applied (``*args``: a tuple of facts); a callable's may be
            a tuple of its own fact and those of the arrays that it reaches, and so may one more at the end, ``fn``'s own.
        values: the Python values that belong to ``facts``, in the same structure (those of tensors are not looked at);
            needed for scalars that Python code looks at, dtypes and callables (``reach.Opened`` where the fact is such a
            tuple). Empty: there are none.
        settings: a ``Settings``; its ``dot_precision`` becomes the numerics class.
        kernel_name: default ``fn.__name__``.
        tunables: values for ``hl.register_tunable``, by name.
        read: gives the value of a probe (see ``probes``) for the arguments of the call. Default: they have no values.
        declared: is told the fragments of the kernel's tunables, by name.

    Raises:
        CaptureError: (and its subclasses) at the user's file and line.
    """
    fn = plain_function(fn)
    source = get_source(fn, kernel_name)
    names = list(inspect.signature(fn).parameters.values())
    reaching = len(names) == len(facts) - 1 and len(values) == len(facts) and isinstance(values[-1], Opened)
    if len(names) != len(facts) - reaching or (values and len(values) != len(facts)):
        raise CaptureError(f"{len(facts)} facts for {len(names)} parameters", kernel=source.name, file=source.file, line=source.first_line)
    looks = any(isinstance(n, ast.Name) and n.id in _LOOKS_AT_TYPES for n in ast.walk(source.tree))
    knowledge = Knowledge(tunables or {}, all_static=looks, looks_at_types=looks, declared={} if declared is None else declared)
    program: Program | None = None
    encoded: list[bytes] = []
    for first in FIRST_HINTS:
        program = _capture_until_known(fn, source, names, facts, values, settings, first, knowledge, read)
        encoded.append(encode(program))
        if not program.tunable_blocks or encoded.count(encoded[-1]) == 2:
            return program
    assert program is not None
    raise _hint_leaked(source, program)


def _hint_leaked(source: KernelSource, program: Program) -> CaptureError:
    line = next((op.line for op in program.launches), source.first_line)
    return CaptureError(
        "a value depends on a block size in a way that cannot be followed, such as v[1:] of a tile or float(tile.block_size)",
        kernel=source.name, file=source.file, line=line, hint="compute it from tile.index, or from tensors",
    )  # fmt: skip


def _capture_until_known(
    fn: Any, source: KernelSource, names: list[inspect.Parameter], facts: Sequence[Fact], values: Sequence[Any], settings: Any,
    first_hint: int, knowledge: Knowledge, read: Read | None,
) -> Program:  # fmt: skip
    for _ in range(_MAX_ATTEMPTS):
        try:
            return _Attempt(fn, source, names, facts, values, settings, first_hint, knowledge, read).run()
        except Restart:
            continue
    raise CaptureError("the loops of the kernel do not settle", kernel=source.name, file=source.file, line=source.first_line)


def _dims(facts: Any) -> Iterable[int]:
    if isinstance(facts, TensorFact):
        yield from facts.shape
    elif isinstance(facts, StaticFact):
        yield from (facts.value,) if isinstance(facts.value, int) else ()
    elif isinstance(facts, (tuple, list)):
        for fact in facts:
            yield from _dims(fact)


class _Attempt:
    def __init__(
        self, fn: Any, source: KernelSource, names: list[inspect.Parameter], facts: Sequence[Fact], values: Sequence[Any],
        settings: Any, first_hint: int, knowledge: Knowledge, read: Read | None,
    ) -> None:  # fmt: skip
        self.fn, self.source, self.names, self.facts, self.values, self.settings = fn, source, names, facts, values, settings
        literals = [n.value for n in ast.walk(source.tree) if isinstance(n, ast.Constant) and type(n.value) is int]
        dims = list(_dims(facts))
        hints = Hints([*literals, *dims, *knowledge.numbers], first_hint)
        self.params: list[Param] = []
        self.probes = Probes(read, self.params)
        self.tracer = Tracer(source, source.name, hints, knowledge, max([1, *dims]), self.probes)
        self.tensors: list[tuple[int, TracedTensor, int]] = []  # (index of the param, tensor, first value)

    def run(self) -> Program:
        tracer, missing = self.tracer, object()
        given = list(self.values) if self.values else [missing] * len(self.facts)
        args = [
            self._argument(p.name, (i,), fact, value, missing)
            for i, (p, fact, value) in enumerate(zip(self.names, self.facts, given, strict=False))
        ]
        if len(self.facts) > len(self.names):  # the function's own
            self.fn = self._argument("", (len(self.names),), self.facts[-1], self.values[-1], missing)
        positional, keywords = self._call_args(args)
        function = self._function()
        token = ACTIVE.set(tracer)
        try:
            with torch.no_grad(), CaptureMode(tracer), Products(tracer):
                result = function(*positional, **keywords)
        except HelionError:
            raise
        except (RuntimeError, LookupError, TypeError, ValueError, AttributeError, NameError) as error:
            raise self._explained(error) from error
        finally:
            ACTIVE.reset(token)
        return self._program(result)

    def _call_args(self, args: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        for parameter, arg in zip(self.names, args, strict=True):
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                positional.extend(arg)
            elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
                self.tracer.refuse("a kernel with **kwargs", "name the parameters", self.source.first_line)
            elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                keywords[parameter.name] = arg
            else:
                positional.append(arg)
        return positional, keywords

    def _argument(self, name: str, path: tuple[int, ...], fact: Fact, value: Any, missing: object) -> Any:
        tracer = self.tracer
        if isinstance(value, Opened) and isinstance(fact, tuple):
            return self._opened(name, path, fact, value, missing)
        if isinstance(fact, tuple):
            items = list(value) if isinstance(value, (tuple, list)) else [missing] * len(fact)
            made = [self._argument(f"{name}[{i}]", (*path, i), f, v, missing) for i, (f, v) in enumerate(zip(fact, items, strict=True))]
            return made if isinstance(value, list) else tuple(made)
        if isinstance(fact, TensorFact):
            dtype = getattr(torch, fact.dtype, None)
            if not isinstance(dtype, torch.dtype):
                raise CaptureError(f"argument '{name}' has dtype {fact.dtype}, which PyTorch does not have", kernel=self.source.name)
            tensor = tracer.wrap(tracer.meta(fact.shape, dtype))
            self.tensors.append((len(self.params), tensor, tensor.value))
            self.params.append(Param(name, path, ArgKind.TENSOR, tensor.value))
            return tensor
        if isinstance(fact, ScalarFact) and not tracer.knowledge.all_static:
            tensor = tracer.wrap(tracer.meta((), torch.int32 if fact.kind == "int" else torch.float32))
            tensor.is_param = True
            tracer.scalars.add(tensor.value)
            self.params.append(Param(name, path, ArgKind.SCALAR, tensor.value))
            return tensor
        if isinstance(fact, ScalarFact) and value is missing:
            raise CaptureError(f"the value of argument '{name}' is needed by Python code of the kernel", kernel=self.source.name)
        static = fact.value if isinstance(fact, StaticFact) else value
        value = static if value is missing else value
        self.params.append(Param(name, path, ArgKind.STATIC, None, _static(value, static)))
        return value

    def _opened(self, name: str, path: tuple[int, ...], facts: tuple[Fact, ...], value: Opened, missing: object) -> Any:
        """A callable: what it reaches are parameters, and take the places of the arrays in it."""
        names = [f"{name}.{inner}" if name else inner for inner in value.names]
        arrays = {
            id(array): self._argument(inner, (*path, i), fact, array, missing)
            for i, (inner, fact, array) in enumerate(zip(names, facts[1:], value[1:], strict=True), 1)
        }
        fn = self._argument(name, (*path, 0), facts[0], value[0], missing)
        return replaced(fn, arrays)

    def _function(self) -> Any:
        """The rewritten function, with the globals and the closure of the user's."""
        free = self.fn.__code__.co_freevars
        flags = self.fn.__code__.co_flags & _FUTURE_FLAGS
        module = compile(rewrite(self.source.parse(), free), self.source.file, "exec", flags=flags, dont_inherit=True)
        factory = next(c for c in module.co_consts if isinstance(c, types.CodeType))
        code = next(c for c in factory.co_consts if isinstance(c, types.CodeType) and c.co_name == self.fn.__code__.co_name)
        cells: dict[str, Any] = dict(zip(free, self.fn.__closure__ or (), strict=True))
        for name, helper in (("min", least), ("max", greatest)):  # the user's own of that name come first
            if name not in cells and name not in self.fn.__globals__:
                cells[name] = types.CellType(helper)
            elif name not in cells:
                cells[name] = types.CellType(self.fn.__globals__[name])
        cells[CLAIM] = types.CellType(claim(self.tracer))
        cells |= {RUNTIME: types.CellType(Statements(self.tracer)), LOCALS: types.CellType(builtins.locals)}
        return types.FunctionType(code, self.fn.__globals__, self.fn.__name__, None, tuple(cells[n] for n in code.co_freevars))

    def _explained(self, error: Exception) -> Exception:
        """PyTorch's own error in the terms of the kernel; what the user's code raised stays what it is."""
        line, trace = None, error.__traceback__
        assert trace is not None
        last = trace
        while trace is not None:
            code = trace.tb_frame.f_code
            if code.co_filename == self.source.file and self.source.first_line <= trace.tb_lineno <= self.source.last_line:
                line = trace.tb_lineno
            last, trace = trace, trace.tb_next
        file, at = last.tb_frame.f_code.co_filename, last.tb_lineno
        ours = any(f"{os.sep}{package}{os.sep}" in file for package in ("torch", "helion_rt"))
        raised = source_line(file, at).startswith(("raise", "assert")) and not ours
        return error if line is None or raised else aten.explain(self.tracer, error, (), line=line)

    def _output(self, value: Any) -> Any:
        tracer = self.tracer
        if isinstance(value, TracedTensor):
            if value.is_number:
                return tracer.needed(value, "returned as a number", "return the tensor")
            if not value.is_host:
                tracer.refuse("the kernel returns a tile", "store it to a tensor, and return that", self._return_line())
            return tracer.use(value)
        if isinstance(value, (tuple, list)):
            return tuple(self._output(item) for item in value)
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, torch.dtype):
            return DType(dtype_name(value))
        tracer.refuse(f"the kernel returns a {type(value).__name__}", "return tensors, numbers, or tuples of them", self._return_line())

    def _return_line(self) -> int:
        lines = [n.lineno for n in ast.walk(self.source.tree) if isinstance(n, ast.Return)]
        return max(lines, default=self.source.first_line)

    def _program(self, result: Any) -> Program:
        tracer = self.tracer
        outputs = self._output(result)
        mutated = tuple((i, Ref(t.value)) for i, t, first in self.tensors if t.value != first)
        params = (*self.params, *tracer.seeds.params(tracer))
        precision = getattr(getattr(self.settings, "dot_precision", None), "value", None)
        program = Program(
            name=self.source.name, file=self.source.file, first_line=self.source.first_line, source=self.source.text,
            params=params, types=tuple(tracer.types), blocks=tuple(tracer.blocks), axes=tuple(tracer.axes),
            host=Region(tuple(tracer.host.ops)), outputs=outputs, mutated=mutated, numerics=precision or "default",
            constraints=tuple(tracer.constraints), notes=tuple(sorted(tracer.tunables.items())), probes=self.probes.result(),
        )  # fmt: skip
        return simplify(program)


def _static(value: Any, fallback: Any) -> Arg:
    """A static argument as the program keeps it: plain data, or the alias that stands for it in the facts."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, torch.dtype):
        return DType(dtype_name(value))
    if isinstance(value, (tuple, list)):
        return tuple(_static(v, repr(v)) for v in value)
    return fallback if isinstance(fallback, (str, int, float)) else repr(fallback)


# Flags of ``from __future__`` imports in force where the kernel was written.
_FUTURE_FLAGS = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names) & 0xFFFF0000
