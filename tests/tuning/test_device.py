"""Measuring in the serving process, against a simulated device: its clock, its costs, and the calls of a server that come in between."""

import math

import numpy as np
import pytest

from helion_rt.config import Config
from helion_rt.tuning.device import MAX_BATCH, PATIENCE_SECONDS, QUIET_SECONDS, DeviceEvaluator
from helion_rt.tuning.inputs import Values

FAST, SLOW, WRONG, BROKEN = (Config(block_sizes=[n]) for n in (1, 2, 3, 4))


class Judge:
    """Knows which config is wrong."""

    values = (Values.NORMAL, Values.ODD)
    normal = ()

    def prepare(self):
        pass

    def fault(self, run, config, values):
        run()
        return f"wrong result for {values.value} inputs: ..." if config == WRONG and values is Values.ODD else None


class Device:
    """Costs in seconds a launch; the server calls every ``period`` seconds (never, if it is infinite) until ``until``."""

    def __init__(self, costs, period=math.inf, until=math.inf):
        self.now, self.costs, self.period, self.until, self.launches, self.compiled = 100.0, costs, period, until, 0, []

    def last_call(self):
        if math.isinf(self.period):
            return 0.0
        return math.floor(min(self.now, self.until) / self.period) * self.period

    def sleep(self, seconds):
        self.now += seconds

    def compile(self, config):
        self.compiled.append(config)

        def run(*arrays):
            if config == BROKEN:
                raise RuntimeError("RESOURCE_EXHAUSTED: no room")
            self.now += self.costs[config]
            self.launches += 1
            return (np.zeros(4, np.float32),)

        return run

    def evaluator(self, **more):
        return DeviceEvaluator(Judge(), self.compile, self.last_call, clock=lambda: self.now, sleep=self.sleep, **more)


COSTS = {FAST: 1e-4, SLOW: 2e-4, WRONG: 1e-4, BROKEN: 1e-4}


def test_an_idle_device():
    device = Device(COSTS)
    evaluator = device.evaluator()
    assert evaluator.trial(FAST).seconds == pytest.approx(1e-4)
    pairs = evaluator.pairs(SLOW, FAST, 0.1)
    assert pairs is not None and not pairs.busy and pairs.ratio == pytest.approx(0.5) and pairs.a_ms == pytest.approx(0.2)


def test_waiting_for_the_server_is_no_part_of_the_times():
    device = Device(COSTS, period=0.1)
    evaluator = device.evaluator()
    begin = device.now
    assert evaluator.trial(SLOW).seconds == pytest.approx(2e-4)
    pairs = evaluator.pairs(SLOW, FAST, 0.1)
    assert pairs is not None and not pairs.busy
    assert pairs.a_ms == pytest.approx(0.2) and pairs.b_ms == pytest.approx(0.1)
    assert device.now - begin > QUIET_SECONDS


def test_no_launch_while_the_server_calls():
    device = Device(COSTS, period=0.01, until=200.0)
    evaluator = device.evaluator()
    real, moments = device.compile(FAST), []

    def compile_and_note(config):
        def run(*arrays):
            moments.append(device.now - device.last_call())
            return real(*arrays)

        return run

    evaluator.compile = compile_and_note
    assert "never idle" in (evaluator.trial(FAST).fault or "") and moments == []
    device.now = 199.0
    assert evaluator.trial(FAST).fault is None and min(moments) >= QUIET_SECONDS


def test_samples_that_calls_have_spoiled_are_those_of_a_busy_machine():
    device = Device({FAST: 0.06, SLOW: 0.06}, period=0.1)
    pairs = device.evaluator().pairs(SLOW, FAST, 1.0)
    assert pairs is not None and pairs.busy


def test_a_server_that_is_never_idle_is_left_alone():
    device = Device(COSTS, period=0.01)
    evaluator, begin = device.evaluator(), device.now
    trial = evaluator.trial(FAST)
    assert trial.doubtful and "never idle" in (trial.fault or "") and device.launches == 0
    assert device.now - begin < PATIENCE_SECONDS + 1
    assert evaluator.pairs(SLOW, FAST, 1.0) is None


def test_stopping_ends_the_waiting():
    device = Device(COSTS, period=0.01)
    begin = device.now
    assert device.evaluator(stop=lambda: True).trial(FAST).fault and device.now - begin < 0.1


def test_verdicts():
    device = Device(COSTS)
    evaluator = device.evaluator(quarantined=[SLOW])
    assert "NaN and infinite" in (evaluator.trial(WRONG).fault or "")
    assert "RESOURCE_EXHAUSTED" in (evaluator.trial(BROKEN).fault or "")
    assert "quarantined" in (evaluator.trial(SLOW).fault or "") and SLOW not in device.compiled
    assert evaluator.pairs(FAST, WRONG, 0.1) is None
    assert evaluator.trial(FAST).fault is None


def test_short_launches_are_queued_and_the_batch_is_bounded():
    device = Device({FAST: 1e-6, SLOW: 1e-6})
    evaluator = device.evaluator()
    assert evaluator._batch(FAST) == MAX_BATCH
    assert device.evaluator().pairs(FAST, SLOW, 0.01).a_ms == pytest.approx(1e-3)
    device.costs[SLOW] = 1.0
    assert evaluator._batch(SLOW) == 1
