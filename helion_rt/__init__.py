"""helion_rt: kernels in PyTorch style for TPUs, tuned in the background, winners remembered.

Everything here is loaded at first use, so that ``import helion_rt`` costs nothing and importing ``helion_rt.database`` needs
neither torch nor JAX.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from . import exc, language
    from .config import Config, LoopStrategy
    from .runtime.explain import explain
    from .runtime.helpers import aot_kernel, cdiv, next_power_of_2
    from .runtime.kernel import Kernel, kernel
    from .runtime.sharing import share, tier_status
    from .runtime.status import process_counters, status, wait_for_tuning
    from .schedule.api import estimate
    from .settings import Settings

_HOMES = {
    "Config": "config",
    "Kernel": "runtime.kernel",
    "LoopStrategy": "config",
    "Settings": "settings",
    "aot_kernel": "runtime.helpers",
    "cdiv": "runtime.helpers",
    "estimate": "schedule.api",
    "explain": "runtime.explain",
    "kernel": "runtime.kernel",
    "next_power_of_2": "runtime.helpers",
    "process_counters": "runtime.status",
    "share": "runtime.sharing",
    "status": "runtime.status",
    "tier_status": "runtime.sharing",
    "wait_for_tuning": "runtime.status",
}
_MODULES = ("autotuner", "database", "exc", "kernels", "language", "lowering", "runtime", "schedule", "targets")

__all__ = [
    "Config", "Kernel", "LoopStrategy", "Settings", "__version__", "aot_kernel", "cdiv", "estimate", "exc", "explain", "kernel", "language",
    "next_power_of_2", "process_counters", "share", "status", "tier_status", "wait_for_tuning",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    elif name in _MODULES:
        value = importlib.import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_MODULES})
