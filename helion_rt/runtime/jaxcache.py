"""JAX's persistent compilation cache, under our cache directory: only where the user has set none, and on the node's own disk."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from helion_rt.database.paths import is_network_file_system, make_private_directory

logger = logging.getLogger("helion_rt.runtime")

DIRECTORY = "jax_compilation_cache_dir"
ENABLED = "jax_enable_compilation_cache"
MIN_SECONDS = "jax_persistent_cache_min_compile_time_secs"
MIN_BYTES = "jax_persistent_cache_min_entry_size_bytes"

_ours: Path | None = None


def set_up(cache_dir: Path) -> None:
    """Turn JAX's cache on in ``<cache_dir>/xla``. Nothing happens if the user has chosen a directory, or turned it off."""
    global _ours
    chosen = getattr(jax.config, DIRECTORY)
    wanted = cache_dir / "xla"
    if wanted == _ours and chosen == str(wanted):
        return
    if "JAX_COMPILATION_CACHE_DIR" in os.environ or (chosen is not None and chosen != (str(_ours) if _ours else None)):
        return
    if not getattr(jax.config, ENABLED) or is_network_file_system(cache_dir):
        return
    try:
        str(wanted).encode()  # XLA takes the name as UTF-8, and fails every compilation where it is not
        make_private_directory(wanted)
    except (OSError, UnicodeEncodeError) as error:
        logger.info("no compilation cache in %s: %s", wanted, error)
        return
    if not os.access(wanted, os.W_OK):
        return
    jax.config.update(DIRECTORY, str(wanted))
    # A kernel compiles in tens of milliseconds on the CPU; JAX keeps only what took a second unless told otherwise.
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update(MIN_SECONDS, 0.0)
    if "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES" not in os.environ:
        jax.config.update(MIN_BYTES, -1)
    # JAX decides once, at the first compilation, whether there is a cache: one before us has settled it on none.
    compilation_cache.reset_cache()
    _ours = wanted


def settings() -> dict[str, Any]:
    """JAX's settings that change what is compiled: a worker takes them over. Not the cache: losers would fill it."""
    return {name: getattr(jax.config, name) for name in ("jax_enable_x64", "jax_default_matmul_precision")}
