"""Reference mode: a kernel's own source run eagerly in torch, tile by tile, so that ``print`` and ``pdb`` work in it.

Nothing is captured and nothing compiled: ``hl.tile`` gives real tiles (the last one of its true size), tensors hold numbers,
and every statement runs as it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..config import Config
from ..language._active import ACTIVE
from .mode import KernelMode
from .session import Session


def run(fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], config: Config | None) -> Any:
    """``fn(*args, **kwargs)`` in torch. ``config`` gives block sizes; otherwise they are small, so that there are several tiles.

    Raises ``Unsupported`` at the kernel's line for what cannot be said, and whatever the kernel itself raises.
    """
    session = Session(fn, config)
    token = ACTIVE.set(session)
    try:
        with torch.no_grad(), KernelMode(session):
            return fn(*args, **kwargs)
    finally:
        ACTIVE.reset(token)


__all__ = ["run"]
