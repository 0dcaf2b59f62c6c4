"""What the actions print: records as JSON and as lines, with nothing in them that a terminal would obey."""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from helion_rt.database import Record
from helion_rt.database.codec import to_plain
from helion_rt.database.pack import signature_to_json

SHORT = 12  # hex digits of a digest in a table

_COLUMNS = (("key", SHORT), ("kernel", 20), ("target", 14), ("status", 12), ("evidence", 9), ("ms", 9), ("default ms", 10), ("speed-up", 8),
            ("date", 20), ("arguments", 32), ("config", 0))  # fmt: skip
_DURATION = re.compile(r"(\d{1,6})([mhdw])", re.ASCII)
_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
_SIZE = re.compile(r"(\d{1,15})([KMGT]?)(i?B)?", re.ASCII | re.IGNORECASE)
_DATE = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\dZ)?", re.ASCII)


def fail(message: str) -> int:
    """Tell why it cannot be done; the exit status for that."""
    print("helion-rt: " + "\n".join(map(printable, message.split("\n"))), file=sys.stderr)
    return 1


def printable(text: str) -> str:
    """Text from a record or a file's name, with a sign in the place of what a terminal would obey."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def as_json(record: Record) -> dict[str, Any]:
    """A record as JSON has it, with the digest of its key and, where both times are known, the speed-up."""
    plain = to_plain(record)
    fingerprint, signature, numerics, target = plain.pop("key")
    key = {"fingerprint": fingerprint, "signature": signature_to_json(signature), "numerics": numerics, "target": target}
    return {"digest": record.key.digest, "key": key, **plain, "speedup": record.evidence.speedup}


def header() -> str:
    """The names of the columns of ``row``."""
    return _in_columns(name for name, _ in _COLUMNS)


def row(record: Record) -> str:
    """A record on one line."""
    evidence = record.evidence
    times = milliseconds(evidence.ms), milliseconds(evidence.default_ms), "-" if evidence.speedup is None else f"{evidence.speedup:.2f}x"
    verdict = record.status.value, evidence.kind.value
    key, given = record.key, (arguments(record), config_text(record))
    return _in_columns((key.digest[:SHORT], record.kernel, key.target, *verdict, *times, record.date, *given))


def _in_columns(cells: Iterable[str]) -> str:
    """Cells side by side; one that is too long pushes the others, so that nothing is cut."""
    return " ".join(printable(cell).ljust(width) for cell, (_, width) in zip(cells, _COLUMNS, strict=True)).rstrip()


def milliseconds(ms: float | None) -> str:
    return "-" if ms is None else f"{ms:.4g}"


def arguments(record: Record) -> str:
    """What the kernel was called with: ``4096x2560 float32, 1e-05``. None is left out, what is alike told once: ``2 of 768 float32``."""
    signature = record.key.signature
    told = [_argument(item) for item in (signature if isinstance(signature, tuple) else (signature,))]
    runs = [(text, len(list(run))) for text, run in itertools.groupby(told) if text != "None"]
    return ", ".join(text if count == 1 else f"{count} of {text}" for text, count in runs)


def _argument(item: Any) -> str:
    match item:
        case ("tensor", tuple() as dims, str(dtype)):
            return f"{'x'.join(map(str, dims))} {dtype}".lstrip()
        case ("static", str(), value):
            return str(value)
        case _:
            return json.dumps(signature_to_json(item), default=str)


def config_text(record: Record) -> str:
    """``block_sizes=[8, 128] loop_strategies=["grid"]``."""
    return " ".join(f"{name}={json.dumps(value)}" for name, value in record.config.items())


def evidence_text(record: Record) -> str:
    """What is known and how: ``winner, measured 1.2 ms (default 2.4 ms, 8 pairs), jax 0.10.2, 2026-11-29``."""
    evidence = record.evidence
    versions = " ".join(f"{name} {record.toolchain[name]}" for name in ("jax", "libtpu") if name in record.toolchain)
    times = f"{milliseconds(evidence.ms)} ms (default {milliseconds(evidence.default_ms)} ms, {evidence.pairs} pairs)"
    return printable(", ".join(filter(None, [record.status.value, f"{evidence.kind.value} {times}", versions, record.date[:10]])))


def name_of(record: Record) -> str:
    """Digest, kernel and target, for a message about a record."""
    return printable(f"{record.key.digest[:SHORT]} {record.kernel} {record.key.target}")


def tree(plain: dict[str, Any], indent: str = "") -> list[str]:
    """A mapping as indented ``name: value`` lines."""
    lines = []
    for name, value in plain.items():
        if isinstance(value, dict) and value:
            lines += [f"{indent}{name}:", *tree(value, indent + "  ")]
        else:
            lines.append(f"{indent}{name}: {value if isinstance(value, str) else json.dumps(value)}")
    return [printable(line) for line in lines]


def bytes_text(count: float) -> str:
    """``512 B``, ``1.5 KiB``, ``20.0 MiB``."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def moment(text: str) -> str:
    """A date (``2026-11-29``, ``2026-11-29T12:00:00Z``), or so long ago (``30m``, ``12h``, ``7d``, ``2w``), as records have dates.
    For argparse."""
    if found := _DURATION.fullmatch(text):
        ago = datetime.now(UTC) - int(found[1]) * _UNITS[found[2]] if int(found[1]) < 10**5 else datetime.min
        return ago.strftime("%Y-%m-%dT%H:%M:%SZ")
    if _DATE.fullmatch(text):
        return text if "T" in text else f"{text}T00:00:00Z"
    raise argparse.ArgumentTypeError(f"{text!r:.40} is neither a date like 2026-11-29 nor a time ago like 12h, 30d or 2w")


def size(text: str) -> int:
    """Bytes: ``1000000``, ``64K``, ``100M``, ``2G`` (powers of 1024). For argparse."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r:.40} is no size like 500K, 100M or 2G")
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[found[2].upper()]
