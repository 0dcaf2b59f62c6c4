"""``cache verify``: is everything that is stored whole, ours and in form?"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from helion_rt.database.codec import NewerRecord
from helion_rt.database.signing import Trust
from helion_rt.database.upkeep import PROGRAMS, RECORDS, check_program, check_record, raw_entries
from helion_rt.program import codec as programs
from helion_rt.settings import Settings

from .exchange import illegal
from .place import LocalPlace, PackPlace, Place, SharedPlace, open_place, place_of, trust_of
from .text import SHORT, printable


@dataclass(frozen=True)
class Finding:
    """An entry that was looked at. ``reason`` is empty where it is good; ``newer``: of a later version, which is no fault."""

    name: str
    reason: str = ""
    newer: bool = False


def add_parsers(actions: Any) -> None:
    verify = actions.add_parser(
        "verify", help="check every entry",
        description="Check every entry: its checksum, its form, its signature, and that it is of the key it is stored under. Nothing is"
        " changed. Exit status 1, and a list, if something is wrong.",
    )  # fmt: skip
    verify.add_argument("place", nargs="?", metavar="DIRECTORY|URL|PACK", help="what to check (default: --dir)")
    verify.add_argument("--dir", metavar="DIRECTORY|URL", help="the same")
    verify.add_argument("--json", action="store_true", help="print JSON")
    verify.set_defaults(act=_verify)


def _verify(args: argparse.Namespace) -> int:
    place = open_place(args.place) if args.place is not None else place_of(args)
    trust = trust_of(Settings.from_env())
    good, bad, newer = 0, [], 0
    for finding in findings(place, trust):
        if finding.newer:
            newer += 1
        elif finding.reason:
            bad.append(finding)
            if not args.json:
                print(printable(f"{finding.name}: {finding.reason}"))
        else:
            good += 1
    place.close()
    if args.json:
        told = [{"entry": finding.name, "reason": finding.reason} for finding in bad]
        print(json.dumps({"place": place.name, "good": good, "newer": newer, "bad": told}, indent=2))
    else:
        later = f", {newer} of a later version" if newer else ""
        print(printable(f"{place.name}: {good} good entries{later}, {len(bad)} bad"))
    return 1 if bad else 0


def findings(place: Place, trust: Trust) -> Iterator[Finding]:
    """Every entry of a place. Raises StoreError where a shared tier cannot be reached."""
    if isinstance(place, PackPlace):
        for problem in place.problems:
            yield Finding(place.name, str(problem))
        for record in place.records():
            yield Finding(f"record {record.key.digest[:SHORT]}", illegal(record))
    elif isinstance(place, LocalPlace):
        for name, data in raw_entries(place.tier):
            yield of_entry(name, data, trust)
    elif isinstance(place, SharedPlace):
        for digest in place.tier.engine.names():
            for data in place.tier.engine.read(digest):
                yield of_entry(RECORDS + digest, data, trust)


def of_entry(name: str, data: bytes, trust: Trust) -> Finding:
    """What there is to say of one entry of a local or shared tier."""
    what = "program" if name.startswith(PROGRAMS) else "record"
    shown = f"{what} {name.partition('-')[2]}"
    try:
        if what == "record":
            return Finding(shown, illegal(check_record(name, data, trust)))
        programs.decode(check_program(name, data, trust))
    except NewerRecord:
        return Finding(shown, newer=True)
    except ValueError as error:  # BadRecord is one
        return Finding(shown, str(error) or "bad")
    return Finding(shown)
