"""An engine made of immutable files: records and leases with nothing but whole writes, exclusive creation, listing and removal.

    records/ab/ab12….<hash of the content>.rec      one file an entry; several are merged when they are read
    leases/ab/ab12….<generation>.lease              the highest generation tells who holds the lease, and for how long

**Records.** A file is never changed, and its name says what is in it, so no two writers can disagree about it. A writer publishes
the merge of its own entry and all it finds, removes what that contains, looks again, and repeats it until it finds nothing
new (or a few times, where others keep on writing). So at every moment whatever was published is contained in some file that
is there, whoever is killed.

**Leases.** Taking over, renewing and giving back all are the exclusive creation of the next generation: of all who try, one succeeds.
The highest generation is never removed (a lease given back leaves a file that says so), or a process that slept since it
looked could create one that everybody else has long passed. Whether a lease is over is judged by the clock that stamps the
files, never by a host's own: it is read off a file that was just written.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from .engine import MAX_ENTRY_BYTES, MAX_LEASE_S, Choose, is_digest

LAYOUT = "helion_rt-v1"
"""The directory around it all. A layout that older versions could misread gets another name."""

_SHARDS = [f"{n:02x}" for n in range(256)]
_LEASE_FILE = re.compile(r"[0-9a-f]{64}\.(\d{12})\.lease", re.ASCII)
MAX_FILES = 256
"""Files read under one name; there are more only where somebody plants them."""
_ROUNDS = 8  # how often a writer puts together what it finds
_LOOKS = 64  # how often a reader looks again when writers removed what it was about to read
_CLOCK_S = 60.0  # how long the difference between the engine's clock and ours is believed
_MAX_LEASE_BYTES = 1024
_FUTURE_S = 600.0  # what we take for the engine's time is late by what reading it took, which is less than this
_UNREADABLE_LEASE_S = 60.0  # a lease file without content is being written, or its writer died: it counts for so long


@dataclass(frozen=True)
class Entry:
    """A listed file: its name within its directory, its size in bytes, and when it was written (seconds, the engine's clock)."""

    name: str
    size: int
    written: float


class Files(Protocol):
    """Whole files in directories that need not be made. Raises SharedError when unreachable."""

    granularity: float
    """The steps in which ``Entry.written`` is known, in seconds."""

    def publish(self, path: str, data: bytes) -> None:
        """Store a file; nobody ever sees a part of it. Storing the same again is well."""
        ...

    def create(self, path: str, data: bytes) -> bool:
        """Store a file unless there is one: then False. Somebody may see it empty for a moment."""
        ...

    def read(self, path: str, limit: int) -> bytes | None:
        """The content; ``b""`` if it is no file or longer than ``limit``, None if it is gone or not ours to read."""
        ...

    def list(self, directory: str, prefix: str = "") -> list[Entry]:
        """The files of a directory whose names begin with ``prefix``; none where there is no such directory."""
        ...

    def directories(self, directory: str) -> list[str]:
        """The names of the directories in a directory; none where there is no such directory."""
        ...

    def remove(self, path: str) -> bool:
        """False if it was not there."""
        ...

    def now(self) -> float:
        """The clock that stamps files, in seconds."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class _Lease:
    generation: int
    owner: str
    seconds: float
    written: float


class FilesEngine:
    """An ``Engine`` over ``Files``; see the module."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._clock_lock = threading.Lock()
        self._ahead: tuple[float, float] | None = None  # when that was found out, and by how much the engine's clock is ahead

    # records

    def read(self, name: str) -> list[bytes]:
        found = self._contents(name)
        for _ in range(_LOOKS):
            if None not in found.values():
                break
            # It was merged into another since it was listed, and that is there. Or it may not be read: then nothing changes.
            before, found = found, self._contents(name)
            if found.keys() == before.keys():
                break
        return [data for data in found.values() if data is not None]

    def merge(self, name: str, data: bytes, choose: Choose) -> bytes:
        found = self._contents(name)
        best = _merged(data, found, choose)
        for _ in range(_ROUNDS):
            path = _record_path(name, best)
            if found.get(path) != best:
                self._files.publish(path, best)
                found = self._contents(name, {**found, path: best})
            for other, content in found.items():
                if other != path and content is not None and choose(content, best) == best:
                    self._files.remove(other)
            merged = _merged(best, found, choose)
            if merged == best:
                break
            best = merged
        return best  # where others kept on writing, not as one file: who reads finds it all, and the next to write puts it together

    def names(self) -> Iterator[str]:
        for shard in sorted(set(_SHARDS) & set(self._files.directories("records"))):
            seen = {entry.name.partition(".")[0] for entry in self._files.list(f"records/{shard}") if entry.name.endswith(".rec")}
            yield from sorted(name for name in seen if is_digest(name) and name.startswith(shard))

    def remove(self, name: str) -> bool:
        entries = self._files.list(f"records/{name[:2]}", f"{name}.")
        removed = [self._files.remove(f"records/{name[:2]}/{entry.name}") for entry in entries]
        return any(removed)

    def _contents(self, name: str, known: Mapping[str, bytes | None] = {}) -> dict[str, bytes | None]:
        """By path what is there; None for what is gone already or may not be read. Damaged files are there as well.
        What is ``known`` of a path is not read again."""
        directory = f"records/{name[:2]}"
        entries = [entry for entry in self._files.list(directory, f"{name}.") if entry.name.endswith(".rec")]
        paths = sorted(f"{directory}/{entry.name}" for entry in entries)[:MAX_FILES]
        return {path: known.get(path) or self._files.read(path, MAX_ENTRY_BYTES) for path in paths}

    # leases

    def take(self, name: str, owner: str, seconds: float) -> bool:
        lease = self._lease(name)
        if lease is not None and lease.owner not in ("", owner) and not self._is_over(lease):
            return False
        return self._next(name, lease, owner, seconds)

    def renew(self, name: str, owner: str, seconds: float) -> bool:
        lease = self._lease(name)
        return lease is not None and lease.owner == owner and self._next(name, lease, owner, seconds)

    def release(self, name: str, owner: str) -> None:
        lease = self._lease(name)
        if lease is not None and lease.owner == owner:
            self._next(name, lease, "", 0.0)

    def _next(self, name: str, last: _Lease | None, owner: str, seconds: float) -> bool:
        """Create the generation after ``last``. True if that succeeded and nobody is further."""
        generation = last.generation + 1 if last else 1
        if not self._files.create(_lease_path(name, generation), json.dumps({"owner": owner, "seconds": seconds}).encode()):
            return False
        # A process that slept since it looked creates a generation that was passed and removed; one on a store that cannot
        # create exclusively may have been overwritten.
        now = self._lease(name)
        if now is None or now.generation != generation or now.owner != owner:
            return False
        for entry in self._files.list(f"leases/{name[:2]}", f"{name}."):
            if 0 <= _generation(entry.name) < generation:
                self._files.remove(f"leases/{name[:2]}/{entry.name}")
        return True

    def _lease(self, name: str) -> _Lease | None:
        """The lease of the highest generation; one that cannot be read is held by nobody we know."""
        for _ in range(_LOOKS):  # a file that was listed may be passed and gone
            entries = [entry for entry in self._files.list(f"leases/{name[:2]}", f"{name}.") if _generation(entry.name) >= 0]
            if not entries:
                return None
            last = max(entries, key=lambda entry: _generation(entry.name))
            data = self._files.read(f"leases/{name[:2]}/{last.name}", _MAX_LEASE_BYTES)
            if data is not None:
                owner, seconds = _read_lease(data)
                break
        else:  # it is there, but may not be read
            owner, seconds = _read_lease(b"")
        return _Lease(_generation(last.name), owner, seconds, last.written)

    def _is_over(self, lease: _Lease) -> bool:
        """Also where it was written in a future that no delay explains: the clock was set back since, and may take years to get there."""
        age = self._now() - lease.written
        return age > lease.seconds + self._files.granularity or age < -_FUTURE_S

    def _now(self) -> float:
        """The clock of the engine: read off a new file once a minute, between that it goes with ours that knows no date.

        Early by what that reading took: a lease may be thought to be held a little longer than it is."""
        with self._clock_lock:
            if self._ahead is None or not 0 <= time.monotonic() - self._ahead[0] < _CLOCK_S:
                stamped = self._files.now()
                after = time.monotonic()
                self._ahead = after, stamped - after
            return time.monotonic() + self._ahead[1]

    # the rest

    def subscribe(self, told: Callable[[str], None], missed: Callable[[], None]) -> None:
        return None  # files tell nobody

    def close(self) -> None:
        self._files.close()


def _merged(data: bytes, found: dict[str, bytes | None], choose: Choose) -> bytes:
    best = data
    for content in found.values():
        if content is not None and content != best:
            best = choose(content, best)
    return best


def _record_path(name: str, data: bytes) -> str:
    return f"records/{name[:2]}/{name}.{hashlib.sha256(data).hexdigest()[:16]}.rec"


def _lease_path(name: str, generation: int) -> str:
    return f"leases/{name[:2]}/{name}.{generation:012d}.lease"


def _generation(file: str) -> int:
    """The generation in the name of a lease file; -1 for any other name."""
    match = _LEASE_FILE.fullmatch(file)
    return int(match[1]) if match else -1


def _read_lease(data: bytes) -> tuple[str, float]:
    """``(owner, seconds)``. One without sense has an owner that is nobody, and counts for a minute."""
    try:
        plain = json.loads(data)
        owner, seconds = plain["owner"], float(plain["seconds"])
        if isinstance(owner, str) and 0 <= seconds <= MAX_LEASE_S:
            return owner, seconds
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    return "?", _UNREADABLE_LEASE_S
