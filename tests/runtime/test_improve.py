"""What the tuner does for a slot, with an evaluator whose times are known: hints, roll-backs, seeds, when and in which order."""

import dataclasses
import logging
import threading

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import helion_rt as helion
import helion_rt.language as hl
from helion_rt.database import Evidence, EvidenceKind, Record, Status, host_lock, open_local
from helion_rt.database import Origin as CameBy
from helion_rt.runtime import background, improve, prepare
from helion_rt.runtime.counters import counters
from helion_rt.runtime.slot import Origin, Tuning
from helion_rt.tuning.evidence import Trial
from helion_rt.tuning.measure import Pairs
from helion_rt.tuning.space import SPACE_VERSION

CONFIGS = [helion.Config(block_sizes=[n]) for n in (64, 32, 16)]


class Known:
    """An evaluator that knows the seconds of a config by its block size; a text is a fault."""

    kind = EvidenceKind.MEASURED

    def __init__(self, seconds, busy=False):
        self.seconds, self.busy, self.asked, self.quarantined = seconds, busy, [], frozenset()

    def trial(self, config):
        if config in self.quarantined:  # as ``pool.WorkerEvaluator`` does
            return Trial("quarantined")
        self.asked.append(config.block_sizes[0])
        known = self.seconds[config.block_sizes[0]]
        return Trial(known) if isinstance(known, str) else Trial(None, known)

    def pairs(self, a, b, budget):
        times = [(self.seconds[c.block_sizes[0]],) * 8 for c in (a, b)]
        return Pairs(*times, busy=self.busy)


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """``bench(seconds)``: from now on candidates take these seconds. Returns the evaluator."""
    monkeypatch.setenv("HELION_RT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("HELION_RT_RUNTIME_DIR", str(tmp_path / "run"))

    def use(seconds, **more):
        known = Known(seconds, **more)

        def evaluators_of(slot, workers, record, stopping):
            known.quarantined = improve.quarantine(record)
            return [known]

        monkeypatch.setattr(improve, "evaluators_of", evaluators_of)
        return known

    return use


def make_kernel(**settings):
    @helion.kernel(configs=CONFIGS, **{"tune": "background", "tune_seconds": 5, "tune_after": 1, **settings})
    def doubled(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] * 2
        return out

    return doubled


X = jnp.arange(64, dtype=jnp.float32)


def serve(kernel):
    assert np.array_equal(kernel(X), X * 2)
    assert background.tuner.wait(60)
    assert np.array_equal(kernel(X), X * 2)
    return kernel.bind(X)


def record_of(slot, size, **changes):
    evidence = Evidence(EvidenceKind.MEASURED, 1.0, 2.0, pairs=9)
    fields = {"config": {"block_sizes": [size]}, "evidence": evidence, "toolchain": prepare.toolchain()}
    fields |= {"key": slot.key, "kernel": slot.kernel.name, "status": Status.WINNER, "space_version": SPACE_VERSION}
    return Record(**{**fields, **changes})


OLD = {"date": "2025-01-01T00:00:00Z"}


@pytest.fixture
def stored(bench):
    """``stored(size, **changes)``: puts a record of a winner into the database that kernels made from now on will see."""

    def put(size, **changes):
        slot = make_kernel(tune="off").bind(X)
        assert slot.tier.put(record_of(slot, size, **changes), force=True)
        return slot.tier

    return put


def test_a_winner_is_found_stored_and_served(bench):
    bench({64: 2.0, 32: 1.0, 16: 3.0})
    slot = serve(make_kernel())
    assert slot.serving.config == CONFIGS[1] and slot.serving.origin is Origin.TUNED
    record = slot.tier.get(slot.key)
    assert record.status is Status.WINNER and record.evidence.kind is EvidenceKind.MEASURED


def test_a_measured_winner_of_today_is_the_last_word(bench, stored):
    stored(16)
    known = bench({64: 1.0, 32: 1.0, 16: 9.0})
    slot = serve(make_kernel())
    assert slot.serving.config == CONFIGS[2] and slot.serving.origin is Origin.RECORD and known.asked == []


def test_a_key_that_is_to_be_retuned_is_searched_again_from_its_winner(bench, stored):
    tier = stored(16)
    (before,) = tier.local.records()
    tier.put(before.to_be_retuned())
    known = bench({64: 2.0, 32: 0.5, 16: 1.0})
    kernel = make_kernel()
    assert np.array_equal(kernel(X), X * 2) and kernel.bind(X).serving.config == CONFIGS[2], "the winner serves meanwhile"
    slot = serve(kernel)
    assert set(known.asked) == {16, 32, 64} and slot.serving.config == CONFIGS[1]
    (after,) = tier.local.records()
    assert after.config == {"block_sizes": [32]} and not after.retune and after.revision == before.revision + 1
    asked = len(known.asked)
    serve(make_kernel())
    assert len(known.asked) == asked, "once was enough"


def test_what_a_retune_finds_takes_the_place_of_a_faster_record(bench, stored):
    """The old time may be another day's: what is found now is believed."""
    tier = stored(16)
    (before,) = tier.local.records()
    tier.put(before.to_be_retuned())
    bench({64: 200.0, 32: 90.0, 16: 100.0})
    slot = serve(make_kernel())
    (after,) = tier.local.records()
    assert after.evidence.ms == 90_000.0 > before.evidence.ms and not after.retune and slot.serving.config == CONFIGS[1]


@pytest.mark.parametrize("why", [OLD, {"origin": CameBy.IMPORTED}], ids=["old", "imported"])
def test_a_winner_that_still_wins_is_stored_anew(bench, stored, why):
    stored(16, **why)
    known = bench({64: 2.0, 32: 0.1, 16: 1.0})
    slot = serve(make_kernel())
    record = slot.tier.get(slot.key)
    assert set(known.asked) == {16, 64}, "no search: the winner and the default"
    assert record.config == {"block_sizes": [16]} and record.date > "2026" and record.evidence.default_ms == 2000.0
    assert slot.serving.config == CONFIGS[2] and slot.tuning is Tuning.DONE
    serve(make_kernel())
    assert len(known.asked) == 2, "once was enough"


def test_an_offer_that_comes_while_another_is_looked_at_is_looked_at_too(bench, monkeypatch):
    bench({})
    slot, looked, tuner = make_kernel(tune="off").bind(X), [], background.Tuner()

    def adopt(slot):
        looked.append(slot)
        if len(looked) == 1:
            tuner.offer(slot)  # a peer takes back what was just read
        assert not tuner.wait(0), "it is not through"
        return False

    monkeypatch.setattr(tuner, "_adopt", adopt)
    monkeypatch.setattr(tuner, "_start", lambda: None)
    tuner.offer(slot)
    tuner.offer(slot)
    for looks in (1, 2, 2):
        tuner._take_offers(None)
        assert len(looked) == looks
    assert tuner.wait(0)


def test_an_old_winner_that_lost_is_rolled_back_and_never_tried_again(bench, stored, caplog):
    stored(16, **OLD)
    known = bench({64: 1.0, 32: 1.0, 16: 2.0})
    before = counters.rollbacks
    slot = serve(make_kernel())
    record = slot.tier.get(slot.key)
    assert slot.serving.config == slot.space.default() and slot.serving.origin is Origin.DEFAULT
    assert record.status is Status.NO_CANDIDATE and record.quarantined == ({"block_sizes": [16]},) and record.revision == 1
    assert counters.rollbacks == before + 1 and known.asked.count(16) == 1
    assert any("rolled back and put in quarantine: the default is faster today" in r.getMessage() for r in caplog.records)
    # The next process, whatever another one that has not heard of it may have stored since.
    assert slot.tier.put(record_of(slot, 16))
    again = make_kernel().bind(X)
    assert again.serving.config == slot.space.default()


def test_an_old_winner_that_is_wrong_today_is_rolled_back(bench, stored):
    stored(16, **OLD)
    bench({64: 2.0, 32: 1.0, 16: "wrong result: ..."})
    slot = serve(make_kernel())
    record = slot.tier.get(slot.key)
    assert slot.serving.config == CONFIGS[1] and record.config == {"block_sizes": [32]} and record.quarantined == ({"block_sizes": [16]},)


def test_on_a_busy_machine_nothing_is_rolled_back(bench, stored):
    stored(16, **OLD)
    bench({64: 1.0, 32: 1.0, 16: 2.0}, busy=True)
    slot = serve(make_kernel())
    assert slot.serving.config == CONFIGS[2] and slot.tier.get(slot.key).date == OLD["date"]


def test_a_scheduled_record_serves_at_once_and_the_search_begins_with_it(bench, stored):
    stored(16, evidence=Evidence(EvidenceKind.SCHEDULED, 1.0, 2.0))
    known = bench({64: 2.0, 32: 1.0, 16: 3.0})
    kernel = make_kernel()
    assert kernel.bind(X).serving.config == CONFIGS[2] and kernel.bind(X).serving.origin is Origin.RECORD
    slot = serve(kernel)
    assert known.asked[1] == 16, "after the default"
    record = slot.tier.get(slot.key)
    assert slot.serving.config == CONFIGS[1] and record.evidence.kind is EvidenceKind.MEASURED and record.quarantined == ()


def test_a_hint_that_is_no_better_than_the_default_makes_room_for_it(bench, stored):
    stored(16, evidence=Evidence(EvidenceKind.MODELLED, 1.0, 2.0))
    bench({64: 1.0, 32: 1.0, 16: 1.0})
    slot = serve(make_kernel())
    assert slot.serving.origin is Origin.DEFAULT and slot.tier.get(slot.key).status is Status.NO_CANDIDATE


def test_a_record_whose_config_does_not_compile_here_is_put_in_quarantine(bench, stored, monkeypatch):
    tier = stored(16)
    real = prepare.executable.compiled

    def refuse(fn, program, committed=None):
        raise RuntimeError("no such instruction\nand a stack")

    monkeypatch.setattr(prepare.executable, "compiled", refuse)
    monkeypatch.setattr(prepare, "serve_default", lambda slot, evidence=None: monkeypatch.setattr(prepare.executable, "compiled", real))
    kernel = make_kernel(tune="off")
    kernel.bind(X)
    (record,) = list(tier.local.records())
    assert record.quarantined == ({"block_sizes": [16]},) and record.status is Status.ALL_FAILED


def test_a_record_for_whose_config_there_was_no_memory_stays_what_it_is(bench, stored, monkeypatch):
    tier, served = stored(16), prepare.serve

    def serve_(slot, config, *rest):
        if config == CONFIGS[2]:
            raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")
        served(slot, config, *rest)

    monkeypatch.setattr(prepare, "serve", serve_)
    kernel = make_kernel(tune="off")
    kernel.bind(X)
    (record,) = list(tier.local.records())
    assert record.status is Status.WINNER and not record.quarantined
    assert kernel(X) is not None


def test_in_the_place_of_a_record_that_does_not_compile_here_another_winner_is_searched(bench, stored, monkeypatch):
    stored(16)
    known, served = bench({64: 2.0, 32: 1.0, 16: 0.1}), prepare.serve

    def serve_(slot, config, *rest):
        if config == CONFIGS[2]:
            raise RuntimeError("no such instruction")
        served(slot, config, *rest)

    monkeypatch.setattr(prepare, "serve", serve_)
    slot = serve(make_kernel())
    assert set(known.asked) == {64, 32} and slot.serving.config == CONFIGS[1] and slot.serving.origin is Origin.TUNED
    (record,) = list(slot.tier.local.records())
    assert record.config == {"block_sizes": [32]} and record.quarantined == ({"block_sizes": [16]},)


def test_a_winner_that_fails_in_a_call_is_withdrawn_and_the_default_serves(bench, stored):
    tier = stored(16)
    kernel = make_kernel(tune="off")
    slot = kernel.bind(X)
    assert slot.serving.config == CONFIGS[2]

    def fail(*arrays):
        raise RuntimeError("the device said no")

    slot.serving = dataclasses.replace(slot.serving, executable=fail)
    assert np.array_equal(kernel(X), X * 2)
    assert slot.serving.origin is Origin.DEFAULT
    (record,) = list(tier.local.records())
    assert record.quarantined == ({"block_sizes": [16]},)


def test_the_winner_of_another_shape_is_tried_first(bench):
    bench({64: 2.0, 32: 3.0, 16: 1.0})
    serve(make_kernel())
    other = jnp.ones(128, jnp.float32)
    known = bench({64: 2.0, 32: 3.0, 16: 1.0, 128: 2.0})
    kernel = make_kernel()
    kernel(other)
    assert background.tuner.wait(60)
    assert known.asked[1] == 16


def test_a_signature_is_tuned_once_it_was_called_often_enough(bench, monkeypatch):
    monkeypatch.setattr(background, "START_DELAY_SECONDS", 0.0)
    monkeypatch.setattr(background, "COUNT_SECONDS", 0.01)
    known = bench({64: 2.0, 32: 1.0, 16: 3.0})
    kernel = make_kernel(tune_after=3)
    kernel(X), kernel(X)
    slot = kernel.bind(X)
    assert not slot.done.wait(0.3) and known.asked == [] and slot.tuning is Tuning.QUEUED
    kernel(X)
    assert slot.done.wait(60) and slot.tuning is Tuning.DONE and known.asked


def test_a_call_that_is_traced_counts_for_many_and_who_waits_gets_all(bench):
    import jax

    bench({64: 2.0, 32: 1.0, 16: 3.0})
    traced = make_kernel(tune_after=100)
    jax.jit(traced)(X)
    assert traced.bind(X).is_worth_tuning
    assert background.tuner.wait(60) and traced.bind(X).tuning is Tuning.DONE
    slot = serve(make_kernel(tune_after=100, tune_seconds=4))
    assert slot.tuning is Tuning.DONE


def test_the_busiest_comes_first(bench, monkeypatch):
    monkeypatch.setattr(background, "START_DELAY_SECONDS", 0.0)
    bench({64: 2.0, 32: 1.0, 16: 3.0})
    order, gate = [], threading.Event()
    monkeypatch.setattr(improve, "improve", lambda slot, workers, stopping, between: (gate.wait(30), order.append(slot), None)[2])
    tuner = background.Tuner()
    slots = []
    for calls in (1, 5, 3):
        slot = make_kernel().bind(X)
        slot.tallies[Origin.DEFAULT].calls, slot.tuning = calls, Tuning.QUEUED
        slots.append(slot)
    tuner.submit(slots[0])  # this one is taken up while the others come
    while slots[0].tuning is not Tuning.RUNNING:
        gate.wait(0.01)
    for slot in slots[1:]:
        tuner.submit(slot)
    gate.set()
    assert tuner.wait(60)
    assert [slot.calls for slot in order] == [1, 5, 3]
    tuner.stop()


def test_one_tuner_a_machine_and_what_waits_stays_queued(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(background, "POLL_SECONDS", 0.02)
    known = bench({64: 2.0, 32: 1.0, 16: 3.0})
    kernel = make_kernel()
    with host_lock(tmp_path / "run") as mine:  # as another process would
        assert mine
        kernel(X)
        slot = kernel.bind(X)
        assert not background.tuner.wait(0.6) and known.asked == [] and slot.tuning is Tuning.QUEUED
    assert background.tuner.wait(60) and slot.tuning is Tuning.DONE and known.asked


def test_a_slot_that_is_evicted_leaves_the_queue(bench):
    bench({64: 2.0, 32: 1.0, 16: 3.0})
    kernel = make_kernel(tune_after=100)
    kernel(X)
    slot = kernel.bind(X)
    slot.evicted = True
    assert background.tuner.wait(60) and slot.tuning is Tuning.OFF and slot.done.is_set()


def test_a_worker_in_which_nothing_runs_is_a_verdict(bench, monkeypatch, tmp_path, caplog):
    caplog.set_level(logging.WARNING, logger="helion_rt")
    bench({})

    class Closed(Known):
        def trial(self, config):
            raise improve.pool.CannotOpen("the reference path does not run in a worker: no memory")

    monkeypatch.setattr(improve, "evaluators_of", lambda slot, workers, record, stopping: [Closed({})])
    slot = serve(make_kernel())
    assert slot.tuning is Tuning.FAILED and slot.serving.origin is Origin.DEFAULT
    (record,) = list(open_local(tmp_path).records())
    assert record.status is Status.ALL_FAILED
    assert make_kernel().bind(X).tuning is Tuning.DONE


def test_strict_is_another_key_and_says_what_to_be_like(bench, monkeypatch):
    loose, strict = make_kernel(tune="off").bind(X), make_kernel(tune="off", strict=True).bind(X)
    assert loose.key.digest != strict.key.digest
    monkeypatch.undo()
    workers = improve.pool.Workers()
    (one,), (other,) = (improve.evaluators_of(slot, workers, None, lambda: False) for slot in (strict, loose))
    assert one.opening["like"] == strict.space.default().to_dict() and other.opening["like"] is None


def test_measured_in_this_process_as_on_a_device_that_one_process_owns(bench, monkeypatch):
    bench({})
    monkeypatch.setattr(improve, "evaluators_of", lambda slot, workers, record, stopping: [improve.on_device(slot, record, stopping)])
    before = counters.workers_started
    slot = serve(make_kernel())
    record = slot.tier.get(slot.key)
    assert slot.tuning is Tuning.DONE and record.evidence.candidates_tried >= 2 and slot.outcome.faults == []
    assert record.status in (Status.WINNER, Status.NO_CANDIDATE) and counters.workers_started == before
