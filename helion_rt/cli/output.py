"""What the subcommands print with."""

from __future__ import annotations

from typing import Any

from rich.console import Console


class PipeConsole(Console):
    """rich's console, but a reader that has seen enough (``| head``) is left to ``main``: to rich it is a failure, status 1."""

    def on_broken_pipe(self) -> None:
        raise  # rich calls this while it handles the BrokenPipeError


def console(**options: Any) -> Console:
    """A console on standard output; ``options`` are rich's."""
    return PipeConsole(**options)
