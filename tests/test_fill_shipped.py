"""``scripts/fill_shipped.py``: what it packs, and that calls find it; ``scripts/model_shapes.toml``: that every line of it is a key."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import pytest
import torch

from helion_rt import targets
from helion_rt.cli import manifest
from helion_rt.cli.keys import Entry
from helion_rt.database import EvidenceKind, pack
from helion_rt.database.shipped import ShippedTier
from helion_rt.database.signing import Trust
from helion_rt.runtime import ahead, prepare
from helion_rt.targets import target as target_module

sys.path.insert(0, str(Path(__file__).parent / "cli"))
from cli_support import Searches

ROOT = Path(__file__).parents[1]

MANIFEST = """
targets = ["tpu7x", "v5e"]
kernels = [
  { kernel = "helion_rt.kernels:softmax", args = [{ shape = [64, 128], dtype = "float32" }] },
  { kernel = "helion_rt.kernels:softmax", args = [{ shape = [128, 128], dtype = "bfloat16" }] },
  { kernel = "helion_rt.kernels:gelu", args = [{ shape = [64, 128], dtype = "float32" }] },
]
"""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fill_shipped", ROOT / "scripts" / "fill_shipped.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``run(*words)`` with a search that answers at once; ``run.searches``, ``run.cache``."""
    for name in ("HELION_RT_TIERS", "HELION_RT_CACHE_DIR", "HELION_RT_SHARED"):
        monkeypatch.setenv(name, "")  # what the script sets goes with the test
    (tmp_path / "manifest.toml").write_text(MANIFEST)
    searches = Searches()
    monkeypatch.setattr(ahead, "search", searches)

    def go(*words: str) -> int:
        return script.main(["--manifest", str(tmp_path / "manifest.toml"), "--cache", str(tmp_path / "cache"), *words])

    go.searches, go.cache = searches, tmp_path / "cache"  # type: ignore[attr-defined]
    return go


def test_a_pack_a_kernel_and_target_and_nothing_is_done_twice(run: Any) -> None:
    assert run("--only", "softmax") == 0
    assert run.searches.calls == ["tpu7x", "v5e", "tpu7x", "v5e"]
    assert sorted(str(p.relative_to(run.cache)) for p in run.cache.rglob("*.*")) == ["tpu7x/softmax.pack", "v5e/softmax.pack"]
    before = {p: p.read_bytes() for p in run.cache.rglob("*.pack")}
    assert run("--only", "softmax") == 0 and len(run.searches.calls) == 4
    assert before == {p: p.read_bytes() for p in run.cache.rglob("*.pack")}
    assert run("--limit", "1") == 0 and run.searches.calls[4:] == ["tpu7x"]  # gelu is left to do
    assert run("--only", "softmax", "--again", "--target", "v5e", "--jobs", "2") == 0 and run.searches.calls[5:] == ["v5e", "v5e"]


def test_what_was_packed_stays_when_a_later_key_fails(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run.searches.broken = ("v5e",)
    assert run("--only", "softmax") == 1
    assert "no record: softmax(64x128) on v5e" in capsys.readouterr().err
    assert [p.parent.name for p in run.cache.rglob("*.pack")] == ["tpu7x"]
    run.searches.broken, run.searches.calls = (), []
    assert run("--only", "softmax") == 0 and run.searches.calls == ["v5e", "v5e"]


def test_only_what_the_compiler_scheduled_ships(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    modelled = ahead.improve.make_record

    def guess(key: Any, kernel: Any, outcome: Any, kind: Any, *rest: Any) -> Any:
        return modelled(key, kernel, outcome, EvidenceKind.MODELLED, *rest)

    monkeypatch.setattr(ahead.improve, "make_record", guess)
    assert run("--only", "gelu") == 1 and not list(run.cache.rglob("*.pack"))


def test_cpu_does_not_ship(run: Any) -> None:
    assert run("--target", "cpu") == 2 and run.searches.calls == []


def test_a_damaged_pack_is_not_written_over(run: Any) -> None:
    assert run("--only", "gelu", "--target", "v5e") == 0
    file = run.cache / "v5e" / "gelu.pack"
    damaged = file.read_bytes()[:-9]
    file.write_bytes(damaged)
    with pytest.raises(ValueError, match="damaged"):
        run("--only", "gelu", "--target", "v5e")
    assert file.read_bytes() == damaged


class Chip:
    platform, device_kind = "tpu", "TPU7x"


@pytest.mark.parametrize("side", ["jax", "torch"])
def test_a_call_on_the_chip_asks_for_the_key_that_was_filled(run: Any, side: str, tmp_path: Path) -> None:
    assert run("--target", "tpu7x") == 0
    from helion_rt import kernels

    on_chip = target_module.from_device(Chip())
    cases = ((kernels.softmax, (64, 128), "float32"), (kernels.softmax, (128, 128), "bfloat16"), (kernels.gelu, (64, 128), "float32"))
    for kernel, shape, dtype in cases:
        x = torch.ones(shape, dtype=getattr(torch, dtype)) if side == "torch" else jnp.ones(shape, dtype)
        found, key, _, _ = prepare.find(kernel, kernel.bound(x), on_chip)
        record = ShippedTier(run.cache).get(key)
        assert record is not None and record.evidence.kind is EvidenceKind.SCHEDULED
        config = prepare.recorded_config(prepare.Space(found.program, on_chip), record)
        assert config is not None and config.to_dict() == record.config
    assert ShippedTier(run.cache).get(prepare.find(kernels.softmax, kernels.softmax.bound(jnp.ones((65, 128))), on_chip)[1]) is None


def _entries() -> list[Entry]:
    path = ROOT / "scripts" / "model_shapes.toml"
    return list(manifest.entries(manifest.load(path), path.parent, ["tpu7x"]))


def test_every_listed_shape_is_one_that_its_kernel_takes() -> None:
    entries = _entries()
    assert len(entries) > 50 and not [entry.problem for entry in entries if entry.problem]
    assert len({entry.label() + entry.arguments() for entry in entries}) == len(entries)
    for entry in entries:
        assert entry.kernel is not None
        entry.kernel.facts(entry.kernel.bound(*entry.args, **entry.kwargs))


@pytest.mark.slow
def test_every_listed_shape_has_a_config_on_every_target_and_every_record_a_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELION_RT_CACHE_DIR", str(tmp_path))
    shipped, listed = ShippedTier(ROOT / "cache"), set()
    for entry in _entries():
        assert entry.kernel is not None
        for name in ("v5e", "v6e", "tpu7x"):
            target = targets.get(name)
            found, key, _, _ = prepare.find(entry.kernel, entry.kernel.bound(*entry.args, **entry.kwargs), target)
            space, record = prepare.Space(found.program, target), shipped.get(key)
            space.check(space.default())
            listed.add(key.digest)
            if record is not None and record.config:
                assert prepare.recorded_config(space, record) is not None, f"{entry.label()}: {record.config} is not legal any more"
    assert {record.key.digest for record in shipped.records()} <= listed
    assert not [file for file in (ROOT / "cache").glob("*/*.pack") if pack.read(file, Trust())[1]]
