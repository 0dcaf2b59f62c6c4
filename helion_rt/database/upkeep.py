"""What the tools do to a local tier as a whole: look at every entry as bytes, good or bad, and remove what nobody needs.

No call comes through here. Nothing here is right or wrong for a reader: what it removes is a miss afterwards.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .codec import MAX_BYTES, BadRecord, Kind, decode_program, decode_record
from .paths import LAYOUT_VERSION
from .record import Record
from .signing import OVERHEAD, Trust
from .store import StoreError
from .tier import LocalTier, program_name

log = logging.getLogger("helion_rt.database")

RECORDS, PROGRAMS, SET_ASIDE = "r-", "p-", "q-"
"""How the names of entries begin."""

STALE_LOCK_S = 24 * 3600.0
STALE_DRAFT_S = 3600.0
_LAYOUT = re.compile(r"v(\d{1,6})", re.ASCII)


class What(enum.Enum):
    """A kind of thing that a database leaves behind."""

    SET_ASIDE = "set-aside entry"
    BROKEN = "broken database"
    OLD_LAYOUT = "folder of an old layout"
    DRAFT = "abandoned draft"
    LOCK = "lock nobody holds"


@dataclass(frozen=True)
class Leftover:
    """Something that may go. ``remove()`` says whether it did; it raises nothing."""

    what: What
    name: str
    bytes: int
    remove: Callable[[], bool]


def raw_entries(tier: LocalTier) -> Iterator[tuple[str, bytes]]:
    """Every entry that a reader would be given, by name, as it is stored; ``b""`` for one that is too large, or no bytes. What was set
    aside is left out. Nothing is changed."""
    for prefix, kind in ((RECORDS, Kind.RECORD), (PROGRAMS, Kind.PROGRAM)):
        for name, stored in tier.store.entries(prefix, MAX_BYTES[kind] + OVERHEAD):
            for data in stored:
                yield name, data


def check_record(name: str, data: bytes, trust: Trust) -> Record:
    """The record that is stored as ``data`` under ``name``. Raises BadRecord."""
    record = decode_record(trust.open(data))
    if RECORDS + record.key.digest != name:
        raise BadRecord("it belongs to another key")
    return record


def check_program(name: str, data: bytes, trust: Trust) -> bytes:
    """The program (as its own codec encodes it) that is stored as ``data`` under ``name``. Raises BadRecord."""
    alias, program = decode_program(trust.open(data))
    if program_name(alias) != name:
        raise BadRecord("it belongs to another alias")
    return program


def leftovers(tier: LocalTier) -> Iterator[Leftover]:
    """What may go from a tier's directory whatever it was for: nobody will ask for it again."""
    for name, size, _ in list(tier.store.sizes()):
        if name.startswith(SET_ASIDE):
            yield Leftover(What.SET_ASIDE, name, size, lambda name=name: removed(tier, name))
    for path in _listed(tier.directory):
        layout = _LAYOUT.fullmatch(path.name)
        if layout and int(layout[1]) < int(LAYOUT_VERSION[1:]) and path.is_dir() and not path.is_symlink():
            yield _folder(What.OLD_LAYOUT, path)
    ours = tier.directory / LAYOUT_VERSION
    for path in _listed(ours):
        if ".broken-" in path.name and path.is_dir() and not path.is_symlink():
            yield _folder(What.BROKEN, path)
    for path in _listed(ours / "files" / "tmp"):
        if _age(path) > STALE_DRAFT_S:
            yield Leftover(What.DRAFT, path.name, bytes_in(path), lambda path=path: _unlinked(path))
    for path in _listed(ours / "locks"):
        if path.suffix == ".lock" and _age(path) > STALE_LOCK_S:
            yield Leftover(What.LOCK, path.name, bytes_in(path), lambda path=path: _unlinked_if_free(path))


def removed(tier: LocalTier, name: str) -> bool:
    """Remove an entry by its name; False where there was none, or it cannot be removed."""
    try:
        return tier.store.remove(name)
    except StoreError as error:
        log.debug("%s stays in %s: %s", name, tier.directory, error)
        return False


def bytes_in(path: Path) -> int:
    """The bytes of a file, or of the files under a folder; links are not followed, and 0 where nothing can be read."""
    with contextlib.suppress(OSError):
        if not path.is_dir() or path.is_symlink():
            return path.lstat().st_size
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(OSError):  # it went meanwhile
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def _folder(what: What, path: Path) -> Leftover:
    def remove() -> bool:
        shutil.rmtree(path, ignore_errors=True)
        return not os.path.lexists(path)

    return Leftover(what, path.name, bytes_in(path), remove)


def _listed(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _age(path: Path) -> float:
    """Seconds since it was changed; none where that cannot be told."""
    try:
        return time.time() - path.lstat().st_mtime
    except OSError:
        return 0.0


def _unlinked(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True


def _unlinked_if_free(path: Path) -> bool:
    """A lock is removed by whoever holds it: a process that has just opened the file may lock what is no longer there, and two tune one
    key then, which costs time and nothing else."""
    import filelock  # late, as in ``lock``

    try:
        with filelock.FileLock(path, timeout=0):
            path.unlink(missing_ok=True)
    except (OSError, NotImplementedError, filelock.Timeout):
        return False
    return True
