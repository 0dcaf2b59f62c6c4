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

from .key import Key

_DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
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
_STATUS_RANK = {Status.ALL_FAILED: 0, Status.NO_CANDIDATE: 1, Status.WINNER: 2}

MAX_QUARANTINED = 64


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
    after they had won: none of them is adopted or tried again. Merging two records joins what both know. ``revision``
    counts such roll-backs: of two records alike, the one that knows of more of them is the better. Of too many the first
    ``MAX_QUARANTINED`` in order of their text are kept.

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

    def __post_init__(self) -> None:
        for name, kind in (("key", Key), ("status", Status), ("evidence", Evidence), ("origin", Origin)):
            if not isinstance(getattr(self, name), kind):
                raise TypeError(f"Record.{name} is a {kind.__name__}, not {getattr(self, name)!r}")
        for name in ("config", "toolchain"):
            if not isinstance(getattr(self, name), Mapping):
                raise TypeError(f"Record.{name} is a mapping, not {type(getattr(self, name)).__name__}")
        for name in ("kernel", "machine"):
            object.__setattr__(self, name, _text(f"Record.{name}", getattr(self, name)))
        object.__setattr__(self, "config", _plain_config(self.config))
        for name in ("space_version", "revision"):
            object.__setattr__(self, name, _count(f"Record.{name}", getattr(self, name)))
        object.__setattr__(self, "quarantined", _quarantined(self.quarantined))
        versions = {_text("Record.toolchain", k): _text("Record.toolchain", self.toolchain[k]) for k in sorted(self.toolchain)}
        object.__setattr__(self, "toolchain", versions)
        if not _DATE.fullmatch(_text("Record.date", self.date)):
            raise ValueError(f"Record.date is UTC like 2026-11-29T14:30:00Z, not {self.date!r}")


    @property
    def is_void(self) -> bool:
        """Is it a winner that somebody has found to be none?"""
        return self.status is Status.WINNER and self.config in self.quarantined

    def rolled_back(self) -> Record:
        """What is left when the winner turns out to be wrong or slower: no winner, and its config in quarantine."""
        evidence = replace(self.evidence, ms=None)
        return replace(self, status=Status.ALL_FAILED, config={}, evidence=evidence, date=utc_now(), machine=machine_name(),
                       quarantined=(*self.quarantined, self.config), revision=self.revision + 1)  # fmt: skip


def _quarantined(value: Any) -> tuple[dict[str, Any], ...]:
    """Configs as plain data, each once, in order of their text."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(config, Mapping) for config in value):
        raise TypeError("Record.quarantined is a list of configs")
    plain = {repr(config): config for config in map(_plain_config, value)}
    return tuple(plain[text] for text in sorted(plain)[:MAX_QUARANTINED])


def _version_order(version: str) -> tuple[int, ...]:
    return tuple(int(digits[:18]) for digits in re.findall(r"\d+", version, re.ASCII))


def order(record: Record) -> tuple[Any, ...]:
    """The rank of a record among those of its key; the greater is the better. In this order:

    1. evidence: measured over scheduled over modelled;
    2. the newer space, then the newer toolchain: an old record must not outlive the look at it that found it stale;
    3. the one that knows of more roll-backs;
    4. a winner over no candidate over failure, then the greater speed-up over the default, then more pairs;
    5. the later date, and last the config itself, so that no two different records rank equal by accident.

    It is a total order that looks at one record at a time, so merging is commutative and associative: every process
    and every tier that has seen the same records keeps the same one.
    """
    evidence = record.evidence
    return (
        _EVIDENCE_RANK[evidence.kind],
        record.space_version,
        tuple(_version_order(record.toolchain.get(name, "")) for name in _TOOLCHAIN_ORDER),
        record.revision,
        _STATUS_RANK[record.status],
        evidence.speedup or 0.0,
        evidence.pairs,
        record.date,
        repr(replace(record, quarantined=())),
    )


def better(a: Record, b: Record) -> Record:
    """The better of two records of one key, by ``order``, with what both know to be in quarantine."""
    best = a if order(a) >= order(b) else b
    return best if a.quarantined == b.quarantined else replace(best, quarantined=(*a.quarantined, *b.quarantined))
