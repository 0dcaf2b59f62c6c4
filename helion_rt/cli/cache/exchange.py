"""``cache export``, ``import`` and ``merge``: records from one place to another. What comes is merged; the better record stays."""

from __future__ import annotations

import argparse
import enum
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from helion_rt.config import Config
from helion_rt.database import Record
from helion_rt.database import pack as packs
from helion_rt.database.store import StoreError
from helion_rt.exc import ConfigError
from helion_rt.settings import Settings

from .place import PackPlace, Place, add_filters, add_place, alike, chosen, imported, merged, open_place, place_of, trust_of
from .show import tell_troubles
from .text import bytes_text, fail, moment, name_of, printable


class Outcome(enum.Enum):
    """What became of a record that was offered to a place."""

    NEW = "new"
    BETTER = "better"  # than what was there
    WORSE = "worse"
    SAME = "same"
    REFUSED = "refused"


def add_parsers(actions: Any) -> None:
    export = actions.add_parser("export", help="write records to a pack", description="Write records to a pack: text, sorted, for review.")
    export.add_argument("file", metavar="FILE", help="the pack; - for standard output")
    export.add_argument(
        "--since", type=moment, metavar="DATE", help="only records of this date or later: 2026-11-29, or so long ago: 12h, 7d"
    )
    export.set_defaults(act=_export)
    bring = actions.add_parser("import", help="merge the records of a pack", description="Merge the records of a pack.")
    bring.add_argument("other", metavar="FILE", help="the pack")
    merge = actions.add_parser(
        "merge", help="merge the records of another database or shared tier", description="Merge the records of another place."
    )
    merge.add_argument("other", metavar="OTHER", help="a directory, the URL of a shared tier, or a pack")
    for action in (bring, merge):
        action.add_argument("--dry-run", action="store_true", help="only say what would become of each record")
        action.add_argument("--quiet", action="store_true", help="print the sums alone")
        action.set_defaults(act=_merge)
    for action in (export, bring, merge):
        add_place(action)
        add_filters(action)


def _export(args: argparse.Namespace) -> int:
    place = place_of(args)
    records = (record for record in chosen(place.records(), args) if args.since is None or record.date >= args.since)
    trust = trust_of(Settings.from_env())
    if args.file == "-":
        for line in packs.lines(records, trust):
            sys.stdout.write(line)
        return tell_troubles(place)
    try:
        count = packs.write(records, args.file, trust)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        return tell_troubles(place, fail(f"{args.file} was not written: {reason}"))
    print(printable(f"{args.file}: {count} records, {bytes_text(os.path.getsize(args.file))}"))
    return tell_troubles(place)


def _merge(args: argparse.Namespace) -> int:
    source = open_place(args.other)
    if args.action == "import" and not isinstance(source, PackPlace):
        return tell_troubles(source, fail(f"{source.name} is no pack; `helion-rt cache merge` takes directories and URLs"))
    place = place_of(args)
    sums: Counter[Outcome] = Counter()
    for record, outcome, reason in bring(chosen(source.records(), args), place, dry_run=args.dry_run):
        sums[outcome] += 1
        if not args.quiet or outcome is Outcome.REFUSED:
            print(f"{outcome.value:8} {name_of(record)}" + (f": {printable(reason)}" if reason else ""))
    told = ", ".join(f"{sums[outcome]} {outcome.value}" for outcome in Outcome)
    print(printable(f"{source.name} -> {place.name}: {told}" + (" (nothing was written)" if args.dry_run else "")))
    unread = bool(source.troubles())
    tell_troubles(source)
    return tell_troubles(place, 1 if sums[Outcome.REFUSED] or unread else 0)


def bring(records: Iterable[Record], place: Place, *, dry_run: bool = False) -> Iterator[tuple[Record, Outcome, str]]:
    """Merge ``records`` into ``place``, one at a time: each with what became of it, and why it was refused. Raises StoreError where
    the place cannot be asked at all."""
    for record in records:
        if reason := illegal(record):
            yield record, Outcome.REFUSED, reason
            continue
        there = place.get(record.key)
        outcome = _outcome(there, record)
        reason = ""
        if outcome in (Outcome.NEW, Outcome.BETTER) and not dry_run:
            try:
                place.put(imported(record))
            except (StoreError, ValueError) as error:
                outcome, reason = Outcome.REFUSED, str(error)
        yield record, outcome, reason


def _outcome(there: Record | None, record: Record) -> Outcome:
    if there is None:
        return Outcome.NEW
    if alike(there, record):
        return Outcome.SAME
    return Outcome.WORSE if alike(merged(there, record), there) else Outcome.BETTER


def illegal(record: Record) -> str:
    """Why the configs of a record are none, in form; empty if they are. Whether they fit the kernel is known where it is called."""
    try:
        for config in (record.config, *record.quarantined):
            Config.from_dict(config)
    except ConfigError as error:
        return f"not a config: {error.message}"
    return ""
