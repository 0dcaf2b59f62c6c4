"""``HELION_RT_LOG``: the level of our logger, where the user has asked for one."""

from __future__ import annotations

import functools
import logging

from helion_rt.settings import LogLevel


@functools.cache
def set_up(level: LogLevel) -> None:
    """Give the ``helion_rt`` logger ``level``, and standard error to write to if the process has no logging of its own.

    The default changes nothing: warnings reach standard error without any set-up.
    """
    if level is LogLevel.WARNING:
        return
    logger = logging.getLogger("helion_rt")
    logger.setLevel(level.number)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
