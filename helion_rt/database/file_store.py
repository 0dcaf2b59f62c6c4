"""The store for file systems that SQLite cannot live on: immutable files, published by atomic rename.

``<directory>/r-ab/r-ab12….<hash of the content>.rec``. Writers never change a file and take no lock: each publishes the better (the
join) of its own and all that is there, looks again, and removes what that took in. So whatever was published is in some file
that is there, and a reader that finds two takes the better: a race loses nothing as long as the writers agree on
which is better. Where each prefers its own, one of the two stays.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .paths import make_private_directory, sync_directory, who_else_may_write
from .store import MAX_SET_ASIDE, Fault, StoreError

_SHARD = re.compile(r"[rp]-[0-9a-f]{2}", re.ASCII)
_FILE = re.compile(r"([rp]-[0-9a-f]{64})\.[0-9a-f]+\.rec", re.ASCII)
_STALE_S = 3600.0  # a temporary file this old belongs to a writer that died
_MAX_FILE = 8 << 20  # bytes; more is nothing of ours
_ATTEMPTS = 3  # how often a reader looks again when a writer removed what it was about to read
_ROUNDS = 16  # how often a writer publishes again because of others that write the same entry; more is a quarrel


class FileStore:
    """A ``Store`` in ``directory``, which is created at the first write. See the module. ``private``: files that somebody else
    may write to are not used."""

    def __init__(self, directory: Path, *, private: bool = True) -> None:
        self.directory, self.private = directory, private
        self.databases_set_aside = 0
        self.untrusted = ""

    def read(self, name: str, limit: int) -> list[bytes]:
        found: list[bytes] = []
        for _ in range(_ATTEMPTS):
            files = self._files(name)
            found = list(self._contents(files, limit).values())
            if found or not files:
                break
        return found

    def names(self, prefix: str = "") -> Iterator[str]:
        return (name for name, _ in self._listing(prefix))

    def entries(self, prefix: str, limit: int) -> Iterator[tuple[str, list[bytes]]]:
        # What a writer took away since it was listed, it has put together in another file: look again.
        listing = ((name, self._contents(files, limit)) for name, files in self._listing(prefix))
        return ((name, list(found.values()) or self.read(name, limit)) for name, found in listing)

    def _listing(self, prefix: str) -> Iterator[tuple[str, list[str]]]:
        """Names, sorted, and their files; a directory at a time."""
        for shard in sorted(shard for shard in _listed(self.directory) if shard.startswith(prefix) and _SHARD.fullmatch(shard)):
            files: dict[str, list[str]] = {}
            for match in map(_FILE.fullmatch, sorted(_listed(self.directory / shard))):
                if match:
                    files.setdefault(match[1], []).append(f"{self.directory}/{shard}/{match[0]}")
            yield from files.items()

    def merge(self, name: str, data: bytes, better: Callable[[bytes, bytes], bytes]) -> None:
        try:
            self._merge(name, data, better)
        except OSError as error:
            raise StoreError(Fault.UNWRITABLE, str(error)) from error

    def _merge(self, name: str, data: bytes, better: Callable[[bytes, bytes], bytes]) -> None:
        best, joined = data, {data}
        for _ in range(_ROUNDS):
            contents = self._contents(self._files(name), _MAX_FILE, strict=True)
            for content in sorted(set(contents.values()) - joined):
                best = better(content, best)
                joined.add(content)
            if best in contents.values():
                break
            self._publish(name, best)
            joined.add(best)
        else:
            return  # others go on writing: what we published stays beside theirs, and the next writer joins them
        for file, content in contents.items():
            if content != best:
                _remove(file)

    def set_aside(self, name: str, data: bytes) -> None:
        try:
            aside = self.directory / "set-aside"
            make_private_directory(aside)
            for file in self._files(name):
                if _read_capped(file, len(data)) == data:
                    with contextlib.suppress(FileNotFoundError):  # another process was faster
                        os.replace(file, aside / f"{time.time_ns():020d}.{os.path.basename(file)}")
            for old in sorted(_listed(aside))[:-MAX_SET_ASIDE]:
                _remove(aside / old)
        except OSError as error:
            raise StoreError(Fault.UNWRITABLE, str(error)) from error

    def sizes(self) -> Iterator[tuple[str, int, float]]:
        """See ``Store``."""
        entries = ((name, Path(file)) for name, files in self._listing("") for file in files)
        aside = self.directory / "set-aside"
        for name, file in itertools.chain(entries, ((f"q-{file}", aside / file) for file in sorted(_listed(aside)))):
            with contextlib.suppress(OSError):  # a writer may be removing it
                status = os.stat(file, follow_symlinks=False)
                yield name, status.st_size, status.st_mtime

    def remove(self, name: str) -> bool:
        """See ``Store``."""
        aside = self.directory / "set-aside"
        files = [aside / file for file in _listed(aside) if f"q-{file}" == name] if name.startswith("q-") else self._files(name)
        try:
            for file in files:
                _remove(file)
        except OSError as error:
            raise StoreError(Fault.UNWRITABLE, str(error)) from error
        return bool(files)

    def compact(self) -> None:
        """See ``Store``: files have nothing to give back."""

    def close(self) -> None:
        """Nothing is open."""

    def _files(self, name: str) -> list[str]:
        shard = self.directory / name[:4]
        start = f"{name}."
        return sorted(f"{shard}/{file}" for file in _listed(shard) if file.startswith(start) and file.endswith(".rec"))

    def _contents(self, files: list[str], limit: int, strict: bool = False) -> dict[str, bytes]:
        """What is in those files that are still there. What somebody else may write to is left out; ``strict``: is a StoreError."""
        found: dict[str, bytes] = {}
        for file in files:
            if self.private and (reason := who_else_may_write(file) or who_else_may_write(os.path.dirname(file))):
                self.untrusted = reason
                if strict:
                    raise StoreError(Fault.UNTRUSTED, reason)
            elif (data := _read_capped(file, limit)) is not None:
                found[file] = data
        return found

    def _publish(self, name: str, data: bytes) -> None:
        """Write a whole file under a temporary name, make it durable, then give it its own name."""
        shard, temporary = self.directory / name[:4], self.directory / "tmp"
        make_private_directory(shard)
        make_private_directory(temporary)
        _remove_stale(temporary)
        draft = temporary / f"{name}.{os.getpid()}.{secrets.token_hex(8)}"
        try:
            with open(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, shard / f"{name}.{hashlib.sha256(data).hexdigest()[:16]}.rec")
        finally:
            draft.unlink(missing_ok=True)
        sync_directory(shard)


def _listed(directory: Path) -> list[str]:
    """The names in ``directory``; nothing if it is missing, closed to us, or no directory."""
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _remove(path: Path | str) -> None:
    with contextlib.suppress(FileNotFoundError):  # another process was faster
        os.unlink(path)


def _read_capped(path: str, limit: int) -> bytes | None:
    """The content; ``b""`` if it is longer than ``limit``, None if it is gone, cannot be read, or no file (from a pipe it would wait)."""
    try:
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            data = file.read(limit + 1)
    except OSError:
        return None
    return data if len(data) <= limit else b""


def _remove_stale(temporary: Path) -> None:
    for file in temporary.iterdir():
        with contextlib.suppress(OSError):  # another process may be removing it as well
            if time.time() - file.stat().st_mtime > _STALE_S:
                file.unlink()
