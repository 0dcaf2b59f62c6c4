"""Pairs, noise and busy machines, against a clock that the test winds."""

import math

from helion_rt.tuning import measure
from helion_rt.tuning.measure import Calm, Pairs, b_wins, interleave


class Clock:
    """Time passes only where a run says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def takes(self, *seconds):
        calls = iter(range(10**9))
        return lambda: setattr(self, "now", self.now + seconds[next(calls) % len(seconds)])


def test_pairs_are_interleaved_and_bounded():
    clock, order = Clock(), []

    def run(name, seconds):
        def call():
            order.append(name)
            clock.now += seconds

        return call

    pairs = interleave(run("a", 0.01), run("b", 0.02), budget=0.5, clock=clock, cpu_clock=clock)
    assert measure.MIN_PAIRS <= len(pairs.a) == len(pairs.b) <= measure.MAX_PAIRS
    assert order[2:10] == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert math.isclose(pairs.ratio, 2.0) and math.isclose(pairs.a_ms, 10.0) and math.isclose(pairs.cpu, 1.0)
    assert clock.now < 0.6


def test_short_runs_are_repeated_within_a_sample():
    clock = Clock()
    pairs = interleave(clock.takes(1e-5), clock.takes(2e-5), budget=0.01, clock=clock, cpu_clock=clock)
    assert math.isclose(pairs.a[0], 1e-5, rel_tol=1e-6)
    assert clock.now >= 2 * measure.MIN_PAIRS * measure.SAMPLE_SECONDS


def test_near_ties_and_noise_go_to_the_incumbent():
    assert b_wins(Pairs((1.0,) * 9, (0.9,) * 9))
    assert not b_wins(Pairs((1.0,) * 9, (0.99,) * 9))
    assert not b_wins(Pairs((1.0,) * 9, (1.5,) * 9))
    noisy = (0.5, 1.4, 0.6, 1.5, 0.9, 1.3, 0.4, 1.2, 0.8)
    assert not b_wins(Pairs((1.0,) * 9, noisy))
    assert b_wins(Pairs((1.0,) * 9, (0.95,) * 9)) and not b_wins(Pairs((1.0,) * 9, (0.95,) * 9), caution=2.0)


def test_drift_and_starvation_are_seen():
    calm = Calm()
    assert not calm.judge(0.010, 1.9)
    assert not calm.judge(0.011, 1.8)
    assert calm.judge(0.020, 1.9)  # the incumbent itself became slower
    assert calm.judge(0.010, 0.9)  # it got half of the processors
    assert not calm.judge(0.009, 1.9)
