"""What every test runs under: JAX on the CPU, no tuning unless a test asks for it, a cache directory of the session's own."""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile

import numpy as np
import pytest

# Before any test module imports JAX, and inherited by the processes that tests start.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["HELION_RT_TUNE"] = "off"
_CACHE = tempfile.mkdtemp(prefix="helion_rt_tests_")
os.environ["HELION_RT_CACHE_DIR"] = _CACHE
os.environ["HELION_RT_RUNTIME_DIR"] = _CACHE  # other test runs of this machine may tune at the same time


# Every test draws the same numbers each time; another seed (HELION_RT_TEST_SEED=7 make test) shows whether its tolerances are right.
SEED = int(os.environ.get("HELION_RT_TEST_SEED", "0"))


@pytest.fixture(autouse=True)
def _seeds() -> None:
    random.seed(SEED)
    np.random.seed(SEED)
    if (torch := sys.modules.get("torch")) is not None:  # a test that never imports torch does not pay for it
        torch.manual_seed(SEED)


def pytest_unconfigure() -> None:
    shutil.rmtree(_CACHE, ignore_errors=True)
