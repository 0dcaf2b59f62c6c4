"""``cache diff``: what two places disagree about."""

from __future__ import annotations

import argparse
import enum
import json
from collections.abc import Iterator
from typing import Any

from helion_rt.database import Record
from helion_rt.database import pack as packs

from .place import add_filters, alike, chosen, merged, open_place
from .show import tell_troubles
from .text import as_json, config_text, evidence_text, name_of, printable


class Difference(enum.Enum):
    """How the records of one key differ. Where the winner is the same, so is what serves."""

    ONLY_IN_A = "only in A"
    ONLY_IN_B = "only in B"
    WINNER = "another winner"
    EVIDENCE = "other evidence"


def add_parsers(actions: Any) -> None:
    diff = actions.add_parser(
        "diff", help="compare two databases, shared tiers or packs", description="What A and B differ in. Exit status 1 if in anything."
    )
    diff.add_argument("a", metavar="A", help="a directory, the URL of a shared tier, or a pack")
    diff.add_argument("b", metavar="B", help="the same")
    diff.add_argument("--json", action="store_true", help="print JSON, one difference a line")
    add_filters(diff)
    diff.set_defaults(act=_diff)


def _diff(args: argparse.Namespace) -> int:
    first, second = open_place(args.a), open_place(args.b)
    sides = [{record.key.digest: record for record in chosen(place.records(), args)} for place in (first, second)]
    count = 0
    for difference, a, b in differences(*sides):
        count += 1
        for line in _json_lines(difference, a, b) if args.json else _lines(difference, a, b):
            print(line)
    if not args.json:
        print(printable(f"A {first.name}: {len(sides[0])} records; B {second.name}: {len(sides[1])} records; {count} differ"))
    unread = bool(first.troubles() or second.troubles())
    tell_troubles(first)
    return tell_troubles(second, 1 if count or unread else 0)


def differences(
    a: dict[str, Record], b: dict[str, Record]
) -> Iterator[tuple[Difference, Record | None, Record | None]]:
    """The keys (by digest) whose records differ, in the order of a pack. How a record came there is no difference."""
    either = {**b, **a}
    for digest in sorted(either, key=lambda digest: packs.sort_key(either[digest])):
        mine, theirs = a.get(digest), b.get(digest)
        if mine is None or theirs is None:
            yield Difference.ONLY_IN_A if theirs is None else Difference.ONLY_IN_B, mine, theirs
        elif not alike(mine, theirs):
            same = (mine.status, mine.config) == (theirs.status, theirs.config)
            yield Difference.EVIDENCE if same else Difference.WINNER, mine, theirs


def _lines(difference: Difference, a: Record | None, b: Record | None) -> Iterator[str]:
    some = a or b
    assert some is not None
    yield f"{difference.value}: {name_of(some)}"
    for side, record in (("A", a), ("B", b)):
        if record is not None:
            yield f"  {side}  {printable(config_text(record)) or '-'}  {evidence_text(record)}"
    if a is not None and b is not None:
        best = merged(a, b)
        yield f"  merged: {'A' if alike(best, a) else 'B' if alike(best, b) else 'what both know'}"


def _json_lines(difference: Difference, a: Record | None, b: Record | None) -> Iterator[str]:
    sides = {side: None if record is None else as_json(record) for side, record in (("a", a), ("b", b))}
    yield json.dumps({"difference": difference.name.lower(), **sides})
