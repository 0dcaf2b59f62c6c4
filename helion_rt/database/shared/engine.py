"""What a shared tier needs of the engine that holds its bytes, and the errors that engines raise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from ..codec import MAX_RECORD_BYTES
from ..store import Fault, StoreError

MAX_ENTRY_BYTES = MAX_RECORD_BYTES + 1024
"""Largest entry that is read, in bytes: a record and its signature. A longer one is bad, and not read whole."""

MAX_LEASE_S = 24 * 3600.0
"""A lease is at most this long, in seconds; one that claims more is not believed."""

Choose = Callable[[bytes, bytes], bytes]
"""The merge of two entries. Commutative, associative and idempotent for good ones; may raise, and then nothing is overwritten."""


_HEX = frozenset("0123456789abcdef")


def is_digest(text: str) -> bool:
    """Is it the name of a record, 64 hex digits?"""
    return len(text) == 64 and set(text) <= _HEX


class SharedError(StoreError):
    """A shared tier could not be asked or told: unreachable, too slow, not allowed, not trusted. Says why, and never a password."""

    def __init__(self, reason: str, fault: Fault = Fault.UNREACHABLE) -> None:
        super().__init__(fault, reason)


class Engine(Protocol):
    """Named bytes and leases that many machines share. A name is a record's digest: 64 hex digits.

    Safe to use from any thread. Opening one touches neither network nor disk. Every method raises SharedError when the
    engine cannot be reached, and is bounded by the timeout it was opened with, as far as the engine can be.
    """

    def read(self, name: str) -> list[bytes]:
        """The entries under ``name``, several where writers have not merged theirs yet; ``b""`` stands for one that is no
        plain bytes, or longer than MAX_ENTRY_BYTES."""
        ...

    def merge(self, name: str, data: bytes, choose: Choose) -> bytes:
        """Merge ``data`` with all that is there, and have that stored: returns what is stored in the end. Two writers lose
        nothing of one another, and one that is killed loses nothing but its own. What ``choose`` raises passes through."""
        ...

    def names(self) -> Iterator[str]:
        """All names, a few at a time."""
        ...

    def remove(self, name: str) -> bool:
        """Remove what is stored under ``name``. False if there was nothing."""
        ...

    def take(self, name: str, owner: str, seconds: float) -> bool:
        """Give the lease ``name`` to ``owner`` for so long, if it is free, expired, or ``owner``'s already."""
        ...

    def renew(self, name: str, owner: str, seconds: float) -> bool:
        """From now for so long, if it is ``owner``'s still."""
        ...

    def release(self, name: str, owner: str) -> None:
        """Free the lease, if it is ``owner``'s still."""
        ...

    def subscribe(self, told: Callable[[str], None], missed: Callable[[], None]) -> Callable[[], None] | None:
        """Have ``told(name)`` called on a thread of the engine's own after every merge that changed something, by whichever
        machine, and ``missed()`` whenever it begins to listen, at first or again: until then some were missed. Returns what
        ends it; None where the engine cannot tell."""
        ...

    def close(self) -> None:
        """Give back what is open. May be used again."""
        ...
