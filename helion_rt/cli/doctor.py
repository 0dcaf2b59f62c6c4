"""``helion-rt doctor``: what works on this machine, and the traps it can see."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import enum
import importlib.metadata
import json
import os
import platform
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from helion_rt import settings as settings_module
from helion_rt import targets
from helion_rt._version import __version__
from helion_rt.database import Key, Trust, open_local
from helion_rt.database.paths import is_network_file_system
from helion_rt.database.shared import open_shared
from helion_rt.database.store import StoreError
from helion_rt.exc import HelionError
from helion_rt.settings import Settings, TuneMode, without_password

_PACKAGES = ("torch", "jax", "jaxlib", "libtpu", "numpy")
_NOBODYS = Key("0" * 64, "helion-rt doctor", "", "")
_LITTLE_SPACE = 200 << 20  # bytes


def add_parser(subparsers: Any) -> None:
    """Add ``doctor`` to the subparsers of ``helion-rt``."""
    parser = subparsers.add_parser("doctor", help="check versions, targets and the health of the cache", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the report. 0 if everything that can be expected here works, 1 if something is broken."""
    targets.prepare_environment()
    report = examine(os.environ)
    print(json.dumps(report, indent=2)) if args.json else _show(report)
    return 1 if report["problems"] else 0


def examine(environ: Mapping[str, str]) -> dict[str, Any]:
    """The report as plain data: versions, targets, backend, settings, cache, ``warnings`` (traps) and ``problems`` (broken)."""
    problems: list[str] = []
    versions = {"helion_rt": __version__, "python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}}
    try:
        settings = Settings.from_env(environ)
    except HelionError as error:
        problems.append(str(error))
        settings = Settings()
    # TPU targets first: once libtpu has been told that there is no TPU, JAX starts its default backend silently.
    names = (*targets.TPU_NAMES, "cpu")
    compiled = [try_target(targets.get(name)) for name in names]
    for target in compiled:
        if not target["compiles"] and (target["name"] == "cpu" or versions["libtpu"]):
            problems.append(f"target {target['name']}: {target['reason']}")
    backend, backend_problem = _backend()
    problems += backend_problem
    cache = _cache(settings.cache_dir, Trust.from_settings(settings))
    problems += cache.pop("problems")
    shared = [_shared(url, settings) for url in settings.shared if settings.tiers.shared.reads]
    unreachable = [f"the shared tier {tier['url']} cannot be used: {tier['reason']}" for tier in shared if tier["reason"]]
    warnings = [*cache.pop("warnings"), *unreachable, *_environment_traps(environ, settings, versions)]
    return {
        "versions": versions,
        "backend": backend,
        "targets": compiled,
        "settings": settings.to_dict(),
        "cache": cache,
        "shared": shared,
        "warnings": warnings,
        "problems": problems,
    }


def try_target(target: targets.Target) -> dict[str, Any]:
    """Compiles a small Pallas kernel for ``target`` in this process: name, key, whether it compiles, seconds, reason if not."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    def double(x: Any, out: Any) -> None:
        out[...] = x[...] * 2

    spec = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    kernel = pl.pallas_call(double, out_shape=spec, interpret=not target.is_tpu)
    start = time.perf_counter()
    reason = None
    try:
        _, compiled = targets.compile_for(kernel, [spec], target)
        if target.is_tpu and targets.count_tpu_custom_calls(compiled) == 0:
            reason = "compiled, but to no TPU kernel"
    except HelionError as error:
        reason = error.message
    seconds = round(time.perf_counter() - start, 3)
    return {"name": target.name, "key": target.key(), "compiles": reason is None, "seconds": seconds, "reason": reason}


def _backend() -> tuple[dict[str, Any], list[str]]:
    import jax

    try:
        device = jax.local_devices()[0]
    except RuntimeError as error:  # JAX_PLATFORMS asks for one that is not there
        return {"platform": None, "device": None, "target": None}, [f"JAX has no backend: {error}"]
    found = {"platform": device.platform, "device": device.device_kind, "target": None}
    try:
        return {**found, "target": targets.from_device(device).name}, []
    except HelionError as error:
        return found, [str(error)]


def _cache(directory: Path, trust: Trust) -> dict[str, Any]:
    """Health of the local tier. ``problems`` and ``warnings`` are among its keys."""
    problems: list[str] = []
    warnings: list[str] = []
    existing = next(path for path in (directory, *directory.parents) if os.path.exists(path))  # False too where a parent may not be entered
    if not existing.is_dir():
        problems.append(f"the cache directory cannot be made: {existing} is a file; set {settings_module.CACHE_DIR}")
    elif not os.access(existing, os.W_OK | os.X_OK):
        warnings.append(f"the cache directory {directory} cannot be written: winners last only as long as the process")
    if is_network_file_system(directory):
        warnings.append(f"the cache directory {directory} is on a network file system: slower; a local disk is better")
    free = shutil.disk_usage(existing).free
    if free < _LITTLE_SPACE:
        warnings.append(f"only {free >> 20} MiB are free where the cache directory is")
    records, stats = None, None
    if not problems and os.path.exists(directory):  # looking must not create it
        tier = open_local(directory, trust=trust)
        records = sum(1 for _ in tier.records())
        stats = {name: value.value if isinstance(value, enum.Enum) else value for name, value in dataclasses.asdict(tier.stats()).items()}
        tier.close()
        if stats["bad"] or stats["databases_set_aside"]:
            warnings.append(f"set aside: {stats['bad']} bad records, {stats['databases_set_aside']} broken databases")
    return {
        "directory": str(directory),
        "exists": os.path.exists(directory),
        "records": records,
        "free_bytes": free,
        "stats": stats,
        "problems": problems,
        "warnings": warnings,
    }


def _shared(url: str, settings: Settings) -> dict[str, Any]:
    """Whether a shared tier answers, in how many milliseconds, and why not."""
    found = {"url": without_password(url), "mode": settings.tiers.shared.value, "ms": None, "reason": None}
    try:
        tier = open_shared(url, trust=Trust.from_settings(settings))
        tier.get(_NOBODYS)  # connects
        start = time.perf_counter()
        tier.get(_NOBODYS)
        found["ms"] = round((time.perf_counter() - start) * 1e3, 3)
        tier.close()
    except (HelionError, StoreError) as error:
        found["reason"] = str(error)
    return found


def _environment_traps(environ: Mapping[str, str], settings: Settings, versions: Mapping[str, str | None]) -> list[str]:
    traps = []
    for name in environ:
        if name.startswith("HELION_RT_") and name not in settings_module.VARIABLES:
            close = difflib.get_close_matches(name, settings_module.VARIABLES, n=1)
            traps.append(f"{name} is not a variable of helion_rt" + (f"; did you mean {close[0]}?" if close else ""))
    if settings.tune is TuneMode.OFF:
        traps.append(f"tuning is off ({settings_module.TUNE}): calls are served by stored winners or by the safe default")
    platforms = environ.get("JAX_PLATFORMS", "")
    if platforms and targets.has_chips() and "tpu" not in platforms:
        traps.append(f"this machine has a TPU, but JAX_PLATFORMS={platforms} hides it")
    if not platforms and versions["libtpu"] and not targets.has_chips():
        traps.append("JAX_PLATFORMS is unset and there is no TPU: JAX asks libtpu, which prints on stderr; JAX_PLATFORMS=cpu avoids it")
    if not versions["libtpu"]:
        traps.append("libtpu is not installed: nothing can be compiled for a TPU here")
    if environ.get("LIBTPU_INIT_ARGS"):
        traps.append("LIBTPU_INIT_ARGS is set: it changes what the TPU compiler makes, and no record knows it")
    return traps


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _show(report: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from . import output

    console = output.console()
    table = Table(title="targets", title_justify="left")
    for column in ("target", "compiles here", "seconds", ""):
        table.add_column(column)
    for target in report["targets"]:
        table.add_row(target["key"], "yes" if target["compiles"] else "no", f"{target['seconds']:.2f}", escape(target["reason"] or ""))
    console.print(
        "versions: " + ", ".join(f"{name} {version or 'not installed'}" for name, version in report["versions"].items()), soft_wrap=True
    )
    backend = report["backend"]
    console.print(f"default backend: {backend['platform']} ({backend['device']}), target {backend['target']}", soft_wrap=True)
    console.print(table)
    console.print("settings: " + escape(", ".join(f"{name}={value}" for name, value in report["settings"].items())), soft_wrap=True)
    cache = report["cache"]
    held = f"{cache['records']} records" if cache["records"] is not None else "nothing yet"
    console.print(f"cache: {escape(cache['directory'])}, {held}, {cache['free_bytes'] >> 20} MiB free", soft_wrap=True)
    for tier in report["shared"]:
        answers = f"answers in {tier['ms']:.3g} ms" if tier["reason"] is None else "cannot be used"
        console.print(f"shared: {escape(tier['url'])}, {tier['mode']}, {answers}", soft_wrap=True)
    for warning in report["warnings"]:
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}", soft_wrap=True)
    for problem in report["problems"]:
        console.print(f"[red]problem:[/red] {escape(problem)}", soft_wrap=True)
