from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from helion_rt import targets
from helion_rt.exc import TargetError
from helion_rt.targets import Target, host


@dataclass
class StandIn:
    """What is asked of a JAX device."""

    platform: str
    device_kind: str


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("cpu", "cpu"), ("v4", "v4"), ("v5e", "v5e"), ("v5p", "v5p"), ("v6e", "v6e"), ("tpu7x", "tpu7x"), ("TPU7x", "tpu7x"),
        ("v7x", "tpu7x"), ("7x", "tpu7x"), ("Ironwood", "tpu7x"), ("trillium", "v6e"), ("v5litepod", "v5e"), (" v5e ", "v5e"),
    ],
)  # fmt: skip
def test_get_by_name_and_alias(spelling: str, name: str) -> None:
    assert targets.get(spelling) == Target(name)
    assert targets.get(Target(name)) == Target(name)


@pytest.mark.parametrize("name", ["v3", "", "gpu", None, 7])
def test_an_unknown_name_lists_the_names(name: object) -> None:
    with pytest.raises(TargetError) as caught:
        targets.get(name)  # type: ignore[arg-type]
    assert all(known in str(caught.value) for known in targets.NAMES)
    with pytest.raises(TargetError):
        Target("v5litepod")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("TPU v4", "v4"), ("TPU v5 lite", "v5e"), ("TPU v5e", "v5e"), ("TPU v5", "v5p"), ("TPU v5p", "v5p"), ("TPU v6 lite", "v6e"),
        ("TPU v6e", "v6e"), ("TPU7x", "tpu7x"), ("TPU v7x", "tpu7x"),
    ],
)  # fmt: skip
def test_a_tpu_is_recognised_by_its_kind(kind: str, name: str) -> None:
    assert targets.from_device(StandIn("tpu", kind)) == Target(name)


def test_devices_that_are_no_target_are_refused() -> None:
    with pytest.raises(TargetError, match="'TPU v9'"):
        targets.from_device(StandIn("tpu", "TPU v9"))
    with pytest.raises(TargetError, match="no GPU target"):
        targets.from_device(StandIn("gpu", "NVIDIA H200"))
    assert targets.from_device(StandIn("cpu", "cpu")) == Target("cpu")


def test_the_default_backend_here_is_the_cpu() -> None:
    assert targets.detect() == Target("cpu")
    assert targets.detect() is targets.detect()


def test_what_jax_says_of_the_chips() -> None:
    assert targets.get("cpu").info is None
    assert targets.get("cpu").vmem_bytes is None and targets.get("cpu").vmem_capacity_bytes is None
    infos = {name: targets.get(name).info for name in targets.TPU_NAMES}
    assert [infos[name].generation for name in targets.TPU_NAMES] == [4, 5, 5, 6, 7]
    for name, info in infos.items():
        target = targets.get(name)
        assert target.vmem_bytes and target.vmem_capacity_bytes == info.vmem_capacity_bytes
        assert target.vmem_bytes <= target.vmem_capacity_bytes


def test_keys() -> None:
    assert [targets.get(name).key() for name in targets.TPU_NAMES] == list(targets.TPU_NAMES)
    platform, isa, cores = targets.get("cpu").key().split("/")
    assert (platform, isa, int(cores)) == ("cpu", host.this_isa(), host.usable_cores())


def test_the_key_of_a_cpu_follows_the_usable_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda pid: set(range(13)), raising=False)
    assert targets.get("cpu").key().endswith("/13")
    monkeypatch.delattr(host.os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(host.os, "cpu_count", lambda: 5)
    assert targets.get("cpu").key().endswith("/5")


V2 = {"cx16", "popcnt", "sse4_1", "sse4_2", "ssse3"}
V3 = V2 | {"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


@pytest.mark.parametrize(
    ("machine", "flags", "tag"),
    [
        ("x86_64", {"sse2"}, "x86_64"), ("x86_64", V2, "x86_64-v2"), ("AMD64", V3, "x86_64-v3"), ("x86_64", V4, "x86_64-v4"),
        ("x86_64", V4 | {"amx_tile"}, "x86_64-v4+amx"), ("x86_64", V4 - {"sse4_2"}, "x86_64"), ("x86_64", V3 | {"avx512f"}, "x86_64-v3"),
        ("aarch64", {"asimd"}, "aarch64-neon"), ("arm64", set(), "aarch64"), ("aarch64", {"asimd", "sve", "sve2"}, "aarch64-sve2"),
        ("riscv64", set(), "riscv64"),
    ],
)  # fmt: skip
def test_instruction_sets(machine: str, flags: set[str], tag: str) -> None:
    assert host.isa_tag(machine, frozenset(flags)) == tag


def test_flags_are_read_from_cpuinfo(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu avx2\nbugs : none\n\nprocessor : 1\nflags : other\n")
    assert host._cpu_flags(cpuinfo) == {"fpu", "avx2"}
    cpuinfo.write_text("processor : 0\nFeatures : asimd sve\n")
    assert host._cpu_flags(cpuinfo) == {"asimd", "sve"}
    assert host._cpu_flags(tmp_path / "missing") == frozenset()
