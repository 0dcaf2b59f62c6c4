"""What every test runs under: JAX on the CPU, no tuning unless a test asks for it, a cache directory of the session's own."""

from __future__ import annotations

import os
import shutil
import tempfile

# Before any test module imports JAX, and inherited by the processes that tests start.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["HELION_RT_TUNE"] = "off"
_CACHE = tempfile.mkdtemp(prefix="helion_rt_tests_")
os.environ["HELION_RT_CACHE_DIR"] = _CACHE
os.environ["HELION_RT_RUNTIME_DIR"] = _CACHE  # other test runs of this machine may tune at the same time


def pytest_unconfigure() -> None:
    shutil.rmtree(_CACHE, ignore_errors=True)
