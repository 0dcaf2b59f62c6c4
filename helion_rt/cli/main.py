"""The ``helion-rt`` command. Only the module of the chosen subcommand is imported, so that ``--help`` is instant."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from helion_rt._version import __version__


@dataclass(frozen=True)
class Command:
    """A subcommand. Its module offers ``add_parser(subparsers)`` and ``run(args) -> int``, the exit status."""

    name: str
    module: str
    help: str


COMMANDS = (
    Command("cache", "helion_rt.cli.cache", "look into the tuning database"),
    Command("doctor", "helion_rt.cli.doctor", "check versions, targets and the health of the cache"),
    Command("estimate", "helion_rt.cli.estimate", "predict the time of any JAX function on a TPU that need not be here"),
    Command("prewarm", "helion_rt.cli.prewarm", "tune kernels and shapes of a manifest ahead of time"),
    Command("tune", "helion_rt.cli.tune", "tune one signature of a kernel now"),
)


def build_parser(chosen: str | None) -> argparse.ArgumentParser:
    """The parser; of the subcommands only ``chosen`` knows its own arguments."""
    parser = argparse.ArgumentParser(prog="helion-rt", description="Kernels in PyTorch style on TPUs: tuned while they serve.")
    parser.add_argument("--version", action="version", version=f"helion-rt {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        if command.name == chosen:
            importlib.import_module(command.module).add_parser(subparsers)
        else:
            subparsers.add_parser(command.name, help=command.help)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (without the program's name); returns the exit status. A usage error exits with 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if sys.stdout is None:  # started with it closed (`>&-`): there is still an exit status to give
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  open for as long as the process
    # The first word is the subcommand: no option that may stand before it takes a value.
    first = next((word for word in arguments if not word.startswith("-")), None)
    chosen = next((command for command in COMMANDS if command.name == first), None)
    args = build_parser(first).parse_args(arguments)
    assert chosen is not None  # argparse has refused anything else
    try:
        status = importlib.import_module(chosen.module).run(args)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # `helion-rt cache ls | head`: the reader has enough. Python must not complain again while it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
