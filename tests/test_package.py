"""Importing the package: light, silent, and without effect on the process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import helion_rt

ROOT = Path(__file__).parents[1]


def _run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "TPU_", "HELION_RT_"))}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, env={**environ, **env})


def test_importing_sets_nothing_loads_nothing_heavy_and_prints_nothing() -> None:
    code = """
import os, sys, json
before = dict(os.environ)
import helion_rt, helion_rt.targets, helion_rt.settings
changed = {k: v for k, v in os.environ.items() if before.get(k) != v}
heavy = sorted({"jax", "torch", "libtpu", "numpy", "transformers"} & set(sys.modules))
print(json.dumps([changed, heavy]))
"""
    done = _run(code)
    assert json.loads(done.stdout) == [{}, []]
    assert done.stderr == ""


def test_jax_starts_its_default_backend_no_differently_for_us() -> None:
    # libtpu may speak up by itself when JAX tries it: what counts is that we change nothing.
    devices = "import jax; print(jax.devices())"
    alone, beside = _run(devices), _run("import helion_rt, helion_rt.targets; " + devices)
    assert beside.stdout == alone.stdout
    without_stamps = [re.sub(r"^E\d+ [\d:. ]+|:\d+:\d+\.\d+ +\d+ ", "", done.stderr) for done in (alone, beside)]
    assert without_stamps[0].count("\n") == without_stamps[1].count("\n")


def test_the_version_is_that_of_the_file_hatchling_reads() -> None:
    text = (ROOT / "helion_rt" / "_version.py").read_text()
    assert f'__version__ = "{helion_rt.__version__}"' in text
