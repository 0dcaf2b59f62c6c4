"""Python source and the facts of a call become a program: ``capture``, and ``alias``, which finds a program again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .alias import alias

if TYPE_CHECKING:
    from .engine import capture


def __getattr__(name: str) -> Any:
    # Late: a process that finds its programs by alias captures nothing.
    if name == "capture":
        from .engine import capture

        return capture
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["alias", "capture"]
