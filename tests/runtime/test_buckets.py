"""``dynamic=``: the rule, whose record serves, and that one tune is enough for a bucket."""

from __future__ import annotations

import dataclasses
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import helion_rt as helion
import helion_rt.language as hl
from helion_rt import targets
from helion_rt.autotuner import PowerOfTwoFragment
from helion_rt.database import Evidence, EvidenceKind, Record, Status, open_local
from helion_rt.exc import ConfigError
from helion_rt.runtime import ahead, background, buckets, improve, prepare
from helion_rt.runtime.counters import counters
from helion_rt.runtime.slot import Origin, Tuning
from helion_rt.tuning.evidence import Trial
from helion_rt.tuning.measure import Pairs
from helion_rt.tuning.space import SPACE_VERSION, Space


def test_a_kernel_keeps_so_many_programs_at_rounded_extents_and_no_more(monkeypatch):
    monkeypatch.setattr(buckets, "MAX_ROUNDED", 3)
    monkeypatch.setattr(buckets, "MAX_PROGRAMS_OF_ONE", 2)
    programs, found = buckets.Programs(), []

    class Factual:  # as a kernel: the facts of arguments are the arguments
        name, facts = "k", staticmethod(lambda bound: bound)

    def get(bound, program, fits=lambda program, facts: False):
        find = lambda: found.append(program) or prepare.Found(program, True, ())  # noqa: E731
        return programs.get(Factual(), bound, find, fits).program

    for extent in range(5):
        for program in range(3):
            get((extent,), (extent, program))
    assert len(found) == 15
    assert [get((extent,), "anew", lambda *_: True) for extent in (4, 3, 2)] == [(4, 2), (3, 2), (2, 2)]
    assert [get((2,), "anew", lambda program, _, n=n: program == (2, n)) for n in (2, 1)] == [(2, 2), (2, 1)]
    assert get((1,), "anew", lambda *_: True) == get((2,), "anew", lambda program, _: program == (2, 0)) == "anew"


class Known:
    """An evaluator that knows the seconds of a config by its first block size; a text is a fault."""

    kind = EvidenceKind.MEASURED

    def __init__(self, seconds, doubtful=False):
        self.seconds, self.doubtful, self.asked = seconds, doubtful, []

    def trial(self, config):
        self.asked.append(config)
        known = self.seconds.get(config.block_sizes[0], 1.0)
        return Trial(known, doubtful=self.doubtful) if isinstance(known, str) else Trial(None, known)

    def pairs(self, a, b, budget):
        return Pairs(*[(self.seconds.get(c.block_sizes[0], 1.0),) * 8 for c in (a, b)])


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """``bench(seconds, here)``: what candidates take with the extents of a bucket, and with a slot's own."""
    monkeypatch.setenv("HELION_RT_RUNTIME_DIR", str(tmp_path / "run"))

    def use(seconds, here=None):
        tunes, own = Known(seconds), Known(here or {})
        monkeypatch.setattr(improve, "evaluators_of", lambda slot, workers, record, stopping: [tunes])
        monkeypatch.setattr(improve, "evaluators_here", lambda slot, workers, stopping: [own])
        return tunes, own

    return use


def make_kernel(**settings):
    @helion.kernel(**{"dynamic": {"x": (0,)}, "tune_seconds": 5, "tune_after": 1, **settings})
    def doubled(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile, :] = x[tile, :] * 2
        return out

    return doubled


def rows(n):
    return jnp.arange(n * 8, dtype=jnp.float32).reshape(n, 8)


def put(kernel, n, block, tier, **changes):
    """A measured record of this machine for the bucket of ``n`` rows."""
    _, key, _, _ = prepare.find(kernel, kernel.bound(jax.ShapeDtypeStruct((n, 8), jnp.float32)), targets.detect())
    evidence = Evidence(EvidenceKind.MEASURED, 1.0, 2.0)
    config = {"block_sizes": [block]}
    tier.put(dataclasses.replace(Record(key, kernel.name, Status.WINNER, config, SPACE_VERSION, evidence, prepare.toolchain()), **changes))
    return key


# ------------------------------------------------------------------------------------------------ the rule


def test_the_rule():
    assert [buckets.round_up(n) for n in (0, 1, 15, 16, 17, 24, 25, 32, 33, 48, 49, 1000, 1024, 1025, 1537)] == [
        0, 1, 15, 16, 24, 24, 32, 32, 48, 48, 64, 1024, 1024, 1536, 2048,
    ]  # fmt: skip


@given(st.integers(0, 2**40), st.integers(0, 2**40))
def test_buckets_are_in_order_and_not_half_as_large_again(a, b):
    up = buckets.round_up(a)
    assert a <= up <= max(a, 1.5 * a) and buckets.round_up(up) == up
    assert (a <= b) <= (up <= buckets.round_up(b))


# ------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("dynamic", "says"),
    [
        ({"z": (0,)}, "'z', which is no parameter"),
        ({"x": ()}, "expected a tuple of dimensions"),
        ({"x": (0.5,)}, "expected a tuple of dimensions"),
        ({"x": "0"}, "expected a tuple of dimensions"),
        (["x"], "dynamic= is a list"),
    ],
)
def test_what_dynamic_cannot_be_is_refused_where_it_is_written(dynamic, says):
    with pytest.raises(ConfigError, match=says):
        make_kernel(dynamic=dynamic)


@pytest.mark.parametrize("dim", [2, -3])
def test_a_dimension_that_is_not_there(dim):
    with pytest.raises(ConfigError, match=f"dimension {dim} of 'x' varies, but 'x' has 2 dimensions"):
        make_kernel(dynamic={"x": (dim,)})(rows(20))


def test_a_number_has_no_dimensions():
    @helion.kernel(dynamic={"by": (0,)})
    def times(x: torch.Tensor, by: float) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] * by
        return out

    with pytest.raises(ConfigError, match="'by' is no array with dimensions"):
        times(jnp.ones(32), 2.0)


# ------------------------------------------------------------------------------------------------ keys


def key_of(kernel, *shapes, **kwargs):
    return kernel.bind(*(jnp.zeros(shape, jnp.float32) for shape in shapes), **kwargs).key


def test_extents_of_a_bucket_have_one_key_and_it_is_that_of_its_own_extents():
    kernel, exact = make_kernel(), make_kernel(dynamic=None)
    keys = {key_of(kernel, (n, 8)) for n in (25, 28, 31, 32)}
    assert keys == {key_of(exact, (32, 8))}
    assert key_of(kernel, (33, 8)) not in keys and key_of(kernel, (25, 16)) not in keys
    assert len({key_of(exact, (n, 8)) for n in (25, 28)}) == 2


def test_every_extent_computes_with_its_own():
    kernel = make_kernel(dynamic={"x": (-2,)})
    for n in (25, 28, 31, 32):
        assert np.array_equal(kernel(rows(n)), rows(n) * 2)
        t = torch.arange(n * 8, dtype=torch.float32).reshape(n, 8)
        assert torch.equal(kernel(t), t * 2)
    # One capture an extent, and one for the extents of the bucket.
    assert counters.captures == 5 - 1


def test_whatever_the_argument_is_the_key_is_the_same():
    kernel = make_kernel()
    wanted = {dtype: kernel.bind(jnp.zeros((128, 8), dtype)).key for dtype in ("float32", "bfloat16", "int32")}
    assert len(set(wanted.values())) == 3
    for dtype, key in wanted.items():
        for value in (
            jnp.zeros((100, 8), dtype), torch.zeros((100, 8), dtype=getattr(torch, dtype)), jax.ShapeDtypeStruct((100, 8), dtype),
            torch.zeros((100, 8), dtype=getattr(torch, dtype), device="meta"),
        ):  # fmt: skip
            assert prepare.find(kernel, kernel.bound(value), targets.detect())[1] == key, (dtype, type(value))


def test_under_jit_too():
    kernel = make_kernel()
    assert np.array_equal(jax.jit(lambda x: kernel(x) + 1)(rows(100)), rows(100) * 2 + 1)
    assert kernel.bind(rows(100)).key == kernel.bind(rows(128)).key


def test_a_warm_process_captures_nothing():
    first, second = make_kernel(tune="off"), make_kernel(tune="off")
    for kernel in (first, second):
        kernel(rows(25))
        assert background.tuner.wait(60)
    assert counters.captures == 2


def test_dimensions_that_must_agree_round_alike():
    @helion.kernel(dynamic={"x": (0,), "y": (0,)})
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        assert x.size(0) == y.size(0), "as many rows"
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] + y[tile]
        return out

    assert key_of(add, (100,), (100,)) == key_of(add, (128,), (128,))


def test_where_not_all_that_must_agree_are_listed_the_exact_extents_are_tuned(caplog):
    @helion.kernel(dynamic={"x": (0,)})
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        assert x.size(0) == y.size(0), "as many rows"
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] + y[tile]
        return out

    with caplog.at_level(logging.WARNING, "helion_rt"):
        assert np.array_equal(add(jnp.ones(100), jnp.ones(100)), np.full(100, 2.0))
        assert key_of(add, (100,), (100,)) != key_of(add, (101,), (101,))
    assert sum("list all of them in dynamic=" in record.getMessage() for record in caplog.records) == 1


def test_what_is_specialised_has_buckets_of_its_own():
    @helion.kernel(dynamic={"x": (0,)})
    def times(x: torch.Tensor, by: int) -> torch.Tensor:
        by = hl.specialize(by)
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] * by
        return out

    keys = [times.bind(jnp.ones(n), by).key for n, by in ((30, 2), (31, 2), (30, 3), (31, 3))]
    assert keys[0] == keys[1] != keys[2] == keys[3]
    assert np.array_equal(times(jnp.ones(30), 3), np.full(30, 3.0))


def test_indices_stay_valid_at_the_extents_of_the_bucket():
    offsets = jnp.asarray([0, 3, 3, 10, 12, 20, 21, 30, 33, 40, 41, 42, 43, 44, 45, 50, 60, 64], jnp.int32)
    kernel = make_kernel()
    (up,) = buckets.rounded(kernel, (offsets,)) or ()
    assert isinstance(up, np.ndarray) and up.shape == (24,) and np.all(np.diff(up) >= 0) and set(up.tolist()) == set(offsets.tolist())
    assert isinstance((buckets.rounded(kernel, (rows(25),)) or ())[0], jax.ShapeDtypeStruct)
    assert buckets.rounded(kernel, (rows(24),)) is None


def test_lists_and_nothing():
    kernel = make_kernel()
    assert buckets.rounded(kernel, (None,)) is None
    (up,) = buckets.rounded(kernel, ([rows(16), rows(17)],)) or ()
    assert [a.shape for a in up] == [(16, 8), (24, 8)] and type(up) is list


# ------------------------------------------------------------------------------------------------ records


def test_a_record_of_the_bucket_serves_every_extent(own_cache):
    kernel = make_kernel()
    put(kernel, 100, 32, open_local(own_cache))
    for n in (97, 128):
        assert np.array_equal(kernel(rows(n)), rows(n) * 2)
        slot = kernel.bind(rows(n))
        assert slot.serving.origin is Origin.RECORD and slot.serving.config.block_sizes == [32]
    assert kernel.bind(rows(96)).serving.origin is Origin.DEFAULT
    assert kernel.lower(rows(97)).config.block_sizes == [32]


def test_a_block_that_covers_its_axis_does_so_at_every_extent(own_cache):
    kernel = make_kernel()
    put(kernel, 100, 128, open_local(own_cache))
    assert kernel.bind(rows(100)).serving.config.block_sizes == kernel.lower(rows(100)).config.block_sizes == [100]


def test_the_users_own_configs_are_taken_as_they_are(own_cache):
    kernel = make_kernel(configs=[helion.Config(block_sizes=[128]), helion.Config(block_sizes=[32])])
    put(kernel, 100, 128, open_local(own_cache))
    assert kernel.bind(rows(100)).serving.config.block_sizes == [128]
    assert np.array_equal(kernel(rows(100)), rows(100) * 2)


def test_a_config_that_is_not_legal_at_an_extent_leaves_the_default(own_cache, monkeypatch):
    kernel = make_kernel(tune="background")
    put(kernel, 100, 32, open_local(own_cache))
    monkeypatch.setattr(buckets, "fitted", lambda config, bucket, exact: None)
    slot = kernel.bind(rows(100))
    assert slot.serving.origin is Origin.DEFAULT and slot.tuning is Tuning.DONE


def test_a_config_that_does_not_compile_at_an_extent_stays_the_winner_of_the_bucket(own_cache, monkeypatch):
    kernel, real = make_kernel(), prepare.serve
    key = put(kernel, 100, 32, open_local(own_cache))

    def fails(slot, config, *rest):
        if config is not None and config.block_sizes == [32]:
            raise RuntimeError("the compiler says no")
        real(slot, config, *rest)

    monkeypatch.setattr(prepare, "serve", fails)
    assert kernel.bind(rows(100)).serving.origin is Origin.DEFAULT
    record = open_local(own_cache).get(key)
    assert record is not None and record.status is Status.WINNER and not record.quarantined


# ------------------------------------------------------------------------------------------------ tuning


def test_ten_extents_of_a_bucket_are_tuned_once(bench, own_cache):
    _, own = bench({64: 0.1})
    kernel = make_kernel(tune="background")
    for n in range(200, 210):
        kernel(rows(n))
    slots = [kernel.bind(rows(n)) for n in range(200, 210)]
    assert background.tuner.wait(120)
    assert [slot.tuning for slot in slots] == [Tuning.DONE] * 10
    assert {tuple(slot.serving.config.block_sizes) for slot in slots} == {(64,)}
    assert [slot.serving.origin for slot in slots].count(Origin.TUNED) == 1
    assert sum(slot.outcome is not None for slot in slots) == 1  # searched once
    assert [config.block_sizes for config in own.asked] == [[64]] * 10  # and tried once an extent
    assert len(list(open_local(own_cache).records())) == 1
    for n in range(200, 210):
        assert np.array_equal(kernel(rows(n)), rows(n) * 2)


def test_a_winner_that_is_wrong_at_an_extent_never_serves_there(bench, own_cache):
    bench({64: 0.1}, here={64: "differs from the reference"})
    kernel = make_kernel(tune="background")
    kernel(rows(200))
    assert background.tuner.wait(120)
    slot = kernel.bind(rows(200))
    assert slot.serving.config.block_sizes != [64] and slot.serving.origin is Origin.DEFAULT
    (record,) = open_local(own_cache).records()
    assert {"block_sizes": [64]} in record.quarantined


def test_a_record_that_is_wrong_at_an_extent_is_rolled_back_for_the_bucket(bench, own_cache):
    _, own = bench({}, here={32: "differs from the reference"})
    kernel = make_kernel(tune="background")
    key = put(kernel, 100, 32, open_local(own_cache))
    kernel(rows(100))
    assert background.tuner.wait(120)
    assert own.asked[0].block_sizes == [32] and kernel.bind(rows(100)).serving.origin is Origin.DEFAULT
    record = open_local(own_cache).get(key)
    assert record is not None and {"block_sizes": [32]} in record.quarantined and counters.rollbacks == 1


def test_a_record_is_tried_at_an_extent_in_the_background_and_goes_on_serving(bench, own_cache):
    tunes, own = bench({})
    kernel = make_kernel(tune="background")
    put(kernel, 100, 32, open_local(own_cache))
    kernel(rows(100))
    assert background.tuner.wait(120)
    assert [config.block_sizes for config in own.asked] == [[32]] and tunes.asked == []
    assert kernel.bind(rows(100)).serving.origin is Origin.RECORD and kernel.bind(rows(100)).tuning is Tuning.DONE
    kernel(rows(128))  # what was tuned: no need to try it again
    assert background.tuner.wait(120) and len(own.asked) == 1


def test_the_nearest_bucket_serves_until_the_own_one_is_tuned(bench, own_cache, monkeypatch):
    bench({64: 0.1})
    kernel = make_kernel(tune="background")
    tier = open_local(own_cache)
    for n, block in ((100, 32), (1000, 8)):
        put(kernel, n, block, tier)
    served = []
    monkeypatch.setattr(improve, "improve", lambda slot, *rest: served.append(slot.serving))
    kernel(rows(200))
    assert background.tuner.wait(120)
    (serving,) = served
    assert serving.config.block_sizes == [32] and serving.origin is Origin.RECORD and serving.evidence["ms"] is None
    assert np.array_equal(kernel(rows(200)), rows(200) * 2)


@pytest.mark.parametrize("fault", ["differs from the reference", None])
def test_the_nearest_bucket_does_not_serve_what_was_not_found_right_here(bench, own_cache, monkeypatch, fault):
    bench({}, here={32: fault} if fault else {})
    kernel = make_kernel(tune="background")
    other = make_kernel(dynamic=None) if fault is None else kernel
    put(kernel, 100, 32, open_local(own_cache))
    monkeypatch.setattr(improve, "improve", lambda slot, *rest: None)
    other(rows(200))  # without dynamic=, or with a fault
    assert background.tuner.wait(120)
    assert other.bind(rows(200)).serving.origin is Origin.DEFAULT


def test_other_shapes_are_no_other_buckets(own_cache):
    kernel = make_kernel()
    put(kernel, 100, 32, open_local(own_cache))
    slot = kernel.bind(jnp.zeros((200, 16)))
    assert buckets.near(open_local(own_cache).records(), slot.key, kernel, slot.program) == []
    slot = kernel.bind(rows(200))
    assert len(buckets.near(open_local(own_cache).records(), slot.key, kernel, slot.program)) == 1


def test_tuning_ahead_fills_the_bucket(bench, own_cache, monkeypatch):
    asked = []

    def found(space: Space, *rest, **more):
        asked.append(space.program.types[0].shape)
        raise InterruptedError

    monkeypatch.setattr(ahead, "search", found)
    with pytest.raises(InterruptedError):
        spec = jax.ShapeDtypeStruct((100, 8), jnp.float32)
        ahead.fill(make_kernel(), (spec,), targets.get("tpu7x"), None, ahead.Terms(1.0))  # type: ignore[arg-type]
    assert asked == [(128, 8)]


def make_tunable():
    @helion.kernel(dynamic={"x": (0,)}, tune="background", tune_seconds=5, tune_after=1)
    def doubled(x: torch.Tensor) -> torch.Tensor:
        k = hl.register_tunable("k", PowerOfTwoFragment(1, 2))
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile, :] = x[tile, :] * (2 * k) * (1 / k)
        return out

    return doubled


class TwiceAsFast(Known):
    """With k = 2; block sizes change nothing."""

    def trial(self, config):
        self.asked.append(config)
        return Trial(None, 1.0 / config.get("k", 1))

    def pairs(self, a, b, budget):
        return Pairs(*[(1.0 / c.get("k", 1),) * 8 for c in (a, b)])


def test_tunables_of_a_bucket_are_searched_and_serve_its_extents(bench, monkeypatch):
    _, own = bench({})
    monkeypatch.setattr(improve, "evaluators_of", lambda slot, workers, record, stopping: [TwiceAsFast({})])
    for kernel in (make_tunable(), make_tunable()):  # the second finds the record
        for n in (100, 101):
            kernel(rows(n))
            assert background.tuner.wait(120)
            slot = kernel.bind(rows(n))
            assert slot.serving.config.get("k") == 2 and dict(slot.program.notes) == {"k": 1}
            assert np.array_equal(kernel(rows(n)), rows(n) * 2)
    assert {config.get("k") for config in own.asked} == {2}


@pytest.mark.slow
def test_a_bucket_is_tuned_for_real(tmp_path, monkeypatch):
    monkeypatch.setenv("HELION_RT_RUNTIME_DIR", str(tmp_path / "run"))
    kernel = make_kernel(tune="background", tune_seconds=3)
    for n in (200, 201):
        kernel(rows(n))
    assert background.tuner.wait(280)
    slots = [kernel.bind(rows(n)) for n in (200, 201)]
    assert [slot.tuning for slot in slots] == [Tuning.DONE] * 2
    assert sum(slot.outcome is not None for slot in slots) == 1
    for n in (200, 201):
        assert np.array_equal(kernel(rows(n)), rows(n) * 2)
