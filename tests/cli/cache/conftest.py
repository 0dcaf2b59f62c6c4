"""Databases with a few records, and the command on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from helion_rt.cli.main import main
from helion_rt.database import Evidence, EvidenceKind, Key, LocalTier, Record, Status


@dataclass(frozen=True)
class Result:
    """What a command did."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """``helion-rt cache`` with these words, in this process."""

    def run(*words: object) -> Result:
        status = main(["cache", *map(str, words)])
        out, err = capsys.readouterr()
        return Result(status, str(out), str(err))

    return run


@pytest.fixture
def make() -> Callable[..., Record]:
    """Record number ``n`` of key number ``key``; of two of one key the one with the greater ``n`` is the faster, and the better."""

    def make(n: int = 1, *, key: int = 0, target: str = "v5e", **changes: Any) -> Record:
        fields: dict[str, Any] = {
            "key": Key(f"{key:064x}", (("tensor", (128, key), "bfloat16"),), "default", target),
            "kernel": f"kernel_{key}",
            "status": Status.WINNER,
            "config": {"block_sizes": [8, 128 * n]},
            "space_version": 1,
            "evidence": Evidence(EvidenceKind.MEASURED, ms=1 / n, default_ms=2.0, pairs=9),
            "toolchain": {"jax": "0.10.2"},
            "date": "2026-11-29T12:00:00Z",
        }
        return Record(**{**fields, **changes})

    return make


@pytest.fixture
def fill() -> Callable[..., Path]:
    """A directory with these records."""

    def fill(directory: Path, *records: Record) -> Path:
        tier = LocalTier(directory)
        for record in records:
            assert tier.put(record)
        return directory

    return fill


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of HELION_RT_CACHE_DIR; not there yet."""
    monkeypatch.setenv("HELION_RT_CACHE_DIR", str(tmp_path / "home"))
    return tmp_path / "home"


def has(directory: Path) -> dict[str, Record]:
    """The records in a directory, by kernel and target."""
    return {f"{record.kernel} {record.key.target}": record for record in LocalTier(directory).records()}


@pytest.fixture(name="has")
def _has() -> Callable[[Path], dict[str, Record]]:
    return has
