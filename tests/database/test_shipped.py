"""The shipped tier: what a fresh machine finds, what is read of it, and that damage is a miss."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from helion_rt.database import Evidence, EvidenceKind, Key, Origin, Record, Status, pack, shipped
from helion_rt.database.shipped import ShippedTier, shipped_directory
from helion_rt.database.signing import Trust

ROOT = Path(__file__).parents[2]


def record(target: str = "tpu7x", number: int = 0, kernel: str = "softmax", ms: float = 1.0) -> Record:
    key = Key("ab" * 32, ("tensor", (str(number),), "float32"), "default", target)
    evidence = Evidence(EvidenceKind.SCHEDULED, ms, 2.0)
    return Record(key, kernel, Status.WINNER, {"block_sizes": [8]}, 2, evidence, {"jax": "0.10.2"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for target in ("tpu7x", "v5e"):
        (tmp_path / target).mkdir()
        for kernel in ("gelu", "softmax"):
            written = [record(target, number, kernel) for number in ((0, 1) if kernel == "gelu" else (2, 3))]
            pack.write(written, tmp_path / target / f"{kernel}.pack", Trust())
    (tmp_path / "README.md").write_text("# The shipped tier")
    return tmp_path


def test_a_record_is_found_by_its_key_and_marked_as_shipped(folder: Path) -> None:
    tier = ShippedTier(folder)
    found = tier.get(record(number=2).key)
    assert found is not None and found.origin is Origin.SHIPPED and found.key == record(number=2).key
    assert tier.get(record(number=4).key) is None and tier.get(record("v6e").key) is None and tier.get(record("cpu/avx2/2").key) is None
    assert len(list(tier.records())) == 8 and tier.bad == 0


def test_only_the_packs_of_the_target_are_read_and_only_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    real = pack.read
    monkeypatch.setattr(pack, "read", lambda file, *rest, **more: opened.append(Path(file)) or real(file, *rest, **more))
    tier = ShippedTier(folder)
    assert opened == []
    for number in (0, 1, 7):
        tier.get(record(number=number).key)
    assert opened == [folder / "tpu7x" / "gelu.pack", folder / "tpu7x" / "softmax.pack"]


@pytest.mark.parametrize("target", ["..", "../tpu7x", "/etc", "", "a\0b", "tpu7x/../v5e", ".", "x" * 1000])
def test_no_target_leads_out_of_the_folder(folder: Path, target: str) -> None:
    outside = folder.parent / "outside.pack"
    pack.write([record(target)], outside, Trust())
    shutil.copy(outside, folder / "outside.pack")
    tier = ShippedTier(folder / "v5e")
    assert tier.get(replace(record().key, target=target)) is None


def test_a_record_in_another_targets_folder_is_not_taken(folder: Path) -> None:
    shutil.copy(folder / "v5e" / "gelu.pack", folder / "tpu7x" / "wrong.pack")
    assert {r.key.target for r in ShippedTier(folder)._of_target("tpu7x").values()} == {"tpu7x"}


def test_of_two_packs_with_one_key_the_better_serves(folder: Path) -> None:
    pack.write([record(number=0, ms=0.25)], folder / "tpu7x" / "later.pack", Trust())
    found = ShippedTier(folder).get(record(number=0).key)
    assert found is not None and found.evidence.ms == 0.25


def test_damage_is_a_miss_and_is_counted(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    good, bad = folder / "tpu7x" / "gelu.pack", folder / "tpu7x" / "softmax.pack"
    lines = bad.read_bytes().splitlines(keepends=True)
    bad.write_bytes(lines[0] + lines[1].replace(b"[8]", b"[4]") + lines[2])
    good.write_bytes(b"\x80\x04}" * 100)
    (folder / "tpu7x" / "folder.pack").mkdir()
    (folder / "tpu7x" / "empty.pack").touch()
    tier = ShippedTier(folder)
    assert len(tier._of_target("tpu7x")) == 1 and tier.bad == 4
    assert "softmax.pack of the shipped tier: line 2" in caplog.text


def test_no_folder_is_an_empty_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "shipped_directory", lambda: None)
    for tier in (ShippedTier(tmp_path / "none"), ShippedTier()):
        assert tier.get(record().key) is None and list(tier.records()) == []


def test_many_threads_find_the_same(folder: Path) -> None:
    tier, found = ShippedTier(folder), []
    gate = threading.Barrier(8)

    def look() -> None:
        gate.wait(30)
        found.append(tier.get(record(number=2).key))

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 8 and all(one is not None for one in found)


def test_a_checkout_ships_its_cache_folder_and_site_packages_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shipped_directory() == ROOT / "cache"
    (tmp_path / "helion_rt").mkdir()
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr(shipped.importlib.resources, "files", lambda package: tmp_path / package)
    assert shipped_directory() is None  # a top-level package of somebody else's
    (tmp_path / "helion_rt" / "_shipped").mkdir()
    assert shipped_directory() == tmp_path / "helion_rt" / "_shipped"


def test_what_this_checkout_ships_is_whole() -> None:
    tier = ShippedTier(ROOT / "cache")
    records = list(tier.records())
    assert tier.bad == 0
    assert not [r for r in records if r.key.target.startswith("cpu")]  # nothing that was timed on one machine
    assert all(r.evidence.kind is EvidenceKind.SCHEDULED and not r.is_void for r in records)
    for file in (ROOT / "cache").glob("*/*.pack"):
        found, problems = pack.read(file, Trust())
        assert not problems and {r.kernel for r in found} == {file.stem}
        assert "".join(pack.lines(found, Trust())) == file.read_text(), f"{file} is not as it would be written"


CHECK = """
import sys
from pathlib import Path
import helion_rt, jax, jax.numpy as jnp
from helion_rt import kernels, targets
from helion_rt.config import Config
from helion_rt.database import Status
from helion_rt.database.shipped import ShippedTier, shipped_directory
from helion_rt.runtime import prepare

assert Path(helion_rt.__file__).is_relative_to(sys.argv[1]), helion_rt.__file__
assert shipped_directory() == Path(sys.argv[1]) / "helion_rt" / "_shipped"
target = targets.get("tpu7x")
norm = kernels.rms_norm, (jax.ShapeDtypeStruct((2048, 4096), jnp.bfloat16), jax.ShapeDtypeStruct((4096,), jnp.bfloat16))
gelu = kernels.gelu, (jax.ShapeDtypeStruct((8, 128, 3072), jnp.bfloat16),)
for kernel, args in (norm, gelu):
    found, key, _, _ = prepare.find(kernel, kernel.bound(*args), target)
    record = ShippedTier().get(key)
    assert record is not None and record.status is not Status.ALL_FAILED, f"{kernel}: no record"
    space = prepare.Space(found.program, target)
    winner = Config.from_dict(record.config) if record.status is Status.WINNER else space.default()
    space.check(winner)
    lowered = kernel.lower(*args, target="tpu7x")  # by itself: from the database
    assert lowered.config == winner, (lowered.config, winner)
    assert lowered.compile().tpu_custom_calls >= 1
    print("warm", kernel.name, record.status.value, record.config)
assert winner != space.default()  # there is one whose record says more than the default
"""


@pytest.mark.slow
def test_a_machine_that_has_only_the_wheel_is_warm(tmp_path: Path) -> None:
    """The norm of Llama 3 8B and the GELU of BERT-base for tpu7x: found by their keys, legal today, and compiled."""
    pytest.importorskip("hatchling", reason="the wheel is built with it")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", str(ROOT), "--no-deps", "--no-build-isolation", "-w", str(tmp_path)], check=True, timeout=250)
    (wheel,) = tmp_path.glob("helion_rt-*.whl")
    site = tmp_path / "site"
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", str(site), str(wheel)], check=True, timeout=100)
    assert {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")} <= {"helion_rt", "bin"}
    env = {**os.environ, "PYTHONPATH": str(site), "HELION_RT_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", CHECK, str(site)], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0 and done.stdout.count("warm") == 2, done.stderr
