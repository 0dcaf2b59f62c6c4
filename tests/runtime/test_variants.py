"""Tunables of a kernel are searched: each value is a program of its own, and a record's config picks it in the next process."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import helion_rt as helion
import helion_rt.language as hl
from helion_rt import targets
from helion_rt.autotuner import BooleanFragment, EnumFragment, IntegerFragment, PowerOfTwoFragment
from helion_rt.database import EvidenceKind, Status
from helion_rt.runtime import background, improve, prepare, variants
from helion_rt.runtime.slot import Origin
from helion_rt.tuning.evidence import Trial
from helion_rt.tuning.judge import Judge
from helion_rt.tuning.measure import Pairs
from helion_rt.tuning.worker import Session, trial

X = jnp.arange(32, dtype=jnp.float32)


class Known:
    """Four times as fast with k=4; block sizes change nothing."""

    kind = EvidenceKind.MEASURED

    def __init__(self, best=4):
        self.best, self.asked, self.quarantined = best, [], frozenset()

    def seconds(self, config):
        return 1.0 if config.get("k", 1) == self.best else 4.0

    def trial(self, config):
        self.asked.append(config.get("k"))
        return Trial("quarantined") if config in self.quarantined else Trial(None, self.seconds(config))

    def pairs(self, a, b, budget):
        return Pairs((self.seconds(a),) * 8, (self.seconds(b),) * 8)


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setenv("HELION_RT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("HELION_RT_RUNTIME_DIR", str(tmp_path / "run"))

    def use(known):
        monkeypatch.setattr(improve, "evaluators_of", lambda slot, workers, record, stopping: [known])
        return known

    return use


def make_kernel(**settings):
    @helion.kernel(**{"tune": "background", "tune_seconds": 5, "tune_after": 1, **settings})
    def doubled(x: torch.Tensor) -> torch.Tensor:
        k = hl.register_tunable("k", PowerOfTwoFragment(1, 4))
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] * (2 * k) * (1 / k)
        return out

    return doubled


def serve(kernel):
    assert np.array_equal(kernel(X), X * 2)
    assert background.tuner.wait(60)
    assert np.array_equal(kernel(X), X * 2)
    return kernel.bind(X)


def test_the_best_value_is_found_stored_and_picked_by_the_next_process(bench):
    known = bench(Known())
    slot = serve(make_kernel())
    assert slot.serving.config.k == 4 and slot.serving.origin is Origin.TUNED and {None, 2, 4} <= set(known.asked)
    assert slot.outcome.log[-1].config.k in (2, 4) and slot.outcome.tried == len(slot.outcome.log) - 3  # a default each
    record = slot.tier.get(slot.key)
    assert record.status is Status.WINNER and record.config["k"] == 4 and record.evidence.default_ms == 4000.0
    again = make_kernel(tune="off")
    assert np.array_equal(again(X), X * 2)
    found = again.bind(X)
    assert found.key == slot.key and found.serving.config == slot.serving.config and found.serving.origin is Origin.RECORD
    assert dict(variants.program_of(found, found.serving.config).notes) == {"k": 4}
    assert dict(found.program.notes) == {"k": 1}


def test_a_value_that_is_no_better_changes_nothing(bench):
    bench(Known(best=None))
    slot = serve(make_kernel())
    assert slot.serving.origin is Origin.DEFAULT and slot.tier.get(slot.key).status is Status.NO_CANDIDATE


def test_the_users_own_value_is_not_searched(bench):
    known = bench(Known())
    config = helion.Config(block_sizes=[32], k=2)
    slot = make_kernel(config=config).bind(X)
    assert slot.recapture is None and variants.all_of(slot) == [] and known.asked == []
    assert dict(slot.program.notes) == {"k": 2} and variants.program_of(slot, slot.serving.config) is slot.program


def test_a_value_that_changes_the_results_is_no_candidate(bench):
    bench(Known())

    @helion.kernel(tune="off")
    def split(x: torch.Tensor) -> torch.Tensor:
        k = hl.register_tunable("k", EnumFragment((1, 2, "no number")))
        out = torch.empty([x.size(0) * k], dtype=x.dtype)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile]
        return out

    assert variants.all_of(split.bind(X)) == []


def test_a_worker_runs_the_program_of_the_value(bench):
    slot = make_kernel(tune="off").bind(X)
    other = variants.variant(slot, {"k": 2})
    cpu = targets.get("cpu")
    session = Session(slot.program, cpu, Judge(slot.program, slot.recipe, cpu), variants=[({"k": 2}, other)])
    config = slot.space.default()
    assert session.program_of(config) is slot.program and session.program_of(config.replace(k=2)) is other
    assert "fault" not in trial(session, config.replace(k=2)) and "fault" not in trial(session, config)
    assert len(session.runs) == 2


def test_what_a_record_says_for_another_value_is_not_lowered_with_this_program(bench):
    bench(Known())
    slot = serve(make_kernel())
    assert prepare.recorded_config(slot.space, slot.tier.get(slot.key)) is None
    assert "pallas_call" in make_kernel(tune="off").to_pallas(jax.ShapeDtypeStruct(X.shape, X.dtype))


def test_values_that_are_tried():
    assert PowerOfTwoFragment(2, 16).values() == (2, 4, 8, 16) and BooleanFragment().values() == (False, True)
    assert IntegerFragment(0, 3).values() == (0, 1, 2, 3) and len(IntegerFragment(0, 1000).values()) == 8
    assert IntegerFragment(5, 5).values() == (5,) and EnumFragment(("a", "b")).values() == ("a", "b")
