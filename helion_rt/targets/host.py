"""What this machine's CPU is, as far as a tuned config depends on it: instruction set and usable cores."""

from __future__ import annotations

import functools
import os
import platform
from pathlib import Path

# The psABI levels of x86-64, highest first, by the flags of /proc/cpuinfo that a level adds.
_X86_LEVELS = (
    ("x86_64-v4", frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})),
    ("x86_64-v3", frozenset({"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"})),
    ("x86_64-v2", frozenset({"cx16", "popcnt", "sse4_1", "sse4_2", "ssse3"})),
)
_ARM_LEVELS = (("aarch64-sve2", "sve2"), ("aarch64-sve", "sve"), ("aarch64-neon", "asimd"))


def isa_tag(machine: str, flags: frozenset[str]) -> str:
    """Instruction set of a processor of architecture ``machine`` with these ``/proc/cpuinfo`` flags, e.g. ``x86_64-v3``.

    An architecture that is not known, or whose flags cannot be read, is named by ``machine`` alone.
    """
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine.lower(), machine.lower())
    if machine == "x86_64":
        held = flags
        for index, (name, _) in enumerate(_X86_LEVELS):
            if all(level <= held for _, level in _X86_LEVELS[index:]):
                # Matrix units change which block sizes win, like a level of their own.
                return name + ("+amx" if "amx_tile" in flags else "")
    if machine == "aarch64":
        return next((name for name, flag in _ARM_LEVELS if flag in flags), "aarch64")
    return machine


@functools.cache
def this_isa() -> str:
    """Instruction set of this machine."""
    return isa_tag(platform.machine(), _cpu_flags(Path("/proc/cpuinfo")))


def usable_cores() -> int:
    """Cores that this process may run on; XLA's thread pool has as many."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        return os.cpu_count() or 1


def _cpu_flags(cpuinfo: Path) -> frozenset[str]:
    try:
        text = cpuinfo.read_text(errors="replace")
    except OSError:  # no /proc: the tag is the architecture alone
        return frozenset()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()
