"""Fixtures of the database tests: records to store, and scripts that run in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import helion_rt.database
from helion_rt.database import Record

sys.path.insert(0, str(Path(__file__).parent))  # for database_support, whatever pytest's import mode
import database_support

PATHS = [str(Path(helion_rt.database.__file__).parents[2]), str(Path(__file__).parent)]


@pytest.fixture
def make_record() -> Callable[..., Record]:
    return database_support.make_record


@pytest.fixture
def run_script() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Python source in a process of its own, with ``make_record`` and ``helion_rt.database`` imported.

    Returns it when it ended well."""

    def run(source: str, *arguments: object, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        result = script(source, *arguments).communicate_within(timeout)
        assert result.returncode == 0, result.stderr
        return result

    return run


@pytest.fixture
def start_script() -> Callable[..., Script]:
    return script


class Script:
    """A script that was started."""

    def __init__(self, source: str, arguments: tuple[str, ...]) -> None:
        preamble = f"import sys; sys.path[:0] = {PATHS!r}\nfrom database_support import make_record\nfrom helion_rt.database import *\n"
        self.process = subprocess.Popen(
            [sys.executable, "-c", preamble + source, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip

    def communicate_within(self, timeout: float) -> subprocess.CompletedProcess[str]:
        try:
            out, err = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            raise AssertionError(f"no end after {timeout} s; stderr: {err}") from None
        return subprocess.CompletedProcess(self.process.args, self.process.returncode, out, err)


def script(source: str, *arguments: object) -> Script:
    return Script(source, tuple(str(argument) for argument in arguments))
