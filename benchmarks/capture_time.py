"""Time to capture a kernel, beside the time in which ``jax.make_jaxpr`` traces the same mathematics.

    python -m benchmarks.capture_time [--examples DIR --cases FILE] [word ...]

Kernels: the ready-made ones, those of a folder written for Helion where one is given (the words choose cases), and a chain of n operations
made for this. Capture is what the first call of a signature does with nothing stored: alias, source, the runs of the function under trace.
The same mathematics is the ``jax.numpy`` form in ``jax_forms`` or ``subjects`` where there is one (ratio "to jax"), else our reference
path of the captured program (ratio "to our reference": the same operations, but tile by tile). Times are the least of ``--rounds``; a
kernel that cannot be captured is a line with the reason.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import torch

from helion_rt import database, lowering
from helion_rt.database.tiers import Tiers
from helion_rt.exc import HelionError
from helion_rt.program.ir import Program, walk
from helion_rt.runtime import prepare

from . import common, example_folder
from .jax_forms import FORMS
from .subjects import SUBJECTS

LIMIT_S = 2.0
CHAIN = (50, 100, 200, 400, 800)
GROWTH_LIMIT = 1.5  # time an operation at 800 over that at 100


def captured(kernel: Any, args: Sequence[Any], rounds: int) -> tuple[float, Program]:
    """Least time to capture, seconds (the first, which imports, is left out), and the program."""
    bound, times = kernel.bound(*args), []
    with TemporaryDirectory() as folder:
        tier = Tiers(database.open_local(Path(folder)))
        found = prepare.find_program(kernel, bound, kernel.settings, tier, stored=False)
        for _ in range(rounds):
            start = time.perf_counter()
            found = prepare.find_program(kernel, bound, kernel.settings, tier, stored=False)
            times.append(time.perf_counter() - start)
    return min(times), found.program


def traced(function: Callable[..., Any], arrays: Sequence[Any], rounds: int) -> float:
    """Least time of ``jax.make_jaxpr``, seconds; the first is left out."""
    times = []
    for _ in range(rounds + 1):
        jax.clear_caches()
        fresh = functools.partial(function)  # JAX remembers what it traced by the function
        start = time.perf_counter()
        jax.make_jaxpr(fresh)(*arrays)
        times.append(time.perf_counter() - start)
    return min(times[1:])


def row(
    name: str, kernel: Any, args: Sequence[Any], form: Callable[..., Any] | None, rounds: int, limit: float | None = LIMIT_S
) -> common.Row:
    """One kernel. ``limit``: seconds; None where only the figures are wanted."""
    try:
        seconds, program = captured(kernel, args, rounds)
    except (HelionError, NotImplementedError) as error:
        return common.Row(name, {}, "s", note=f"not captured: {type(error).__name__}: {str(error).splitlines()[0]}")
    operations = sum(1 for _ in walk(program.host))
    name, figures, text = f"{name}: {operations} operations", {"capture": seconds}, f"less than {limit:.0f} s" if limit else ""
    figures["an operation"] = seconds / max(operations, 1)
    try:
        if form is not None:
            figures["make_jaxpr"] = traced(*_on_arrays(form, args), rounds)
            figures["to jax, ratio"] = seconds / figures["make_jaxpr"]
        else:
            specs = lowering.argument_specs(program)
            sizes = [min(info.high or info.extent, info.extent) for i in program.tunable_blocks for info in [program.blocks[i]]]
            figures["make_jaxpr"] = traced(lowering.reference(program, sizes), specs, rounds)
            figures["to our reference, ratio"] = seconds / figures["make_jaxpr"]
    except HelionError as error:
        return common.Row(name, figures, "s", seconds, limit, text, f"no reference: {str(error).splitlines()[0]}")
    return common.Row(name, figures, "s", seconds, limit, text)


def _on_arrays(form: Callable[..., Any], args: Sequence[Any]) -> tuple[Callable[..., Any], list[Any]]:
    """``form`` with what is no tensor filled in, and the arrays of the rest."""
    places = [i for i, a in enumerate(args) if isinstance(a, (torch.Tensor, jax.Array))]

    def function(*arrays: Any) -> Any:
        full = list(args)
        for place, array in zip(places, arrays, strict=True):
            full[place] = array
        return form(*full)

    return function, [args[i] if isinstance(args[i], jax.Array) else jax.dlpack.from_dlpack(args[i].contiguous()) for i in places]


# ------------------------------------------------------------------------------------------------ the chain


def chain_source(count: int) -> str:
    """A kernel of ``count`` elementwise operations, reductions and broadcasts, and the same of ``np`` on whole arrays."""
    steps = (
        "v = v * 0.5 + x", "v = {np}.sin(v)", "v = {np}.where(v > 0, v, x)", "v = v - v.sum(1)[:, None] * 0.01", "v = {np}.exp(-v * v)"
    )  # fmt: skip
    weights = (2, 1, 2, 4, 3)

    def body(np: str) -> list[str]:
        lines, made = [], 0
        for number in range(count):
            if made >= count:
                break
            lines.append(steps[number % len(steps)].format(np=np))
            made += weights[number % len(steps)]
        return lines

    inner = "\n".join(f"        {line}" for line in body("torch"))
    outer = "\n".join(f"    {line}" for line in body("jnp"))
    return f"""import jax.numpy as jnp
import torch

import helion_rt
import helion_rt.language as hl


@helion_rt.kernel
def chain(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        x_tile = x[tile, :]
        v = x_tile
{inner.replace("+ x", "+ x_tile").replace(", x)", ", x_tile)")}
        out[tile, :] = v
    return out


def in_jax(x):
    v = x
{outer}
    return v
"""


def chain_rows(rounds: int) -> list[common.Row]:
    """The chain at every length, then whether the time an operation stays the same."""
    rows, each = [], {}
    with TemporaryDirectory() as folder:
        for count in CHAIN:
            file = Path(folder) / f"chain_{count}.py"
            file.write_text(chain_source(count))
            spec = importlib.util.spec_from_file_location(file.stem, file)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            rows.append(row("a chain", module.chain, (torch.ones(64, 64),), module.in_jax, rounds, limit=None))
            each[count] = rows[-1].figures.get("an operation", 0.0) * 1e3
    ratio = each[800] / each[100]
    figures = {"an operation at 100": each[100], "an operation at 800": each[800], "ratio": ratio}
    return [*rows, common.Row("growth", figures, "ms", ratio, GROWTH_LIMIT, f"ratio at most {GROWTH_LIMIT}")]


def example_rows(folder: Path, file: Path, words: list[str], variants: str, rounds: int) -> list[common.Row]:
    rows = []
    for case in example_folder.selected(file, words):
        kernel = example_folder.kernel(folder, case, "helion_rt")
        for variant in variants.split(","):
            if variant in case.sizes:
                rows.append(row(f"{case.id} {variant}", kernel, case.arguments(variant), FORMS.get(case.id), rounds))
    return rows


def main(argv: list[str]) -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--examples", help="folder of kernels")
    parser.add_argument("--cases", help="case table (see benchmarks/example_folder.py)")
    parser.add_argument("--variants", default="rag")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("words", nargs="*", help="only cases with one of these in their id")
    options = parser.parse_args(argv)
    rows = chain_rows(options.rounds)
    rows += [row(s.name, s.kernel, s.arguments(), s.in_jax, options.rounds) for s in SUBJECTS]
    if options.examples and options.cases:
        rows += example_rows(Path(options.examples), Path(options.cases), options.words, options.variants, options.rounds)
    return common.report("Capture", rows, options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
