"""A lock that saves work: of the processes that start at once on one key, one tunes it. Correctness never depends on it."""

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
    """Try, without waiting, to become the one process of this machine that tunes the key ``digest``.

    Yields True if this one may (it holds the lock; or there can be none, on a directory that cannot be written), False
    if another process is at it: poll the tier for its winner instead. The system frees the lock of a process that died.
    """
    import filelock  # late: it costs 0.1 s, and only a process that tunes needs it

    path = Path(directory) / LAYOUT_VERSION / "locks" / f"{digest}.lock"
    with contextlib.ExitStack() as stack:
        try:
            make_private_directory(path.parent)
            # Not thread-local: a background thread may take it, and the thread that stops it give it back.
            stack.enter_context(filelock.FileLock(path, timeout=0, thread_local=False))
            free = True
        except filelock.Timeout:
            free = False
        except (OSError, NotImplementedError) as error:
            log.debug("no lock in %s (%s): tuning without one", directory, error)
            free = True
        yield free
