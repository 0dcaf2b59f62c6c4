"""``cache stats``: how much there is, of what, and in which tiers."""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helion_rt.database import Record, encode_record
from helion_rt.database.store import StoreError
from helion_rt.database.upkeep import bytes_in
from helion_rt.exc import ConfigError
from helion_rt.settings import Settings, without_password

from .place import LocalPlace, SharedPlace, add_place, place_of, trust_of
from .text import bytes_text, printable

_GROUPS = ("kernel", "target", "evidence", "status")
_MOST = 20  # lines of a group


@dataclass
class Sums:
    """Records and their bytes, all of them and by group."""

    records: int = 0
    bytes: int = 0
    groups: dict[str, Counter[str]] = field(default_factory=lambda: {name: Counter() for name in _GROUPS})

    def add(self, record: Record) -> None:
        self.records += 1
        self.bytes += len(encode_record(record))
        for name, value in zip(_GROUPS, (record.kernel, record.key.target, record.evidence.kind.value, record.status.value), strict=True):
            self.groups[name][value] += 1


def add_parsers(actions: Any) -> None:
    stats = actions.add_parser("stats", help="how much there is, of what, and in which tiers")
    add_place(stats)
    stats.add_argument("--json", action="store_true", help="print JSON")
    stats.set_defaults(act=_stats)


def _stats(args: argparse.Namespace) -> int:
    place = place_of(args)
    sums = Sums()
    for record in place.records():
        sums.add(record)
    report: dict[str, Any] = {"place": place.name, "records": sums.records, "record_bytes": sums.bytes}
    if isinstance(place, LocalPlace):
        report["disk_bytes"] = {name: bytes_in(place.directory / name) for name in sorted(_folders(place.directory))}
    report["by"] = {name: dict(counts.most_common()) for name, counts in sums.groups.items()}
    report["troubles"] = place.troubles()
    place.close()
    if args.dir is None:
        report["tiers"] = list(_tiers(Settings.from_env()))
    for line in [json.dumps(report, indent=2)] if args.json else _lines(report):
        print(line)
    return 0


def _tiers(settings: Settings) -> Iterator[dict[str, Any]]:
    """The other tiers that this environment names: how many records each has, or why that is not known."""
    for url in settings.shared:
        mode, name = settings.tiers.shared.value, without_password(url)
        if not settings.tiers.shared.reads:
            yield {"tier": "shared", "place": name, "mode": mode, "records": None, "problem": "it is off"}
            continue
        try:
            place = SharedPlace(url, trust_of(settings))
            yield {"tier": "shared", "place": place.name, "mode": mode, "records": sum(1 for _ in place.tier.digests()), "problem": ""}
            place.close()
        except (StoreError, ConfigError) as error:
            yield {"tier": "shared", "place": name, "mode": mode, "records": None, "problem": str(error)}
    from helion_rt.database.shipped import ShippedTier  # late, as the shared ones are

    shipped = ShippedTier()
    count = sum(1 for _ in shipped.records())
    yield {"tier": "shipped", "place": str(shipped.directory), "mode": settings.tiers.shipped.value, "records": count, "problem": ""}


def _lines(report: dict[str, Any]) -> Iterator[str]:
    yield printable(f"{report['place']}: {report['records']} records, {bytes_text(report['record_bytes'])}")
    for name, size in report.get("disk_bytes", {}).items():
        yield printable(f"  on disk in {name}: {bytes_text(size)}")
    for name, counts in report["by"].items():
        if counts:
            yield f"by {name}:"
            for value, count in list(counts.items())[:_MOST]:
                yield printable(f"  {count:8}  {value}")
            if len(counts) > _MOST:
                yield f"            and {len(counts) - _MOST} more"
    for trouble in report["troubles"]:
        yield printable(trouble)
    for tier in report.get("tiers", []):
        held = f"{tier['records']} records" if tier["records"] is not None else f"cannot be asked: {tier['problem']}"
        yield printable(f"{tier['tier']} tier {tier['place']} ({tier['mode']}): {held}")


def _folders(directory: Path) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(directory) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []

