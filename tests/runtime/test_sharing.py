"""What shared tiers mean for slots: winners of peers, roll-backs, leases. With a shared tier in memory and times that are known."""

import dataclasses
import sys
import threading
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import helion_rt as helion
import helion_rt.language as hl
from helion_rt.database import Evidence, EvidenceKind, Record, Status, exchange
from helion_rt.database import shared as shared_module
from helion_rt.database import tiers as tiers_module
from helion_rt.exc import ConfigError
from helion_rt.runtime import background, improve, prepare, sharing
from helion_rt.runtime.counters import counters
from helion_rt.runtime.slot import Origin, Tuning
from helion_rt.settings import Settings
from helion_rt.tuning.evidence import Trial
from helion_rt.tuning.measure import Pairs
from helion_rt.tuning.space import SPACE_VERSION

sys.path.insert(0, str(Path(__file__).parents[1] / "database"))
from fake_shared import FakeShared

CONFIGS = [helion.Config(block_sizes=[n]) for n in (64, 32, 16)]
SECONDS = {128: 2.0, 64: 2.0, 32: 1.0, 16: 3.0}
X = jnp.arange(64, dtype=jnp.float32)
OTHER_TOOLS = {"helion_rt": "9.9", "jax": "99.0", "jaxlib": "99.0"}


class Known:
    """An evaluator that knows the seconds of a config by its block size."""

    kind = EvidenceKind.MEASURED

    def trial(self, config):
        return Trial(None, SECONDS[config.block_sizes[0]])

    def pairs(self, a, b, budget):
        return Pairs(*((SECONDS[config.block_sizes[0]],) * 8 for config in (a, b)))


@pytest.fixture
def tunes(monkeypatch):
    """The keys that were tuned here, in order."""
    found, real = [], improve.improve

    def noted(slot, *rest):
        found.append(slot.key.digest)
        real(slot, *rest)

    monkeypatch.setattr(improve, "evaluators_of", lambda slot, workers, record, stopping: [Known()])
    monkeypatch.setattr(improve, "improve", noted)
    return found


@pytest.fixture
def shared(tmp_path, monkeypatch, tunes):
    """The shared tier of this process; leases and winners are looked for without much waiting."""
    shared = FakeShared()
    monkeypatch.setattr(shared_module, "open_shared", lambda url, trust: shared)
    monkeypatch.setenv("HELION_RT_SHARED", "fake://cluster")
    monkeypatch.setenv("HELION_RT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("HELION_RT_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(exchange, "RETRY_FIRST", 0.02)
    for module, name in [(sharing, "WATCH_SECONDS"), (sharing, "SERVING_SECONDS"), (background, "POLL_SECONDS"),
                         (background, "START_DELAY_SECONDS")]:  # fmt: skip
        monkeypatch.setattr(module, name, 0.02)
    monkeypatch.setattr(background, "TRIES_A_LEASE", 3000)
    yield shared
    shared.gate.set()
    shared.down = False
    for tiers in sharing.all_tiers():
        if tiers.directory == tmp_path:
            for slot in background.registry.all():
                slot.unwatch()
            tiers.close()


def make_kernel(**settings):
    @helion.kernel(configs=CONFIGS, **{"tune": "background", "tune_seconds": 5, "tune_after": 1, **settings})
    def doubled(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] * 2
        return out

    return doubled


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    """The key of the kernel for X, found without the shared tier."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HELION_RT_CACHE_DIR", str(tmp_path_factory.mktemp("other")))
        patch.delenv("HELION_RT_SHARED", raising=False)
        return make_kernel(tune="off").bind(X).key


def record_of(key, size, **changes):
    evidence = Evidence(EvidenceKind.MEASURED, 1.0, 2.0, pairs=9, candidates_tried=3)
    fields = {"config": {"block_sizes": [size]}, "evidence": evidence, "toolchain": prepare.toolchain()}
    fields |= {"key": key, "kernel": "doubled", "status": Status.WINNER, "space_version": SPACE_VERSION}
    return Record(**{**fields, **changes})


def until(shared, condition):
    """Wait until ``condition`` holds; the shared tier is asked all the time, so it is looked at often."""
    assert shared.until(condition, 60)


def right(kernel):
    return np.array_equal(kernel(X), X * 2)


def test_a_winner_of_the_cluster_serves_without_a_tune(shared, tunes, key):
    shared.plant(record_of(key, 16))
    kernel = make_kernel()
    assert right(kernel) and background.tuner.wait(60)
    slot = kernel.bind(X)
    until(shared, lambda: slot.serving.origin is Origin.RECORD)
    assert slot.serving.config == CONFIGS[2] and slot.tuning is Tuning.DONE and tunes == [] and right(kernel)
    assert slot.tier.local.get(key) == record_of(key, 16, date=slot.tier.local.get(key).date)


def test_with_tuning_off_winners_of_the_cluster_serve_too(shared, tunes, key):
    kernel = make_kernel(tune="off")
    assert right(kernel)
    slot = kernel.bind(X)
    assert slot.serving.origin is Origin.DEFAULT
    shared.plant(record_of(key, 32))
    until(shared, lambda: slot.serving.config == CONFIGS[1])
    assert slot.tuning is Tuning.OFF and tunes == [] and right(kernel)


def test_what_is_tuned_here_is_published(shared, tunes, key):
    kernel = make_kernel()
    assert right(kernel) and background.tuner.wait(60)
    until(shared, lambda: key.digest in shared.stored)
    assert shared.stored[key.digest].config == {"block_sizes": [32]} and tunes == [key.digest]
    until(shared, lambda: not shared.leases)
    assert {thread for _, thread in shared.calls} <= {"helion-rt-exchange", "helion-rt-lease"}


def test_while_another_process_tunes_its_winner_is_waited_for(shared, tunes, key):
    shared.leases[key.digest] = "a peer"
    kernel = make_kernel()
    assert right(kernel)
    slot = kernel.bind(X)
    until(shared, lambda: slot.tuning is Tuning.ELSEWHERE)
    assert slot.serving.origin is Origin.DEFAULT
    shared.plant(record_of(key, 16))
    assert background.tuner.wait(60)
    assert slot.tuning is Tuning.DONE and slot.serving.config == CONFIGS[2] and tunes == []


def test_a_lease_that_is_free_again_is_taken(shared, tunes, key):
    shared.leases[key.digest] = "a peer that dies"
    kernel = make_kernel()
    assert right(kernel)
    slot = kernel.bind(X)
    until(shared, lambda: slot.tuning is Tuning.ELSEWHERE)
    del shared.leases[key.digest]
    assert background.tuner.wait(60)
    assert slot.tuning is Tuning.DONE and slot.serving.origin is Origin.TUNED and tunes == [key.digest]


def test_a_cluster_that_cannot_be_reached_costs_nothing_but_its_winners(shared, tunes, key):
    shared.down = True
    kernel = make_kernel()
    assert right(kernel) and background.tuner.wait(60)
    slot = kernel.bind(X)
    assert slot.serving.origin is Origin.TUNED and tunes == [key.digest]
    shared.down = False
    until(shared, lambda: key.digest in shared.stored)


def test_a_cluster_that_hangs_is_not_waited_for(shared, tunes, key, monkeypatch):
    monkeypatch.setattr(sharing, "open_tiers", lambda settings, **more: _impatient(tiers_module.open_tiers(settings, **more)))
    shared.gate.clear()
    kernel = make_kernel()
    assert right(kernel) and background.tuner.wait(60)
    assert kernel.bind(X).serving.origin is Origin.TUNED and tunes == [key.digest] and shared.stored == {}


def _impatient(tiers):
    tiers.timeout = 0.05
    for one in tiers._exchanges:
        one.timeout = 0.05
    return tiers


def test_a_winner_that_a_peer_rolls_back_makes_room_for_the_default(shared, tunes, key):
    shared.plant(record_of(key, 16))
    kernel = make_kernel()
    assert right(kernel) and background.tuner.wait(60)
    slot, before = kernel.bind(X), counters.peer_rollbacks
    until(shared, lambda: slot.serving.config == CONFIGS[2])
    shared.plant(record_of(key, 16).rolled_back())
    until(shared, lambda: slot.serving.origin is Origin.DEFAULT)
    assert counters.peer_rollbacks == before + 1 and right(kernel)


def test_a_winner_that_fails_here_is_taken_back_for_all(shared, tunes, key):
    shared.plant(record_of(key, 16))
    kernel = make_kernel(tune="off")
    assert right(kernel)
    slot = kernel.bind(X)
    until(shared, lambda: slot.serving.config == CONFIGS[2])

    def fail(*arrays):
        raise RuntimeError("the device said no")

    slot.serving = dataclasses.replace(slot.serving, executable=fail)
    assert right(kernel) and slot.serving.origin is Origin.DEFAULT
    until(shared, lambda: {"block_sizes": [16]} in shared.stored[key.digest].quarantined)


def test_a_winner_of_another_toolchain_that_fails_here_stays_theirs(shared, tunes, key, monkeypatch):
    theirs = record_of(key, 16, toolchain=OTHER_TOOLS)
    shared.plant(theirs)
    served = prepare.serve

    def serve(slot, config, origin, evidence=None):
        if config == CONFIGS[2]:
            raise RuntimeError("no such instruction")
        served(slot, config, origin, evidence)

    monkeypatch.setattr(prepare, "serve", serve)
    kernel = make_kernel()
    assert right(kernel) and background.tuner.wait(60)
    slot = kernel.bind(X)
    assert slot.serving.origin is Origin.TUNED and slot.serving.config == CONFIGS[1] and tunes == [key.digest]
    own = slot.tier.refresh(key)
    assert own.config == {"block_sizes": [32]} and own.quarantined == () and own.toolchain == prepare.toolchain()
    slot.tier.close()
    assert shared.stored[key.digest] == theirs


def test_a_winner_of_another_toolchain_that_is_wrong_here_stays_theirs(shared, tunes, key, monkeypatch):
    class Wrong(Known):
        def trial(self, config):
            return Trial("wrong result: ...") if config == CONFIGS[2] else super().trial(config)

    monkeypatch.setattr(improve, "evaluators_of", lambda slot, workers, record, stopping: [Wrong()])
    theirs = record_of(key, 16, toolchain=OTHER_TOOLS)
    shared.plant(theirs)
    kernel = make_kernel()
    assert right(kernel) and background.tuner.wait(60)
    slot = kernel.bind(X)
    assert slot.serving.origin is Origin.TUNED and slot.serving.config == CONFIGS[1]
    assert slot.tier.refresh(key).config == {"block_sizes": [32]} and slot.tier.refresh(key).quarantined == ()
    slot.tier.close()
    assert shared.stored[key.digest] == theirs


def test_a_newer_toolchains_record_does_not_displace_what_was_measured_here(shared, tunes, key):
    kernel = make_kernel()
    assert right(kernel) and background.tuner.wait(60)
    slot = kernel.bind(X)
    until(shared, lambda: key.digest in shared.stored)
    shared.plant(record_of(key, 16, toolchain=OTHER_TOOLS))
    before = shared.count("get")
    until(shared, lambda: shared.count("get") > before + 3)
    assert slot.serving.config == CONFIGS[1] and slot.tier.refresh(key).config == {"block_sizes": [32]}
    assert shared.stored[key.digest].config == {"block_sizes": [16]}


def test_that_a_peer_found_nothing_better_ends_a_hint(shared, tunes, key):
    shared.plant(record_of(key, 16, evidence=Evidence(EvidenceKind.SCHEDULED, 1.0, 2.0)))
    kernel = make_kernel(tune="off")
    assert right(kernel)
    slot = kernel.bind(X)
    until(shared, lambda: slot.serving.config == CONFIGS[2])
    shared.plant(record_of(key, 64, status=Status.NO_CANDIDATE, config={}))
    until(shared, lambda: slot.serving.origin is Origin.DEFAULT)


def test_winners_of_others_are_served_while_a_key_is_tuned(shared, tunes, key, monkeypatch):
    """A search of a minute must not keep the winners of other keys waiting."""
    kernel, gate, begun = make_kernel(), threading.Event(), threading.Event()
    other = jnp.arange(128, dtype=jnp.float32)

    class Slow(Known):
        def trial(self, config):
            begun.set()
            assert gate.wait(60)
            return super().trial(config)

    monkeypatch.setattr(improve, "evaluators_of", lambda slot, workers, record, stopping: [Slow()])
    shared.leases[key.digest] = "a peer"
    assert right(kernel) and np.array_equal(kernel(other), other * 2)
    slot, tuned = kernel.bind(X), kernel.bind(other)
    assert begun.wait(60) and tuned.tuning is Tuning.RUNNING
    seen = []

    def trial(self, config):
        if not seen:
            shared.plant(record_of(key, 16))
            until(shared, lambda: slot in background.tuner._offered)
        seen.append(slot.serving.config)
        return Known.trial(self, config)

    monkeypatch.setattr(Slow, "trial", trial)
    gate.set()
    assert background.tuner.wait(60)
    assert seen[-1] == CONFIGS[2] and tuned.serving.origin is Origin.TUNED


def test_an_evicted_slot_is_watched_no_more(shared, tunes, key):
    kernel = make_kernel(tune="off")
    assert right(kernel)
    slot = kernel.bind(X)
    assert slot.watching is not None
    background.registry.drop(slot)
    (status,) = [tier for tier in slot.tier.status() if tier["tier"] == "shared"]
    assert status["watched"] == 0


def test_share_in_code(tmp_path, monkeypatch):
    monkeypatch.setattr(sharing, "_opened", {})
    monkeypatch.setattr(sharing, "_in_code", {})
    helion.share(f"file://{tmp_path}", mode="read-only")
    for wrong in ("pigeon://loft", "/mnt/tuning", "file:///a file:///b"):
        with pytest.raises(ConfigError):
            helion.share(wrong)
    with pytest.raises(ConfigError, match="read-only"):
        helion.share(f"file://{tmp_path}", mode="sometimes")
    sharing.tiers_of(Settings(cache_dir=tmp_path / "cache"))
    (shared,) = [tier for tier in helion.tier_status() if tier["tier"] == "shared"]
    assert shared["url"] == f"file://{tmp_path}" and shared["mode"] == "read-only" and shared["reachable"] is None
    with pytest.raises(ConfigError, match="too late"):
        helion.share(f"file://{tmp_path}")
