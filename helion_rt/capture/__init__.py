"""Python source and the facts of a call become a program: ``capture``, and ``alias``, which finds a program again."""

from .alias import alias
from .engine import capture

__all__ = ["alias", "capture"]
