"""What the benchmarks share: interleaved timing, fresh processes, limits, and one way to print a result."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison: named figures of one run, in ``unit``; with a limit, whether it holds."""

    name: str
    figures: dict[str, float]
    unit: str = "ms"
    compared: float | None = None  # what the limit is for
    limit: float | None = None
    limit_text: str = ""
    note: str = ""
    holds: bool | None = field(init=False)

    def __post_init__(self) -> None:
        judged = self.limit is not None and self.compared is not None
        object.__setattr__(self, "holds", self.compared <= self.limit if judged else None)  # type: ignore[operator]


def interleaved(
    sides: dict[str, Callable[[], object]],
    seconds: float,
    least: int = 5,
    most: int = 1000,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Time each side in turn, again and again: what the machine does meanwhile hits them all alike.

    Each side is called once before, untimed. The order is turned by one each round.

    Args:
        sides: functions that return when their work is done.
        seconds: to spend, about; but at least ``least`` and at most ``most`` rounds.
        clock: what the sides are timed by.

    Returns:
        For each side its times in milliseconds, by round.
    """
    names = list(sides)
    times: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        sides[name]()
    end = time.perf_counter() + seconds
    for round_number in range(most):
        turn = round_number % len(names)
        for name in names[turn:] + names[:turn]:
            start = clock()
            sides[name]()
            times[name].append((clock() - start) * 1e3)
        if round_number + 1 >= least and time.perf_counter() >= end:
            break
    return times


def median_ratio(times: dict[str, list[float]], side: str, other: str) -> float:
    """Median over the rounds of the time of ``side`` over that of ``other``."""
    return statistics.median(a / b for a, b in zip(times[side], times[other], strict=True))


def jax_cache(folder: Path) -> dict[str, str]:
    """Environment that keeps everything JAX compiles in ``folder``, as helion_rt sets it up for itself."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def fresh_process(module: str, *arguments: str, cache: Path, **environment: str) -> dict[str, Any]:
    """Run ``python -m module arguments`` on the CPU with helion_rt's cache in ``cache``; the JSON object on its last line.

    Raises:
        RuntimeError: it failed, or said nothing; with what it wrote to standard error.
    """
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "HELION_RT_CACHE_DIR": str(cache), **environment}
    # An installed package has its bytecode on disk; where Python is told not to write any, ours alone would be compiled anew.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return json.loads(lines[-1])


@contextlib.contextmanager
def caches(*names: str) -> Iterator[list[Path]]:
    """Fresh empty folders, gone afterwards."""
    with TemporaryDirectory(prefix="helion_rt-benchmark-", ignore_cleanup_errors=True) as folder:
        paths = [Path(folder) / name for name in names]
        for path in paths:
            path.mkdir()
        yield paths


def parser(doc: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    return made


def report(title: str, rows: Sequence[Row], as_json: bool) -> int:
    """Print the rows. The exit status: 1 where a limit does not hold, otherwise 0."""
    if as_json:
        print(json.dumps({"title": title, "rows": [asdict(row) for row in rows]}))
    else:
        _print_table(title, rows)
    return int(any(row.holds is False for row in rows))


def _print_table(title: str, rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", "figures", "limit", "", title=title, show_lines=True)
    for row in rows:
        figures = "\n".join(f"{name}: {_figure(value)} {'' if name.endswith('ratio') else row.unit}" for name, value in row.figures.items())
        verdict = {None: "", True: "holds", False: "DOES NOT HOLD"}[row.holds]
        table.add_row(row.name + (f"\n({row.note})" if row.note else ""), figures, row.limit_text, verdict)
    # Where standard output is a file rich takes 80 columns, which cuts the figures.
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _figure(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.4g}"
