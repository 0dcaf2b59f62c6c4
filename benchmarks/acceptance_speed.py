"""First and second calls of a folder of kernels written for Helion, beside Helion itself and beside jitted JAX.

    python -m benchmarks.acceptance_speed --examples DIR --cases FILE [--helion-python PYTHON] [--variants div,rag] [word ...]

First call: the time to the result in a fresh process with empty caches, imports apart (those at the top of modules; what is imported late,
inside the call, counts), without tuning, ours and Helion's in turn. Second call: in one process, interleaved, ours and the same
mathematics under ``jax.jit``, both from torch tensors to torch tensors, for the kernels that ``jax_forms`` has. ``--out FILE`` keeps each
case's line as it is found, and a rerun with the same file goes on where it was; delete it to measure anew. Helion is in an environment of
its own: give its interpreter.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from . import common, example_folder

# For Helion's side alone: some kernels of its folder force a config of their own where its tuning is off.
HELION = {"HELION_BACKEND": "pallas", "HELION_PALLAS_INTERPRET": "1", "HELION_AUTOTUNE_EFFORT": "none"}

FIRST_LIMIT, SECOND_FACTOR, SECOND_EXTRA_MS = 1.0, 2.0, 0.5
PROCESS_LIMIT_S = 180


# ------------------------------------------------------------------------------------------------ in the fresh process


def child(side: str, folder: Path, file: Path, case_id: str, variant: str, seconds: float) -> dict[str, Any]:
    """One case of one side: its first call, whether it is right, and for ours second calls beside JAX. Times in ms."""
    import jax.experimental.pallas  # noqa: F401  both sides have it loaded
    import torch

    from . import comparison

    torch.set_num_threads(1)
    case = example_folder.find(file, case_id)
    kernel = example_folder.kernel(folder, case, {"ours": "helion_rt", "helion": "helion"}[side])
    args = case.arguments(variant)
    wanted = case.expected(*comparison.widened(args))
    start = time.perf_counter()
    out = _wait(kernel(*args))
    first = (time.perf_counter() - start) * 1e3
    found: dict[str, Any] = {"first": first, "right": comparison.is_right(out, wanted, case.tolerance, case.pick)}
    if side == "ours" and found["right"]:
        sides = {"ours": lambda: _wait(kernel(*args))}
        jax_side = _in_jax(case, args)
        if jax_side is not None:
            sides["jax"] = jax_side
            found["jax_right"] = comparison.is_right(jax_side(), wanted, 20 * case.tolerance, case.pick)
        times = common.interleaved(sides, seconds)
        found["second"] = {name: statistics.median(values) for name, values in times.items()}
    return found


def _wait(out: Any) -> Any:
    for leaf in out if isinstance(out, (tuple, list)) else (out,):
        getattr(leaf, "block_until_ready", lambda: None)()
    return out


def _in_jax(case: example_folder.Case, args: tuple[Any, ...]) -> Any:
    """The same from torch tensors to torch tensors under ``jax.jit``; None where there is no form of it."""
    import jax
    import torch

    from .jax_forms import FORMS

    if case.id not in FORMS:
        return None
    places = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor)]

    @jax.jit
    def jitted(*arrays: Any) -> Any:
        full = list(args)
        for place, array in zip(places, arrays, strict=True):
            full[place] = array
        return FORMS[case.id](*full)

    def call() -> Any:
        out = jitted(*(jax.dlpack.from_dlpack(args[i].contiguous()) for i in places))
        return jax.tree.map(torch.from_dlpack, jax.block_until_ready(out))

    return call


# ------------------------------------------------------------------------------------------------ the comparison


def spawn(python: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """``child`` in a fresh process of ``python`` with empty caches: its JSON, or ``{"error": ...}``."""
    with common.caches("cache", "home") as (cache, home):
        env = {
            **os.environ, "JAX_PLATFORMS": "cpu", "HELION_RT_CACHE_DIR": str(cache), "HELION_RT_TUNE": "off",
            "TORCHINDUCTOR_CACHE_DIR": str(home), "HELION_CACHE_DIR": str(home), "PYTHONPATH": str(common.ROOT), **environment,
        }  # fmt: skip
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [python, "-m", "benchmarks.acceptance_speed", *arguments]
        try:
            done = subprocess.run(command, cwd=common.ROOT, env=env, capture_output=True, text=True, timeout=PROCESS_LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            return {"error": f"more than {PROCESS_LIMIT_S} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines and lines[-1].startswith("{"):
        return json.loads(lines[-1])
    errors = [line for line in done.stderr.splitlines() if "Error" in line] or done.stderr.splitlines() or [f"ended with {done.returncode}"]
    return {"error": errors[-1][:300]}


def measure(case_id: str, variant: str, options: Any) -> dict[str, Any]:
    """Both sides of one case, ``--rounds`` times in turn: medians of what they gave."""
    common_arguments = ["--examples", options.examples, "--cases", options.cases, "--variants", variant, "--seconds", str(options.seconds)]
    sides = {"ours": sys.executable, **({"helion": options.helion_python} if options.helion_python else {})}
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for _ in range(options.rounds):
        for side, python in sides.items():
            environment = HELION if side == "helion" else {}
            runs[side].append(spawn(python, *common_arguments, "--child", side, case_id, **environment))
    return {"case": case_id, "variant": variant, **{side: _median_of(found) for side, found in runs.items()}}


def _median_of(runs: list[dict[str, Any]]) -> dict[str, Any]:
    failed = next((run for run in runs if "error" in run or not run["right"]), None)
    if failed is not None:
        return failed
    merged = {**runs[-1], "first": statistics.median(run["first"] for run in runs)}
    if "second" in runs[0]:
        merged["second"] = {name: statistics.median(run["second"][name] for run in runs) for name in runs[0]["second"]}
    return merged


def rows(found: list[dict[str, Any]]) -> list[common.Row]:
    """One row a case, then the medians that the limits are for."""
    made = [_case_row(one) for one in found]
    both = [(one["ours"]["first"], one["helion"]["first"]) for one in found if _passed(one["ours"]) and _passed(one.get("helion", {}))]
    if both:
        ours, helion = (statistics.median(side) for side in zip(*both, strict=True))
        figures = {"ours": ours, "helion": helion, "ratio": ours / helion}
        name = f"first call, median of the {len(both)} cases that both pass"
        made.append(common.Row(name, figures, "ms", ours / helion, FIRST_LIMIT, "ratio at most 1"))
    second = [one["ours"]["second"] for one in found if "jax" in one["ours"].get("second", {})]
    if second:
        ours, jax_side = statistics.median(s["ours"] for s in second), statistics.median(s["jax"] for s in second)
        broken = sum(s["ours"] > _second_limit(s["jax"]) for s in second)
        figures = {"ours": ours, "jax": jax_side, "ratio": ours / jax_side}
        name = f"second call, medians of {len(second)} cases, {broken} beyond the limit"
        made.append(common.Row(name, figures, "ms", float(broken), 0.0, "none beyond 2 times JAX plus 0.5 ms"))
    wrong = [f"{one['case']} {one['variant']}" for one in found if not _passed(one["ours"])]
    name = f"of {len(found)} cases we do not pass {len(wrong)}"
    made.append(common.Row(name, {}, "", float(len(wrong)), 0.0, "we pass all", ", ".join(wrong)))
    return made


def _passed(side: dict[str, Any]) -> bool:
    return bool(side.get("right"))


def _second_limit(jax_ms: float) -> float:
    return SECOND_FACTOR * jax_ms + SECOND_EXTRA_MS


def _case_row(one: dict[str, Any]) -> common.Row:
    ours, helion = one["ours"], one.get("helion", {})
    figures: dict[str, float] = {}
    for name, side in (("ours", ours), ("helion", helion)):
        if "first" in side:
            figures[f"first {name}"] = side["first"]
    second = ours.get("second", {})
    figures |= {f"second {name}": value for name, value in second.items()}
    notes = [f"{name}: {side.get('error', 'wrong')}" for name, side in (("ours", ours), ("helion", helion)) if side and not _passed(side)]
    limit = _second_limit(second["jax"]) if "jax" in second else None
    text = f"second call at most {limit:.4g} ms" if limit is not None else ""
    return common.Row(f"{one['case']} {one['variant']}", figures, "ms", second.get("ours"), limit, text, "; ".join(notes))


def collected(options: Any) -> list[dict[str, Any]]:
    """A line for every selected case; those that ``--out`` has already are not run again."""
    out = Path(options.out) if options.out else None
    known = [json.loads(line) for line in out.read_text().splitlines()] if out is not None and out.exists() else []
    done = {(one["case"], one["variant"]) for one in known}
    cases = example_folder.selected(Path(options.cases), options.words)
    wanted = [(case.id, v) for case in cases for v in options.variants.split(",") if v in case.sizes]
    for case_id, variant in wanted:
        if (case_id, variant) not in done:
            known.append(measure(case_id, variant, options))
            if out is not None:
                with out.open("a") as file:
                    file.write(json.dumps(known[-1]) + "\n")
            print(json.dumps(known[-1]), file=sys.stderr, flush=True)
    return [one for one in known if (one["case"], one["variant"]) in wanted]


def main(argv: list[str]) -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--examples", required=True, help="folder of kernels")
    parser.add_argument("--cases", required=True, help="case table (see benchmarks/example_folder.py)")
    parser.add_argument("--helion-python", help="interpreter of an environment that has Helion; without it only our side is measured")
    parser.add_argument("--variants", default="div,rag")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0, help="for the second calls of a case")
    parser.add_argument("--out", help="file of JSON lines to keep and to go on from")
    parser.add_argument("--child", choices=("ours", "helion"), help="run one case in this process (the benchmark does that itself)")
    parser.add_argument("words", nargs="*", help="only cases with one of these in their id")
    options = parser.parse_args(argv)
    if options.child:
        one = functools.partial(child, options.child, Path(options.examples), Path(options.cases), options.words[0])
        print(json.dumps(one(options.variants, options.seconds)))
        return 0
    return common.report("Kernels written for Helion: first and second calls", rows(collected(options)), options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
