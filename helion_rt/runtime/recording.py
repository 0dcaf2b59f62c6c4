"""``HELION_RT_RECORD_KEYS=FILE``: the signatures that live traffic asked for, as a manifest that ``helion-rt prewarm FILE`` reads.

JSON Lines, written by any number of processes at once. A line is a signature::

    {"kernel": "my_package:norm", "args": [{"shape": [8, 128], "dtype": "float32"}, {"value": 1e-06}], "target": "tpu7x", "id": "..."}

or the calls that a process had of one, told when it ends: ``{"id": "...", "calls": 120}``; or, after ``#``, what cannot be called from
another process, and why. The request path only notes the shapes of a new slot; the tuner's thread writes, once a signature and process,
and not what the file has already. A line is written by one ``write`` to a file that is open for appending, so lines of several processes
do not mix. The file is left as it is when it has ``MAX_BYTES``.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import math
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import door
from . import facts as facts_of_call

if TYPE_CHECKING:
    from .kernel import Kernel
    from .slot import Slot

logger = logging.getLogger("helion_rt.runtime")

MAX_BYTES = 4 << 20
MAX_LINE_BYTES = 16 << 10
LOCK_SECONDS = 1.0
_ID_DIGITS = 16
DEFAULT_NUMERICS = "x64=0;matmul=default"  # other settings of JAX are on the line, as they are part of the key


class _Unsayable(Exception):
    """What a manifest has no words for."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A line of the manifest that is still to be written. ``identity``: "" for a comment, which has no calls."""

    line: str
    identity: str


def asked(kernel: Kernel, bound: Sequence[Any], slot: Slot) -> Asked:
    """The line of a call with these bound arguments. Looks at shapes and types and no value of an array; keeps none."""
    try:
        return _asked(kernel, bound, slot)
    except Exception as error:  # whatever is odd about the arguments, the call goes on
        if not isinstance(error, _Unsayable):
            logger.debug("kernel %s cannot be recorded", kernel.name, exc_info=True)
        text = f"# {kernel.fn.__module__}:{kernel.fn.__qualname__} {slot.key.digest[:12]}: not recorded: {error or type(error).__name__}"
        return Asked(_one_line(text)[:MAX_LINE_BYTES], "")


def _asked(kernel: Kernel, bound: Sequence[Any], slot: Slot) -> Asked:
    if slot.program.probes:
        raise _Unsayable("it is specialised to values of a tensor")
    said: dict[str, Any] = {"kernel": spec_of(kernel), **_arguments(kernel, bound), "target": slot.space.target.name}
    if (numerics := slot.key.numerics.partition(";")[2]) != DEFAULT_NUMERICS:
        said["numerics"] = numerics
    if slot.settings.strict:
        said["strict"] = True
    line = json.dumps(said, allow_nan=False)
    if len(line) > MAX_LINE_BYTES:
        raise _Unsayable(f"its line would have {len(line)} characters")
    identity = identity_of(said)
    return Asked(json.dumps({**said, "id": identity}), identity)


def identity_of(said: dict[str, Any]) -> str:
    """What lines of counts name a signature by."""
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:_ID_DIGITS]


def spec_of(kernel: Kernel) -> str:
    """``module:name``, by which another process finds the kernel; ``/path/file.py:name`` for one of the main script.

    Raises ``_Unsayable`` where there is no such name.
    """
    fn = kernel.fn
    home, name = fn.__module__, fn.__qualname__
    if "<locals>" in name:
        raise _Unsayable("a kernel that is made inside a function has no name elsewhere")
    if not name.isidentifier():
        raise _Unsayable("a kernel that is made inside a class has no name elsewhere")
    module = sys.modules.get(home)
    if getattr(module, name, None) is not kernel:
        raise _Unsayable(f"{home}:{name} is not this kernel")
    if home == "__main__":
        spec = getattr(module, "__spec__", None)
        if spec is not None:  # python -m package.module
            home = spec.name
        elif (file := getattr(module, "__file__", None)) and file.endswith(".py"):
            home = os.path.abspath(file)
        else:
            raise _Unsayable("a kernel that is made in an interactive session has no file")
    return f"{home}:{name}"


def _arguments(kernel: Kernel, bound: Sequence[Any]) -> dict[str, Any]:
    """``args``, and ``kwargs`` for parameters that are given by name only."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    # What follows the parameters' own is what the function itself reaches: another process finds it by itself.
    for parameter, value in zip(inspect.signature(kernel.fn).parameters.values(), bound, strict=False):
        try:
            if parameter.kind is parameter.VAR_POSITIONAL:
                args += map(_said, value)
            elif parameter.kind is parameter.KEYWORD_ONLY:
                kwargs[parameter.name] = _said(value)
            else:
                args.append(_said(value))
        except _Unsayable as error:
            raise _Unsayable(f"argument '{parameter.name}' {error}") from None
    return {"args": args, **({"kwargs": kwargs} if kwargs else {})}


def _said(value: Any) -> dict[str, Any]:
    """An argument as a manifest has it; see ``cli.keys.argument``."""
    if facts_of_call.is_array(value):
        return {"shape": [int(extent) for extent in value.shape], "dtype": door.dtype_name(value)}
    if value is None or isinstance(value, (bool, str)):
        return {"value": value}
    if type(value) is int:
        return {"value": value}
    if isinstance(value, float):
        number = float(value)
        return {"value": number} if math.isfinite(number) else {"float": repr(number)}
    if type(value) in (tuple, list):
        return {"items": [_said(item) for item in value]}
    if type(value).__name__ == "dtype" and type(value).__module__ == "torch":
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, np.dtype):
        raise _Unsayable("is a dtype of NumPy")
    raise _Unsayable(f"is a {type(value[0] if isinstance(value, facts_of_call.Opened) else value).__name__}")


class Recorder:
    """Appends lines to one file. What goes wrong with the file is told once and harms nobody.

    ``said``: by the digest of its key, the line that stands for a signature. Dynamic extents of one bucket have one.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.said: dict[str, Asked] = {}
        self._lock = threading.Lock()  # the tuner's thread, and the end of the process
        self._known: set[str] | None = None
        self._ended = False

    def write(self, lines: Iterable[str]) -> None:
        """Append those lines that the file does not have as far as this process knows."""
        if not self._lock.acquire(timeout=LOCK_SECONDS):  # the tuner's thread hangs in a write: the end of the process does not
            return
        try:
            self._append(lines)
        except (OSError, ValueError) as error:
            self._end(f"cannot be written ({error})")
        finally:
            self._lock.release()

    def _append(self, lines: Iterable[str]) -> None:
        if self._ended:
            return
        descriptor = os.open(self.file, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            if self._known is None:
                self._known = set(_lines_of(descriptor))
            for line in lines:
                if line in self._known:
                    continue
                size = os.fstat(descriptor).st_size
                data = line.encode() + b"\n"
                if size + len(data) > MAX_BYTES:
                    self._end(f"has {size} bytes and takes no more")
                    return
                # Somebody was killed in the middle of a line, or is just writing one: then this makes an empty line, which says nothing.
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    data = b"\n" + data
                os.write(descriptor, data)
                self._known.add(line)
        finally:
            os.close(descriptor)

    def _end(self, reason: str) -> None:
        if not self._ended:
            self._ended = True
            logger.warning("the manifest of recorded keys %s %s; this process records nothing more there", self.file, reason)


def _lines_of(descriptor: int) -> Iterator[str]:
    data = os.pread(descriptor, MAX_BYTES, 0)
    return (line.decode(errors="replace") for line in data.splitlines())


_recorders: dict[tuple[int, Path], Recorder] = {}


def _recorder(file: Path) -> Recorder:
    """The recorder of ``file``, one a process."""
    return _recorders.setdefault((os.getpid(), file), Recorder(file))


def write(slots: Iterable[Slot]) -> None:
    """Write what new slots were asked for. On the tuner's thread."""
    by_file: dict[Path, list[str]] = {}
    for slot in slots:
        if slot.asked is not None and (file := slot.settings.record_keys) is not None:
            asked = _recorder(file).said.setdefault(slot.key.digest, slot.asked)
            by_file.setdefault(file, []).append(asked.line)
    for file, lines in by_file.items():
        _recorder(file).write(lines)


def tell_calls(slots: Iterable[Slot]) -> None:
    """Write how often slots were called, at the end of the process."""
    by_file: dict[Path, dict[str, int]] = {}
    for slot in slots:
        if slot.asked is None or not slot.calls or (file := slot.settings.record_keys) is None:
            continue
        asked, calls = _recorder(file).said.get(slot.key.digest, slot.asked), by_file.setdefault(file, {})
        if asked.identity:
            calls[asked.identity] = calls.get(asked.identity, 0) + slot.calls
    for file, calls in by_file.items():
        # The number of the process keeps equal counts of two processes from being taken for one line.
        _recorder(file).write(json.dumps({"id": identity, "calls": count, "process": os.getpid()}) for identity, count in calls.items())


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)
