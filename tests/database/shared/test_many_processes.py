"""Processes that write at once, and processes that are killed: nothing is lost, nothing is torn, nobody sees an exception."""

from __future__ import annotations

import base64
import functools
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from database_support import make_record

from helion_rt.database import Evidence, EvidenceKind, better, decode_record
from helion_rt.database.shared import open_shared
from helion_rt.database.signing import Trust

Start = Callable[..., Any]
Run = Callable[..., subprocess.CompletedProcess[str]]

KEYS = 3

# A bucket is served by a simulation in Python, many times slower than the engines: with it these take a quarter of an hour each.
_HOW_LONG = {"folder": pytest.mark.slow, "redis": pytest.mark.slow, "s3": pytest.mark.long}
EVERY_ENGINE = pytest.mark.parametrize("engine_url", [pytest.param(name, marks=mark) for name, mark in _HOW_LONG.items()], indirect=True)

# Random puts, gets and merges (what was found, rolled back, is put again). What a process has put or found is in all it finds later.
HAMMER = """
import base64, random
from helion_rt.database.shared import open_shared
from helion_rt.database.signing import Trust
url, me, operations, keys = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
dice = random.Random(me)
tier = open_shared(url, trust=Trust(), timeout=120.0)
known, log = {}, open(sys.argv[5], "w")
print("ready", flush=True)
sys.stdin.readline()
for n in range(operations):
    key, what = dice.randrange(keys), dice.random()
    wanted = make_record(key=key).key
    if what < 0.5:
        found = tier.get(wanted)
    else:
        found = tier.get(wanted) if what > 0.85 else None
        if found is not None and found.config and len(found.quarantined) < 40:
            record = found.rolled_back()
        else:
            ms = dice.choice([0.25, 0.5, 1.0, 2.0])
            evidence = Evidence(dice.choice(list(EvidenceKind)), ms=ms, default_ms=2.0, spread=dice.choice([0.0, 0.1]), pairs=8)
            more = {"evidence": evidence, "revision": dice.randrange(3), "space_version": dice.randrange(2)}
            record = make_record(dice.randrange(50), key=key, **more)
        found = tier.put(record)
        log.write(base64.b64encode(encode_record(record)).decode() + "\\n")
        assert better(found, record) == found, "what was put is not in what is stored"
    if key in known:
        assert found is not None and better(found, known[key]) == found, "a record went back"
    if found is not None:
        known[key] = found
log.close()
assert not {"jax", "torch"} & set(sys.modules)
stats = tier.stats()
assert (stats.bad, stats.newer, stats.failures) == (0, 0, 0), stats
"""


def hammer(url: str, folder: Path, start_script: Start, processes: int, operations: int) -> None:
    workers = [start_script(HAMMER, url, me, operations, KEYS, folder / f"log{me}") for me in range(processes)]
    try:
        for worker in workers:
            assert worker.process.stdout.readline() == "ready\n", worker.process.stderr.read()
        for worker in workers:
            worker.process.stdin.write("go\n")
            worker.process.stdin.flush()
        for worker in workers:
            result = worker.communicate_within(3000)
            assert result.returncode == 0, result.stderr
    finally:
        for worker in workers:
            worker.process.kill()
    put = [decode_record(base64.b64decode(line)) for me in range(processes) for line in (folder / f"log{me}").read_text().split()]
    assert len(put) > processes * operations / 3
    tier = open_shared(url, trust=Trust(), timeout=120.0)
    for key in range(KEYS):
        wanted = make_record(key=key).key
        assert tier.get(wanted) == functools.reduce(better, [record for record in put if record.key == wanted])
        tier.put(make_record(key=key, space_version=0, evidence=Evidence(EvidenceKind.MODELLED)))  # a worse one: it tidies up
    if url.startswith("file:"):
        left = sorted(path.name.partition(".")[2] for path in Path(url.removeprefix("file://")).rglob("*") if path.is_file())
        assert len(left) == KEYS and all(name.endswith(".rec") for name in left), "what was merged away, or drafts, are left"


@pytest.mark.parametrize(
    ("engine_url", "processes", "operations"), [("folder", 3, 60), ("redis", 3, 60), ("s3", 2, 8)], indirect=["engine_url"]
)
def test_some_processes_at_once(engine_url: str, processes: int, operations: int, tmp_path: Path, start_script: Start) -> None:
    hammer(engine_url, tmp_path, start_script, processes, operations)


@pytest.mark.timeout(3600)
@EVERY_ENGINE
def test_sixteen_processes_at_once(engine_url: str, tmp_path: Path, start_script: Start) -> None:
    hammer(engine_url, tmp_path, start_script, processes=16, operations=500)


# The writer is a forked child of a small process, killed at a random moment: of its whole life every other time, else among its writes.
KILLER = """
import os, random, signal, time
from helion_rt.database.shared import open_shared
from helion_rt.database.signing import Trust
url, rounds = sys.argv[1], int(sys.argv[2])
if url.startswith("s3:"):
    import s3fs  # before the fork, or most moments would be inside the import
elif url.startswith("redis:"):
    import redis
dice = random.Random(2026)
tier = open_shared(url, trust=Trust(), timeout=120.0)
acknowledged, written = {}, 0

def note(line):
    global written
    key, n = map(int, line.split())
    acknowledged[key] = n
    written += 1

def write_forever(start, pipe):
    mine = open_shared(url, trust=Trust(), timeout=120.0)
    n = 1
    while True:
        for key in range(3):
            record = make_record(start * 10_000 + n, key=key)
            if n % 3:
                assert mine.put(record) == record
                os.write(pipe, b"%d %d\\n" % (key, start * 10_000 + n))
            else:
                mine.take_lease(record.key.digest, "w", 1)
                mine.put(make_record(start * 10_000, key=key))  # a worse one
        n += 1

def check(round_):
    found = {record.kernel: record for record in tier.records()}
    for key in range(3):
        record = tier.get(make_record(key=key).key)
        if record is None:
            assert key not in acknowledged, f"round {round_}: record {acknowledged[key]} of key {key} is lost"
            continue
        n = record.config["block_sizes"][0]
        assert record == make_record(n, key=key) == found[record.kernel], "a torn record"
        assert n >= acknowledged.get(key, 0), f"round {round_}: {n} is served, {acknowledged[key]} was stored"
    assert (tier.stats().bad, tier.stats().failures) == (0, 0), tier.stats()

for round_ in range(rounds):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        write_forever(round_ + 1, writer)
    os.close(writer)
    lines = os.fdopen(reader)
    for _ in range(dice.randrange(1, 6) if round_ % 2 else 0):
        note(lines.readline())
    time.sleep(dice.uniform(0, 0.01 if round_ % 2 else 0.06))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, "the writer ended by itself"
    with lines:
        for line in lines:
            note(line)
    check(round_)
assert tier.put(make_record(10**7, key=9)), "the next process can write"
print(written)
"""


@pytest.mark.parametrize(("engine_url", "rounds"), [("folder", 20), ("redis", 20), ("s3", 4)], indirect=["engine_url"])
def test_kill_9_at_random_moments(engine_url: str, rounds: int, run_script: Run) -> None:
    assert int(run_script(KILLER, engine_url, rounds, timeout=280).stdout) >= rounds / 2, "hardly anything was written before the kills"


@pytest.mark.timeout(3600)
@EVERY_ENGINE
def test_kill_9_at_300_random_moments(engine_url: str, run_script: Run) -> None:
    assert int(run_script(KILLER, engine_url, 300, timeout=3000).stdout) >= 150, "hardly anything was written before the kills"
