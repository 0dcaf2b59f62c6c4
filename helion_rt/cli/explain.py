"""``helion-rt cache explain KERNEL``: the key of a call field by field, what each tier has for it, and the nearest other keys.

    helion-rt cache explain my_kernels.py:softmax '{shape = [4096, 2560], dtype = "float32"}' --target tpu7x

An argument is written as in a manifest of ``prewarm``, in TOML or JSON; ``--args`` takes all of them as one list, as ``tune`` does. Nothing
is tuned or stored. The exit status is 0 if some tier has a record that serves, 1 if not, 2 for what cannot be used.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from helion_rt.exc import HelionError


def add_parser(actions: Any) -> None:
    """Add ``explain`` to the actions of ``helion-rt cache``."""
    parser = actions.add_parser(
        "explain",
        help="show the key of a call, and which record serves it and why",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("kernel", metavar="KERNEL", help="FILE.py:NAME or MODULE:NAME")
    parser.add_argument("arg", nargs="*", metavar="ARG", help="e.g. '{shape = [8, 128], dtype = \"float32\"}' or '{value = 2.0}'")
    parser.add_argument("--args", metavar="LIST", help="all arguments as one list")
    parser.add_argument("--kwargs", metavar="TABLE", help="arguments by name, e.g. '{causal = {value = true}}'")
    parser.add_argument("--target", metavar="NAME", help="cpu, v4, v5e, v5p, v6e, tpu7x (default: this machine's own)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Carry out ``cache explain``."""
    from helion_rt import targets
    from helion_rt.runtime.explain import explain
    from helion_rt.runtime.standing import Standing

    from .keys import argument, arguments_of, load_kernel, tune_nothing  # late: other actions of `cache` need none of it

    targets.prepare_environment()
    tune_nothing()
    try:
        if args.args is not None and args.arg:
            raise ValueError("give the arguments one by one, or --args, not both")
        one_by_one = [arguments_of("ARG", text, dict) for text in args.arg]
        listed = arguments_of("--args", args.args, list) if args.args is not None else one_by_one
        kernel = load_kernel(args.kernel, Path.cwd())
        given = [argument(item, args.kernel) for item in listed]
        named = {name: argument(item, args.kernel) for name, item in arguments_of("--kwargs", args.kwargs or "{}", dict).items()}
        said = explain(kernel, *given, target=args.target, **named)
    except (HelionError, OSError, ValueError) as error:
        print(f"helion-rt: {error}", file=sys.stderr)
        return 2
    print(json.dumps(said.to_dict(), indent=2) if args.json else said)
    return 0 if said.forced is not None or said.standing is not Standing.MISS else 1
