"""What a worker uses of the machine. Memory is resident memory: libtpu maps far more address space than it ever touches."""

from __future__ import annotations

import os
from pathlib import Path

# Of the machine's memory, what a worker may take unless the user says: the server needs the rest.
SHARE = 0.5
UNKNOWN_BYTES = 16 << 30  # of a machine that does not tell what it has


def limit(gigabytes: float | None) -> int:
    """The most resident bytes of a worker: ``gigabytes`` (GiB) if that is given, else half of the machine's (or the container's)."""
    return int(gigabytes * (1 << 30)) if gigabytes is not None else int(SHARE * machine())


def machine() -> int:
    """Bytes of memory of this machine, or that its container allows."""
    try:
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return UNKNOWN_BYTES
    try:
        allowed = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return found
    return min(found, int(allowed)) if allowed.isdigit() else found


def resident(pid: int) -> int:
    """Resident bytes of a process; 0 if it is gone, or where the system has no ``/proc`` (then there is no limit either)."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def processor_seconds(pid: int) -> float:
    """Seconds of a processor that a process has had so far, all its threads together; 0 if it is gone, or where there is no ``/proc``."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # the name before may hold anything
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0
