"""The tiers of this process, and what shared ones mean for its slots: asked when a slot is made, watched while it lives."""

from __future__ import annotations

import atexit
import functools
import threading
import weakref
from typing import TYPE_CHECKING, Any

from helion_rt.database.record import Record
from helion_rt.database.signing import Trust
from helion_rt.database.tiers import WATCH_SECONDS, Tiers, open_tiers
from helion_rt.exc import ConfigError
from helion_rt.settings import Settings, TierMode, urls

from . import standing

if TYPE_CHECKING:
    from .slot import Slot

# How often the record of a slot that wants nothing is looked up in a shared tier that does not tell by itself: peers may have withdrawn it.
SERVING_SECONDS = 60.0

_lock = threading.Lock()
_opened: dict[Settings, Tiers] = {}
_in_code: dict[str, TierMode] = {}


def share(*tiers: str, mode: TierMode | str = TierMode.WRITE_THROUGH) -> None:
    """Share what is tuned through these tiers (URLs, as in ``HELION_RT_SHARED``) beside those of the environment. ``mode``:
    ``"write-through"`` or ``"read-only"``; where ``HELION_RT_TIERS`` allows less of shared tiers, that counts. Nothing is touched yet.
    Raises ``ConfigError`` for what is no URL of a shared tier, where a library is missing, and after the first call of a kernel."""
    from helion_rt.database.shared import open_shared  # late: most processes share nothing

    try:
        chosen = TierMode(mode)
    except ValueError:
        raise ConfigError(f"mode={mode!r:.80} is not allowed", hint=f"allowed: {', '.join(m.value for m in TierMode)}") from None
    for url in tiers:
        if urls("share()", url) != (url,):
            raise ConfigError("share() takes one URL an argument", hint='share("file:///mnt/tuning", "redis://host")')
        open_shared(url, trust=Trust()).close()
    with _lock:
        if _opened:
            raise ConfigError("share() comes too late: a kernel has been called", hint="call it when the process starts")
        _in_code.update(dict.fromkeys(tiers, chosen))


def tiers_of(settings: Settings) -> Tiers:
    """The tiers of a process with these settings; for equal ones the same. Raises ``ConfigError`` as ``open_tiers``."""
    ours = Settings(
        cache_dir=settings.cache_dir, shared=settings.shared, tiers=settings.tiers, signing_key=settings.signing_key,
        signed_only=settings.signed_only, lease_seconds=settings.lease_seconds,
    )  # fmt: skip
    found = _opened.get(ours)
    if found is None:
        with _lock:
            found = _opened.get(ours)
            if found is None:
                found = _opened[ours] = open_tiers(ours, prefer=standing.preferred, more=tuple(_in_code.items()))
    return found


def urls_of(settings: Settings) -> tuple[str, ...]:
    """The shared tiers of a process with these settings, those named in code included."""
    return tuple(dict.fromkeys((*settings.shared, *_in_code)))


def all_tiers() -> list[Tiers]:
    """Every ``Tiers`` that this process has opened."""
    return list(_opened.values())


def tier_status() -> list[dict[str, Any]]:
    """Each tier of this process in the order in which they serve, as plain data: hits, and for a shared one whether it can be reached, when
    it is tried again, what is queued for it, and counts. Times in seconds. Empty before the first call of a kernel."""
    return [tier for tiers in all_tiers() for tier in tiers.status()]


def close() -> None:
    """Write and publish what is queued, within a few seconds."""
    for tiers in all_tiers():
        tiers.close()


atexit.register(close)  # the tuner is imported later, so it is stopped before


def ask(slot: Slot) -> None:
    """Have the shared tiers asked for a new slot's key, and the key watched. Returns at once. What is better is given to the tuner."""
    if slot.tier.is_shared:
        watch(slot)
        slot.question = slot.tier.ask(slot.key)


def watch(slot: Slot) -> None:
    """Watch the key of a slot, often while there is something that the tuner has not finished with."""
    every, before = WATCH_SECONDS if slot.wants_tuning else SERVING_SECONDS, slot.watching
    if slot.tier.is_shared and not slot.evicted and (before is None or before[1] != every):
        slot.watching = slot.tier.watch(slot.key, functools.partial(_arrived, weakref.ref(slot)), every), every
        if before is not None:
            before[0]()
        if slot.evicted:  # meanwhile: who did that found nothing to end
            slot.unwatch()


def _arrived(reference: weakref.ref[Slot], record: Record) -> None:
    """A shared tier had something better; on its thread. The tuner's thread compiles it and swaps it in."""
    slot = reference()
    if slot is not None and not slot.evicted:
        from .background import tuner  # late: a warm process needs no tuner until then

        tuner.offer(slot)
