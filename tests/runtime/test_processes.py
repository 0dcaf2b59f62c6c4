"""Whole processes: a warm start, eight at once, kill -9 in the middle of a tune, a clean exit, a worker that dies."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import helion_rt
from helion_rt.database import Status, open_local

PROGRAM = Path(__file__).with_name("server_program.py")
ROOT = str(Path(helion_rt.__file__).parent.parent)


def start(cache, *args, tune="background", seconds="2", program=PROGRAM, **more):
    env = {**os.environ, "HELION_RT_CACHE_DIR": str(cache), "HELION_RT_TUNE": tune, "HELION_RT_TUNE_SECONDS": seconds, "PYTHONPATH": ROOT}
    env["HELION_RT_TUNE_AFTER"] = "1"
    command = [sys.executable, str(program), *map(str, args)]
    return subprocess.Popen(command, env={**env, **more}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process, timeout=280):
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1]), err


def workers_of(pid):
    """Ids of the worker processes that ``pid`` started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if int(stat[1]) == pid and b"helion_rt.tuning.worker" in command:
                found.append(int(entry.name))
    return found


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def all_gone(pids):
    return not any(map(alive, pids))


def until(condition, seconds, *args):
    """Wait for ``condition(*args)``; its value, falsy if ``seconds`` were not enough."""
    end = time.monotonic() + seconds
    while not (value := condition(*args)) and time.monotonic() < end:
        time.sleep(0.05)
    return value


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A cache that a first process has filled, and that process' report."""
    cache = tmp_path_factory.mktemp("tuned")
    report, err = finish(start(cache, "wait"))
    return cache, report, err


def test_the_first_process_tunes_in_the_background(tuned):
    cache, report, err = tuned
    (slot,) = report["status"]
    assert report["right"] and slot["tuning"] == "done" and slot["candidates_tried"] > 0 and slot["captured"]
    assert report["counters"]["workers_started"] == 1 and report["counters"]["tuner_errors"] == 0
    (record,) = list(open_local(cache).records())
    assert record.key.digest == slot["key"] and record.evidence.candidates_tried == slot["candidates_tried"]
    assert (record.status is Status.WINNER) == (slot["origin"] == "tuned") == (slot["generation"] == 1)
    assert "Traceback" not in err


def test_a_second_process_tunes_nothing_and_captures_nothing(tuned):
    cache, first, _ = tuned
    report, err = finish(start(cache, "wait"))
    (slot,) = report["status"]
    assert report["right"] and slot["config"] == first["status"][0]["config"] and slot["key"] == first["status"][0]["key"]
    assert slot["generation"] == 0 and slot["candidates_tried"] == 0 and not slot["captured"]
    counts = report["counters"]
    assert (counts["candidates_tried"], counts["workers_started"], counts["captures"], counts["record_hits"]) == (0, 0, 0, 1)
    assert err == ""


@pytest.mark.slow
def test_a_program_whose_text_changed_is_another_program(tuned, tmp_path):
    cache, first, _ = tuned
    text = PROGRAM.read_text()
    same, other = tmp_path / "same.py", tmp_path / "other.py"
    same.write_text(text.replace("acc", "total").replace("    return out\n", "\n    # the result\n    return out\n"))
    other.write_text(text.replace("out[tile_m, tile_n] = acc", "out[tile_m, tile_n] = acc + 0.0 * acc"))
    report, _ = finish(start(cache, "once", program=same, tune="off"))
    assert report["status"][0]["key"] == first["status"][0]["key"]
    report, _ = finish(start(cache, "once", program=other, tune="off"))
    assert report["right"] and report["status"][0]["key"] != first["status"][0]["key"]


@pytest.mark.slow
def test_eight_processes_at_once(tmp_path):
    processes = [start(tmp_path / "cache", "wait", 100, seconds="1") for _ in range(8)]
    reports = [finish(p) for p in processes]
    assert all(report["right"] for report, _ in reports)
    for report, err in reports:
        (slot,) = report["status"]
        assert slot["tuning"] == "done" and report["counters"]["tuner_errors"] == 0
        assert "lock" not in err.lower() and "Traceback" not in err
    (record,) = list(open_local(tmp_path / "cache").records())
    assert {r["status"][0]["key"] for r, _ in reports} == {record.key.digest}
    assert sum(r["counters"]["workers_started"] > 0 for r, _ in reports) == 1  # the others waited for its record


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL") or not Path("/proc").is_dir(), reason="needs /proc and SIGKILL")
def test_kill_9_in_a_tune_leaves_a_cache_that_opens_and_no_orphan(tmp_path):
    cache, moments = tmp_path / "cache", random.Random(1)
    for _ in range(5):
        process = start(cache, "hang", seconds="20")
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["right"]
        workers = until(workers_of, 60, process.pid)
        time.sleep(moments.uniform(0, 4))
        process.kill()
        process.communicate()
        assert workers and until(all_gone, 10, workers)
        tier = open_local(cache)
        for record in tier.records():
            assert record.kernel == "matmul"
        assert tier.stats().bad == 0 and tier.stats().databases_set_aside == 0
    report, err = finish(start(cache, "once"))
    assert report["right"] and "Traceback" not in err


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_exit_while_tuning_is_clean_and_leaves_no_orphan(tmp_path):
    process = start(tmp_path / "cache", "leave", seconds="60")  # leaves when its standard input ends
    assert process.stdout is not None and process.stdin is not None
    assert json.loads(process.stdout.readline())["right"]
    workers = until(workers_of, 60, process.pid)
    assert workers
    process.stdin.close()
    process.stdin = None
    _, err = process.communicate(timeout=5 + 5)  # 5 s are the promise; a machine under tests gets as much again
    assert process.returncode == 0 and "Traceback" not in err and "Fatal" not in err
    assert not any(map(alive, workers))
    # What was captured is not lost, although nothing was tuned.
    report, _ = finish(start(tmp_path / "cache", "once", tune="off"))
    assert report["counters"]["captures"] == 0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_a_worker_killed_in_a_candidate_is_a_verdict_and_another_one_goes_on(tmp_path):
    process = start(tmp_path / "cache", "wait", seconds="20")
    (first, *_) = until(workers_of, 120, process.pid)
    time.sleep(6)  # somewhere in its work
    os.kill(first, signal.SIGKILL)
    report, err = finish(process)
    (slot,) = report["status"]
    assert report["right"] and slot["tuning"] in ("done", "failed") and "Traceback" not in err
    assert slot["tuning"] == "failed" or report["counters"]["workers_started"] == 2


def test_sync_mode_serves_the_verdict_from_the_first_call(tmp_path):
    report, _ = finish(start(tmp_path / "cache", "once", 1, tune="sync", seconds="1"))
    (slot,) = report["status"]
    assert slot["tuning"] == "done" and slot["candidates_tried"] >= 1
    assert sum(slot["calls_by_origin"].values()) == 1 and (slot["origin"] == "tuned") == ("tuned" in slot["calls_by_origin"])


def test_off_means_off(tmp_path):
    report, _ = finish(start(tmp_path / "cache", "wait", tune="off"))
    (slot,) = report["status"]
    assert slot["tuning"] == "off" and slot["origin"] == "default" and report["counters"]["workers_started"] == 0
    assert list(open_local(tmp_path / "cache").records()) == []


@pytest.mark.slow
def test_a_record_whose_config_is_no_longer_legal_is_tuned_again(tmp_path):
    from dataclasses import replace

    cache = tmp_path / "cache"
    finish(start(cache, "wait", seconds="1"))
    tier = open_local(cache)
    (record,) = list(tier.records())
    broken = replace(record, status=Status.WINNER, config={"block_sizes": [8, 8, 8, 8], "loop_strategies": ["fori"]})
    assert tier.put(broken, force=True)
    report, err = finish(start(cache, "wait", seconds="1"))
    (slot,) = report["status"]
    assert report["right"] and report["counters"]["stale_records"] >= 1 and slot["candidates_tried"] > 0 and "Traceback" not in err
    (record,) = list(open_local(cache).records())
    assert record.config.get("block_sizes") != [8, 8, 8, 8]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_an_error_of_the_program_while_tuning_is_all_that_is_said(tmp_path):
    program = tmp_path / "fails.py"
    program.write_text(
        f"import sys; sys.path.insert(0, {str(PROGRAM.parent)!r})\n"
        "import server_program\n"
        "server_program.serve(1); print('served', flush=True); sys.stdin.read(); raise SystemExit(3)\n"
    )
    process = start(tmp_path / "cache", seconds="60", program=program)
    assert process.stdout is not None and process.stdin is not None and process.stdout.readline() == "served\n"
    assert (workers := until(workers_of, 60, process.pid))
    process.stdin.close()
    process.stdin = None
    _, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (3, "") and not any(map(alive, workers))
