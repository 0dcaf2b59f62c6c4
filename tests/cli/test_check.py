"""``helion-rt prewarm MANIFEST --check``: which keys are there, which are not, and what CI sees."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from helion_rt import targets
from helion_rt.cli import manifest
from helion_rt.cli.main import main
from helion_rt.database import Evidence, EvidenceKind, Key, Record, Status, open_local
from helion_rt.runtime import ahead, explain, prepare
from helion_rt.runtime.places import places
from helion_rt.settings import Settings
from helion_rt.tuning.space import SPACE_VERSION

MANIFEST = """
targets = ["v5e"]
[[kernels]]
kernel = "my_kernels.py:double"
args = [{ shape = [64, 128], dtype = "float32" }, { value = 3.0 }]
"""


@pytest.fixture
def path(folder: Path, own_cache: Path) -> Path:
    made = folder / "manifest.toml"
    made.write_text(MANIFEST)
    return made


@pytest.fixture(autouse=True)
def nothing_is_tuned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*args: Any, **more: Any) -> Any:
        raise AssertionError("something is tuned")

    monkeypatch.setattr(ahead, "fill", refuse)
    monkeypatch.setattr(ahead, "search", refuse)
    yield


def key_of(path: Path) -> Key:
    (entry,) = manifest.entries(manifest.load(path), path.parent, None)
    assert entry.kernel is not None
    settings = Settings.from_env()
    with places(explain.local_tier(settings), settings) as asked:
        return explain.explain_bound(entry.kernel, entry.kernel.bound(*entry.args), entry.target, asked).key


def record(key: Key, **changes: Any) -> Record:
    evidence = Evidence(EvidenceKind.SCHEDULED, 1.0, 2.0)
    made = Record(key, "double", Status.WINNER, {"block_sizes": [8, 128]}, SPACE_VERSION, evidence, prepare.toolchain())
    return replace(made, **changes)


def check(capsys: pytest.CaptureFixture[str], path: Path, *words: str) -> tuple[int, dict[str, Any]]:
    status = main(["prewarm", str(path), "--check", "--json", *words])
    (found,) = json.loads(capsys.readouterr().out)
    return status, found


def test_a_key_that_is_missing_fails_and_is_named(path: Path, own_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prewarm", str(path), "--check"]) == 1
    out, err = capsys.readouterr()
    assert "0 of 1 keys have a record" in out
    assert "not there: double(64x128, 3.0) on v5e: missing [local: miss: no record" in err
    assert list(open_local(own_cache).records()) == []


def test_a_key_that_is_there(path: Path, own_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = key_of(path)
    open_local(own_cache).put(record(key))
    status, found = check(capsys, path)
    assert status == 0 and found["good"] and found["found"] == "there" and found["tier"] == "local" and found["key"] == key.digest
    assert found["tiers"]["shipped"] == "miss: no record"
    assert main(["prewarm", str(path), "--check"]) == 0
    assert "double(64x128, 3.0) on v5e: there in local" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"toolchain": {"jax": "0.1"}}, "stale"),
        ({"space_version": SPACE_VERSION + 1}, "stale"),
        ({"quarantined": ({"block_sizes": [8, 128]},)}, "stale"),
        ({"config": {"block_sizes": [8, 128, 3]}}, "stale"),
        ({"status": Status.ALL_FAILED, "config": {}}, "failed"),
        ({"status": Status.NO_CANDIDATE, "config": {}}, "there"),
        ({"evidence": Evidence(EvidenceKind.MODELLED, 1.0, 2.0)}, "there"),
    ],
)
def test_what_a_record_must_be(path: Path, own_cache: Path, capsys: pytest.CaptureFixture[str], changes: Any, found: str) -> None:
    open_local(own_cache).put(record(key_of(path), **changes))
    status, said = check(capsys, path)
    assert said["found"] == found and said["tier"] == "local" and status == (0 if found == "there" else 1)
    assert found == "there" or said["why"]


def test_a_shared_tier_is_enough_and_told(path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = path.parent / "shared"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("HELION_RT_SHARED", f"file://{folder}")
    key, settings = key_of(path), Settings.from_env()
    with places(explain.local_tier(settings), settings) as asked:
        (shared,) = asked.opened
        shared.put(record(key))
    status, found = check(capsys, path)
    assert status == 0 and found["tier"] == f"file://{folder}" and found["tiers"]["local"] == "miss: no record"
    folder.rename(path.parent / "moved")
    status, found = check(capsys, path)
    assert status == 1 and found["found"] == "missing" and "cannot be asked" in found["why"]


def test_forced_empty_and_broken_keys(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    item = "[[kernels]]\nkernel = '{}'\nargs = [{{shape = {}, dtype = 'float32'}}]\n"
    kernels = [("forced", [8, 128]), ("double", [0, 128]), ("none", [8]), ("double", [8])]
    path.write_text("targets = ['v5e']\n" + "".join(item.format(f"my_kernels.py:{name}", shape) for name, shape in kernels))
    assert main(["prewarm", str(path), "--check", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [one["found"] for one in found] == ["forced", "empty", "problem", "missing"]
    assert "has no none" in found[2]["why"]


def test_what_the_manifest_cannot_say_is_a_usage_error(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_text("[[kernels]]\n")
    assert main(["prewarm", str(path), "--check"]) == 2
    assert "kernel 1" in capsys.readouterr().err


def test_the_shape_that_is_checked_is_the_shape_of_the_manifest(path: Path, own_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from helion_rt.cli.keys import load_kernel

    kernel = load_kernel("my_kernels.py:double", path.parent)
    other = explain.explain(kernel, jax.ShapeDtypeStruct((64, 256), np.dtype("float32")), 3.0, target=targets.get("v5e"))
    open_local(own_cache).put(record(other.key))
    status, found = check(capsys, path)
    assert status == 1 and found["found"] == "missing"


@pytest.mark.parametrize("command", ["check", "explain"])
def test_a_file_that_calls_its_kernel_is_not_tuned_for_that(command: str, path: Path, folder: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HELION_RT_TUNE", "sync")
    source = folder / "my_kernels.py"
    source.write_text(source.read_text() + "\nimport jax.numpy\ndouble(jax.numpy.ones((64, 128), 'float32'), 3.0)\n")
    path.write_text(MANIFEST.replace("v5e", "cpu"))
    words = ["prewarm", str(path), "--check"]
    if command == "explain":
        words = ["cache", "explain", f"{source}:double", '{shape = [64, 128], dtype = "float32"}', "{value = 3.0}"]
    assert main(words) == 1
    assert list(open_local(Settings.from_env().cache_dir).records()) == []
