"""``explain``: what it says of a key, of what tiers have, and of the nearest other keys."""

import json

import jax
import numpy as np
import pytest
import torch

import helion_rt as helion
import helion_rt.language as hl
from helion_rt.database import Evidence, EvidenceKind, Key, Origin, Record, Status
from helion_rt.runtime import explain as explaining
from helion_rt.runtime import prepare, sharing
from helion_rt.runtime.explain import MAX_NEAR, differences, key_fields, nearest_keys
from helion_rt.runtime.places import Place, places
from helion_rt.runtime.standing import Reason, Standing
from helion_rt.settings import Settings, TierMode
from helion_rt.tuning.space import SPACE_VERSION

NUMERICS = "default;x64=0;matmul=default"


@helion.kernel
def power(x: torch.Tensor, factor: float = 2.0, target: bool = True) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(out.size()):
        out[tile] = x[tile] * factor
    return out


def shape(*extents, dtype="float32"):
    return jax.ShapeDtypeStruct(extents, np.dtype(dtype))


def put(key, status=Status.WINNER, **changes):
    """A record of ``key`` in the tier of this test, and what it is by default: a winner that was measured here."""
    fields = {
        "kernel": "power", "status": status, "config": {"block_sizes": [8, 128]} if status is Status.WINNER else {},
        "space_version": SPACE_VERSION, "evidence": Evidence(EvidenceKind.MEASURED, 1.0, 2.0), "toolchain": prepare.toolchain(),
    }  # fmt: skip
    record = Record(key, **{**fields, **changes})
    assert explaining.local_tier(Settings.from_env()).put(record) is True  # type: ignore[attr-defined]
    return record


def test_every_field_of_the_key_is_told():
    said = helion.explain(power, shape(64, 128), 3.0, False)
    fields = said.fields
    assert fields["x.shape"] == "64x128" and fields["x.dtype"] == "float32"
    assert fields["factor"] == "any scalar of float32" and "3.0" not in str(fields.values())  # its value is no part of the key
    assert fields["target (argument)"] == "False (bool)" and fields["target"] == said.key.target  # a parameter may have any name
    assert fields["program"] == said.key.fingerprint and fields["numerics.x64"] == "0"
    assert (fields["allowed configs"], fields["strict"]) == ("any", "no")
    assert said.standing is Standing.MISS and said.held[0].tier == "local" and said.held[0].verdict.reason is Reason.NO_RECORD


def test_it_is_the_key_of_a_call(own_cache):
    x = torch.ones(16, 128)
    power(x)
    said = helion.explain(power, x)
    slot = power.bind(x)
    assert said.key == slot.key and said.slot is slot
    assert f"serving in this process: default, {json.dumps(slot.serving.config.to_dict())}; tuning: off" in str(said)


@pytest.mark.parametrize(
    ("changes", "standing", "reason"),
    [
        ({}, Standing.FINAL, Reason.MEASURED_HERE),
        ({"status": Status.NO_CANDIDATE}, Standing.FINAL, Reason.MEASURED_HERE),
        ({"toolchain": {"jax": "0.1"}}, Standing.HINT, Reason.OTHER_TOOLCHAIN),
        ({"evidence": Evidence(EvidenceKind.SCHEDULED, 1.0, 2.0)}, Standing.HINT, Reason.NOT_MEASURED),
        ({"origin": Origin.IMPORTED}, Standing.HINT, Reason.FROM_ELSEWHERE),
        ({"space_version": SPACE_VERSION + 1}, Standing.MISS, Reason.OTHER_SPACE),
        ({"quarantined": ({"block_sizes": [8, 128]},)}, Standing.MISS, Reason.VOID),
        ({"config": {"block_sizes": [8, 128, 3]}}, Standing.MISS, Reason.NOT_LEGAL),
        ({"config": {"no such knob": 1}}, Standing.MISS, Reason.NOT_LEGAL),
    ],
)
def test_what_a_record_is_worth_and_why(changes, standing, reason):
    asked = (shape(32, 128), 2.0, True)
    put(helion.explain(power, *asked).key, **changes)
    said = helion.explain(power, *asked)
    held = said.held[0]
    assert (held.tier, held.verdict.standing, held.verdict.reason) == ("local", standing, reason)
    assert said.standing is standing and f"{standing.value}: {reason.value}" in str(said)


def test_what_is_said_is_what_a_call_does():
    """A call under the record of each case serves it exactly where ``explain`` does not say ``miss``."""
    for number, changes in enumerate(({}, {"space_version": SPACE_VERSION + 1}, {"config": {"block_sizes": [8, 128, 3]}})):
        x = torch.ones(8 * (number + 1), 128)
        put(helion.explain(power, x).key, **changes)
        said = helion.explain(power, x)
        power(x)
        served = power.bind(x).serving.origin.value == "record"
        assert served is (said.standing is not Standing.MISS) is (number == 0)


def test_nearest_keys_say_exactly_what_differs():
    wanted = helion.explain(power, shape(64, 128), 2.0, True)
    put(helion.explain(power, shape(64, 256), 2.0, True).key)
    put(helion.explain(power, shape(64, 128), 2.0, False).key)
    put(helion.explain(power, shape(64, 128, dtype="bfloat16"), 2.0, True, target="v5e").key)
    put(Key("ab" * 32, wanted.key.signature, wanted.key.numerics, wanted.key.target))
    put(Key("cd" * 32, ("unrelated",), NUMERICS, "v5e"), kernel="another")
    said = helion.explain(power, shape(64, 128), 2.0, True)
    told = [[(d.field, d.here, d.there) for d in near.differences] for near in said.near]
    assert sorted(told[:3]) == sorted(
        [
            [("program", wanted.key.fingerprint, "ab" * 32)],
            [("x.shape", "64x128", "64x256")],
            [("target (argument)", "True (bool)", "False (bool)")],
        ]
    )
    assert told[3] == [("x.dtype", "float32", "bfloat16"), ("target", wanted.key.target, "v5e")]
    assert len(told) == MAX_NEAR == 4
    assert "another source or format of this kernel" in str(said) and "x.shape is 64x256, here 64x128" in str(said)


def test_a_key_that_serves_has_no_need_of_near_ones():
    put(helion.explain(power, shape(64, 256), 2.0, True).key)
    put(helion.explain(power, shape(64, 128), 2.0, True).key)
    assert helion.explain(power, shape(64, 128), 2.0, True).near == ()


def test_allowed_configs_and_strict_are_fields(monkeypatch):
    plain = helion.explain(power, shape(8, 128))
    some = helion.kernel(power.fn, configs=[helion.Config(block_sizes=[8, 128]), helion.Config(block_sizes=[4, 128])])
    found = differences(helion.explain(some, shape(8, 128)).fields, plain.fields)
    assert [d.field for d in found] == ["allowed configs"] and "block_sizes" in found[0].here and found[0].there == "any"
    strict = helion.explain(helion.kernel(power.fn, strict=True), shape(8, 128))
    assert [d.field for d in differences(strict.fields, plain.fields)] == ["strict"]


def test_a_forced_config_serves_whatever_there_is():
    forced = helion.kernel(power.fn, config=helion.Config(block_sizes=[8, 128]))
    said = helion.explain(forced, shape(8, 128))
    assert said.forced is not None and said.forced["block_sizes"] == [8, 128] and "forced: " in str(said)


def test_json_holds_all_of_it_and_no_control_characters_reach_a_terminal():
    key = helion.explain(power, shape(16, 256)).key
    put(key, machine="\x1b[31mred", config={"block_sizes": [8, 128], "\x1b[31m": 1}, kernel="power")
    said = helion.explain(power, shape(16, 512))
    plain = json.loads(json.dumps(said.to_dict(), allow_nan=False))
    assert plain["key"] == said.key.digest and plain["standing"] == "miss" and plain["fields"] == said.fields
    assert plain["nearest"][0]["key"] == key.digest
    assert plain["nearest"][0]["differences"] == [{"field": "x.shape", "here": "16x512", "there": "16x256"}]
    assert "\x1b" not in str(said)


def test_fields_of_any_key_can_be_told():
    key = Key("ab" * 32, (("tensor", (), "int8"), ("odd",), 3, b"\1", "configs", "p", "q", "strict"), "a;b=c", "v5e")
    assert key_fields(key) == {
        "program": "ab" * 32, "argument 1.shape": "()", "argument 1.dtype": "int8", "argument 2": "('odd',)", "argument 3": "3",
        "argument 4": "b'\\x01'", "numerics": "a", "numerics.b": "c", "allowed configs": "p or q", "strict": "yes",
        "target": "v5e",
    }  # fmt: skip
    assert key_fields(Key("ab" * 32, "plain", "", "cpu"))["argument 1"] == "'plain'"


def test_a_dynamic_extent_is_that_of_its_bucket():
    some = helion.kernel(power.fn, dynamic={"x": (0,)})
    said = helion.explain(some, shape(17, 128))
    assert said.bucketed and said.fields["x.shape"] == "24x128" and "of the bucket" in str(said)
    assert said.key == helion.explain(some, shape(24, 128)).key


class Listed:
    """A tier with these records."""

    def __init__(self, *records):
        self.them = records

    def get(self, key):
        return next((r for r in self.them if r.key == key), None)

    def records(self):
        yield from self.them


def test_a_key_in_several_tiers_is_told_once_and_of_the_first():
    def record(extent, digest="ab"):
        key = Key(digest * 32, (("tensor", (str(extent),), "float32"),), NUMERICS, "v5e")
        return Record(key, "k", Status.WINNER, {}, 1, Evidence(EvidenceKind.SCHEDULED, 1.0), {})

    asked = [Place("local", Listed(record(256), record(1024))), Place("shipped", Listed(record(256), record(512)))]
    near = nearest_keys(asked, record(128).key, "k", ["x"])
    assert [(n.tier, n.differences[0].there) for n in near] == [("local", "256"), ("shipped", "512"), ("local", "1024")]
    assert nearest_keys(asked, record(128, "cd").key, "unknown", ["x"]) == ()


def test_a_shared_tier_named_in_code_is_asked_too(tmp_path, monkeypatch):
    monkeypatch.setattr(sharing, "_in_code", {f"file://{tmp_path}/code": TierMode.READ_ONLY})
    monkeypatch.setenv("HELION_RT_SHARED", f"file://{tmp_path}/environment")
    assert [held.tier for held in helion.explain(power, shape(24, 128)).held][1:3] == [
        f"file://{tmp_path}/environment", f"file://{tmp_path}/code"
    ]  # fmt: skip
    monkeypatch.setenv("HELION_RT_TIERS", "shared=off,shipped=off")
    assert [held.tier for held in helion.explain(power, shape(24, 128)).held] == ["local"]


def test_a_shared_tier_is_asked_and_one_that_cannot_be_is_told(tmp_path, monkeypatch):
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("HELION_RT_SHARED", f"file://{folder} file://{tmp_path}/gone")
    key = helion.explain(power, shape(24, 128)).key
    with places(Listed(), Settings.from_env()) as asked:
        shared = asked.tiers[1]
        assert shared.source is not None
        shared.source.put(  # type: ignore[attr-defined]
            Record(key, "power", Status.WINNER, {"block_sizes": [8, 128]}, SPACE_VERSION, Evidence(EvidenceKind.SCHEDULED, 1.0), {})
        )
    said = helion.explain(power, shape(24, 128))
    by_tier = {held.tier: held for held in said.held}
    assert said.best is by_tier[f"file://{folder}"] and said.standing is Standing.HINT
    assert "cannot be asked" in by_tier[f"file://{tmp_path}/gone"].problem
    assert [tier["standing"] for tier in said.to_dict()["tiers"]][:3] == ["miss", "hint", None]
