"""The keys that ``tune`` and ``prewarm`` fill: a kernel, its arguments, a target, as people name them; and the filling itself."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import json
import os
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from helion_rt.exc import HelionError, InputError
from helion_rt.settings import TUNE

from .live import View

if TYPE_CHECKING:
    from helion_rt.runtime.ahead import Filled
    from helion_rt.runtime.kernel import Kernel
    from helion_rt.targets import Target
    from helion_rt.tuning.pool import Workers

_Kind = TypeVar("_Kind", list, dict)


@dataclass(frozen=True)
class Entry:
    """One key to fill: a kernel as it was named, its arguments (shape-likes and values), a target; ``kwargs``: those by name only.

    ``problem``: why the kernel or an argument cannot be had; then ``kernel`` is None.
    """

    name: str
    kernel: Kernel | None
    args: tuple[Any, ...]
    target: Target
    problem: str = ""
    kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def short_name(self) -> str:
        return self.kernel.name if self.kernel is not None else self.name

    def arguments(self) -> str:
        """``4096x4096 bfloat16, 3.0``."""
        return ", ".join([*map(_shown, self.args), *(f"{name}={_shown(a)}" for name, a in self.kwargs.items())])

    def label(self) -> str:
        told = [*map(_shape, self.args), *(f"{name}={_shape(a)}" for name, a in self.kwargs.items())]
        return f"{self.short_name}({', '.join(told)}) on {self.target}"


@dataclass(frozen=True)
class Result:
    """What became of an entry. ``status`` is the record's, or the reason why there is none. Times in milliseconds."""

    kernel: str
    entry: str
    target: str
    filled: bool
    status: str
    key: str | None = None
    evidence: str | None = None
    candidates_tried: int = 0
    ms: float | None = None
    default_ms: float | None = None
    config: dict[str, Any] | None = None
    seconds: float = 0.0

    @property
    def gain(self) -> float | None:
        return self.default_ms / self.ms if self.ms and self.default_ms else None

    def line(self) -> str:
        """One line for people."""
        from helion_rt.report.text import duration, ratio

        if not self.filled:
            return f"{self.entry}: {self.status}"
        if self.default_ms is None and self.ms is None:
            return f"{self.entry}: {self.status}"
        best = self.ms if self.config is not None and self.ms is not None else self.default_ms
        gained = f"{ratio(self.gain)} the default's speed" if self.config is not None and self.gain else "the default stays"
        tried = f"{self.candidates_tried} candidates, {self.seconds:.0f} s" if self.candidates_tried else "already in the database"
        return f"{self.entry}: {duration(None if best is None else best / 1e3)} {self.evidence}, {gained} ({tried})"


def tune_nothing() -> None:
    """For commands that only look: a kernel's file is run to find the kernel, and may call it."""
    os.environ[TUNE] = "off"


def load_kernel(spec: str, folder: Path) -> Kernel:
    """The kernel that ``module:name`` or ``file.py:name`` (relative to ``folder``) means. Raises ``ValueError`` or ``HelionError``."""
    from helion_rt.runtime.kernel import Kernel

    home, _, name = spec.rpartition(":")
    if not home:
        raise ValueError(f"'{spec}': expected 'module:name' or 'file.py:name'")
    try:
        module = _load_file(folder / home) if home.endswith(".py") else importlib.import_module(home)
    except HelionError:
        raise
    except Exception as error:  # whatever the user's module does when it is imported
        raise ValueError(f"'{spec}': cannot import {home}: {type(error).__name__}: {error}") from error
    found = getattr(module, name, None)
    if found is None:
        near = difflib.get_close_matches(name, dir(module), 1)
        raise ValueError(f"'{spec}': {home} has no {name}" + (f"; it has {near[0]}" if near else ""))
    if not isinstance(found, Kernel):
        raise ValueError(f"'{spec}': {name} is {type(found).__name__}, expected a @helion_rt.kernel")
    return found


def argument(item: Any, kernel: str) -> Any:
    """An argument of a manifest. Raises ``InputError``.

    ``{shape = [...], dtype = "..."}`` is a shape-like, ``{value = ...}`` what it says; ``{items = [...]}`` is a tuple of arguments,
    ``{dtype = "bfloat16"}`` a dtype of torch, ``{float = "inf"}`` a number that JSON cannot hold.
    """
    import jax
    import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
    import numpy as np

    if isinstance(item, dict) and item.keys() == {"value"}:
        return item["value"]
    if isinstance(item, dict) and item.keys() == {"items"} and isinstance(item["items"], list):
        return tuple(argument(inner, kernel) for inner in item["items"])
    if isinstance(item, dict) and item.keys() == {"float"} and item["float"] in ("inf", "-inf", "nan"):
        return float(item["float"])
    if isinstance(item, dict) and item.keys() == {"dtype"}:
        return _torch_dtype(item["dtype"], kernel)
    if isinstance(item, dict) and item.keys() == {"shape", "dtype"}:
        try:
            return jax.ShapeDtypeStruct(tuple(map(int, item["shape"])), np.dtype(item["dtype"]))
        except (TypeError, ValueError) as error:
            raise InputError(f"{kernel}: {item!r}: {error}", hint="dtypes: float32, bfloat16, int32, ...") from error
    raise InputError(f'{kernel}: an argument is {{shape = [...], dtype = "..."}} or {{value = ...}}, not {item!r}')


def arguments_of(option: str, text: str, kind: type[_Kind]) -> _Kind:
    """The list or table that an option of the command line holds, in JSON or TOML. Raises ``ValueError``."""
    name = {list: "list", dict: "table"}[kind]
    try:
        found = json.loads(text)
    except ValueError:
        try:
            found = tomllib.loads(f"args = {text}")["args"]
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"{option} is a {name} in TOML or JSON, not {text!r:.200}: {error}") from error
    if not isinstance(found, kind):
        raise ValueError(f"{option} is a {name}, not {text!r:.200}")
    return found


def _torch_dtype(name: Any, kernel: str) -> Any:
    import torch

    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise InputError(f"{kernel}: torch has no dtype {name!r:.80}", hint="for example float32, bfloat16, int32")
    return found


def entry(spec: str, arguments: Sequence[Any], target: Target, folder: Path, named: Mapping[str, Any] | None = None) -> Entry:
    """An entry, or why it cannot be had."""
    try:
        kwargs = {name: argument(item, spec) for name, item in (named or {}).items()}
        return Entry(spec, load_kernel(spec, folder), tuple(argument(a, spec) for a in arguments), target, kwargs=kwargs)
    except (HelionError, ValueError) as error:
        return Entry(spec, None, (), target, str(error))


def fill(
    what: Entry, workers: Workers, seconds: float, again: bool, view: View, stop: Callable[[], bool] = lambda: False
) -> tuple[Result, Filled | None]:
    """Fill one entry and tell the view. What is wrong with it is its result: one bad entry must not keep the others from being filled."""
    key = view.begin(what.label(), seconds)
    begin = time.monotonic()
    filled = None
    try:
        if what.kernel is None:
            raise ValueError(what.problem)
        from helion_rt.runtime import ahead

        terms = ahead.Terms(seconds, again, lambda event: view.event(key, event), stop)
        filled = ahead.fill(what.kernel, what.args, what.target, workers, terms, what.kwargs)
        result = _result(what, filled, time.monotonic() - begin)
    except Exception as error:
        reason = what.problem or f"{type(error).__name__}: {error}"
        result = Result(what.name, what.label(), what.target.name, False, reason, seconds=time.monotonic() - begin)
    view.end(key, result.filled, result.line())
    return result, filled


def _result(what: Entry, filled: Filled, spent: float) -> Result:
    told = (what.name, what.label(), what.target.name)
    if filled.forced is not None:
        return Result(*told, True, "forced by config=", filled.key.digest, config=filled.forced.to_dict())
    tried = filled.outcome.tried if filled.outcome is not None else 0
    if filled.record is None or filled.problem:
        return Result(
            *told, False, filled.problem or "no record was stored", filled.key.digest, candidates_tried=tried, seconds=round(spent, 1)
        )
    evidence = filled.record.evidence
    winner = filled.winner
    return Result(
        *told,
        True,
        filled.record.status.value,
        filled.key.digest,
        evidence.kind.value,
        tried,
        evidence.ms,
        evidence.default_ms,
        winner.to_dict() if winner is not None else None,
        round(spent, 1),
    )


def _shown(argument: Any) -> str:
    if isinstance(argument, tuple):
        return f"({', '.join(map(_shown, argument))})"
    return f"{_shape(argument)} {argument.dtype}" if hasattr(argument, "shape") else repr(argument)


def _shape(argument: Any) -> str:
    if isinstance(argument, tuple):
        return f"({', '.join(map(_shape, argument))})"
    return "x".join(map(str, argument.shape)) if hasattr(argument, "shape") else repr(argument)


def _load_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"no module in {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
    except FileNotFoundError as error:
        raise ImportError(str(error)) from error
    return module
