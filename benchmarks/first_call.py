"""Time to the result of a first call, in fresh processes, against the same kernel by hand: ``pl.pallas_call`` under ``jax.jit``.

Importing torch, jax, pallas and helion_rt is not counted; what helion_rt imports late, inside the call, is. Both sides get JAX arrays and
their own empty caches (cold), or caches that an earlier process filled (warm: the winner's record is there, and JAX's compilation cache
for both). Tuning is on. The figures are medians over ``--rounds`` pairs of processes, which take turns.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from . import common

MODULE = "benchmarks.first_call"
COLD_FIRST_LIMIT_S, COLD_FURTHER_LIMIT_S, WARM_LIMIT_S, IMPORT_LIMIT_S = 3.0, 0.25, 0.1, 0.3


def child(side: str, wait: bool) -> dict[str, Any]:
    """In the fresh process: import, make the arguments, and call each kernel once. Seconds."""
    import jax
    import jax.experimental.pallas
    import torch  # noqa: F401  both sides have it loaded

    from . import hand_written

    kernels: Any = hand_written.KERNELS
    start = time.perf_counter()
    if side == "ours":
        import helion_rt

        # `import helion_rt` itself is lazy: what a program that defines a kernel imports belongs to it.
        from helion_rt import kernels as ready_made

        kernels = {name: getattr(ready_made, name) for name in hand_written.KERNELS}
    import_s = time.perf_counter() - start
    calls = {}
    for name in hand_written.KERNELS:
        arrays = hand_written.arguments(name)
        start = time.perf_counter()
        jax.block_until_ready(kernels[name](*arrays))
        calls[name] = time.perf_counter() - start
    counts = {}
    if side == "ours":
        if wait:
            helion_rt.wait_for_tuning()
        counters = helion_rt.process_counters()
        counts = {
            "candidates tried": counters["candidates_tried"],
            "workers started": counters["workers_started"],
            "captures": counters["captures"],
            # What serves is the record's config, or the default because the record says that nothing beat it.
            "calls answered from the database": counters["record_hits"],
        }
    return {"import_s": import_s, "calls": calls, "counts": counts}


def run(side: str, cache: Path, *arguments: str, **environment: str) -> dict[str, Any]:
    """``child`` in a fresh process, whose caches are in ``cache``."""
    if side == "hand":
        environment = {**common.jax_cache(cache), **environment}
    return common.fresh_process(MODULE, "--child", side, *arguments, cache=cache, **environment)


def pairs(rounds: int, cold: bool) -> dict[str, list[dict[str, Any]]]:
    """``rounds`` runs of each side, taking turns."""
    seen: dict[str, list[dict[str, Any]]] = {"ours": [], "hand": []}
    with common.caches("ours", "hand") as (ours, hand):
        if not cold:
            run("ours", ours, "--wait", HELION_RT_TUNE_SECONDS="10")
            run("hand", hand)
        for number in range(rounds):
            for side, folder in (("ours", ours), ("hand", hand)):
                cache = folder / str(number) if cold else folder
                cache.mkdir(exist_ok=True)
                seen[side].append(run(side, cache))
    return seen


def row(name: str, seen: dict[str, list[dict[str, Any]]], kernels: list[str], limit: float) -> common.Row:
    """Compare, for the slowest of ``kernels`` by difference, the medians over the rounds."""

    def median(side: str, kernel: str) -> float:
        return statistics.median(one["calls"][kernel] for one in seen[side])

    worst = max(kernels, key=lambda kernel: median("ours", kernel) - median("hand", kernel))
    ours, hand = median("ours", worst), median("hand", worst)
    figures = {"ours": ours, "hand-written": hand, "difference": ours - hand, "ratio": ours / hand}
    return common.Row(f"{name}: {worst}", figures, "s", ours - hand, limit, f"at most {limit} s more")


def import_row(seen: dict[str, list[dict[str, Any]]]) -> common.Row:
    added = statistics.median(one["import_s"] for one in seen["ours"])
    return common.Row(
        "import helion_rt, its language and kernels",
        {"added to torch and jax": added},
        "s",
        added,
        IMPORT_LIMIT_S,
        f"at most {IMPORT_LIMIT_S} s",
    )


def main(argv: list[str]) -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", choices=("ours", "hand"), help="run one side in this process (the benchmark does that itself)")
    parser.add_argument("--wait", action="store_true", help="with --child: wait until tuning is done")
    options = parser.parse_args(argv)
    if options.child:
        print(json.dumps(child(options.child, options.wait)))
        return 0
    cold, warm = pairs(options.rounds, cold=True), pairs(options.rounds, cold=False)
    first, *further = list(cold["ours"][0]["calls"])
    rows = [
        row("cold, first kernel of the process", cold, [first], COLD_FIRST_LIMIT_S),
        row("cold, further kernel (the worst)", cold, further, COLD_FURTHER_LIMIT_S),
        row("warm, first kernel of the process", warm, [first], WARM_LIMIT_S),
        row("warm, further kernel (the worst)", warm, further, WARM_LIMIT_S),
        import_row(cold),
    ]
    return common.report("Time to the result of a first call", rows, options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
