"""``helion-rt cache``: look into the tuning database, carry records between machines, and keep it tidy.

Exit status: 0 if it was done (``diff``: nothing differs), 1 if not, with the reason on standard error, 2 for a usage error.
"""

from __future__ import annotations

import argparse
import importlib
from typing import Any

from helion_rt.database.store import StoreError
from helion_rt.exc import HelionError

from .. import explain
from .text import fail

# Each offers ``add_parsers(actions)``; the parser of an action has its function as the default of ``act``.
MODULES = ("show", "exchange", "compare", "change", "verify", "gc", "stats")


def add_parser(subparsers: Any) -> None:
    """Add ``cache`` and its actions to the subparsers of ``helion-rt``."""
    parser = subparsers.add_parser("cache", help="look into the tuning database", description=__doc__)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name in MODULES:
        importlib.import_module(f"{__name__}.{name}").add_parsers(actions)
    explain.add_parser(actions)
    actions.choices["explain"].set_defaults(act=explain.run)


def run(args: argparse.Namespace) -> int:
    """Carry out one action; its exit status. What stands in its way is told on standard error."""
    try:
        return args.act(args)
    except (HelionError, StoreError) as error:
        return fail(str(error))
