"""``helion-rt cache``: what the tuning database holds, and where."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from helion_rt.database import LocalTier, Record, open_local
from helion_rt.database.codec import to_plain
from helion_rt.exc import HelionError
from helion_rt.settings import CACHE_DIR, Settings

_SHORT = 12  # hex digits of a digest in a table


def add_parser(subparsers: Any) -> None:
    """Add ``cache`` and its actions to the subparsers of ``helion-rt``."""
    parser = subparsers.add_parser("cache", help="look into the tuning database", description=__doc__)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("ls", help="list the records")
    show = actions.add_parser("show", help="show one record whole")
    show.add_argument("key", metavar="KEY", help="the digest of its key, or the first digits of it")
    path = actions.add_parser("path", help="print the directory")
    for action in (listing, show, path):
        action.add_argument(
            "--dir", type=Path, metavar="DIRECTORY", help="look here (default: HELION_RT_CACHE_DIR, or the platform's folder)"
        )
        action.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Carry out ``cache ls|show|path``. 0 if it could, 1 with a message on stderr if not."""
    try:
        directory = args.dir.expanduser() if args.dir else Settings.from_env().cache_dir
    except (HelionError, RuntimeError) as error:  # RuntimeError: a ~user that does not exist
        return _fail(str(error))
    if args.action == "path":
        print(json.dumps({"path": str(directory)}) if args.json else directory)
        return 0
    if os.path.lexists(directory) and not os.path.isdir(directory):
        return _fail(f"{directory} is not a directory; give --dir, or set {CACHE_DIR}, to one")
    tier = open_local(directory)
    status = _list(tier, args.json) if args.action == "ls" else _show(tier, args.key, args.json)
    stats = tier.stats()
    if stats.bad or stats.databases_set_aside:
        print(f"set aside: {stats.bad} bad records, {stats.databases_set_aside} broken databases", file=sys.stderr)
    return status


def _fail(message: str) -> int:
    print(f"helion-rt: {message}", file=sys.stderr)
    return 1


def as_json(record: Record) -> dict[str, Any]:
    """A record as JSON has it, with the digest of its key and, where both times are known, the speed-up."""
    plain = to_plain(record)
    fingerprint, signature, numerics, target = plain.pop("key")
    key = {"fingerprint": fingerprint, "signature": _json_safe(signature), "numerics": numerics, "target": target}
    return {"digest": record.key.digest, "key": key, **plain, "speedup": record.evidence.speedup}


def _json_safe(value: Any) -> Any:
    """Key data as JSON can hold it: bytes as ``{"bytes": hex}``, infinities as ``{"float": "inf"}``."""
    if isinstance(value, list):
        return [_json_safe(item) for item in value]
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return {"float": str(value)}
    return value


def _list(tier: LocalTier, as_json_text: bool) -> int:
    records = list(tier.records())
    if as_json_text:
        print(json.dumps([as_json(record) for record in records], indent=2))
        return 0
    if not records:
        print(f"no records in {tier.directory}")
        return 0
    from rich.table import Table  # late: JSON for a script needs no rich

    from .output import console

    table = Table("key", "kernel", "target", "status", "evidence", "ms", "default ms", "speed-up", "config", "date")
    for record in sorted(records, key=lambda record: (record.kernel, record.key.target, record.key.digest)):
        evidence = record.evidence
        table.add_row(
            record.key.digest[:_SHORT],
            _verbatim(record.kernel),
            _verbatim(record.key.target),
            record.status.value,
            evidence.kind.value,
            "-" if evidence.ms is None else f"{evidence.ms:.4g}",
            "-" if evidence.default_ms is None else f"{evidence.default_ms:.4g}",
            "-" if evidence.speedup is None else f"{evidence.speedup:.2f}x",
            _verbatim(" ".join(f"{name}={json.dumps(value)}" for name, value in record.config.items())),
            record.date,
        )
    # A pipe has no width: there nothing is cut, one record a line.
    console(width=None if sys.stdout.isatty() else 400).print(table)
    return 0


def _verbatim(text: str) -> str:
    """Text from a record, not to be read as rich's markup or as control characters of a terminal."""
    from rich.markup import escape

    return escape("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text))


def _show(tier: LocalTier, prefix: str, as_json_text: bool) -> int:
    found = [record for record in tier.records() if record.key.digest.startswith(prefix.lower())]
    if not found:
        return _fail(f"no record whose key begins with {prefix!r} in {tier.directory}; `helion-rt cache ls` lists them")
    if len(found) > 1:
        some = ", ".join(record.key.digest[: max(_SHORT, len(prefix) + 2)] for record in found[:5])
        return _fail(f"{prefix!r} is the beginning of {len(found)} keys ({some}{', ...' if len(found) > 5 else ''}); give more digits")
    plain = as_json(found[0])
    if as_json_text:
        print(json.dumps(plain, indent=2))
    else:
        for line in _lines(plain):
            print("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line))
    return 0


def _lines(plain: dict[str, Any], indent: str = "") -> list[str]:
    """A mapping as indented ``name: value`` lines."""
    lines = []
    for name, value in plain.items():
        if isinstance(value, dict) and value:
            lines += [f"{indent}{name}:", *_lines(value, indent + "  ")]
        else:
            lines.append(f"{indent}{name}: {value if isinstance(value, str) else json.dumps(value)}")
    return lines
