"""Locks that save work: of the processes that start at once on one key, one tunes it; and one process of a machine tunes at a time.

Correctness never depends on them.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from .paths import LAYOUT_VERSION, make_private_directory

log = logging.getLogger("helion_rt.database")


@contextlib.contextmanager
def work_lock(directory: str | os.PathLike[str], digest: str) -> Iterator[bool]:
    """Try, without waiting, to become the one process that tunes the key ``digest`` of the tier in ``directory``.

    Yields True if this one may (it holds the lock; or there can be none, on a directory that cannot be written), False
    if another process is at it: poll the tier for its winner instead. The system frees the lock of a process that died.
    """
    with _try_lock(Path(directory) / LAYOUT_VERSION / "locks" / f"{digest}.lock") as free:
        yield free


@contextlib.contextmanager
def host_lock(directory: str | os.PathLike[str]) -> Iterator[bool]:
    """Try, without waiting, to become the one process of this machine that tunes: two would disturb each other's measurements.

    ``directory`` is on this machine alone (``Settings.runtime_dir``). Yields as ``work_lock`` does.
    """
    with _try_lock(Path(directory) / "tuner.lock") as free:
        yield free


@contextlib.contextmanager
def _try_lock(path: Path) -> Iterator[bool]:
    import filelock  # late: it costs 0.1 s, and only a process that tunes needs it

    with contextlib.ExitStack() as stack:
        try:
            make_private_directory(path.parent)
            # Not thread-local: a background thread may take it, and the thread that stops it give it back.
            stack.enter_context(filelock.FileLock(path, timeout=0, thread_local=False))
            free = True
        except filelock.Timeout:
            free = False
        except (OSError, NotImplementedError) as error:
            log.debug("no lock %s (%s): tuning without one", path, error)
            free = True
        yield free
