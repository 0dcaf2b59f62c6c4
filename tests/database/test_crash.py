"""Processes that are killed, that start all at once, and that fork: the cache opens, and no record is torn or lost."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helion_rt.database import LocalTier, Record, decode_record

Make = Callable[..., Record]
Start = Callable[..., Any]
Run = Callable[..., subprocess.CompletedProcess[str]]

USE_STORE = "import helion_rt.database.tier as module\nmodule.is_network_file_system = lambda path: sys.argv[2] == 'files'\n"

# The writer is a forked child of a small process (no JAX, no torch in it): it is killed at a random moment after its first breath,
# which may be while it makes the database; every other time at a random moment among its writes, however slow the machine
# is today. It reports every write it was told is done.
KILLER = (
    USE_STORE
    + """
import os, random, signal, time
rounds = int(sys.argv[3])
dice = random.Random(rounds)
directory, acknowledged, written = sys.argv[1], {}, 0
open_local(directory + "-warm").put(make_record())  # late imports come before the fork, or most moments would be inside them

def note(line):
    global written
    key, n = map(int, line.split())
    acknowledged[key] = n
    written += 1

def write_forever(start, pipe):
    tier = open_local(directory + str(start // 10))
    n = 1
    while True:
        for key in range(4):
            assert tier.put(make_record(start * 10_000 + n, key=key))
            os.write(pipe, b"%d %d\\n" % (key, start * 10_000 + n))
        assert tier.put_program("alias", b"%d" % n * 20_000)
        n += 1

for round_ in range(rounds):
    place = directory + str(round_ // 10)  # every tenth time an empty cache
    if round_ % 10 == 0:
        acknowledged = {}
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        write_forever(round_, writer)
    os.close(writer)
    lines = os.fdopen(reader)
    for _ in range(dice.randrange(1, 12) if round_ % 2 else 0):
        note(lines.readline())
    time.sleep(dice.uniform(0, 0.005 if round_ % 2 else 0.06))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, "the writer ended by itself"
    with lines:
        for line in lines:
            note(line)
    tier = open_local(place)
    found = {record.kernel: record for record in tier.records()}
    for key in range(4):
        record = tier.get(make_record(key=key).key)
        if record is None:
            assert key not in acknowledged, f"round {round_}: record {acknowledged[key]} of key {key} is lost"
            continue
        n = record.config["block_sizes"][0]
        assert record == make_record(n, key=key) == found[record.kernel], "a torn record"
        assert n >= acknowledged.get(key, 0), f"round {round_}: {n} is served, {acknowledged[key]} was stored"
    program = tier.get_program("alias")
    assert program is None or program == program[:len(program) // 20_000] * 20_000
    assert tier.stats().bad == 0 and tier.stats().databases_set_aside == 0, tier.stats()
    assert tier.put(make_record(0, key=9)), "the next process can write"
print(written)
"""
)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("rounds", [60, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("store", ["sqlite", "files"])
def test_kill_9_at_random_moments(tmp_path: Path, run_script: Run, store: str, rounds: int) -> None:
    result = run_script(KILLER, tmp_path / "cache", store, rounds, timeout=3 * rounds + 60)
    assert int(result.stdout) >= rounds // 2, "hardly anything was written before the kills"


HAMMER = (
    USE_STORE
    + """
import json
print("ready", flush=True)
sys.stdin.readline()
tier, me = open_local(sys.argv[1]), int(sys.argv[3])
for n in range(40):
    assert tier.put(make_record(1000 * n + me))
    found = tier.get(make_record().key)
    assert found is not None and found.config["block_sizes"][0] >= 1000 * n + me
    assert tier.put(make_record(n, key=100 + me))
s = tier.stats()
print(json.dumps([s.writes, s.write_failures, s.bad, s.databases_set_aside, s.misses]))
"""
)


@pytest.mark.parametrize("store", ["sqlite", "files"])
def test_eight_processes_at_once_on_an_empty_cache(tmp_path: Path, start_script: Start, make_record: Make, store: str) -> None:
    writers = [start_script(HAMMER, tmp_path, store, me) for me in range(8)]
    for writer in writers:
        assert writer.process.stdout.readline() == "ready\n"
    for writer in writers:
        writer.process.stdin.write("go\n")
        writer.process.stdin.flush()
    for writer in writers:
        result = writer.communicate_within(120)
        assert result.returncode == 0, result.stderr
        assert result.stderr == ""
        assert json.loads(result.stdout) == [80, 0, 0, 0, 0]
    if store == "sqlite":
        tier = LocalTier(tmp_path)
        assert tier.get(make_record().key) == make_record(39_007)
        assert len(list(tier.records())) == 9
        assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["cache.db"]
    else:
        left = [decode_record(path.read_bytes()) for path in tmp_path.rglob("*") if path.is_file()]
        assert len(left) == 9 and make_record(39_007) in left


def test_a_fork_may_use_the_tier_of_its_parent(tmp_path: Path, run_script: Run) -> None:
    source = """
import os
tier = open_local(sys.argv[1])
assert tier.put(make_record(1))
tier._lock.acquire(); tier._store()._lock.acquire()  # as if another thread held them at the moment of the fork
child = os.fork()
if child == 0:
    ok = tier.get(make_record().key) == make_record(1) and tier.put(make_record(2)) and tier.get(make_record().key) == make_record(2)
    os._exit(0 if ok else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
tier._lock.release(); tier._store()._lock.release()
assert tier.get(make_record().key) == make_record(2) and tier.put(make_record(3))
"""
    run_script(source, tmp_path, timeout=60)


def test_threads_share_a_tier(tmp_path: Path, make_record: Make) -> None:
    from concurrent.futures import ThreadPoolExecutor

    tier = LocalTier(tmp_path)

    def work(me: int) -> bool:
        for n in range(15):
            assert tier.put(make_record(100 * n + me))
            found = tier.get(make_record().key)
            assert found is not None and found.config["block_sizes"][0] >= 100 * n + me
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert tier.get(make_record().key) == make_record(1407)
    stats = tier.stats()
    assert (stats.writes, stats.write_failures, stats.hits) == (120, 0, 121)


def test_a_writer_whose_database_is_replaced_goes_on_in_the_new_one(tmp_path: Path, make_record: Make) -> None:
    first, second = LocalTier(tmp_path), LocalTier(tmp_path)
    assert first.put(make_record(1)) and second.put(make_record(2))
    (tmp_path / "v1" / "local").rename(tmp_path / "v1" / "local.broken-by-another-process")
    assert second.put(make_record(3)) and first.put(make_record(1, key=1))
    for tier in (first, second, LocalTier(tmp_path)):
        assert tier.get(make_record().key) == make_record(3) and tier.get(make_record(key=1).key) == make_record(1, key=1)


class TestWorkLock:
    HOLDER = """
with work_lock(sys.argv[1], "ab" * 32) as free:
    print(free, flush=True)
    sys.stdin.readline()
"""

    def test_one_process_at_a_time_and_a_dead_one_is_no_obstacle(self, tmp_path: Path, start_script: Start, run_script: Run) -> None:
        ask = "with work_lock(sys.argv[1], sys.argv[2] * 32) as free: print(free)"
        holder = start_script(self.HOLDER, tmp_path)
        assert holder.process.stdout.readline() == "True\n"
        assert run_script(ask, tmp_path, "ab").stdout == "False\n"
        assert run_script(ask, tmp_path, "cd").stdout == "True\n"
        holder.process.send_signal(signal.SIGKILL)
        assert holder.communicate_within(30).returncode == -signal.SIGKILL
        assert run_script(ask, tmp_path, "ab").stdout == "True\n"

    def test_it_is_free_again_after_an_error_and_within_one_process_taken_once(self, tmp_path: Path) -> None:
        from helion_rt.database import work_lock

        with pytest.raises(KeyError), work_lock(tmp_path, "ab") as free:
            assert free
            with work_lock(tmp_path, "ab") as again:
                assert not again
            raise KeyError
        with work_lock(tmp_path, "ab") as free:
            assert free

    def test_where_no_lock_can_be_had_work_goes_on(self, tmp_path: Path) -> None:
        from helion_rt.database import work_lock

        (tmp_path / "v1").write_text("a file")
        with work_lock(tmp_path, "ab") as free:
            assert free
