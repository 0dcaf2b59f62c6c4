"""``helion-rt tune``: tune one signature of a kernel now, and keep what is found in the tuning database.

    helion-rt tune my_kernels.py:softmax --args '[{shape = [4096, 2560], dtype = "float32"}]' --target tpu7x --report softmax.html

``--args``: a list as in a manifest of ``prewarm``, in TOML or JSON. This machine's own target is measured; for a TPU that is not
here a worker compiles the candidates, and times come from the compiler's schedule (``scheduled``). The exit status is 0 if a
verdict is stored: a winner, or that the default is the best.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from helion_rt.exc import HelionError

from . import prewarm
from .keys import Entry, Result, argument, arguments_of, load_kernel
from .live import view


def add_parser(subparsers: Any) -> None:
    """Add ``tune`` to the subparsers of ``helion-rt``."""
    parser = subparsers.add_parser(
        "tune", help="tune one signature of a kernel now", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("kernel", metavar="KERNEL", help="FILE.py:NAME or MODULE:NAME")
    parser.add_argument("--args", required=True, metavar="LIST", help="e.g. '[{shape = [8, 128], dtype = \"float32\"}, {value = 2.0}]'")
    parser.add_argument("--target", action="append", metavar="NAME", help="default: this machine's own; may be given several times")
    parser.add_argument("--seconds", type=prewarm.seconds, metavar="N", help="budget (default: HELION_RT_TUNE_SECONDS, 60)")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write an HTML report")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Carry out ``tune``: 0 if a verdict is stored for every target, 1 if not, 2 for what cannot be used."""
    from helion_rt import targets
    from helion_rt.settings import Settings

    targets.prepare_environment()
    try:
        if args.report is not None:
            prewarm.check_report(args.report)
        wanted = list(dict.fromkeys(map(targets.get, args.target or [targets.detect()])))
        kernel = load_kernel(args.kernel, Path.cwd())
        arguments = tuple(argument(item, args.kernel) for item in arguments_of("--args", args.args, list))
        budget = args.seconds or Settings.from_env().tune_seconds
    except (HelionError, OSError, ValueError) as error:
        print(f"helion-rt: {error}", file=sys.stderr)
        return 2
    work = prewarm.Work([Entry(args.kernel, kernel, arguments, target) for target in wanted], budget, again=True)
    with view(len(wanted), quiet=args.json) as shown:
        prewarm.fill_all(work, 1, shown)
    if args.report is not None:
        prewarm.cross(work, 1, quiet=args.json)
        prewarm.write_report(args.report, work, f"helion_rt: tuning {kernel.name}")
    _tell(work, args)
    return prewarm.status(work)


def _tell(work: prewarm.Work, args: argparse.Namespace) -> None:
    if args.json:
        found = [asdict(result) for result in work.done()]
        print(json.dumps(found[0] if len(found) == 1 else found, indent=2))
        return
    for result, filled in zip(work.results, work.filled, strict=True):
        if result is not None and result.filled and filled is not None:
            default = filled.default()
            _print(result, None if default is None else default.to_dict())
        elif result is not None:
            print(f"not stored: {result.entry}: {result.status}", file=sys.stderr)
    if args.report is not None:
        print(f"report: {args.report}")


def _print(result: Result, default: dict[str, Any] | None) -> None:
    """What was found for one target, for people."""
    from helion_rt.report.text import duration, ratio

    def row(name: str, config: dict[str, Any] | None, ms: float | None) -> str:
        return f"  {name:<9}{duration(None if ms is None else ms / 1e3):>9}  {json.dumps(config)}"

    print(result.entry)
    if result.evidence is None:
        print(f"  {result.status}")
        return
    if result.config is not None:
        print(row("winner", result.config, result.ms))
    print(row("default", default, result.default_ms))
    gain = f"{ratio(result.gain)} the default's speed" if result.config is not None else "none: the default stays"
    print(f"  gain       {gain}, by {result.evidence} times; {result.candidates_tried} candidates in {result.seconds:.0f} s")
    print(f"  stored as  {result.key}")
