"""A folder that machines share: NFS, Lustre, a mounted bucket. No SQLite, no locks: whole files, renamed into place."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

from ..paths import sync_directory
from ..store import Fault
from .engine import SharedError
from .files import LAYOUT, Entry

log = logging.getLogger("helion_rt.database")

_STALE_S = 3600.0  # a draft this old, by the folder's clock, belongs to a writer that died
_GONE = (errno.ENOENT, errno.ENOTDIR)


class FolderFiles:
    """``Files`` in ``root``, which has to exist (an empty mount point must not be taken for the folder that is not mounted).

    What is made in it is readable and writable for those for whom the folder is, whatever the umask. A folder into which
    anybody may write is refused unless ``anybody``; of a file that anybody may change nothing is read in that case either.
    """

    granularity = 0.0

    def __init__(self, root: Path, *, anybody: bool) -> None:
        self._root, self._anybody = root, anybody
        self._swept = False
        self._lock = threading.Lock()

    def publish(self, path: str, data: bytes) -> None:
        with _told(self._root):
            place = self._place(path)
            draft = self._draft()
            try:
                self._write(draft, data)
                os.replace(draft, place)
            finally:
                draft.unlink(missing_ok=True)
            sync_directory(place.parent)

    def create(self, path: str, data: bytes) -> bool:
        with _told(self._root):
            try:
                self._write(self._place(path), data)
            except FileExistsError:
                return False
            return True

    def read(self, path: str, limit: int) -> bytes | None:
        with _told(self._root):
            self._check()
            try:
                # Not blocking: a pipe with a record's name must not stop us. Nor is a link followed out of the folder.
                descriptor = os.open(self._root / LAYOUT / path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                return None
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENXIO, errno.EMLINK):
                    return b""
                raise
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode) or status.st_size > limit or (status.st_mode & stat.S_IWOTH and not self._anybody):
                    return b""
                with open(descriptor, "rb", closefd=False) as file:
                    data = file.read(limit + 1)
            finally:
                os.close(descriptor)
            return data if len(data) <= limit else b""

    def list(self, directory: str, prefix: str = "") -> list[Entry]:
        found = []
        with _told(self._root):
            for item in self._scan(directory):
                if item.name.startswith(prefix):
                    try:
                        status = item.stat(follow_symlinks=False)
                    except FileNotFoundError:  # removed since it was listed
                        continue
                    found.append(Entry(item.name, status.st_size, status.st_mtime))
        return found

    def directories(self, directory: str) -> list[str]:
        with _told(self._root):
            return [item.name for item in self._scan(directory) if item.is_dir(follow_symlinks=False)]

    def remove(self, path: str) -> bool:
        with _told(self._root):
            self._check()
            try:
                os.unlink(self._root / LAYOUT / path)
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                return False
            return True

    def now(self) -> float:
        with _told(self._root):
            draft = self._draft()
            try:
                self._write(draft, b"?")
                now = draft.stat().st_mtime
            finally:
                draft.unlink(missing_ok=True)
            self._sweep(draft.parent, now)
            return now

    def close(self) -> None:
        pass

    def _scan(self, directory: str) -> list[os.DirEntry[str]]:
        with _told(self._root):
            self._check()
            try:
                with os.scandir(self._root / LAYOUT / directory) as items:
                    return list(items)
            except (FileNotFoundError, NotADirectoryError):
                return []

    def _check(self) -> int:
        """The permissions of the folder. Raises SharedError where it is not there, or not to be trusted."""
        try:
            mode = stat.S_IMODE(os.stat(self._root).st_mode)
        except OSError as error:
            if error.errno in _GONE:
                raise SharedError(f"the shared folder {self._root} does not exist: mount it, or create it once") from None
            raise
        if mode & stat.S_IWOTH and not self._anybody:
            raise SharedError(
                f"anybody may write into the shared folder {self._root}: take that away (chmod o-w), or sign records and take no others",
                Fault.UNTRUSTED,
            )
        return mode

    def _place(self, path: str) -> Path:
        """Where ``path`` is, its directory made."""
        place, mode = self._root / LAYOUT / path, self._check()
        if not place.parent.is_dir():
            parents = [self._root / LAYOUT, *(self._root / LAYOUT / part for part in reversed(Path(path).parents) if part != Path("."))]
            for directory in parents:
                with contextlib.suppress(FileExistsError):
                    directory.mkdir()
                    _chmod(directory, mode)
        return place

    def _draft(self) -> Path:
        return self._place(f"tmp/{os.getpid()}.{secrets.token_hex(12)}")

    def _write(self, path: Path, data: bytes) -> None:
        """Write a new file, durably. Raises FileExistsError."""
        with open(path, "xb") as file:
            _chmod(path, self._check() & 0o666)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def _sweep(self, drafts: Path, now: float) -> None:
        """Once a process: remove what writers that died left."""
        with self._lock:
            if self._swept:
                return
            self._swept = True
        for item in self._scan(drafts.name):
            with contextlib.suppress(OSError):
                if now - item.stat(follow_symlinks=False).st_mtime > _STALE_S:
                    os.unlink(item)


@contextlib.contextmanager
def _told(root: Path) -> Iterator[None]:
    """The system's errors as SharedError."""
    try:
        yield
    except OSError as error:
        raise SharedError(f"the shared folder {root} cannot be used: {error.strerror or error}") from error


def _chmod(path: Path, mode: int) -> None:
    with contextlib.suppress(OSError):  # mounted buckets have no permissions
        path.chmod(mode)
