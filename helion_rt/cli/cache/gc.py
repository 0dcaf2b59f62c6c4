"""``cache gc``: remove what nobody will ask for again."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from helion_rt.database import Record, encode_record
from helion_rt.database.store import StoreError
from helion_rt.database.upkeep import PROGRAMS, RECORDS, bytes_in, leftovers, raw_entries, removed

from .place import LocalPlace, Place, add_place, place_of
from .show import tell_troubles
from .text import SHORT, bytes_text, fail, moment, name_of, printable, size
from .verify import of_entry


@dataclass(frozen=True)
class Going:
    """Something to be removed, and how. ``remove()`` says whether it did."""

    name: str
    bytes: int
    remove: Callable[[], bool]


@dataclass(frozen=True)
class Entry:
    """A record, or (``record`` is None) a captured program. ``date``: when it was tuned, or stored."""

    name: str
    bytes: int
    date: str
    record: Record | None = None

    def __str__(self) -> str:
        return f"record {name_of(self.record)}" if self.record is not None else f"program {self.name.partition('-')[2][:SHORT]}"


def add_parsers(actions: Any) -> None:
    collect = actions.add_parser(
        "gc", help="remove what nobody needs",
        description="Remove what was set aside, broken databases, folders of old layouts, abandoned drafts and locks nobody holds; and, if"
        " asked to, records and captured programs. A record that goes is tuned anew, a program is captured anew.",
    )  # fmt: skip
    collect.add_argument(
        "--older-than", type=moment, metavar="DATE", help="also records and programs that are older: 90d, 12w, 2026-01-31"
    )
    collect.add_argument("--stale", action="store_true", help="also what other versions made: of the compilers, of the space of configs")
    collect.add_argument(
        "--max-bytes", type=size, metavar="SIZE", help="also the oldest programs, then the oldest records, until this is left: 500M"
    )
    collect.add_argument("--dry-run", action="store_true", help="only say what would go")
    add_place(collect)
    collect.set_defaults(act=_collect)


def _collect(args: argparse.Namespace) -> int:
    place = place_of(args)
    count = freed = failed = 0
    for going in _all_going(place, args):
        ok = args.dry_run or going.remove()
        done = "would remove" if args.dry_run else "removed" if ok else "NOT removed:"
        print(printable(f"{done} {going.name} ({bytes_text(going.bytes)})"))
        count, freed, failed = count + ok, freed + going.bytes * ok, failed + (not ok)
    if isinstance(place, LocalPlace):
        if count and not args.dry_run:
            _compact(place)
        if (xla := bytes_in(place.directory / "xla")) > 0:
            print(printable(f"JAX's own cache is left alone: {bytes_text(xla)} in {place.directory / 'xla'}"))
    print(printable(f"{place.name}: {count} things, {bytes_text(freed)}{' would be' if args.dry_run else ''} freed"))
    return tell_troubles(place, fail(f"{failed} things could not be removed") if failed else 0)


def _compact(place: LocalPlace) -> None:
    try:
        place.tier.store.compact()
    except StoreError as error:  # the room is free for what comes, but still the file's
        print(printable(f"the database could not be made smaller now: {error}"), file=sys.stderr)


def _all_going(place: Place, args: argparse.Namespace) -> Iterator[Going]:
    if isinstance(place, LocalPlace):
        for left in leftovers(place.tier):
            yield Going(f"{left.what.value} {left.name}", left.bytes, left.remove)
    if args.older_than is None and not args.stale and args.max_bytes is None:
        return
    is_stale, unreadable = (_stale(), _unreadable_programs(place)) if args.stale else (lambda record: "", frozenset())
    staying: list[Entry] = []
    for entry in list(_entries(place)):
        reason = "old" if args.older_than is not None and entry.date < args.older_than else ""
        if not reason and entry.record is not None:
            reason = is_stale(entry.record)
        if entry.name in unreadable:
            reason = "not of this version"
        if reason:
            yield Going(f"{entry}: {reason}", entry.bytes, _remover(place, entry))
        else:
            staying.append(entry)
    if args.max_bytes is not None:
        yield from (Going(f"{entry}: for room", entry.bytes, _remover(place, entry)) for entry in too_many(staying, args.max_bytes))


def too_many(entries: list[Entry], limit: int) -> Iterator[Entry]:
    """What has to go until ``limit`` bytes are left: programs first, they are made anew in a second; the oldest first."""
    total = sum(entry.bytes for entry in entries)
    for entry in sorted(entries, key=lambda entry: (entry.record is not None, entry.date, entry.name)):
        if total <= limit:
            return
        total -= entry.bytes
        yield entry


def _entries(place: Place) -> Iterator[Entry]:
    for record in place.records():
        yield Entry(RECORDS + record.key.digest, len(encode_record(record)), record.date, record)
    if isinstance(place, LocalPlace):
        for name, count, stored in place.tier.store.sizes():
            if name.startswith(PROGRAMS):
                yield Entry(name, count, datetime.fromtimestamp(stored, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))


def _remover(place: Place, entry: Entry) -> Callable[[], bool]:
    def remove() -> bool:
        try:
            if entry.record is None:
                return isinstance(place, LocalPlace) and removed(place.tier, entry.name)
            return place.forget(entry.record.key.digest)
        except StoreError as error:
            fail(f"{entry}: {error}")
            return False

    return remove


def _unreadable_programs(place: Place) -> frozenset[str]:
    """Names of programs that are captured again when they are asked for: another version has stored them, or they are damaged."""
    if not isinstance(place, LocalPlace):
        return frozenset()
    entries = ((name, data) for name, data in raw_entries(place.tier) if name.startswith(PROGRAMS))
    return frozenset(name for name, data in entries if of_entry(name, data, place.trust).reason)


def _stale() -> Callable[[Record], str]:
    """Says why a record would serve as a hint at best, because another compiler or library made it; empty if it is none of these."""
    from helion_rt.runtime.standing import other_versions, toolchain_here  # late: these bring JAX
    from helion_rt.tuning.space import SPACE_VERSION

    def reason(record: Record) -> str:
        if record.space_version != SPACE_VERSION:
            return f"space of configs {record.space_version}, here {SPACE_VERSION}"
        return other_versions(record, toolchain_here())

    return reason
