"""What a tier needs of the place that holds its bytes."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Protocol

MAX_SET_ASIDE = 64
"""Bad entries a store keeps for inspection; older ones go."""


class Fault(enum.Enum):
    """Why a store could not do what it was asked to."""

    BUSY = "busy"  # another process held it for longer than we wait
    UNWRITABLE = "unwritable"  # read-only, full, a file where a directory should be, ...
    CANNOT_LOCK = "cannot_lock"  # SQLite does not work on this file system


class StoreError(Exception):
    """A write that did not happen; ``fault`` says why. Nothing that was stored before is harmed."""

    def __init__(self, fault: Fault, reason: str) -> None:
        super().__init__(reason)
        self.fault = fault


class Store(Protocol):
    """Named bytes. A name is ``r-`` or ``p-`` and 64 hex digits. Safe to use from any thread and any number of processes.

    ``read`` and ``names`` never raise: what cannot be read is not there. The others raise StoreError.
    """

    databases_set_aside: int

    def read(self, name: str, limit: int) -> list[bytes]:
        """The entries under ``name`` (several only where writers could not agree on one); ``b""`` stands for an entry
        that is not plain bytes of at most ``limit``."""
        ...

    def merge(self, name: str, data: bytes, better: Callable[[bytes, bytes], bytes]) -> None:
        """Keep the better of what is there and ``data``, atomically."""
        ...

    def set_aside(self, name: str, data: bytes) -> None:
        """Move an entry that was read as ``data`` and judged bad out of the way."""
        ...

    def names(self) -> list[str]:
        """All names, sorted, without what was set aside."""
        ...
