"""``status`` and ``wait_for_tuning``: what the process serves now, as plain data."""

from __future__ import annotations

from typing import Any

from .background import tuner
from .counters import counters
from .prepare import signature_of
from .slot import Slot, registry


def describe(slot: Slot) -> dict[str, Any]:
    """One slot as plain data."""
    serving = slot.serving
    return {
        "kernel": slot.kernel.name,
        "signature": signature_of(slot.program),
        "target": slot.space.target.key(),
        "key": slot.key.digest,
        "config": None if serving.config is None else serving.config.to_dict(),
        "origin": serving.origin.value,
        "evidence": serving.evidence,
        "generation": serving.generation,
        "tuning": slot.tuning.value,
        "tuning_error": slot.tuning_error,
        "candidates_tried": slot.candidates_tried,
        "captured": slot.captured,
        "calls": slot.calls,
        "calls_by_origin": {origin.value: tally.calls for origin, tally in slot.tallies.items() if tally.calls},
    }


def status() -> list[dict[str, Any]]:
    """A dict for each live slot, in order of creation. Plain data; times in milliseconds. Of the tiers tells ``sharing.tier_status``."""
    return [describe(slot) for slot in registry.all()]


def process_counters() -> dict[str, int]:
    """Counters of the whole process; ``evicted_slots`` are those that made room for others."""
    return {**counters.to_dict(), "evicted_slots": registry.evicted}


def wait_for_tuning(timeout: float | None = None) -> bool:
    """Wait until nothing is left to tune. False if ``timeout`` seconds were not enough. With tuning off it returns at once."""
    return tuner.wait(timeout)
