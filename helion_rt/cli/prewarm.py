"""``helion-rt prewarm``: fill the tuning database before the service starts.

The manifest is TOML or JSON::

    targets = ["cpu", "tpu7x"]                      # optional; --target overrides

    [[kernels]]
    kernel = "my_package.kernels:softmax"           # or "kernels.py:softmax", relative to the manifest
    args = [{ shape = [4096, 2560], dtype = "float32" }, { value = 1e-6 }]

The machine's own target is tuned and measured. For a TPU that is not here the best configs by the modelled ranking are
compiled with libtpu; what is stored is labelled ``modelled``. The exit status is 0 only if every key is filled.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helion_rt.exc import HelionError, InputError

if TYPE_CHECKING:
    from helion_rt.database import LocalTier, Record
    from helion_rt.runtime.kernel import Kernel
    from helion_rt.targets import Target


@dataclass(frozen=True)
class Entry:
    """One key to fill: a kernel, its arguments (shape-likes and values), a target."""

    name: str
    kernel: Kernel
    args: tuple[Any, ...]
    target: Target

    def label(self) -> str:
        shapes = ", ".join("x".join(map(str, a.shape)) if hasattr(a, "shape") else repr(a) for a in self.args)
        return f"{self.kernel.name}({shapes}) on {self.target}"


@dataclass(frozen=True)
class Result:
    """What became of an entry. ``status`` is the record's, or the reason why there is none."""

    kernel: str
    entry: str
    target: str
    filled: bool
    status: str
    key: str | None = None
    evidence: str | None = None
    candidates_tried: int = 0


def add_parser(subparsers: Any) -> None:
    """Add ``prewarm`` to the subparsers of ``helion-rt``."""
    parser = subparsers.add_parser(
        "prewarm",
        help="tune kernels and shapes of a manifest ahead of time",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("manifest", type=Path, metavar="MANIFEST")
    parser.add_argument("--target", action="append", metavar="NAME", help="cpu, v4, v5e, v5p, v6e, tpu7x; may be given several times")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Carry out ``prewarm``: 0 if every key is filled, 1 if not, 2 for a manifest that cannot be used."""
    try:
        entries = list(read_manifest(args.manifest, args.target))
    except (HelionError, OSError, ValueError) as error:
        print(f"helion-rt: {args.manifest}: {error}", file=sys.stderr)
        return 2
    results = fill_all(entries, quiet=args.json)
    missing = [r for r in results if not r.filled]
    if args.json:
        print(json.dumps([asdict(r) for r in results], indent=2))
    else:
        print(f"{len(results) - len(missing)} of {len(results)} keys filled")
    for result in missing:
        print(f"not filled: {result.entry}: {result.status}", file=sys.stderr)
    return 1 if missing else 0


def read_manifest(path: Path, only: list[str] | None) -> Iterator[Entry]:
    """The entries of a manifest, for the targets ``only`` or its own or this machine's. Raises ``ValueError`` or ``HelionError``."""
    from helion_rt import targets

    data = _load(path)
    names = only or data.get("targets") or [targets.detect().name]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f'expected targets = ["cpu", ...], a list of names, not {names!r:.80}')
    listed = data.get("kernels")
    if not isinstance(listed, list) or not listed:
        raise ValueError("expected a list 'kernels' with at least one entry")
    for number, item in enumerate(listed, 1):
        if not isinstance(item, dict) or not isinstance(item.get("kernel"), str) or not isinstance(item.get("args"), list):
            raise ValueError(f'kernel {number}: expected kernel = "module:name" and args = [...]')
        kernel = load_kernel(item["kernel"], path.parent)
        args = tuple(_argument(a, item["kernel"]) for a in item["args"])
        for name in names:
            yield Entry(item["kernel"], kernel, args, targets.get(name))


def load_kernel(spec: str, folder: Path) -> Kernel:
    """The kernel that ``module:name`` or ``file.py:name`` (relative to ``folder``) means. Raises ``ValueError``."""
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
    if not isinstance(found, Kernel):
        raise ValueError(f"'{spec}': {name} is {type(found).__name__}, expected a @helion_rt.kernel")
    return found


def fill_all(entries: list[Entry], quiet: bool) -> list[Result]:
    """Fill every entry, with a progress bar on standard error unless ``quiet``."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, quiet=quiet)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    results = []
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=len(entries))
        for entry in entries:

            def told(tried: int, label: str = entry.label()) -> None:
                progress.update(bar, description=f"{label}: candidate {tried}")

            progress.update(bar, description=entry.label())
            results.append(fill(entry, told))
            progress.advance(bar)
    return results


def fill(entry: Entry, told: Callable[[int], None] = lambda tried: None) -> Result:
    """Make sure that the database has a record of ``entry``."""
    from helion_rt import targets

    try:
        return _measure(entry, told) if entry.target == targets.detect() else _compile(entry, told)
    except Exception as error:  # one bad entry must not keep the others from being filled
        return Result(entry.name, entry.label(), entry.target.name, False, f"{type(error).__name__}: {error}")


def _measure(entry: Entry, told: Callable[[int], None]) -> Result:
    """Tune on this machine, as a first call would."""
    from helion_rt.runtime.background import tuner
    from helion_rt.runtime.slot import Origin, Tuning

    slot = entry.kernel.bind(*entry.args)
    if slot.serving.origin is Origin.FORCED:
        return Result(entry.name, entry.label(), entry.target.name, True, "forced by config=", slot.key.digest)
    if slot.tuning is Tuning.OFF:  # HELION_RT_TUNE=off is meant for the service, not for this command
        slot.tuning = Tuning.QUEUED
    if not slot.submitted:
        slot.submitted = True
        tuner.submit(slot)
    while not slot.done.wait(0.2):
        told(slot.candidates_tried)
    tuner.wait()
    record = slot.tier.get(slot.key)
    if record is None or slot.tuning is not Tuning.DONE:
        return Result(entry.name, entry.label(), entry.target.name, False, slot.tuning_error or "no record was stored", slot.key.digest)
    return _result(entry, record, slot.candidates_tried, slot.tier)


def _compile(entry: Entry, told: Callable[[int], None]) -> Result:
    """Compile for a target that is not here, in a worker process."""
    from helion_rt.database import EvidenceKind
    from helion_rt.program import codec
    from helion_rt.runtime import background, jaxcache, prepare
    from helion_rt.tuning import modelled, pool
    from helion_rt.tuning.space import SPACE_VERSION, Space

    found, key, tier, settings = prepare.find(entry.kernel, entry.kernel.bound(*entry.args), entry.target)
    record = tier.get(key)
    if record is not None and record.space_version == SPACE_VERSION:
        return _result(entry, record, 0, tier)
    space = Space(found.program, entry.target, entry.kernel.configs)
    workers = pool.Workers()
    opening = background.opening(found.program, entry.target, jaxcache.settings(), [])
    try:
        outcome = modelled.best_that_compiles(space, pool.WorkerEvaluator(opening, workers), settings.tune_seconds, told)
    finally:
        workers.stop()
    if outcome is None:
        return Result(entry.name, entry.label(), entry.target.name, False, "no config compiles", key.digest)
    record = background.make_record(key, entry.kernel.name, outcome, EvidenceKind.MODELLED)
    tier.put(record)
    for alias in found.aliases:
        tier.put_program(alias, codec.encode(found.program))
    return _result(entry, record, outcome.tried, tier)


def _result(entry: Entry, record: Record, tried: int, tier: LocalTier) -> Result:
    """A filled entry; not filled where the directory did not take the record, which then goes with this process."""
    tier.close()  # tries once more to write what could not be written
    kept = tier.stats().in_memory == 0
    status = record.status.value if kept else f"found, but {tier.directory} cannot be written"
    evidence = record.evidence.kind.value
    return Result(entry.name, entry.label(), entry.target.name, kept, status, record.key.digest, evidence, tried)


def _argument(item: Any, kernel: str) -> Any:
    import jax
    import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
    import numpy as np

    if isinstance(item, dict) and item.keys() == {"value"}:
        return item["value"]
    if isinstance(item, dict) and item.keys() == {"shape", "dtype"}:
        try:
            return jax.ShapeDtypeStruct(tuple(map(int, item["shape"])), np.dtype(item["dtype"]))
        except TypeError as error:
            raise InputError(f"{kernel}: {item!r}: {error}", hint="dtypes: float32, bfloat16, int32, ...") from error
    raise InputError(f'{kernel}: an argument is {{shape = [...], dtype = "..."}} or {{value = ...}}, not {item!r}')


def _load(path: Path) -> dict[str, Any]:
    text = path.read_text()
    data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    if not isinstance(data, dict):
        raise ValueError("expected a table at the top")
    return data


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
