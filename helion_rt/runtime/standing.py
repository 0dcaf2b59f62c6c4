"""What a record is worth here and now, and which records of other keys are near enough to start a search from."""

from __future__ import annotations

import enum
import functools
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import metadata

from helion_rt.config import Config
from helion_rt.database import EvidenceKind, Key, Origin, Record, Status, better
from helion_rt.exc import ConfigError
from helion_rt.tuning.space import SPACE_VERSION

# A sweep in which everything failed is made again after this long: its reason may have been the machine's.
RETRY_AFTER = timedelta(days=1)
# A measured winner is compared with the default again after this long.
MEASURE_AGAIN_AFTER = timedelta(days=30)

# Whose versions may turn a winner into a loser, or a failure into a success.
COMPILERS = ("helion_rt", "jax", "jaxlib", "libtpu")

MAX_NEAREST = 4

_EXTENT = re.compile(r"\d{1,18}", re.ASCII)  # what is longer is no extent, whoever wrote the record


@functools.cache
def toolchain_here() -> dict[str, str]:
    """Versions of what compiles here; what is not installed is left out."""
    found = {}
    for package in ("helion_rt", "jax", "jaxlib", "libtpu", "torch"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


class Standing(enum.Enum):
    """What is done with a record."""

    FINAL = "final"  # it serves, and nothing is to be found out
    HINT = "hint"  # it serves from the first call, and is tried here in the background
    MISS = "miss"  # it does not serve: of another space, void, rolled back, or a failure that is due to be tried again


class Reason(enum.Enum):
    """Why a record has its standing; the text is for people."""

    MEASURED_HERE = "measured under this toolchain"
    NO_RECORD = "no record"
    OTHER_SPACE = "found in another version of the space of configs"
    VOID = "its winner is in quarantine"
    TAKEN_BACK = "its winner was rolled back, and nothing was searched since"
    OLD_FAILURE = "no config worked then; it is time to try again"
    RECENT_FAILURE = "no config worked when it was last tried"
    RETUNE = "somebody wants it searched again (`helion-rt cache retune`)"
    NOT_STRICT = "strict: only what was measured may serve"
    NOT_MEASURED = "not measured, only predicted"
    OTHER_TOOLCHAIN = "found under another toolchain"
    FROM_ELSEWHERE = "imported or shipped, and not tried here yet"
    OLD = "measured long ago"
    NOT_LEGAL = "its config is not legal here"  # told by who looks at the program: ``judge`` does not


@dataclass(frozen=True, slots=True)
class Verdict:
    """A standing and why. ``detail`` has the facts behind the reason, where there are any to tell."""

    standing: Standing
    reason: Reason
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.standing.value}: {self.reason.value}" + (f" ({self.detail})" if self.detail else "")


def standing(record: Record | None, toolchain: Mapping[str, str], *, strict: bool = False, now: datetime | None = None) -> Standing:
    """The standing of ``record`` in a process with this ``toolchain``. ``strict``: only what was measured may serve."""
    return judge(record, toolchain, strict=strict, now=now).standing


def judge(record: Record | None, toolchain: Mapping[str, str], *, strict: bool = False, now: datetime | None = None) -> Verdict:
    """As ``standing``, with the reason."""
    if record is None:
        return Verdict(Standing.MISS, Reason.NO_RECORD)
    if record.space_version != SPACE_VERSION:
        return Verdict(Standing.MISS, Reason.OTHER_SPACE, f"{record.space_version}, here {SPACE_VERSION}")
    if record.is_void:
        return Verdict(Standing.MISS, Reason.VOID)
    measured = record.evidence.kind is EvidenceKind.MEASURED
    other = other_versions(record, toolchain)
    age = (now or datetime.now(UTC)) - datetime.strptime(record.date, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    if record.status is Status.ALL_FAILED:
        if record.retune:
            return Verdict(Standing.MISS, Reason.RETUNE)
        if record.evidence.kind is not EvidenceKind.MODELLED:  # not of a search where all failed: see ``improve.make_record``
            return Verdict(Standing.MISS, Reason.TAKEN_BACK)
        if other or not _is_recent(age, RETRY_AFTER):
            return Verdict(Standing.MISS, Reason.OLD_FAILURE, other or record.date)
        return Verdict(Standing.FINAL, Reason.RECENT_FAILURE, record.date)
    if strict and not measured:
        return Verdict(Standing.MISS, Reason.NOT_STRICT, record.evidence.kind.value)
    if record.retune:
        return Verdict(Standing.HINT, Reason.RETUNE)
    if other:
        return Verdict(Standing.HINT, Reason.OTHER_TOOLCHAIN, other)
    if not measured:
        return Verdict(Standing.HINT, Reason.NOT_MEASURED, record.evidence.kind.value)
    if record.origin is not Origin.TUNED_HERE:
        return Verdict(Standing.HINT, Reason.FROM_ELSEWHERE, record.origin.value)
    if record.status is not Status.NO_CANDIDATE and not _is_recent(age, MEASURE_AGAIN_AFTER):
        return Verdict(Standing.HINT, Reason.OLD, record.date)
    return Verdict(Standing.FINAL, Reason.MEASURED_HERE)


def _is_recent(age: timedelta, limit: timedelta) -> bool:
    """Is what is so old to be believed still? Clocks differ, but what is dated far ahead would be believed for ever."""
    return abs(age) < limit


def other_versions(record: Record, toolchain: Mapping[str, str]) -> str:
    """The compilers of a record that are not those of ``toolchain``: ``jax 0.10.1, here 0.10.2``; empty if all are alike."""
    compilers = [name for name in COMPILERS if name != "libtpu" or not record.key.target.startswith("cpu")]
    versions = [(name, record.toolchain.get(name, "none"), toolchain.get(name, "none")) for name in compilers]
    return "; ".join(f"{name} {theirs}, here {ours}" for name, theirs, ours in versions if theirs != ours)


def prefer(a: Record, b: Record, toolchain: Mapping[str, str]) -> Record:
    """Which of two records of one key serves a process with this ``toolchain``: the ``better`` one, but that what was found out here for
    good does not make room for a hint of the same kind of evidence. So two toolchains of one cluster each keep their own."""
    if a.evidence.kind is b.evidence.kind:
        for own, other in ((a, b), (b, a)):
            joined = own.joined(other.quarantined)
            settled = joined.status is not Status.ALL_FAILED and standing(joined, toolchain) is Standing.FINAL
            # A later look (a roll-back, a request to search again and what came of it) is news to everybody.
            if settled and own.revision >= other.revision and standing(other, toolchain) is Standing.HINT:
                return joined
    return better(a, b)


def preferred(a: Record, b: Record) -> Record:
    """As ``prefer``, under this process' toolchain."""
    return prefer(a, b, toolchain_here())


def nearest(records: Iterable[Record], key: Key, kernel: str, fitting: Config) -> list[Config]:
    """Winners of the same kernel for other shapes, or another target, the nearest first.

    Only configs with as many choices as ``fitting`` has under each of its keys: whether they are legal is the space's to say.
    """
    found: list[tuple[float, str, Config]] = []
    for record in records:
        if record.status is not Status.WINNER or record.kernel != kernel or record.key == key or record.is_void:
            continue
        apart = distance(record.key.signature, key.signature)
        try:
            config = Config.from_dict(record.config)
        except ConfigError:  # what another version meant by it
            continue
        if apart is not None and _fits(config, fitting):
            found.append((apart + (record.key.target != key.target), repr(config), config))
    return list(dict.fromkeys(config for _, _, config in sorted(found, key=lambda entry: entry[:2])))[:MAX_NEAREST]


def _fits(config: Config, other: Config) -> bool:
    sizes = (len(c.get(name) or ()) for name in ("block_sizes", "loop_strategies") for c in (config, other))
    return next(sizes) == next(sizes) and next(sizes) == next(sizes)


def distance(a: object, b: object) -> float | None:
    """Doublings between the shapes of two signatures; None if they are not of one form, dtypes included."""
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        if len(a) != len(b):
            return None
        parts = [distance(x, y) for x, y in zip(a, b, strict=True)]
        return None if None in parts else sum(part for part in parts if part is not None)
    if isinstance(a, str) and isinstance(b, str) and _EXTENT.fullmatch(a) and _EXTENT.fullmatch(b):
        return abs(math.log2(max(int(a), 1) / max(int(b), 1)))
    return 0.0 if a == b else None
