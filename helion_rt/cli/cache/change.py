"""``cache forget`` and ``retune``: what was found is dropped, or is to be looked at again."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import Any

from helion_rt.database import Record
from helion_rt.database.store import StoreError
from helion_rt.exc import ConfigError

from .place import Place, add_filters, add_place, chosen, place_of
from .show import tell_troubles
from .text import fail, name_of, printable

_TOLD = 20  # records that a question names


def add_parsers(actions: Any) -> None:
    forget = actions.add_parser(
        "forget", help="drop records",
        description="Drop records: their keys are tuned anew. What a shared tier has of them comes back from there: forget it there too,"
        " with --dir URL. With a record goes what is known of bad configs.",
    )  # fmt: skip
    forget.add_argument("--yes", action="store_true", help="do not ask")
    forget.set_defaults(act=_forget)
    retune = actions.add_parser(
        "retune", help="have keys tuned again",
        description="Ask for another search: the record goes on serving, and the next process that calls the kernel searches again, from"
        " it. In a shared tier (--dir URL) that is one process of the cluster.",
    )  # fmt: skip
    retune.set_defaults(act=_retune)
    for action in (forget, retune):
        action.add_argument("key", metavar="KEY", nargs="?", help="the digest of a key, or the first digits of it")
        add_filters(action)
        add_place(action)


def _chosen(place: Place, args: argparse.Namespace) -> list[Record]:
    """The records that are meant. Raises ``ConfigError`` where nothing says which, or a prefix means several."""
    if not args.key and args.kernel is None and args.target is None:
        raise ConfigError("which records?", hint="give the first digits of a key, --kernel or --target (--kernel '*' for all)")
    prefix = (args.key or "").lower()
    found = [record for record in chosen(place.records(), args) if record.key.digest.startswith(prefix)]
    if prefix and len(found) > 1:
        raise ConfigError(f"{prefix!r} is the beginning of {len(found)} keys", hint="give more digits, or --kernel and --target")
    return found


def _none(place: Place) -> int:
    return tell_troubles(place, fail(f"no such record in {place.name}; `helion-rt cache ls` lists them"))


def _forget(args: argparse.Namespace) -> int:
    place = place_of(args)
    records = _chosen(place, args)
    if not records:
        return _none(place)
    if not args.yes and not _agreed(place, records):
        return tell_troubles(place, 1)
    gone = sum(place.forget(record.key.digest) for record in records)
    print(printable(f"{gone} of {len(records)} records forgotten in {place.name}"))
    return tell_troubles(place)


def _agreed(place: Place, records: list[Record]) -> bool:
    """Does who sits there want it? Where nobody does, not."""
    if not sys.stdin or not sys.stdin.isatty():
        fail(f"{len(records)} records of {place.name} would be forgotten; give --yes where nobody can be asked")
        return False
    for record in records[:_TOLD]:
        print(name_of(record))
    if len(records) > _TOLD:
        print(f"... and {len(records) - _TOLD} more")
    try:
        answer = input(f"Forget {len(records)} records of {printable(place.name)}? [y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        print("nothing was forgotten")
        return False
    return True


def _retune(args: argparse.Namespace) -> int:
    place = place_of(args)
    records = _chosen(place, args)
    if not records:
        return _none(place)
    failed = ask_again(place, records)
    print(printable(f"{len(records) - failed} records of {place.name} will be searched again where they are next called"))
    return tell_troubles(place, 1 if failed else 0)


def ask_again(place: Place, records: Iterable[Record]) -> int:
    """Mark records for another search; the number of those that could not be."""
    failed = 0
    for record in records:
        try:
            place.put(record.to_be_retuned())
        except StoreError as error:
            failed += 1
            fail(f"{name_of(record)}: {error}")
    return failed
