"""``helion-rt estimate FILE.py:FACTORY --target tpu7x``: the predicted time of any JAX function on a TPU that need not be here.

``FACTORY()`` is called without arguments and gives ``(function, arguments)``; the arguments are ``jax.ShapeDtypeStruct``, or arrays
where their values matter (tables of indices). ``MODULE:FACTORY`` works as well. Nothing is run: the target's own compiler schedules the
function, in a process of its own, and its schedule is weighed. The result is an estimate and labelled so.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helion_rt.exc import HelionError, InputError

if TYPE_CHECKING:
    from helion_rt.schedule import Estimate


def add_parser(subparsers: Any) -> None:
    """Add ``estimate`` to the subparsers of ``helion-rt``."""
    parser = subparsers.add_parser(
        "estimate",
        help="predict the time of any JAX function on a TPU that need not be here",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("factory", metavar="FILE.py:FACTORY")
    parser.add_argument("--target", action="append", metavar="NAME", help="v4, v5e, v5p, v6e, tpu7x (default); may be given several times")
    parser.add_argument("--trips", type=int, default=1, metavar="N", help="mean turns of loops whose end depends on data (default 1)")
    parser.add_argument("--deadline", type=float, default=300.0, metavar="SECONDS", help="of one compile (default 300)")
    parser.add_argument("--json", action="store_true", help="print JSON, a list with an entry for each target")


def run(args: argparse.Namespace) -> int:
    """Carry out ``estimate``: 0 if every target accepts the function, 1 if a compiler refuses, 2 for arguments that cannot be used."""
    from helion_rt import targets
    from helion_rt.schedule import estimate

    targets.prepare_environment()
    try:
        function, arguments = load(args.factory)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    status, found = 0, []
    for name in args.target or ["tpu7x"]:
        try:
            goal = targets.get(name)
            found.append(estimate(function, *arguments, target=goal, trips=args.trips, deadline=args.deadline))
        except HelionError as error:
            print(error, file=sys.stderr)
            status = 1 if "goal" in locals() else 2
    if args.json:
        print(json.dumps([one.to_dict() for one in found]))
    else:
        for one in found:
            show(one)
    return status


def load(place: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function and the arguments that the factory at ``FILE.py:NAME`` or ``MODULE:NAME`` gives. Raises ``InputError``."""
    path, _, name = place.rpartition(":")
    if not path or not name:
        raise InputError(f"'{place}' does not name a factory", hint="FILE.py:FACTORY or MODULE:FACTORY")
    try:
        if path.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(path).stem, path)
            if spec is None or spec.loader is None or not Path(path).is_file():
                raise InputError(f"there is no file {path}")
            module = importlib.util.module_from_spec(spec)
            sys.modules.setdefault(spec.name, module)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(path)
        made: Any = getattr(module, name)()
    except InputError:
        raise
    except Exception as error:  # the user's own file: whatever it raises is the answer
        raise InputError(f"{place} cannot be used: {type(error).__name__}: {error}") from error
    if not isinstance(made, (tuple, list)) or not made or not callable(made[0]):
        raise InputError(f"{place} must return (function, [argument, ...])")
    function, *rest = made
    # What follows a list of arguments is the factory's own business.
    return function, tuple(rest[0]) if rest and isinstance(rest[0], (list, tuple)) else tuple(rest)


def show(one: Estimate) -> None:
    """Print an estimate for people."""
    from rich.table import Table

    from .output import console

    out = console()
    out.print(
        f"[bold]{one.target}[/]: {one.ms:.4g} ms [dim]({one.kind.value}, not measured)[/], {one.cycles:,.0f} cycles, "
        f"bound by {one.bottleneck.value}; floors: HBM {one.hbm_floor_ms:.4g} ms, MXU {one.mxu_floor_ms:.4g} ms; "
        f"VMEM {one.vmem_bytes / 2**20:.1f} MiB, {one.spills:,} register spills and fills",
        highlight=False,
    )
    if one.units:
        busy = sorted(one.units.items(), key=lambda item: -item[1])
        out.print("  busy: " + ", ".join(f"{name} {share:.0%}" for name, share in busy if share >= 0.005), highlight=False)
    if one.kernels:
        table = Table("kernel", "calls", "cycles", "stalled", "steps", "HBM MiB", "MXU", "spills")
        for kernel in sorted(one.kernels, key=lambda kernel: -kernel.cycles * kernel.calls)[:20]:
            share = kernel.mxu_cycles / kernel.cycles if kernel.cycles else 0.0
            table.add_row(
                kernel.name, str(kernel.calls), f"{kernel.cycles:,.0f}", f"{kernel.stalled:,.0f}", f"{kernel.steps:,}",
                f"{kernel.hbm_bytes / 2**20:.1f}", f"{share:.0%}", f"{kernel.spills:,}",
            )  # fmt: skip
        out.print(table)
    for note in one.notes:
        out.print(f"  note: {note}", highlight=False)
