"""``cache ls``, ``show`` and ``path``: what the database holds, and where."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from .place import LocalPlace, Place, add_filters, add_place, chosen, directory_of, place_of
from .text import SHORT, as_json, fail, header, printable, row, tree

_FLUSH_EVERY = 64  # records


def add_parsers(actions: Any) -> None:
    listing = actions.add_parser("ls", help="list the records, as they are read", description="List the records, as they are read.")
    listing.add_argument("--json-lines", action="store_true", help="print JSON, one record a line")
    add_filters(listing)
    listing.set_defaults(act=_list)
    show = actions.add_parser("show", help="show one record whole")
    show.add_argument("key", metavar="KEY", help="the digest of its key, or the first digits of it")
    show.set_defaults(act=_show)
    path = actions.add_parser("path", help="print the directory")
    path.set_defaults(act=_path)
    for action in (listing, show, path):
        add_place(action)
        action.add_argument("--json", action="store_true", help="print JSON")


def _path(args: argparse.Namespace) -> int:
    where = directory_of(args)
    print(json.dumps({"path": where}) if args.json else printable(where))
    return 0


def _list(args: argparse.Namespace) -> int:
    place = place_of(args)
    count = 0
    for record in chosen(place.records(), args):
        if args.json_lines:
            print(json.dumps(as_json(record)))
        elif args.json:
            print("," if count else "[")
            print(json.dumps(as_json(record), indent=2), end="")
        else:
            if not count:
                print(header())
            print(row(record))
        if count % _FLUSH_EVERY == 0:  # who reads a pipe sees the first at once
            sys.stdout.flush()
        count += 1
    if args.json and not args.json_lines:
        print("\n]" if count else "[]")
    elif not count and not args.json_lines:
        print(_none(place, args))
    return tell_troubles(place)


def _none(place: Place, args: argparse.Namespace) -> str:
    filters = [f"--{name} {value}" for name, value in (("kernel", args.kernel), ("target", args.target)) if value is not None]
    missing = isinstance(place, LocalPlace) and not place.directory.exists()
    where = f"{place.name}, which does not exist" if missing else place.name
    return printable(f"no records in {where}" + (f" for {' '.join(filters)}" if filters else ""))


def tell_troubles(place: Place, status: int = 0) -> int:
    """Close the place, and tell on standard error what of it could not be read; ``status`` comes back."""
    for trouble in place.troubles():
        print(printable(trouble), file=sys.stderr)
    place.close()
    return status


def _show(args: argparse.Namespace) -> int:
    place, prefix = place_of(args), args.key
    found = [record for record in place.records() if record.key.digest.startswith(prefix.lower())]
    if not found:
        message = f"no record whose key begins with {prefix!r} in {place.name}; `helion-rt cache ls` lists them"
        return tell_troubles(place, fail(message))
    if len(found) > 1:
        some = ", ".join(record.key.digest[: max(SHORT, len(prefix) + 2)] for record in found[:5])
        more = ", ..." if len(found) > 5 else ""
        return tell_troubles(place, fail(f"{prefix!r} is the beginning of {len(found)} keys ({some}{more}); give more digits"))
    plain = as_json(found[0])
    print(json.dumps(plain, indent=2) if args.json else "\n".join(tree(plain)))
    return tell_troubles(place)
