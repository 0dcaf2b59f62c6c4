"""The search against made-up machines: what it keeps, what it refuses, when it stops."""

import random

import pytest

from helion_rt.config import Config
from helion_rt.database import EvidenceKind
from helion_rt.tuning import propose
from helion_rt.tuning import search as search_module
from helion_rt.tuning.evidence import Trial
from helion_rt.tuning.measure import Pairs
from helion_rt.tuning.search import MAX_TRIALS, search


class FakeSpace:
    """One block of 8 to 1024; the default is 1024."""

    sizes = (1024, 512, 256, 128, 64, 32, 16, 8)
    program = target = None
    only = (None,)  # the user's own: no heuristics

    def default(self):
        return config(1024)

    def some(self, limit):
        return [config(size) for size in self.sizes]

    def canonical(self, candidate):
        return candidate

    def smaller(self, candidate):
        return None

    def simplicity(self, candidate):
        return (candidate != self.default(), -candidate.block_sizes[0])

    def neighbours(self, candidate):
        i = self.sizes.index(candidate.block_sizes[0])
        return iter([config(self.sizes[j]) for j in (i - 1, i + 1) if 0 <= j < len(self.sizes)])


class FakeMachine:
    """Times in seconds by block size; what is missing does not compile."""

    kind = EvidenceKind.MEASURED

    def __init__(self, times, noise=0.0, busy=0):
        self.times, self.noise, self.busy, self.random = times, noise, busy, random.Random(0)
        self.tried = []

    def trial(self, candidate):
        self.tried.append(candidate.block_sizes[0])
        seconds = self.times.get(candidate.block_sizes[0])
        return Trial("it does not compile") if seconds is None else Trial(None, seconds)

    def pairs(self, a, b, budget):
        self.busy -= 1
        samples = [tuple(self.times[c.block_sizes[0]] * (1 + self.random.uniform(-1, 1) * self.noise) for _ in range(15)) for c in (a, b)]
        return Pairs(samples[0], samples[1], busy=self.busy >= 0)


def config(size):
    return Config(block_sizes=[size])


@pytest.fixture(autouse=True)
def plain_model(monkeypatch):
    monkeypatch.setattr(propose.model, "seconds", lambda program, candidate, target: -candidate.block_sizes[0])
    monkeypatch.setattr(propose.model, "effort", lambda program, config, target: 1.0)
    monkeypatch.setattr(search_module.heuristics, "seeds", lambda space: ())


def tune(machine, **options):
    return search(FakeSpace(), machine, options.pop("budget", 60), sleep=lambda seconds: None, **options)


def times(**changes):
    return {1024: 1.0, 512: 0.8, 256: 0.5, 128: 0.7, 64: 0.9, 32: 1.1, 16: 1.5, 8: 2.0} | {int(k[1:]): v for k, v in changes.items()}


def test_the_fastest_wins_with_its_evidence():
    out = tune(FakeMachine(times(), noise=0.02))
    assert out.winner == config(256) and out.pairs == 15 and not out.stopped
    assert out.ms == pytest.approx(500, rel=0.05) and out.default_ms == pytest.approx(1000, rel=0.05)
    assert 0 < out.tried <= MAX_TRIALS


def test_nothing_better_means_no_winner():
    out = tune(FakeMachine(dict.fromkeys(FakeSpace.sizes, 1.0), noise=0.05))
    assert out.winner is None and out.tried == 7


def test_a_candidate_that_does_not_compile_is_a_verdict_and_no_more():
    out = tune(FakeMachine(times(s256=None)))
    assert out.winner == config(128)
    assert (config(256), "it does not compile") in out.faults


def test_a_default_that_does_not_run_is_replaced():
    out = tune(FakeMachine(times(s1024=None)))
    assert out.winner == config(256) and out.default_ms is None


def test_all_failing_is_an_outcome_not_an_exception():
    out = tune(FakeMachine({}))
    assert out.winner is None and len(out.faults) == 8


def test_pairs_of_a_busy_machine_are_taken_again():
    assert tune(FakeMachine(times(), busy=2)).winner == config(256)
    # Always busy: twice the difference is asked, which half of the time is and 4 % less are not.
    assert tune(FakeMachine(times(), busy=10**6)).winner == config(256)
    slightly = dict.fromkeys(FakeSpace.sizes, 1.0) | {256: 0.96}
    assert tune(FakeMachine(slightly, busy=10**6)).winner is None
    assert tune(FakeMachine(slightly)).winner == config(256)


def test_stop_ends_it_without_a_winner():
    machine = FakeMachine(times())
    out = tune(machine, stop=lambda: len(machine.tried) >= 3)
    assert out.stopped and out.winner is None and len(machine.tried) == 3


def test_the_winner_must_win_against_the_default_again():
    class Fickle(FakeMachine):
        """Every candidate looks fast, until it is compared with the default at the end."""

        def pairs(self, a, b, budget):
            self.count = getattr(self, "count", 0) + 1
            return Pairs((1.0,) * 9, (0.5,) * 9) if self.count == 1 else Pairs((1.0,) * 9, (1.1,) * 9)

    out = tune(Fickle(times()))
    assert out.winner is None and out.default_ms == 1000


def test_a_default_that_failed_once_is_asked_again_before_anything_may_replace_it():
    machine = FakeMachine(dict.fromkeys(FakeSpace.sizes, 1.0))
    real, failed = machine.trial, []

    def trial(candidate):
        if candidate == config(1024) and not failed:
            failed.append(1)
            return Trial("the worker ended with code -9")
        return real(candidate)

    machine.trial = trial
    assert tune(machine).winner is None and failed
