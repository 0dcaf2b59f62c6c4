"""The tuner against an exhaustive sweep, on the CPU: how near its pick comes to the best of the space, and for how much less work.

For each subject every config of the space is compiled and timed once (minutes; the times are kept in ``--data FILE``, a line a config,
and a second run goes on where the first was ended). Then the tuner itself, with the worker process that users get, tunes the same
program from nothing. Last, its pick, the ``CONFIRMED`` fastest of the sweep and the default are timed against each other in interleaved
rounds, since single times taken minutes apart say little on a machine that others use.

``--processor-time`` counts processor time instead of the wall clock, in the sweep and at the end (never in the tuner): for a machine so
busy that waiting is most of what the wall clock sees. It says the same only of one core: run it under ``taskset -c N``.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HELION_RT_TUNE", "off")

from . import common

MODULE = "benchmarks.exhaustive"
WITHIN = 1.05  # of the best of the space
MOST_TIMED = 0.10  # of its configs
LEAST_SPACE = 200
CONFIRMED = 4
HOPELESS = 20.0  # a config whose first run takes so many times the best is not run again
TUNE_SECONDS = 60.0


def sweep(subject: Any, data: Path, seconds: float, clock: Callable[[], float]) -> list[dict[str, Any]]:
    """A line for every config of the space: ``seconds`` of its best run, and ``spent`` on it. Lines that are there already are kept."""
    from helion_rt.config import Config

    from . import exhaustive_subjects

    known = {Config.from_dict(line["config"]): line for line in lines(data) if line["subject"] == subject.name}
    arrays, space = subject.arguments(), subject.space()
    configs = list(space.configs())
    best = min((line["seconds"] for config, line in known.items() if line["seconds"] is not None), default=float("inf"))
    end = time.perf_counter() + seconds
    # In an order of chance, the same each time: what the machine does meanwhile must not look like a property of large blocks.
    for config in random.Random(0).sample(configs, len(configs)):
        if config in known:
            continue
        if time.perf_counter() > end:
            break
        begin = time.perf_counter()
        took = _time(exhaustive_subjects.compiled(space.program, config, arrays), best, clock)
        best = min(best, took)
        line = {"subject": subject.name, "config": config.to_dict(), "seconds": took, "spent": time.perf_counter() - begin}
        known[config] = line
        with data.open("a") as file:
            file.write(json.dumps(line) + "\n")
    return [known[config] for config in configs if config in known]


def _time(run: Callable[[], object], best: float, clock: Callable[[], float]) -> float:
    """Seconds of the best of some runs after the first, which compiles."""
    run()
    took = _once(run, clock)
    if took > HOPELESS * best:
        return took
    runs = 3 if took > 2 * best else 12
    return min(took, *(_once(run, clock) for _ in range(runs)))


def _once(run: Callable[[], object], clock: Callable[[], float]) -> float:
    begin = clock()
    run()
    return clock() - begin


def lines(data: Path) -> list[dict[str, Any]]:
    """What earlier runs have written; a last line that was cut off is dropped."""
    found = []
    for text in data.read_text().splitlines() if data.exists() else ():
        try:
            found.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return found


def tune(subject: Any, seconds: float) -> Any:
    """The tuner's own outcome, from nothing: default, heuristics, model and search, in a worker process."""
    from helion_rt.runtime import improve, jaxcache
    from helion_rt.tuning import inputs, pool
    from helion_rt.tuning.search import search

    space = subject.space()
    workers = pool.Workers()
    recipe = inputs.recipe(space.program, list(subject.arguments()))
    try:
        evaluator = pool.WorkerEvaluator(improve.opening(space.program, space.target, jaxcache.settings(), recipe), workers)
        return search(space, evaluator, seconds)
    finally:
        workers.stop()


def judge(subject: Any, swept: list[dict[str, Any]], tune_seconds: float, seconds: float, clock: Callable[[], float]) -> common.Row:
    """Tune, then time the pick against the fastest of the sweep."""
    from helion_rt.config import Config

    from . import exhaustive_subjects

    out = tune(subject, tune_seconds)
    arrays, space = subject.arguments(), subject.space()
    default = space.default()
    pick = out.winner or default
    fastest = sorted(swept, key=lambda line: line["seconds"])[:CONFIRMED]
    configs = [pick, default, *(Config.from_dict(line["config"]) for line in fastest)]
    sides = {repr(c): exhaustive_subjects.compiled(space.program, c, arrays) for c in dict.fromkeys(configs)}
    times = common.interleaved(sides, seconds, least=15, clock=clock)
    best = min(sides, key=lambda name: statistics.median(times[name]))
    size = sum(1 for _ in space.configs())
    figures = {
        "ms of the pick": statistics.median(times[repr(pick)]),
        "ms of the best of the sweep": statistics.median(times[best]),
        "ms of the default": statistics.median(times[repr(default)]),
        "pick to best, ratio": common.median_ratio(times, repr(pick), best),
        "timed of the space, ratio": (out.tried + 1) / size,
        "seconds to the winner": out.seconds,
        "seconds of the sweep": sum(line["spent"] for line in swept),
    }
    note = f"{pick}; best {best}; space of {size}, {len(swept)} of them swept, timed {out.tried + 1}"
    limits = figures["timed of the space, ratio"] <= MOST_TIMED and size >= LEAST_SPACE and len(swept) == size
    compared = figures["pick to best, ratio"] if limits else float("inf")
    return common.Row(subject.name, figures, "", compared, WITHIN, f"within {WITHIN}, timed <= {MOST_TIMED:.0%} of >= {LEAST_SPACE}", note)


def main(argv: list[str]) -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="lines file of the sweep's times, gone on with if it is there")
    parser.add_argument("--only", default="", help="subjects whose name contains this")
    parser.add_argument("--sweep-seconds", type=float, default=3600.0, help="most to spend on each sweep in this run (default 3600)")
    parser.add_argument("--tune-seconds", type=float, default=TUNE_SECONDS, help=f"what the tuner may spend (default {TUNE_SECONDS:g})")
    parser.add_argument("--seconds", type=float, default=6.0, help="of interleaved timing at the end, each subject (default 6)")
    parser.add_argument("--sweep-only", action="store_true", help="fill the lines file, tune nothing")
    parser.add_argument("--processor-time", action="store_true", help="see above")
    options = parser.parse_args(argv)
    clock = time.process_time if options.processor_time else time.perf_counter
    from . import exhaustive_subjects

    rows, spent, swept_for = [], [], []
    for subject in exhaustive_subjects.SUBJECTS:
        if options.only not in subject.name:
            continue
        print(f"{subject.name} ...", file=sys.stderr, flush=True)
        swept = sweep(subject, options.data, options.sweep_seconds, clock)
        if options.sweep_only:
            continue
        rows.append(judge(subject, swept, options.tune_seconds, options.seconds, clock))
        spent.append(rows[-1].figures["seconds to the winner"])
        swept_for.append(rows[-1].figures["seconds of the sweep"])
    if rows:
        medians = {"to a winner": statistics.median(spent), "of a sweep": statistics.median(swept_for)}
        rows.append(common.Row("median over the subjects", medians, "s"))
    return common.report("The tuner's pick and an exhaustive sweep, on the CPU", rows, options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
