"""Workers that crash, hang, or are stopped: a verdict on the candidate, never on the server."""

import os
import signal
import threading

import pytest
import torch

import helion_rt.language as hl
from helion_rt.capture import capture
from helion_rt.config import Config
from helion_rt.program import codec
from helion_rt.program.signature import TensorFact
from helion_rt.tuning import inputs, pool

GOOD = Config(block_sizes=[64])
OTHER = Config(block_sizes=[32])


def double(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * 2
    return out


@pytest.fixture(scope="module")
def opening():
    program = capture(double, (TensorFact((64,), "float32"),))
    return {"program": codec.encode(program), "target": "cpu", "jax": {}, "inputs": inputs.recipe(program, [None])}


@pytest.fixture
def workers():
    started = []
    found = pool.Workers(lambda: started.append(1))
    found.started_count = started
    yield found
    found.stop()


def test_a_candidate_compiles_runs_is_checked_and_compared(opening, workers):
    evaluator = pool.WorkerEvaluator(opening, workers)
    good = evaluator.trial(GOOD)
    assert good.fault is None and good.seconds > 0
    illegal = evaluator.trial(Config(block_sizes=[64, 64]))
    assert illegal.fault
    pairs = evaluator.pairs(GOOD, OTHER, 0.05)
    assert pairs is not None and len(pairs.a) == len(pairs.b) >= 5
    assert len(workers.started_count) == 1
    # The same worker serves another program.
    assert pool.WorkerEvaluator(opening, workers).trial(OTHER).fault is None and len(workers.started_count) == 1


def test_a_worker_killed_in_a_candidate(opening, workers):
    evaluator = pool.WorkerEvaluator(opening, workers)
    assert evaluator.trial(GOOD).fault is None
    pid = workers.get().process.pid
    os.kill(pid, signal.SIGSTOP)  # so that it is certainly in the middle
    threading.Timer(0.5, os.kill, (pid, signal.SIGKILL)).start()
    assert "the worker ended with code -9" in (evaluator.trial(OTHER).fault or "")
    assert evaluator.trial(OTHER).fault is None and len(workers.started_count) == 2


def test_a_worker_that_hangs_is_killed_at_the_deadline(opening, workers, monkeypatch):
    evaluator = pool.WorkerEvaluator(opening, workers)
    assert evaluator.trial(GOOD).fault is None
    process = workers.get().process
    os.kill(process.pid, signal.SIGSTOP)
    monkeypatch.setattr(pool, "TRIAL_DEADLINE_SECONDS", 0.5)
    assert "no answer" in (evaluator.trial(OTHER).fault or "")
    assert process.poll() is not None


def test_after_stop_no_worker_is_started(opening, workers):
    workers.stop()
    with pytest.raises(pool.CannotOpen, match="stopped"):
        pool.WorkerEvaluator(opening, workers).trial(GOOD)
    assert not workers.started_count


def test_a_worker_goes_when_its_standard_input_closes():
    worker = pool.Worker()
    assert worker.process.stdin is not None
    worker.process.stdin.close()
    assert worker.process.wait(timeout=120) == 0


def test_a_program_that_cannot_be_opened(opening, workers):
    with pytest.raises(pool.CannotOpen, match="ValueError"):
        pool.WorkerEvaluator({**opening, "program": b"nonsense"}, workers).trial(GOOD)


def test_requests_that_make_no_sense_are_answered(workers):
    worker = workers.get()
    assert "no program" in worker.ask({"do": "trial", "config": {}}, 120)["fault"]
    assert "no program" in worker.ask({}, 60)["fault"]
