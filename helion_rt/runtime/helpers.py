"""Small names of Helion's that kernels written for it import."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from helion_rt.config import Config

from .kernel import kernel


def cdiv(a: int, b: int) -> int:
    """``a / b`` rounded up."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """The smallest power of two >= ``n`` (1 for ``n`` <= 1)."""
    return 1 << max(n - 1, 0).bit_length()


def aot_kernel(
    fn: Callable[..., Any] | None = None,
    *,
    config: Config | None = None,
    configs: Sequence[Config] | None = None,
    batched: Any = None,
    key: Any = None,
    collect_fn: Any = None,
    measure_fn: Any = None,
    **settings: Any,
) -> Any:
    """Helion's ahead-of-time kernel: here a ``kernel`` like any other, whose winners come from the tuning database.

    ``batched``, ``key``, ``collect_fn`` and ``measure_fn`` steer Helion's own tables, and do nothing. Raises ``ConfigError`` for a
    setting that does not exist.
    """
    return kernel(fn, config=config, configs=configs, **settings)
