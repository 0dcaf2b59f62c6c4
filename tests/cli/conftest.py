"""A cache of its own for the tests that ask for one, and a file with a small kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

KERNELS = """
import torch
import helion_rt as helion
import helion_rt.language as hl

@helion.kernel
def double(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(out.size()):
        out[tile] = x[tile] * by
    return out

@helion.kernel(config=helion.Config(block_sizes=[8, 128]))
def forced(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(out.size()):
        out[tile] = x[tile] + 1
    return out
"""


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HELION_RT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my_kernels.py").write_text(KERNELS)
    return tmp_path
