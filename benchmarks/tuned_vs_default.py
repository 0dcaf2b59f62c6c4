"""The winner against our default, fixed 128-blocks, the best of the space, and jitted jax.numpy; and what calls cost while tuning.

On the CPU, float32, everything jitted, in interleaved rounds. "The best of the space" compiles and times the configs of the space, and
confirms the three fastest in the same interleaved rounds as the others. Of a large space it takes ``--max-space`` evenly, and leaves out
those with more steps than ``MOST_STEPS``: each step costs some 20 us here, and an unrolled loop of that length minutes to compile.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

# Read when helion_rt is imported: the winners are wanted, so wait for them; unless a parent process has said how to tune.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HELION_RT_TUNE", "sync")

from . import common

MODULE = "benchmarks.tuned_vs_default"
NEVER_SLOWER = 1.05  # of the default: what two measurements of the same function differ by on a busy machine
MATMUL_LIMIT = 1.3
CONFIRMED = 3
MOST_STEPS = 512


def compare(subject: Any, seconds: float, max_space: int) -> common.Row:
    """One row: everything about one subject. Tunes it through the kernel itself, with the tuner that users get."""
    import helion_rt

    from . import subjects

    arrays, space = subject.arguments(), subject.space()
    subject.kernel(*arrays)
    helion_rt.wait_for_tuning()
    slot = helion_rt.status()[-1]
    if slot["tuning"] != "done":
        raise RuntimeError(f"{subject.name}: tuning is {slot['tuning']}, there is no winner to compare: {slot['tuning_error']}")
    winner = helion_rt.Config.from_dict(slot["config"])
    configs = {"winner": winner, "default": space.default(), "128-blocks": subjects.fixed_blocks(space, 128)}
    fastest, tried = _fastest(space, arrays, max_space)
    configs |= {f"space {i}": config for i, config in enumerate(fastest)}
    # By config, not by name: where two names mean the same config, they are one side, and their ratio is 1.
    sides: dict[str, Callable[[], object]] = {
        repr(config): subjects.compiled(space.program, config, arrays) for config in dict.fromkeys(configs.values())
    }
    in_jax = subjects.jax.jit(subject.in_jax)
    sides["jax.numpy"] = lambda: in_jax(*arrays).block_until_ready()
    measured = common.interleaved(sides, seconds)
    times = {name: measured[repr(config)] for name, config in configs.items()} | {"jax.numpy": measured["jax.numpy"]}
    # The winner and the default belong to the space, whether they were among those tried or not.
    best = min(configs, key=lambda name: statistics.median(times[name]))
    figures = {name: statistics.median(times[name]) for name in ("winner", "default", "128-blocks", "jax.numpy")}
    figures["best of the space"] = statistics.median(times[best])
    to_default = figures["winner to default, ratio"] = common.median_ratio(times, "winner", "default")
    figures["winner to best of the space, ratio"] = common.median_ratio(times, "winner", best)
    to_jax = figures["winner to jax.numpy, ratio"] = common.median_ratio(times, "winner", "jax.numpy")
    note = f"{winner}; {tried}"
    if subject is subjects.MATMUL_1024:
        return common.Row(subject.name, figures, "ms", to_jax, MATMUL_LIMIT, f"winner at most {MATMUL_LIMIT} x jnp.dot", note)
    return common.Row(subject.name, figures, "ms", to_default, NEVER_SLOWER, "winner not slower than the default", note)


def _fastest(space: Any, arrays: tuple[Any, ...], most: int) -> tuple[list[Any], str]:
    """The ``CONFIRMED`` fastest configs of the space by the best of three runs, and in words how much of the space was tried."""
    from helion_rt.tuning import model

    from . import subjects

    every = list(itertools.islice(space.plain(), 100_000))
    near = [config for config in every if model.steps(space.program, config) <= MOST_STEPS]
    legal = [config for config in near[:: max(1, len(near) // (4 * most))] if space.is_legal(config)]
    chosen = legal[:: max(1, -(-len(legal) // most))]
    seen: list[tuple[float, int]] = []
    for number, config in enumerate(chosen):
        run = subjects.compiled(space.program, config, arrays)
        run()
        seen.append((min(_seconds(run) for _ in range(3)), number))
    words = f"tried {len(chosen)} of {len(every)} configs, {len(every) - len(near)} have more than {MOST_STEPS} steps"
    return [chosen[number] for _, number in sorted(seen)[:CONFIRMED]], words


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def latency_child(seconds: float) -> dict[str, Any]:
    """Call one kernel again and again, after its first call, while its tuning goes on (``HELION_RT_TUNE`` says whether): milliseconds."""
    import helion_rt

    from . import subjects

    arrays = subjects.MATMUL_1024.arguments()
    subjects.jax.block_until_ready(subjects.MATMUL_1024.kernel(*arrays))
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        times.append(_seconds(lambda: subjects.jax.block_until_ready(subjects.MATMUL_1024.kernel(*arrays))) * 1e3)
        if os.environ["HELION_RT_TUNE"] == "background" and helion_rt.wait_for_tuning(timeout=0):
            break
    return {"calls": len(times), "median": statistics.median(times), "p99": sorted(times)[int(len(times) * 0.99)], "largest": max(times)}


def latency_rows(seconds: float) -> list[common.Row]:
    with common.caches("off", "background") as folders:
        seen = {
            folder.name: common.fresh_process(
                MODULE, "--latency", str(seconds), cache=folder, HELION_RT_TUNE=folder.name, HELION_RT_TUNE_SECONDS=str(seconds)
            )
            for folder in folders
        }
    rows = []
    for what in ("median", "p99", "largest"):
        off, tuning = seen["off"][what], seen["background"][what]
        figures = {"while tuning": tuning, "tuning off": off, "ratio": tuning / off}
        calls = f"{seen['background']['calls']} and {seen['off']['calls']} calls"
        rows.append(common.Row(f"{what} call of matmul 1024^3", figures, note=calls))
    return rows


def main(argv: list[str]) -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of interleaved timing, each subject (default 5)")
    parser.add_argument("--tune-seconds", type=float, default=30.0, help="what the tuner may spend on each subject (default 30)")
    parser.add_argument("--max-space", type=int, default=24, help="most configs of a space to try (default 24)")
    parser.add_argument("--only", default="", help="subjects whose name contains this")
    parser.add_argument("--latency", type=float, help="measure calls for so many seconds in this process (the benchmark does that itself)")
    options = parser.parse_args(argv)
    if options.latency:
        print(json.dumps(latency_child(options.latency)))
        return 0
    os.environ["HELION_RT_TUNE_SECONDS"] = str(options.tune_seconds)
    with common.caches("cache") as (cache,):
        os.environ["HELION_RT_CACHE_DIR"] = str(cache)
        from . import subjects

        chosen = [subject for subject in subjects.SUBJECTS if options.only in subject.name]
        rows = []
        for subject in chosen:
            print(f"{subject.name} ...", file=sys.stderr, flush=True)
            rows.append(compare(subject, options.seconds, options.max_space))
    if not options.only:
        rows += latency_rows(20.0)
    return common.report("Winner, default, and others, on the CPU", rows, options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
