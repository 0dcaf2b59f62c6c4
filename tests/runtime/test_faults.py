"""Whatever happens to the tuner, calls are served, the candidate has its verdict, and the log says so in a line."""

import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import helion_rt as helion
import helion_rt.language as hl
from helion_rt.database import Status, open_local
from helion_rt.runtime.background import tuner
from helion_rt.runtime.counters import counters
from helion_rt.tuning import pool

HERE = Path(__file__).parent
FAULTY_WORKER = HERE.parent / "faulty_worker.py"
CONFIGS = [helion.Config(block_sizes=[n]) for n in (64, 32, 16, 8)]
ROOT = str(Path(helion.__file__).parent.parent)


def make_kernel():
    @helion.kernel(configs=CONFIGS, tune="background", tune_seconds=1)
    def scaled(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] * 3 + 1
        return out

    return scaled


X = np.arange(64, dtype=np.float32)


@pytest.fixture
def tune(tmp_path, monkeypatch, caplog):
    """``tune(fault, faulty_blocks)``: a served kernel, its slot after tuning, the record of the database, and the log's lines."""

    def run(fault, faulty=None):
        monkeypatch.setenv("HELION_RT_CACHE_DIR", str(tmp_path))
        monkeypatch.setenv("FAULT", fault)
        monkeypatch.setenv("FAULTY", json.dumps(faulty))
        monkeypatch.setattr(pool, "COMMAND", (sys.executable, str(FAULTY_WORKER)))
        caplog.set_level(logging.INFO, logger="helion_rt")
        kernel = make_kernel()
        tensor = torch.from_numpy(X)
        assert np.array_equal(kernel(tensor).numpy(), X * 3 + 1)
        assert helion.wait_for_tuning(280)
        assert np.array_equal(kernel(tensor).numpy(), X * 3 + 1)
        slot = kernel.bind(tensor)
        lines = [record.getMessage() for record in caplog.records if record.name.startswith("helion_rt")]
        assert all("Traceback" not in line and "\n" not in line for line in lines)
        return slot, slot.tier.get(slot.key), lines

    tuner._workers.drop()
    yield run
    tuner._workers.drop()


def told(lines, *parts):
    return [line for line in lines if all(part in line for part in parts)]


def test_a_worker_killed_in_a_candidate(tune):
    before = counters.workers_started
    slot, record, lines = tune("kill", [[16]])
    assert record.status in (Status.WINNER, Status.NO_CANDIDATE) and record.config.get("block_sizes") != [16]
    assert told(lines, "[16]", "is no candidate", "the worker ended with code -9 (SIGKILL)")
    assert counters.workers_started == before + 2  # another one went on
    assert slot.tuning.value == "done"


def test_a_compiler_that_aborts_says_why_in_one_line(tune):
    _, record, lines = tune("abort", [[16]])
    assert record.status is not Status.ALL_FAILED
    assert told(lines, "[16]", "(SIGABRT): F1129", "Check failed: slots > 0 Cannot schedule FIFO push")


@pytest.mark.slow
def test_a_worker_that_hangs(tune, monkeypatch):
    monkeypatch.setattr(pool, "TRIAL_DEADLINE_SECONDS", 8.0)
    _, record, lines = tune("hang", [[16]])
    assert record is not None and told(lines, "[16]", "no answer within 8 s")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_a_candidate_that_eats_memory(tune, monkeypatch):
    monkeypatch.setenv("HELION_RT_WORKER_GB", "1.5")
    _, record, lines = tune("eat", [[16]])
    assert record is not None and told(lines, "[16]", "out of memory", "1.5 allowed")


@pytest.mark.slow
def test_an_error_that_nobody_expected_and_a_worker_that_stays_sound(tune):
    before = counters.workers_started
    _, record, lines = tune("raise", [[16]])
    assert record is not None and told(lines, "[16]", "RuntimeError: the runtime is in a bad state")
    assert counters.workers_started == before + 1


def test_a_candidate_that_computes_something_else(tune):
    _, record, lines = tune("wrong", [[32], [16], [8]])
    assert record.status is Status.NO_CANDIDATE
    assert told(lines, "[32]", "wrong result for made-up inputs: output 0:")


def test_all_candidates_fail_and_the_next_process_does_not_sweep_again(tune):
    slot, record, lines = tune("wrong")
    assert record.status is Status.ALL_FAILED and slot.serving.config == slot.space.default() and slot.tuning.value == "done"
    assert told(lines, "none of", "works, the default stays")
    before = counters.workers_started
    again = make_kernel()
    again(torch.from_numpy(X))
    assert helion.wait_for_tuning(10) and counters.workers_started == before
    assert again.bind(torch.from_numpy(X)).serving.evidence["status"] == "all_failed"


@pytest.mark.slow
def test_workers_that_keep_dying(tune):
    before = counters.workers_started
    _, record, lines = tune("kill")
    assert record.status is Status.ALL_FAILED
    assert counters.workers_started - before <= pool.MAX_DEATHS and told(lines, "candidates took their worker with them")


PROGRAM = """
import os, resource, sys
sys.path.insert(0, {here!r})
import server_program
resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))  # from here on a file that grows is refused by the system
assert server_program.serve(3)
import helion_rt
assert helion_rt.wait_for_tuning(240)
assert server_program.serve(3)
(slot,) = helion_rt.status()
print(slot["tuning"], slot["evidence"]["status"])
"""


def environment(tmp_path, **more):
    base = {"HELION_RT_CACHE_DIR": str(tmp_path / "cache"), "HELION_RT_RUNTIME_DIR": str(tmp_path), "HELION_RT_TUNE": "background"}
    return {**os.environ, **base, "HELION_RT_TUNE_SECONDS": "1", "PYTHONPATH": ROOT, **more}


@pytest.mark.slow
def test_a_full_disk(tmp_path):
    pytest.importorskip("resource")
    (tmp_path / "cache").mkdir()
    code = PROGRAM.format(here=str(HERE))
    done = subprocess.run([sys.executable, "-c", code], env=environment(tmp_path), capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "done" and done.stdout.split()[1] in ("winner", "no_candidate")
    lines = [line for line in done.stderr.splitlines() if "cannot be written" in line]
    assert len(lines) == 1 and "Traceback" not in done.stderr
    assert list(open_local(tmp_path / "cache").records()) == []


def processes_of_group(leader):
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[2]) == leader and fields[0] != "Z":
                found.append(int(entry.name))
    return found


SPAWNING = """
import sys
sys.path[:0] = [{here!r}]
from helion_rt.tuning import pool
pool.COMMAND = (sys.executable, {worker!r})
import server_program
server_program.serve(3)
from helion_rt.runtime.background import tuner
import time
while not tuner._workers.alive: time.sleep(0.05)
print(tuner._workers.get().process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_the_parent_is_killed_and_nothing_is_left_after_five_seconds(tmp_path):
    code = SPAWNING.format(here=str(HERE), worker=str(FAULTY_WORKER))
    parent = subprocess.Popen(
        [sys.executable, "-c", code], env=environment(tmp_path, FAULT="spawn"), stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    leader = int(parent.stdout.readline())
    for _ in range(1200):  # the worker, its guard, and what a candidate has started
        if len(processes_of_group(leader)) >= 3:
            break
        time.sleep(0.1)
    assert len(processes_of_group(leader)) >= 3
    parent.kill()
    parent.wait()
    for _ in range(50):
        if not processes_of_group(leader):
            break
        time.sleep(0.1)
    assert processes_of_group(leader) == []
