"""A cache of its own for each test, tuning off unless the test says otherwise, and counters from zero."""

import pytest

from helion_rt.runtime.counters import Counters, counters


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HELION_RT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("HELION_RT_TUNE", "off")
    for name, value in Counters().to_dict().items():
        setattr(counters, name, value)
    return tmp_path / "cache"
