"""The tiers one by one, for tools that tell what each has: ``explain`` and ``prewarm --check``. No call comes through here.

Shared tiers are asked on the thread that wants to know, each through a connection of its own: a tool may wait where a call may not.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from helion_rt.database import Key, Record
from helion_rt.database.shared import SharedTier, open_shared
from helion_rt.database.shipped import ShippedTier
from helion_rt.database.signing import Trust
from helion_rt.database.store import StoreError
from helion_rt.exc import ConfigError
from helion_rt.settings import Settings, without_password

from . import sharing

logger = logging.getLogger("helion_rt.runtime")


class Source(Protocol):
    """What is asked of a tier. May raise ``StoreError`` where it cannot be reached."""

    def get(self, key: Key) -> Record | None: ...
    def records(self) -> Iterator[Record]: ...


@dataclass(slots=True)
class Place:
    """A tier and the name it is told by. ``problem``: why it cannot be asked; then it is not asked again."""

    name: str
    source: Source | None
    problem: str = ""

    def get(self, key: Key) -> Record | None:
        """The record of ``key``. None where there is none, or nobody to ask."""
        if self.source is None or self.problem:
            return None
        try:
            return self.source.get(key)
        except StoreError as error:
            self.problem = f"cannot be asked: {error}"
            return None

    def records(self) -> Iterator[Record]:
        """Its records, as far as they can be read."""
        if self.source is None or self.problem:
            return
        try:
            yield from self.source.records()
        except StoreError as error:
            self.problem = f"cannot be read whole: {error}"


@dataclass(slots=True)
class Places:
    """The tiers of a process in the order in which they serve; a context manager that closes what it has opened."""

    tiers: list[Place] = field(default_factory=list)
    opened: list[SharedTier] = field(default_factory=list)

    def __enter__(self) -> Places:
        return self

    def __exit__(self, *error: object) -> None:
        for tier in self.opened:
            try:
                tier.close()
            except StoreError as failure:
                logger.debug("%s does not close: %s", tier.url, failure)


def places(local: Source, settings: Settings) -> Places:
    """The tiers of a process with these settings. ``local`` is the one of the cache directory."""
    found = Places()
    if settings.tiers.local.reads:
        found.tiers.append(Place("local", local))
    if settings.tiers.shared.reads:
        for url in sharing.urls_of(settings):
            try:
                tier = open_shared(url, trust=Trust.from_settings(settings))
            except ConfigError as error:
                found.tiers.append(Place(without_password(url), None, f"cannot be opened: {error.message}"))
                continue
            found.opened.append(tier)
            found.tiers.append(Place(tier.url, tier))
    if settings.tiers.shipped.reads:
        found.tiers.append(Place("shipped", ShippedTier()))
    return found
