"""The store for file systems that SQLite cannot live on: immutable files, published by atomic rename.

``<directory>/r-ab/r-ab12….<hash of the content>.rec``. Writers never change a file and take no lock: each publishes its
own and then removes those that are not the best. A reader that finds two takes the better, so a race loses nothing as
long as the writers agree on which is better; where each prefers its own, both may go, and that is a miss.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from .paths import make_private_directory
from .store import MAX_SET_ASIDE, Fault, StoreError

_STALE_S = 3600.0  # a temporary file this old belongs to a writer that died
_MAX_FILE = 8 << 20  # bytes; more is nothing of ours
_ATTEMPTS = 3  # how often a reader looks again when a writer removed what it was about to read


class FileStore:
    """A ``Store`` in ``directory``, which is created at the first write. See the module."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.databases_set_aside = 0

    def read(self, name: str, limit: int) -> list[bytes]:
        found: list[bytes] = []
        for _ in range(_ATTEMPTS):
            files = self._files(name)
            read = [_read_capped(file, limit) for file in files]
            found = [data for data in read if data is not None]
            if found or not files:
                break
        return found

    def names(self) -> list[str]:
        shards = [shard for shard in _listed(self.directory) if shard.name.startswith(("r-", "p-"))]
        return sorted({file.name.split(".")[0] for shard in shards for file in _listed(shard) if file.suffix == ".rec"})

    def merge(self, name: str, data: bytes, better: Callable[[bytes, bytes], bytes]) -> None:
        try:
            self._publish(name, data)
            files = self._files(name)
            contents = {file: content for file in files if (content := _read_capped(file, _MAX_FILE)) is not None}
            best = data
            for content in contents.values():
                best = better(content, best) if content != best else best
            for file, content in contents.items():
                if content != best:
                    file.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(Fault.UNWRITABLE, str(error)) from error

    def set_aside(self, name: str, data: bytes) -> None:
        try:
            aside = self.directory / "set-aside"
            make_private_directory(aside)
            for file in self._files(name):
                content = _read_capped(file, len(data))
                if content == data:
                    os.replace(file, aside / f"{time.time_ns():020d}.{file.name}")
            for old in sorted(aside.iterdir())[:-MAX_SET_ASIDE]:
                old.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(Fault.UNWRITABLE, str(error)) from error

    def _shard(self, name: str) -> Path:
        return self.directory / name[:4]

    def _files(self, name: str) -> list[Path]:
        return sorted(file for file in _listed(self._shard(name)) if file.name.startswith(f"{name}.") and file.suffix == ".rec")

    def _publish(self, name: str, data: bytes) -> None:
        """Write a whole file under a temporary name, make it durable, then give it its own name."""
        shard, temporary = self._shard(name), self.directory / "tmp"
        make_private_directory(shard)
        make_private_directory(temporary)
        _remove_stale(temporary)
        draft = temporary / f"{name}.{os.getpid()}.{secrets.token_hex(8)}"
        try:
            with open(draft, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, shard / f"{name}.{hashlib.sha256(data).hexdigest()[:16]}.rec")
        finally:
            draft.unlink(missing_ok=True)
        _sync_directory(shard)


def _listed(directory: Path) -> list[Path]:
    """What is in ``directory``; nothing if it is missing, closed to us, or no directory."""
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _read_capped(path: Path, limit: int) -> bytes | None:
    """The content; ``b""`` if it is longer than ``limit``, None if it is gone or cannot be read."""
    try:
        with open(path, "rb") as file:
            data = file.read(limit + 1)
    except OSError:
        return None
    return data if len(data) <= limit else b""


def _remove_stale(temporary: Path) -> None:
    for file in temporary.iterdir():
        with contextlib.suppress(OSError):  # another process may be removing it as well
            if time.time() - file.stat().st_mtime > _STALE_S:
                file.unlink()


def _sync_directory(path: Path) -> None:
    """Make a rename durable, where the system lets a directory be synced."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
