"""A second process with the same calls: nothing is tuned or captured, no worker starts, and its first call against a hand-written kernel's.

A first process calls the kernels and waits for its tuner. Then fresh processes that call the same take turns with processes that call the
hand-written kernels (``pl.pallas_call`` under ``jax.jit``) with JAX's compilation cache warm. Imports are not counted, but helion_rt's
late ones are.
"""

from __future__ import annotations

import sys

from . import common, first_call


def main(argv: list[str]) -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(argv)
    seen = first_call.pairs(options.rounds, cold=False)
    first, *further = list(seen["ours"][0]["calls"])
    limit = first_call.WARM_LIMIT_S
    rows = [
        *(_count_row(what, seen["ours"]) for what in ("candidates tried", "workers started", "captures")),
        _count_row("calls answered from the database", seen["ours"], least=len(seen["ours"][0]["calls"])),
        first_call.row("first kernel of the process", seen, [first], limit),
        first_call.row("further kernel (the worst)", seen, further, limit),
    ]
    return common.report("The second process", rows, options.json)


def _count_row(what: str, runs: list[dict], least: int = 0) -> common.Row:
    """The count of ``what`` that is furthest from what it must be: none, or ``least`` at least."""
    if least:
        worst = min(run["counts"][what] for run in runs)
        return common.Row(what, {"the fewest of all runs": worst}, "", -worst, -least, f"{least}")
    worst = max(run["counts"][what] for run in runs)
    return common.Row(what, {"the most of all runs": worst}, "", worst, 0, "none")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
