"""What a tier needs of the place that holds its bytes."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

MAX_SET_ASIDE = 64
"""Bad entries a store keeps for inspection; older ones go."""


class Fault(enum.Enum):
    """Why a store could not do what it was asked to."""

    BUSY = "busy"  # another process held it for longer than we wait
    UNWRITABLE = "unwritable"  # read-only, full, a file where a directory should be, ...
    CANNOT_LOCK = "cannot_lock"  # SQLite does not work on this file system
    UNREACHABLE = "unreachable"  # a shared engine does not answer in time, or answers with an error
    UNTRUSTED = "untrusted"  # somebody else may write there, and no signature is asked for
    NEWER = "newer"  # what is there was written by a later version of this library, and is left alone


class StoreError(Exception):
    """A write that did not happen; ``fault`` says why. Nothing that was stored before is harmed."""

    def __init__(self, fault: Fault, reason: str) -> None:
        super().__init__(reason)
        self.fault = fault


class Store(Protocol):
    """Named bytes. A name is ``r-`` or ``p-`` and 64 hex digits. Safe to use from any thread and any number of processes.

    ``read``, ``names`` and ``entries`` never raise: what cannot be read is not there. The others raise StoreError. What somebody else
    may write to is not read, and not written to either; ``untrusted`` then says what and why.
    """

    directory: Path
    databases_set_aside: int
    untrusted: str

    def read(self, name: str, limit: int) -> list[bytes]:
        """The entries under ``name`` (several only where writers have not merged theirs yet); ``b""`` stands for an entry
        that is not plain bytes of at most ``limit``."""
        ...

    def merge(self, name: str, data: bytes, better: Callable[[bytes, bytes], bytes]) -> None:
        """Keep the better of what is there and ``data``, atomically. A StoreError that ``better`` raises passes through, and
        nothing is written."""
        ...

    def set_aside(self, name: str, data: bytes) -> None:
        """Move an entry that was read as ``data`` and judged bad out of the way."""
        ...

    def sizes(self) -> Iterator[tuple[str, int, float]]:
        """Name, bytes and time of storing (seconds since 1970) of every entry; the names of those set aside begin with ``q-``."""
        ...

    def remove(self, name: str) -> bool:
        """Remove what is stored, or was set aside, under ``name``. False if there was nothing."""
        ...

    def compact(self) -> None:
        """Give the room of what was removed back to the system."""
        ...

    def names(self, prefix: str = "") -> Iterator[str]:
        """All names that begin with ``prefix`` (``r-``, ``p-`` or nothing), sorted, a few at a time; not what was set aside."""
        ...

    def entries(self, prefix: str, limit: int) -> Iterator[tuple[str, list[bytes]]]:
        """As ``names``, each with what ``read`` gives for it."""
        ...

    def close(self) -> None:
        """Close what is open. The store may be used again."""
        ...
