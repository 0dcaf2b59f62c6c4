"""The shipped tier: reviewed winners that travel with the package, one folder a target, packs in it. Nothing is ever written here.

``<directory>/<target>/<kernel>.pack``. What is in an installed package is trusted as its code is: no signature is asked for.
"""

from __future__ import annotations

import importlib.resources
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from .key import Key
from .record import Origin, Record, better

log = logging.getLogger("helion_rt.database")

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
_SUFFIX = ".pack"


def shipped_directory() -> Path | None:
    """Where the packs of this installation are: inside the package, in a checkout ``cache/`` beside it; None if there are none."""
    package = Path(str(importlib.resources.files("helion_rt")))
    if (inside := package / "_shipped").is_dir():
        return inside
    # In site-packages a folder of that name would be somebody else's.
    checkout = package.parent
    return checkout / "cache" if (checkout / "pyproject.toml").is_file() and (checkout / "cache").is_dir() else None


class ShippedTier:
    """The packs in ``directory`` (by default this installation's), read-only. Safe to use from any thread, and after a fork.

    A target's packs are read when it is first asked for, and stay in memory. A pack or a line that is damaged is skipped and counted
    in ``bad``: nothing here raises.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory if directory is not None else shipped_directory()
        self.bad = 0
        self._loaded: dict[str, Mapping[str, Record]] = {}

    def get(self, key: Key) -> Record | None:
        """The record of ``key``, marked as shipped, or None."""
        record = self._of_target(key.target).get(key.digest)
        return record if record is not None and record.key == key else None

    def records(self) -> Iterator[Record]:
        """Every record of every target."""
        for folder in sorted(_listed(self.directory)):
            if folder.is_dir():
                yield from self._of_target(folder.name).values()

    def _of_target(self, target: str) -> Mapping[str, Record]:
        name = target.partition("/")[0]  # cpu/<instruction set>/<cores>
        found = self._loaded.get(name)
        if found is None:  # two threads may read at once, and find the same: that is cheaper than a lock that a fork could copy
            found = self._loaded.setdefault(name, self._read(name))
        return found

    def _read(self, target: str) -> Mapping[str, Record]:
        found: dict[str, Record] = {}
        if self.directory is None or not _PLAIN.fullmatch(target):
            return found
        for file in sorted(_listed(self.directory / target)):
            if file.suffix == _SUFFIX and _PLAIN.fullmatch(file.name):
                for record in self._of_file(file, target):
                    known = found.get(record.key.digest)
                    found[record.key.digest] = record if known is None else better(known, record)
        return found

    def _of_file(self, file: Path, target: str) -> Iterator[Record]:
        from . import pack  # late: most processes never miss
        from .signing import Trust

        records, problems = pack.read(file, Trust(), origin=Origin.SHIPPED)
        for problem in problems:
            self.bad += 1
            log.warning("%s of the shipped tier: %s", file, problem)
        for record in records:
            if record.key.target.partition("/")[0] == target:
                yield record


def _listed(directory: Path | None) -> list[Path]:
    """What is in ``directory``; nothing if it is missing, or closed to us."""
    try:
        return list(directory.iterdir()) if directory is not None else []
    except OSError:
        return []
