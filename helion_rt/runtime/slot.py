"""Slots: the live dispatch entries. One a (kernel, signature, target); a swap replaces one reference."""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from helion_rt.config import Config
from helion_rt.database import Key
from helion_rt.database.exchange import Asked as Question
from helion_rt.database.tiers import Tiers
from helion_rt.program.ir import Program
from helion_rt.settings import Settings, TuneMode

if TYPE_CHECKING:
    from helion_rt.tuning.evidence import Event
    from helion_rt.tuning.search import Outcome
    from helion_rt.tuning.space import Space

    from .buckets import Bucket
    from .kernel import Kernel
    from .recording import Asked

SLOT_LIMIT = 4096

# (values of tunables by name, what is told their fragments) -> the program, and the alias under which it may be stored.
Recapture = Callable[[Mapping[str, Any], dict[str, Any]], tuple[Program, str | None]]


class Origin(enum.Enum):
    """Where the config that serves came from."""

    DEFAULT = "default"
    FORCED = "forced"  # the user's config=
    TUNED = "tuned"  # found by this process
    RECORD = "record"  # of the tuning database
    REFERENCE = "reference"  # no config compiled: plain jax.numpy serves


class Tuning(enum.Enum):
    """What the tuner does about a slot."""

    OFF = "off"
    QUEUED = "queued"
    RUNNING = "running"
    ELSEWHERE = "elsewhere"  # another process tunes the same key
    DONE = "done"
    FAILED = "failed"


@dataclass(slots=True)
class Tally:
    """Calls served by one origin."""

    calls: int = 0


@dataclass(frozen=True, slots=True)
class Serving:
    """What a slot serves with: immutable, so that a call in flight finishes on what it began with.

    ``function`` is the pure JAX function (inlined under a trace), ``executable`` the same compiled ahead of time; both take
    one array an array param and return the flat tuple of ``Program``. ``config`` is None for the reference path.
    """

    function: Callable[..., tuple[Any, ...]]
    executable: Callable[..., tuple[Any, ...]]
    config: Config | None
    origin: Origin
    generation: int
    tally: Tally
    evidence: dict[str, Any] | None = None


class Subject(Protocol):
    """What is tuned: a slot, or the bucket that its extents are rounded up to."""

    kernel: Kernel
    program: Program
    space: Space
    recipe: list[dict[str, Any]]  # of made-up trial inputs
    recapture: Recapture | None
    variants: dict[tuple[tuple[str, Any], ...], Program]


@dataclass(eq=False)
class Slot:
    """The dispatch entry of one kernel, signature and target."""

    kernel: Kernel
    program: Program
    space: Space
    key: Key
    tier: Tiers
    settings: Settings
    aliases: tuple[str, ...]  # under which the program is to be stored; empty if it is there, or has no stable name
    recipe: list[dict[str, Any]]  # of made-up trial inputs
    committed: tuple[bool, ...]  # for each array param: is its array tied to a device?
    captured: bool  # False: the program came from the database
    serving: Serving = field(init=False)
    tuning: Tuning = Tuning.OFF
    candidates_tried: int = 0
    tuning_error: str | None = None
    jax_settings: dict[str, Any] = field(default_factory=dict)
    tallies: dict[Origin, Tally] = field(default_factory=lambda: {origin: Tally() for origin in Origin})
    submitted: bool = False  # to the tuner
    asked: Asked | None = None  # what live traffic asked for, where that is recorded (HELION_RT_RECORD_KEYS)
    traced: bool = False  # into a JAX program: whoever calls that is not counted
    evicted: bool = False  # no call finds it any more
    question: Question | None = None  # to the shared tiers, where there are any: nothing is tuned before it is settled
    watching: tuple[Callable[[], None], float] | None = None  # what ends watching its key in the shared tiers; every so many seconds
    refused: set[Config] = field(default_factory=set)  # winners of other toolchains that do not work under this one
    afresh: bool = False  # tune whatever the database has, and store what comes of it (``helion-rt tune``)
    watch: Callable[[Event], None] | None = None  # told each step of the search
    outcome: Outcome | None = None  # of the search, where this process made one
    recapture: Recapture | None = None  # its program for other values of its tunables; None if it has none, or that cannot be had
    variants: dict[tuple[tuple[str, Any], ...], Program] = field(default_factory=dict)  # by those values
    bucket: Bucket | None = None  # whose program is tuned, and whose record serves, where dynamic extents are rounded up
    used: float = field(default_factory=time.monotonic)
    born: float = field(default_factory=time.monotonic)
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def subject(self) -> Subject:
        """What is tuned for it."""
        return self if self.bucket is None else self.bucket

    @property
    def unstored(self) -> list[tuple[str, Program]]:
        """The programs that are to be stored, each with the name for it."""
        bucket = [(alias, self.bucket.program) for alias in self.bucket.aliases] if self.bucket is not None else []
        return [*((alias, self.program) for alias in self.aliases), *bucket]

    @property
    def is_tried(self) -> bool:
        """Is what serves known to work with the slot's own extents, not only with those of its bucket?"""
        found = self.serving.origin in (Origin.RECORD, Origin.TUNED) and self.serving.config is not None
        return self.bucket is None or not found or self.serving.config in self.bucket.tried

    @property
    def wants_tuning(self) -> bool:
        """Is there something that the tuner has not finished with?"""
        return self.tuning in (Tuning.QUEUED, Tuning.RUNNING, Tuning.ELSEWHERE)

    @property
    def is_worth_tuning(self) -> bool:
        """Has it been called often enough? A slot that was never called was handed in by a command, which knows why."""
        settings, calls = self.settings, self.calls
        return settings.tune is TuneMode.SYNC or self.afresh or self.traced or calls == 0 or calls >= settings.tune_after

    @property
    def calls(self) -> int:
        return sum(tally.calls for tally in self.tallies.values())

    def unwatch(self) -> None:
        """Its key is not watched any more."""
        watching, self.watching = self.watching, None
        if watching is not None:
            watching[0]()

    def serve(
        self,
        function: Callable[..., tuple[Any, ...]],
        executable: Callable[..., tuple[Any, ...]],
        config: Config | None,
        origin: Origin,
        evidence: dict[str, Any] | None = None,
    ) -> None:
        """Swap in what serves from now on; the generation number goes up by one."""
        before = getattr(self, "serving", None)
        generation = before.generation + 1 if before is not None else 0
        self.serving = Serving(function, executable, config, origin, generation, self.tallies[origin], evidence)


class Registry:
    """Every live slot of the process; the least recently used go when there are too many."""

    def __init__(self, limit: int = SLOT_LIMIT) -> None:
        self.limit = limit
        self.evicted = 0
        self._slots: list[Slot] = []
        self._lock = threading.Lock()

    def add(self, slot: Slot) -> None:
        with self._lock:
            self._slots.append(slot)
            gone = []
            if len(self._slots) > self.limit:
                # An eighth at a time, so that the sort is paid rarely. The newcomer stays whatever the clock says.
                old = sorted(self._slots[:-1], key=lambda s: s.used)[: max(1, self.limit // 8)]
                gone = [s for s in old if s.tuning is not Tuning.RUNNING]
                dropped = set(map(id, gone))
                self._slots = [s for s in self._slots if id(s) not in dropped]
                self.evicted += len(gone)
                for old_slot in gone:
                    old_slot.evicted = True
        for old_slot in gone:
            old_slot.unwatch()
        for kernel in {id(s.kernel): s.kernel for s in gone}.values():
            kernel.forget([s for s in gone if s.kernel is kernel])

    def drop(self, slot: Slot) -> None:
        """Forget a slot that can no longer be reached."""
        slot.evicted = True
        slot.unwatch()
        with self._lock:
            self._slots = [other for other in self._slots if other is not slot]

    def all(self) -> list[Slot]:
        with self._lock:
            return list(self._slots)


registry = Registry()
