"""``helion-rt prewarm MANIFEST --check``: has some tier a good record of every key? For CI: nothing is tuned, nothing is stored."""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .keys import Entry

if TYPE_CHECKING:
    from helion_rt.runtime.explain import Explanation, Held
    from helion_rt.runtime.places import Places


class Found(enum.Enum):
    """What became of one key. Only the first three are good."""

    THERE = "there"
    FORCED = "forced by config="
    EMPTY = "nothing to compute"
    STALE = "stale"  # found under another toolchain, or in another space: `prewarm --again` renews it
    FAILED = "no config works"
    MISSING = "missing"
    PROBLEM = "problem"  # the kernel, or the program of these arguments, cannot be had

    @property
    def is_good(self) -> bool:
        return self in (Found.THERE, Found.FORCED, Found.EMPTY)


@dataclass(frozen=True)
class Checked:
    """One key. ``tiers``: what each tier says, by its name; ``why`` in words."""

    kernel: str
    entry: str
    target: str
    found: Found
    why: str = ""
    key: str | None = None
    tier: str | None = None
    tiers: dict[str, str] | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "kernel": self.kernel, "entry": self.entry, "target": self.target, "good": self.found.is_good, "found": self.found.name.lower(),
            "why": self.why, "key": self.key, "tier": self.tier, "tiers": self.tiers,
        }  # fmt: skip

    def line(self) -> str:
        """For people."""
        told = "; ".join(f"{name}: {said}" for name, said in (self.tiers or {}).items())
        where = f" in {self.tier}" if self.tier else ""
        return f"{self.entry}: {self.found.value}{where}" + (f" ({self.why})" if self.why else "") + (f" [{told}]" if told else "")


def run(entries: Sequence[Entry], as_json: bool) -> int:
    """Tell of every key; 0 if all are good, else 1."""
    from helion_rt.runtime.explain import local_tier
    from helion_rt.runtime.places import places
    from helion_rt.settings import Settings

    settings = Settings.from_env()
    with places(local_tier(settings), settings) as asked:
        checked = [check(entry, asked) for entry in entries]
    bad = [one for one in checked if not one.found.is_good]
    if as_json:
        print(json.dumps([one.to_dict() for one in checked], indent=2))
    else:
        for one in checked:
            if one.found.is_good:
                print(one.line())
        print(f"{len(checked) - len(bad)} of {len(checked)} keys have a record")
    for one in bad:
        print(f"not there: {one.line()}", file=sys.stderr)
    return 1 if bad else 0


def check(entry: Entry, asked: Places) -> Checked:
    """One key. Whatever is wrong with it is its result."""
    told = (entry.name, entry.label(), entry.target.name)
    if entry.kernel is None:
        return Checked(*told, Found.PROBLEM, entry.problem)
    from helion_rt.runtime.explain import explain_bound

    try:
        said = explain_bound(entry.kernel, entry.kernel.bound(*entry.args, **entry.kwargs), entry.target, asked, near=False)
    except Exception as error:  # the kernel's own source, its arguments: the others are still to be checked
        return Checked(*told, Found.PROBLEM, f"{type(error).__name__}: {error}")
    tiers = {held.tier: held.problem or str(held.verdict) for held in said.held}
    if said.forced is not None:
        return Checked(*told, Found.FORCED, key=said.key.digest, tiers=tiers)
    if said.empty:
        return Checked(*told, Found.EMPTY, key=said.key.digest, tiers=tiers)
    found, why, tier = _verdict(said)
    return Checked(*told, found, why, said.key.digest, tier, tiers)


def _verdict(said: Explanation) -> tuple[Found, str, str | None]:
    """The best that any tier has, why it is not better, and which tier."""
    ranked = sorted(((_rank(held), number, held) for number, held in enumerate(said.held) if held.record is not None), key=lambda r: r[:2])
    if not ranked:
        unknown = [f"{held.tier} {held.problem}" for held in said.held if held.problem]
        return Found.MISSING, "; ".join(unknown), None
    _, _, held = ranked[0]
    found = _of(held)
    return found, "" if found is Found.THERE else str(held.verdict), held.tier


_RANK = {Found.THERE: 0, Found.STALE: 1, Found.FAILED: 2}


def _rank(held: Held) -> int:
    return _RANK[_of(held)]


def _of(held: Held) -> Found:
    """A record of one tier as a finding."""
    from helion_rt.database import Status
    from helion_rt.runtime.standing import Reason, Standing

    assert held.record is not None
    if held.record.status is Status.ALL_FAILED and held.verdict.reason is not Reason.OTHER_SPACE:
        return Found.FAILED
    fresh = held.verdict.standing is not Standing.MISS and held.verdict.reason is not Reason.OTHER_TOOLCHAIN
    return Found.THERE if fresh else Found.STALE
