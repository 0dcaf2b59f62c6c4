"""The record: what tuning one key found, how that is known, and which of two records is the better."""

from __future__ import annotations

import enum
import hashlib
import math
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from .key import Key, pack

_DATE = re.compile(r"\d{4}-\d\d-\d\dT([01]\d|2[0-3]):[0-5]\d:[0-5]\dZ", re.ASCII)
_MAX_TEXT = 512
_MAX_DEPTH = 16
# Whose versions say which of two toolchains is the newer, most telling first.
_TOOLCHAIN_ORDER = ("jax", "jaxlib", "libtpu")


class Status(enum.Enum):
    """What tuning concluded."""

    WINNER = "winner"
    NO_CANDIDATE = "no_candidate"  # nothing beat the default: it stays, and is not searched again
    ALL_FAILED = "all_failed"  # nothing worked, or nothing could be tried: the default stays, and is searched again another day


class EvidenceKind(enum.Enum):
    """How a time is known."""

    MEASURED = "measured"  # on the device
    SCHEDULED = "scheduled"  # by the compiler
    MODELLED = "modelled"  # by a roofline


class Origin(enum.Enum):
    """How the record came to this tier."""

    TUNED_HERE = "tuned_here"
    IMPORTED = "imported"
    SHIPPED = "shipped"


_EVIDENCE_RANK = {EvidenceKind.MODELLED: 0, EvidenceKind.SCHEDULED: 1, EvidenceKind.MEASURED: 2}
_ORIGIN_RANK = {Origin.SHIPPED: 0, Origin.IMPORTED: 1, Origin.TUNED_HERE: 2}

MINOR = 0
"""The minor version of records: the newest that this library knows every field of. See ``codec``."""

# The fields of an encoded record. The later ones are there both or neither: what was never rolled back is written without.
RECORD_FIELDS = frozenset({"key", "kernel", "status", "config", "space_version", "evidence", "toolchain", "origin", "machine", "date"})
LATER_FIELDS = frozenset({"quarantined", "revision"})
# There only where it is true.
RETUNE = "retune"
EVIDENCE_FIELDS = frozenset({"kind", "ms", "default_ms", "spread", "pairs", "candidates_tried", "seconds"})

MAX_REVISION = 2**31 - 1
"""There it stays: what is taken back then is void, and no longer outranked."""

# Together they bound what quarantine adds to a record, so that joining never fails for want of room.
MAX_QUARANTINED = 64
MAX_QUARANTINED_BYTES = 768  # of one config; of a larger one there is the digest


def utc_now() -> str:
    """The time as records hold it: ``2026-11-29T14:30:00Z``."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def machine_name() -> str:
    """A stable name of this machine that does not give the host's away (16 hex digits)."""
    return hashlib.sha256(b"helion_rt.machine\0" + platform.node().encode("utf-8", "replace")).hexdigest()[:16]


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is text, not {type(value).__name__}")
    if len(value) > _MAX_TEXT:
        raise ValueError(f"{name} is at most {_MAX_TEXT} characters long, not {len(value)}")
    value.encode()  # half a surrogate pair is no text: UnicodeEncodeError is a ValueError
    return str(value)


def _number(name: str, value: Any, *, above: float | None = None) -> float:
    """``value`` as a finite float: at least 0, or greater than ``above``."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is a number, not {type(value).__name__}")
    number = float(value)
    if not math.isfinite(number) or number < 0 or (above is not None and number <= above):
        raise ValueError(f"{name} is a finite number {'at least 0' if above is None else f'above {above:g}'}, not {number}")
    return number


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is an integer, not {type(value).__name__}")
    if not 0 <= value < 2**63:
        raise ValueError(f"{name} is at least 0, not {value}")
    return int(value)


def _plain_config(value: Any, depth: int = 0) -> Any:
    """Plain data as JSON has it (tuples become lists); keys are text, numbers finite."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"a config may be nested {_MAX_DEPTH} deep at most")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text("a config value", value)
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise ValueError(f"an integer of a config fits 64 bits, not {value}")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"a number of a config is finite, not {value}")
        return float(value)
    if isinstance(value, (list, tuple)):
        return [_plain_config(item, depth + 1) for item in value]
    if isinstance(value, Mapping):
        return {_text("a config key", k): _plain_config(value[k], depth + 1) for k in sorted(value)}
    raise TypeError(f"a config is plain data, not {type(value).__name__}: {value!r}")


@dataclass(frozen=True)
class Evidence:
    """How the verdict is known. Times are in milliseconds of one call; None where there is none (the default did not
    compile, no candidate ran). ``spread`` is the relative noise of ``ms``, ``pairs`` the interleaved pairs measured
    against the default, ``seconds`` what tuning took. Raises TypeError or ValueError for a number that is not finite,
    or negative."""

    kind: EvidenceKind
    ms: float | None = None
    default_ms: float | None = None
    spread: float = 0.0
    pairs: int = 0
    candidates_tried: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.kind, EvidenceKind):
            raise TypeError(f"Evidence.kind is an EvidenceKind, not {self.kind!r}")
        for name in ("ms", "default_ms"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _number(f"Evidence.{name}", getattr(self, name), above=0.0))
        for name in ("spread", "seconds"):
            object.__setattr__(self, name, _number(f"Evidence.{name}", getattr(self, name)))
        for name in ("pairs", "candidates_tried"):
            object.__setattr__(self, name, _count(f"Evidence.{name}", getattr(self, name)))

    @property
    def speedup(self) -> float | None:
        """Time of the default over time of the config; None where one is unknown."""
        return None if self.ms is None or self.default_ms is None else self.default_ms / self.ms


@dataclass(frozen=True)
class Record:
    """A database entry. ``config`` is plain data (``Config.to_dict()``), ``toolchain`` maps a package to its version,
    ``machine`` is ``machine_name()`` of where it was tuned, ``date`` UTC as ``utc_now()`` gives it.

    ``quarantined`` are configs (plain data, like ``config``) that were found to be wrong, not to compile, or slower than the default
    after they had won: none of them is adopted or tried again. Merging two records joins what both know. Of a config of more than
    ``MAX_QUARANTINED_BYTES`` there is ``{"sha256": ...}``; of more than ``MAX_QUARANTINED`` the first in order of their bytes are kept,
    and then no winner of the key is believed any more. ``revision`` counts the looks at a key that found a winner to be none: a
    roll-back has one more than what it takes back, and so has what is found after a winner was seen to be void. Of two records alike
    the one of the later look is the better.

    ``retune``: somebody wants the key to be searched again. The record goes on serving meanwhile. Such a request has one more
    ``revision`` than what it was made of, so it wins everywhere; and what is found then wins over it.

    ``extra`` is what a newer minor version of this library wrote and this one does not know: ``minor`` (its version), fields by name,
    and under ``evidence`` those of the evidence. It goes where the record goes. Empty in records of this version.

    The whole key is inside, so that a record found under another's name is seen to be foreign. Raises TypeError or
    ValueError where a field is not what it should be.
    """

    key: Key
    kernel: str
    status: Status
    config: dict[str, Any]
    space_version: int
    evidence: Evidence
    toolchain: dict[str, str]
    origin: Origin = Origin.TUNED_HERE
    machine: str = ""
    date: str = field(default_factory=utc_now)
    quarantined: tuple[dict[str, Any], ...] = ()
    revision: int = 0
    retune: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, kind in (("key", Key), ("status", Status), ("evidence", Evidence), ("origin", Origin)):
            if not isinstance(getattr(self, name), kind):
                raise TypeError(f"Record.{name} is a {kind.__name__}, not {getattr(self, name)!r}")
        for name in ("config", "toolchain", "extra"):
            if not isinstance(getattr(self, name), Mapping):
                raise TypeError(f"Record.{name} is a mapping, not {type(getattr(self, name)).__name__}")
        for name in ("kernel", "machine"):
            object.__setattr__(self, name, _text(f"Record.{name}", getattr(self, name)))
        object.__setattr__(self, "config", _plain_config(self.config))
        for name in ("space_version", "revision"):
            object.__setattr__(self, name, _count(f"Record.{name}", getattr(self, name)))
        if self.revision > MAX_REVISION:
            raise ValueError(f"Record.revision is at most {MAX_REVISION}, not {self.revision}")
        if not isinstance(self.retune, bool):
            raise TypeError(f"Record.retune is True or False, not {type(self.retune).__name__}")
        object.__setattr__(self, "quarantined", _quarantined(self.quarantined))
        versions = {_text("Record.toolchain", k): _text("Record.toolchain", self.toolchain[k]) for k in sorted(self.toolchain)}
        object.__setattr__(self, "toolchain", versions)
        if not _DATE.fullmatch(_text("Record.date", self.date)):
            raise ValueError(f"Record.date is UTC like 2026-11-29T14:30:00Z, not {self.date!r}")
        datetime.fromisoformat(self.date)  # raises ValueError for a 13th month
        if self.extra:
            object.__setattr__(self, "extra", _extra(self.extra))

    @property
    def is_void(self) -> bool:
        """Is it a winner that somebody has found to be none?"""
        if self.status is not Status.WINNER or not self.quarantined:
            return False
        return len(self.quarantined) >= MAX_QUARANTINED or _tombstone(self.config) in self.quarantined

    def rolled_back(self) -> Record:
        """What is left when the winner turns out to be wrong or slower: no winner, and its config in quarantine."""
        evidence = replace(self.evidence, ms=None)
        return replace(self, status=Status.ALL_FAILED, config={}, evidence=evidence, date=utc_now(), machine=machine_name(),
                       quarantined=(*self.quarantined, self.config), revision=self.next_revision)  # fmt: skip

    @property
    def next_revision(self) -> int:
        """The revision of what is found after this record was seen to be wrong."""
        return min(self.revision + 1, MAX_REVISION)

    def to_be_retuned(self) -> Record:
        """This record, and the request to search its key again."""
        return self if self.retune else replace(self, retune=True, revision=self.next_revision)

    def joined(self, quarantined: tuple[dict[str, Any], ...]) -> Record:
        """This record, which knows of what is in ``quarantined`` as well."""
        return replace(self, quarantined=(*self.quarantined, *quarantined)) if quarantined else self


def _quarantined(value: Any) -> tuple[dict[str, Any], ...]:
    """Configs as plain data, each once, in order of their bytes."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(config, Mapping) for config in value):
        raise TypeError("Record.quarantined is a list of configs")
    plain = {pack(config): config for config in (_tombstone(_plain_config(config)) for config in value)}
    return tuple(plain[data] for data in sorted(plain)[:MAX_QUARANTINED])


def _tombstone(config: dict[str, Any]) -> dict[str, Any]:
    """What quarantine keeps of a config (plain data)."""
    data = pack(config)
    return config if len(data) <= MAX_QUARANTINED_BYTES else {"sha256": hashlib.sha256(data).hexdigest()}


def _extra(value: Mapping[str, Any]) -> dict[str, Any]:
    plain = _plain_config(value)
    if not _count("Record.extra's minor", plain.get("minor")) > MINOR:
        raise ValueError(f"Record.extra is of a minor version after {MINOR}, not {plain['minor']}")
    if taken := (RECORD_FIELDS | LATER_FIELDS | {RETUNE}) - {"evidence"} & plain.keys():
        raise ValueError(f"Record.extra has the names of fields: {', '.join(sorted(taken))}")
    evidence = plain.get("evidence", {"": None})
    if not isinstance(evidence, dict) or not evidence or EVIDENCE_FIELDS & evidence.keys():
        raise ValueError("Record.extra has as evidence what is none, or is no news")
    return plain


def to_plain(record: Record) -> dict[str, Any]:
    """``record`` as nested maps and lists of plain data: what is encoded."""
    evidence = record.evidence
    # Written only where there is something to say: older versions read what has never been rolled back.
    more = {"quarantined": list(record.quarantined), "revision": record.revision} if record.quarantined or record.revision else {}
    if record.retune:
        more[RETUNE] = True
    plain = {
        **more,
        "key": record.key.to_plain(),
        "kernel": record.kernel,
        "status": record.status.value,
        "config": record.config,
        "space_version": record.space_version,
        "evidence": {
            "kind": evidence.kind.value,
            "ms": evidence.ms,
            "default_ms": evidence.default_ms,
            "spread": evidence.spread,
            "pairs": evidence.pairs,
            "candidates_tried": evidence.candidates_tried,
            "seconds": evidence.seconds,
        },
        "toolchain": record.toolchain,
        "origin": record.origin.value,
        "machine": record.machine,
        "date": record.date,
    }
    if record.extra:
        unknown = dict(record.extra)
        plain["evidence"] |= unknown.pop("evidence", {})
        plain |= unknown
    return plain


def _version_order(version: str) -> tuple[int, ...]:
    return tuple(int(digits[:18]) for digits in re.findall(r"\d+", version, re.ASCII))


def upper_bound_ms(record: Record) -> float:
    """What a call takes at most, in milliseconds, if ``record`` is believed: the time of what would serve, with its noise on top. A
    winner serves its config, a record without a candidate the default. Infinity where nothing is known."""
    evidence = record.evidence
    served = {
        Status.WINNER: evidence.ms,
        Status.NO_CANDIDATE: evidence.ms if evidence.default_ms is None else evidence.default_ms,
        Status.ALL_FAILED: None,
    }[record.status]
    return math.inf if served is None else served * (1.0 + evidence.spread)


def order(record: Record) -> tuple[Any, ...]:
    """The rank of a record among those of its key; the greater is the better. In this order:

    1. evidence: measured over scheduled over modelled;
    2. the newer space, then the newer toolchain: an old record must not outlive the look at it that found it stale;
    3. the later look: the one that knows of more winners that were none, or of a request to search again; then what was found over the
       request;
    4. the lower ``upper_bound_ms``, whatever the status;
    5. a hash of all that it says, and last how it came here, so that no two different records rank equal.

    It is a total order that looks at one record at a time, and at nothing that merging changes (what is in quarantine). So merging is
    commutative, associative and idempotent: every process and every tier that has seen the same records keeps the same one. That also is
    why a void winner keeps its rank: one that lost it could be outranked on the way by what it outranks elsewhere. It serves nowhere, and
    what is found in its place has the higher revision.
    """
    said = {name: value for name, value in to_plain(record).items() if name not in ("quarantined", "revision", "origin")}
    return (
        _EVIDENCE_RANK[record.evidence.kind],
        record.space_version,
        tuple(_version_order(record.toolchain.get(name, "")) for name in _TOOLCHAIN_ORDER),
        record.revision,
        not record.retune,
        -upper_bound_ms(record),
        hashlib.sha256(pack(said)).digest(),
        _ORIGIN_RANK[record.origin],
    )


def better(a: Record, b: Record) -> Record:
    """The better of two records of one key, by ``order``, with what both know to be in quarantine."""
    return a.joined(b.quarantined) if order(a) >= order(b) else b.joined(a.quarantined)
