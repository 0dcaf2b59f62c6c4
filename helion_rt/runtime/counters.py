"""Counters of a process: what happened, for ``status()`` and the tests."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Counters:
    captures: int = 0
    record_hits: int = 0
    record_misses: int = 0
    stale_records: int = 0  # a record whose config no longer compiles or is not legal
    bad_programs: int = 0
    default_failures: int = 0  # configs of the default's chain that did not compile
    reference_fallbacks: int = 0
    rescues: int = 0  # calls that failed at run time and were served by the reference path
    candidates_tried: int = 0
    workers_started: int = 0
    swaps: int = 0
    rollbacks: int = 0  # winners that turned out to be wrong, not to compile, or to be slower
    peer_rollbacks: int = 0  # winners that served here and that a peer has put in quarantine
    tuner_errors: int = 0

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


counters = Counters()
