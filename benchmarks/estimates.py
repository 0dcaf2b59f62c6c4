"""Predicted against measured TPU times: ``python -m benchmarks.estimates --data FILE``.

``FILE`` holds records of real measurements (``id``, ``kernel``, ``generation``, ``shape``, ``dtype``, ``config``, ``measured_ms``). Each
is rebuilt (``estimates_subjects``), compiled for its generation, and its schedule weighed; beside it stands a plain roofline. A family
and generation is judged by Spearman's rank correlation, the geometric mean of predicted over measured and its spread.

Wall-clock measurements hold the host's dispatch, about 0.1 ms in one source and 0.10 to 0.17 ms in the other. It is added to both
predictions; within its range it is learned from every second point (the median difference), and the table says what it is.

Compiles take from a second to minutes. Results are kept in ``--lines`` and the compiler's texts in ``--keep``, so that a rerun goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from helion_rt import targets
from helion_rt.schedule import environment, process
from helion_rt.schedule.tables import known
from helion_rt.schedule.units import rates

# Families: the records to take (every third of the long ones), and the range of the host's dispatch within their times, in ms.
FAMILIES = {
    "docs_matmul": (1, (0.1, 0.1)),
    "pf_matmul": (1, (0.1, 0.17)),
    "pallas_mosaic_tpu_ragged_dot": (3, (0.0, 0.0)),
    "pallas_mosaic_tpu_flash_attention": (3, (0.0, 0.0)),
}
DEADLINE_SECONDS = 1800.0  # of one compile; on a busy machine some take a quarter of an hour
RANK_LIMIT, MEAN_LIMITS, PICK_LIMIT = 0.9, (0.8, 1.25), 1.10
# Generations whose mean is held to its limits: on tpu7x everything measured slower than scheduled, so that is reported only.
HELD = ("v5e", "v5p", "v6e")


@dataclass(frozen=True, slots=True)
class Point:
    """A record, the two predictions and the dispatch within what was measured, in milliseconds."""

    record: dict[str, Any]
    device: float
    floor: float
    dispatch: float
    kind: str
    notes: tuple[str, ...]

    @property
    def measured(self) -> float:
        return float(self.record["measured_ms"])

    @property
    def predicted(self) -> float:
        return self.device + self.dispatch

    @property
    def roofline(self) -> float:
        return self.floor + self.dispatch


def chosen(records: Sequence[dict[str, Any]], only: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The records to predict: every first or third of a family and generation in the order of the data; what compiles soon first."""
    for family, (stride, _) in FAMILIES.items():
        for generation in targets.TPU_NAMES:
            group = [r for r in records if r["kernel"] == family and r["generation"] == generation and r["measured_ms"] is not None]
            if not only or any(word in f"{family}/{generation}" for word in only):
                yield from sorted(group[::stride], key=lambda r: r.get("compile_ms") or 0.0)


def serve(keep: Path) -> None:
    """A process that compiles: reads a record a line from standard input, answers a line of JSON. Texts go to ``keep``/<id>."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    process.die_with_parent()
    import jax

    from .estimates_subjects import subject

    folder = Path(os.environ["TEXTS"])
    for line in sys.stdin:
        record = json.loads(line)
        begin = time.monotonic()
        try:
            jax.clear_caches()  # tables are constants of traced functions
            made, target, place = subject(record), targets.get(record["generation"]), keep / str(record["id"])
            tables = known(jax.make_jaxpr(made.function)(*made.arguments), [None] * len(made.arguments))
            if not place.is_dir():
                process.empty(folder)
                targets.compile_for(made.function, made.arguments, target)
                _store(folder, place)
            estimate = process.read(place, target, tables=tables, trips=1, work=(made.flops, made.size))
            core = rates(target)
            roofline = max(made.flops / core.mxu_flops, made.size / core.hbm) / core.cores / core.clock * 1e3
            answer = {"ms": estimate.ms, "kind": estimate.kind.value, "notes": list(estimate.notes), "roofline": roofline}
        except Exception as error:  # a point that cannot be had is told, and the others go on
            answer = {"fault": f"{type(error).__name__}: {error}"[:600]}
        answers.write(json.dumps({**answer, "seconds": time.monotonic() - begin}) + "\n")
        answers.flush()


def _store(folder: Path, place: Path) -> None:
    """Move the texts that estimates read to ``place``, of the registers' listing only the head."""
    half = place.with_suffix(".half")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(parents=True)
    for path in folder.iterdir():
        if path.name.endswith("pre-finalize-registers-and-allocations.txt"):
            lines = [line for line in path.read_text(errors="replace").splitlines() if line.lstrip().startswith("#allocation")]
            (half / path.name).write_text("\n".join(lines))
        elif "final_bundles" in path.name or "utilization" in path.name:
            shutil.copy(path, half / path.name)
    half.rename(place)
    process.empty(folder)


class Compiler:
    """One process that compiles, started again when it dies or hangs."""

    def __init__(self, keep: Path) -> None:
        self.keep = keep
        self.process: subprocess.Popen[str] | None = None
        self.texts: TemporaryDirectory[str] | None = None

    def ask(self, record: dict[str, Any]) -> dict[str, Any]:
        if self.process is None:
            self.texts = TemporaryDirectory(prefix="helion_rt_estimates_")
            env = {**os.environ, **environment(self.texts.name), "TEXTS": self.texts.name, "JAX_PLATFORMS": "cpu"}
            command = [sys.executable, "-m", "benchmarks.estimates", "--serve", str(self.keep)]
            pipe, null = subprocess.PIPE, subprocess.DEVNULL
            self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=null, text=True, env=env, start_new_session=True)
        assert self.process.stdin is not None and self.process.stdout is not None
        timer = threading.Timer(DEADLINE_SECONDS, self.process.kill)
        timer.start()
        try:
            self.process.stdin.write(json.dumps(record) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except OSError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            self.close()
            return {"fault": f"the compiler's process died or took more than {DEADLINE_SECONDS:.0f} s"}
        return json.loads(line)

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        if self.texts is not None:
            with contextlib.suppress(OSError):
                self.texts.cleanup()
        self.process = self.texts = None


def with_dispatch(points: Sequence[Point]) -> list[Point]:
    """The points of one family with its dispatch learned from every second of them, within its range."""
    low, high = FAMILIES[points[0].record["kernel"]][1]
    middle = statistics.median(p.measured - p.device for p in points[::2])
    return [replace(p, dispatch=min(max(low, middle), high)) for p in points]


def rank(points: Sequence[Point], value: str) -> float:
    from scipy.stats import spearmanr

    if len(points) < 3:
        return math.nan
    predicted = [getattr(p, value) for p in points]
    if max(predicted) - min(predicted) < 1e-9:
        return math.nan  # one value for all of them ranks nothing
    found: Any = spearmanr([p.measured for p in points], predicted)
    return float(found.statistic)


def mean(points: Sequence[Point], value: str) -> tuple[float, float]:
    """Geometric mean of predicted over measured, and the geometric standard deviation as a factor."""
    logs = [math.log(getattr(p, value) / p.measured) for p in points]
    middle = sum(logs) / len(logs)
    return math.exp(middle), math.exp(math.sqrt(sum((x - middle) ** 2 for x in logs) / len(logs)))


def learned(points: Sequence[Point]) -> tuple[float, float, float]:
    """A factor from half of the points, drawn by a fixed seed, and on the other half: (factor, mean, spread)."""
    order = list(points)
    random.Random(0).shuffle(order)
    half, rest = order[: len(order) // 2], order[len(order) // 2 :]
    factor = 1 / mean(half, "predicted")[0]
    middle, spread = mean(rest, "predicted")
    return factor, middle * factor, spread


def judge(family: str, generation: str, points: Sequence[Point]) -> tuple[str, bool]:
    """A line of the table, and whether what is asked of this family and generation holds."""
    (middle, spread), (plain, plain_spread) = mean(points, "predicted"), mean(points, "roofline")
    ours, theirs = rank(points, "predicted"), rank(points, "roofline")
    within = MEAN_LIMITS[0] <= middle <= MEAN_LIMITS[1] or generation not in HELD
    ordered = math.isnan(ours) or (ours >= RANK_LIMIT and ("attention" not in family or ours > theirs))
    text = (
        f"{family.removeprefix('pallas_mosaic_tpu_'):16} {generation:6} {len(points):3}  mean {middle:5.2f} spread {spread:5.2f}x "
        f"rank {ours:6.3f} | roofline mean {plain:5.2f} spread {plain_spread:5.2f}x rank {theirs:6.3f} | "
        f"dispatch {points[0].dispatch:.2f} ms | scheduled {sum(p.kind == 'scheduled' for p in points)}/{len(points)} | "
        f"{'holds' if within and ordered else 'DOES NOT HOLD'}"
    )
    return text, within and ordered


def picked(points: Sequence[Point]) -> tuple[str, bool]:
    """The sweep: how much slower the predicted best measured than the best measured."""
    best = min(points, key=lambda p: p.measured)
    pick = min(points, key=lambda p: p.predicted)
    ratio = pick.measured / best.measured
    holds = ratio <= PICK_LIMIT
    return (
        f"pf_matmul pick {pick.record['config']}: measured {pick.measured} ms, best {best.measured} ms {best.record['config']}, "
        f"{ratio:.3f} times the best: {'holds' if holds else 'DOES NOT HOLD'}",
        holds,
    )


def report(points: Sequence[Point]) -> int:
    """Print the table; 0 if everything that is asked holds."""
    fine = True
    for family in FAMILIES:
        for generation in targets.TPU_NAMES:
            group = [p for p in points if p.record["kernel"] == family and p.record["generation"] == generation]
            if group:
                group = with_dispatch(group)
                text, holds = judge(family, generation, group)
                print(text)
                fine &= holds
            if len(group) >= 6 and generation not in HELD:
                factor, middle, spread = learned(group)
                print(f"{'':16} factor {factor:.2f} learned on half of them; on the other half: mean {middle:.2f}, spread {spread:.2f}x")
    if sweep := [p for p in points if p.record["kernel"] == "pf_matmul"]:
        text, holds = picked(sweep)
        print(text)
        fine &= holds
    return 0 if fine else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="FILE", help="records of measured times")
    parser.add_argument("--lines", type=Path, metavar="FILE", help="results, one a line; a rerun takes those over that are there")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="the compiler's texts; a rerun weighs them again")
    parser.add_argument("--only", action="append", default=[], metavar="WORD", help="families or generations that contain WORD")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        serve(args.serve)
        return 0
    if args.data is None:
        parser.error("--data is needed")
    with TemporaryDirectory(prefix="helion_rt_estimates_") as scratch:
        points = list(predict(json.loads(args.data.read_text()), args.only, args.lines, args.keep or Path(scratch)))
    return report(points)


def predict(records: Sequence[dict[str, Any]], only: Sequence[str], lines: Path | None, keep: Path) -> Iterator[Point]:
    """The points, each printed as it comes; what failed is printed and left out."""
    done = [json.loads(line) for line in lines.read_text().splitlines()] if lines is not None and lines.exists() else []
    results = {line["id"]: line for line in done}
    compiler = Compiler(keep)
    try:
        for record in chosen(records, only):
            result = results.get(record["id"])
            if result is None:
                result = {"id": record["id"], **compiler.ask(record)}
                if lines is not None:
                    with lines.open("a") as out:
                        out.write(json.dumps(result) + "\n")
            name = f"{record['kernel'].removeprefix('pallas_mosaic_tpu_')}/{record['generation']}/{record['id']}"
            if "fault" in result:
                print(f"  {name}: {result['fault']}", file=sys.stderr)
                continue
            dispatch = FAMILIES[record["kernel"]][1][0]
            point = Point(record, result["ms"], result["roofline"], dispatch, result["kind"], tuple(result["notes"]))
            text = f"  {name:32} measured {point.measured:9.3f} predicted {point.predicted:9.3f} ({point.predicted / point.measured:.2f})"
            print(f"{text} roofline {point.roofline:9.3f} {'; '.join(point.notes)[:90]}", file=sys.stderr, flush=True)
            yield point
    finally:
        compiler.close()


if __name__ == "__main__":
    sys.exit(main())
