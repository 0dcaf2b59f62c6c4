"""Workers that crash, hang, or are stopped: a verdict on the candidate, never on the server."""

import os
import signal
import threading

import pytest
import torch

import helion_rt.language as hl
from helion_rt.capture import capture
from helion_rt.config import Config
from helion_rt.database import EvidenceKind
from helion_rt.program import codec
from helion_rt.program.signature import TensorFact
from helion_rt.tuning import inputs, pool, usage

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


@pytest.mark.slow
def test_for_a_tpu_the_answer_is_scheduled_evidence(workers):
    program = capture(double, (TensorFact((256, 128), "float32"),))
    opening = {"program": codec.encode(program), "target": "v5e", "jax": {}, "inputs": []}
    evaluator = pool.WorkerEvaluator(opening, workers)
    assert evaluator.kind is EvidenceKind.SCHEDULED
    trial = evaluator.trial(Config(block_sizes=[128]))
    assert trial.fault is None and trial.kind is EvidenceKind.SCHEDULED and 0 < trial.seconds < 1e-3
    assert trial.facts["bottleneck"] and any(name.startswith("unit:") for name in trial.facts) and "compile_seconds" in trial.facts
    assert "PlanError" in (evaluator.trial(Config(block_sizes=[7])).fault or "")
    assert evaluator.pairs(GOOD, OTHER, 0.1) is None
    folder = workers.get(pool.Role.COMPILE).folder
    assert folder is not None and folder.exists() and not list(folder.iterdir()), "no dumps are kept"
    workers.stop()
    assert not folder.exists()


def test_workers_of_two_roles_live_side_by_side(workers):
    measuring, compiling = workers.get(), workers.get(pool.Role.COMPILE)
    assert measuring is not compiling and workers.get() is measuring
    assert measuring.folder is None and compiling.folder is not None
    workers.drop(pool.Role.COMPILE)
    assert compiling.process.poll() is not None and measuring.process.poll() is None and workers.get() is measuring


def test_what_is_in_quarantine_is_not_tried(opening, workers):
    trial = pool.WorkerEvaluator(opening, workers, [GOOD]).trial(GOOD)
    assert "quarantined" in (trial.fault or "") and not workers.started_count


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "nothing on its standard error"),
        ("one\ntwo\n\n", "two"),
        ("W0000 warning\nF1129 1.0 a.cc:7] Check failed: x > 0\n*** Stack trace: ***\n  @ 0x7f\n", "F1129 1.0 a.cc:7] Check failed: x > 0"),
        ("terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n", "terminate called after"),
        ('Traceback (most recent call last):\n  File "x"\nImportError: no msgpack\n', "ImportError: no msgpack"),
        ("Fatal Python error: Segmentation fault\n\nCurrent thread\n", "Fatal Python error: Segmentation fault"),
    ],
)
def test_the_line_that_says_why(text, expected):
    line = pool.telling_line(text)
    assert line.startswith(expected) and "\n" not in line and len(line) <= 200


def test_the_limit_of_memory():
    assert usage.limit(2.0) == 2 << 30
    assert 0 < usage.limit(None) <= usage.machine() // 2 + 1
    assert usage.resident(os.getpid()) > 1 << 20
    assert usage.resident(2**22 + 1) == 0


def test_the_time_a_process_has_had():
    own = usage.processor_seconds(os.getpid())
    assert own > 0.1  # importing JAX takes longer
    while usage.processor_seconds(os.getpid()) == own:
        sum(range(10000))
    assert usage.processor_seconds(2**22 + 1) == 0


@pytest.mark.parametrize(
    ("elapsed", "worked", "overdue"),
    [
        (99, 0, False),
        (101, 0, True),  # it hangs, or the system does not say
        (101, 4, True),
        (101, 30, False),  # the machine is busy
        (299, 90, False),
        (301, 90, True),
        (101, 100, True),  # it had all it was to have
        (60, 110, False),  # on two processors
        (101, 190, True),
    ],
)
def test_a_worker_on_a_busy_machine_has_more_time(elapsed, worked, overdue):
    assert pool.is_overdue(100, elapsed, worked) is overdue
