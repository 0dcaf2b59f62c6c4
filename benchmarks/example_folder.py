"""A folder of kernels that were written for Helion, and a file with a table of cases for them; both are arguments of the benchmarks.

The kernels run as they are: their ``import helion`` is answered by the package under test. What else they import to test and to time
themselves (``helion._testing``, ``triton``) is replaced by modules whose names do nothing.

A case table is a Python file with a list ``CASES`` of dicts: ``module`` and ``kernel`` (names in the folder), ``make`` (keyword dimensions
-> arguments, torch tensors on the CPU), ``ref`` (those arguments, floats in float64 -> what is expected), ``div`` and ``rag`` (dimensions
that blocks divide, and that they do not; ``rag`` may be None), ``tol``, ``pick`` (None, or result -> the part of it to compare).
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIANTS = ("div", "rag")
SEED = 1234


@dataclass(frozen=True)
class Case:
    """A row of the table; ``id`` is ``module.kernel#n``, n counting the rows of that kernel from 1."""

    id: str
    module: str
    kernel: str
    make: Callable[..., Any]
    expected: Callable[..., Any]
    sizes: dict[str, dict[str, Any]]  # by variant
    tolerance: float
    pick: Callable[[Any], Any] | None

    def arguments(self, variant: str) -> tuple[Any, ...]:
        """The arguments of a call, the same numbers each time."""
        import torch

        torch.manual_seed(SEED)
        return tuple(self.make(**self.sizes[variant]))


def cases(file: Path) -> Iterator[Case]:
    """The rows of a case table, in order."""
    seen: dict[str, int] = {}
    for row in _module_of(file, "acceptance_cases").CASES:
        name = f"{row['module']}.{row['kernel']}"
        seen[name] = seen.get(name, 0) + 1
        sizes = {v: row[v] for v in VARIANTS if row.get(v) is not None}
        yield Case(
            f"{name}#{seen[name]}", row["module"], row["kernel"], row["make"], row["ref"], sizes, row.get("tol", 1e-4), row.get("pick")
        )


def find(file: Path, case_id: str) -> Case:
    return next(case for case in cases(file) if case.id == case_id)


def selected(file: Path, words: list[str]) -> list[Case]:
    """The cases whose id has one of the words in it; all, without words."""
    return [case for case in cases(file) if not words or any(word in case.id for word in words)]


def kernel(folder: Path, case: Case, package: str) -> Any:
    """The kernel of a case, its ``helion`` being ``package``. For a process that does nothing else: it changes ``sys.modules``."""
    _answer_imports(package)
    if "examples" not in sys.modules:
        home = types.ModuleType("examples")
        home.__path__ = [str(folder)]  # type: ignore[attr-defined]
        sys.modules["examples"] = home
    return getattr(importlib.import_module(f"examples.{case.module}"), case.kernel)


def _module_of(file: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None, file
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class _Nothing:
    """Stands for what only a kernel's own test or timing uses: any attribute, any call; as a decorator it returns the function."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else self


class _Hollow(types.ModuleType):
    """A module with the names it is given; every other name is ``_Nothing``."""

    def __init__(self, name: str, **names: Any) -> None:
        super().__init__(name)
        self.__path__ = []
        self.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing()


_OF_THE_PACKAGE = (
    "language", "exc", "runtime", "runtime.settings", "autotuner", "autotuner.config_fragment", "autotuner.benchmarking", "_compat"
)  # fmt: skip


def _answer_imports(package: str) -> None:
    import torch

    found = importlib.import_module(package)
    if package != "helion" and sys.modules.get("helion") is not found:
        sys.modules["helion"] = found
        for name in _OF_THE_PACKAGE:
            sys.modules[f"helion.{name}"] = _submodule(package, name)
    settings = sys.modules.get("helion.runtime.settings")
    if isinstance(settings, _Hollow):
        settings.__dict__["_get_backend"] = lambda: "pallas"
    testing = {"DEVICE": torch.device("cpu"), "HALF_DTYPE": torch.bfloat16, "LONG_INT_TYPE": torch.int32, "is_cuda": lambda: False}
    sys.modules["helion._testing"] = _Hollow("helion._testing", **testing)
    for name in ("triton", "triton.language", "triton.testing"):
        if package != "helion" or importlib.util.find_spec("triton") is None:
            sys.modules[name] = _Hollow(name)


def _submodule(package: str, name: str) -> types.ModuleType:
    try:
        return importlib.import_module(f"{package}.{name}")
    except ModuleNotFoundError:
        return _Hollow(f"helion.{name}", use_tileir_tunables=lambda: False)
