"""Where the tuning database lives, and whether that place can carry SQLite."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

# The layout below the cache directory. A change that old code could misread gets a new number: both then live side by side.
LAYOUT_VERSION = "v1"

_NETWORK_FILE_SYSTEMS = {
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2",
    "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs", "wekafs",
}  # fmt: skip


def is_network_file_system(path: Path, mounts: Iterable[str] | None = None) -> bool:
    """Whether ``path`` (which need not exist yet) is on a file system on which SQLite's locks or shared memory cannot be trusted.

    ``mounts`` are lines of ``/proc/mounts``; by default the real ones. False where there is no such file. An unknown
    FUSE file system counts as a network one: the tier of files is right anywhere, only slower.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return False
    real = os.path.realpath(path)
    best, kind = "", ""
    for line in mounts:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        where = fields[1].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        # The later line wins at equal length: that mount is on top.
        if (real == where or real.startswith(where.rstrip("/") + "/")) and len(where) >= len(best):
            best, kind = where, fields[2]
    return kind in _NETWORK_FILE_SYSTEMS or kind.startswith("fuse.")


def make_private_directory(path: Path) -> None:
    """Create ``path`` and its parents; what is created is the user's alone (mode 0700). Raises OSError."""
    missing = []
    while not os.path.lexists(path):
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        try:
            directory.mkdir(mode=0o700)
        except FileExistsError:
            if not directory.is_dir():  # another process was faster: fine, if it made a directory
                raise
    if not path.is_dir():
        raise NotADirectoryError(20, "is a file, not a directory", str(path))


def who_else_may_write(path: Path | str, status: os.stat_result | None = None, *, outer: bool = False) -> str:
    """Who but this user and root may change what is in ``path``, in words; nothing if nobody may, or if it is not there.

    ``outer``: a directory in which we keep a private one. What others put there is seen to be theirs, so that its owner and its group may
    write to it; everybody may only where that is a place like ``/tmp``, in which nobody moves what is another's. ``status`` is what
    ``os.stat`` says, if it is known. Access control lists are not looked at. Nothing where users have no numbers.
    """
    if not hasattr(os, "geteuid"):
        return ""
    try:
        found = os.stat(path) if status is None else status
    except (OSError, ValueError):
        return ""
    if outer:
        return f"everybody may write to {path}" if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX else ""
    if found.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to another user ({found.st_uid})"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{'everybody' if found.st_mode & stat.S_IWOTH else 'its group'} may write to {path}"
    return ""


def sync_directory(path: Path) -> None:
    """Make a rename durable, where the system lets a directory be synced."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
