"""Leases between real processes: one holder at a time, and a dead one is no obstacle for longer than its expiry."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from database_support import make_record

from helion_rt.database.lease import Lease
from helion_rt.database.shared import SharedTier, open_shared
from helion_rt.database.shared.files import Entry, FilesEngine
from helion_rt.database.shared.folder import FolderFiles
from helion_rt.database.shared.redis import RedisEngine
from helion_rt.database.signing import Trust

DIGEST = make_record().key.digest
GENEROUS_S = 60.0

HOLDER = """
from helion_rt.database.lease import Lease
from helion_rt.database.shared import open_shared
from helion_rt.database.signing import Trust
assert not {"jax", "torch"} & set(sys.modules)
tier = open_shared(sys.argv[1], trust=Trust(), timeout=20.0)
renew = tier.renew_lease
def told(*arguments):
    kept = renew(*arguments)
    print("renewed" if kept else "lost", flush=True)
    return kept
tier.renew_lease = told
lease = Lease(tier, make_record().key.digest, 3.0)
assert lease.take()
print("taken", flush=True)
sys.stdin.readline()
lease.release()
"""


def lease_when_free(tier: SharedTier, seconds: float = 60.0) -> Lease:
    lease, pause = Lease(tier, DIGEST, seconds), threading.Event()
    assert any(lease.take() or pause.wait(0.1) for _ in range(int(GENEROUS_S / 0.1)))
    return lease


def test_a_holder_that_is_killed_is_replaced_and_one_that_lives_is_not(shared_url: str, start_script: Callable[..., Any]) -> None:
    tier = open_shared(shared_url, trust=Trust(), timeout=20.0)
    holder = start_script(HOLDER, shared_url)
    said = holder.process.stdout.readline
    assert said() == "taken\n"
    for _ in range(4):  # longer than it was taken for
        assert said() == "renewed\n"
        assert not Lease(tier, DIGEST).take()
    holder.process.send_signal(signal.SIGKILL)
    holder.process.wait()
    lease_when_free(tier).release()
    holder.communicate_within(10)


@pytest.mark.parametrize("engine_url", ["folder", "redis"], indirect=True)
def test_a_holder_that_sleeps_too_long_has_lost_it(engine_url: str, start_script: Callable[..., Any]) -> None:
    tier = open_shared(engine_url, trust=Trust(), timeout=20.0)
    holder = start_script(HOLDER, engine_url)
    assert holder.process.stdout.readline() == "taken\n"
    holder.process.send_signal(signal.SIGSTOP)
    lease = lease_when_free(tier)
    holder.process.send_signal(signal.SIGCONT)
    said = iter(holder.process.stdout.readline, "")
    assert next(line for line in said if line != "renewed\n") == "lost\n"
    assert not lease.lost and tier.renew_lease(DIGEST, lease._owner, 60)
    lease.release()
    assert holder.communicate_within(20).returncode == 0


RIVAL = """
import os, random, time
from helion_rt.database.shared import open_shared
from helion_rt.database.signing import Trust
tier, marker, rounds = open_shared(sys.argv[1], trust=Trust(), timeout=60.0), sys.argv[2], int(sys.argv[3])
me, digest, had = str(os.getpid()), make_record().key.digest, 0
print("ready", flush=True)
sys.stdin.readline()
while had < rounds:
    if tier.take_lease(digest, me, 600):
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))  # fails where another holds it as well
        had += 1
        os.unlink(marker)
        tier.release_lease(digest, me)
    else:
        time.sleep(random.uniform(0, 0.01))
assert not {"jax", "torch"} & set(sys.modules)
"""


def rivals(url: str, marker: Path, start_script: Callable[..., Any], processes: int, rounds: int) -> None:
    all_rivals = [start_script(RIVAL, url, marker, rounds) for _ in range(processes)]
    try:
        for rival in all_rivals:
            assert rival.process.stdout.readline() == "ready\n"
        for rival in all_rivals:
            rival.process.stdin.write("go\n")
            rival.process.stdin.flush()
        for rival in all_rivals:
            result = rival.communicate_within(900)
            assert result.returncode == 0, result.stderr
    finally:
        for rival in all_rivals:
            rival.process.kill()


@pytest.mark.parametrize("engine_url", ["folder", "redis"], indirect=True)
def test_two_never_hold_it(engine_url: str, tmp_path: Path, start_script: Callable[..., Any]) -> None:
    rivals(engine_url, tmp_path / "marker", start_script, processes=3, rounds=20)


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize(("engine_url", "rounds"), [("folder", 60), ("redis", 300), ("s3", 5)], indirect=["engine_url"])
def test_eight_never_hold_it(engine_url: str, rounds: int, tmp_path: Path, start_script: Callable[..., Any]) -> None:
    rivals(engine_url, tmp_path / "marker", start_script, processes=8, rounds=rounds)


@pytest.mark.parametrize(("engine_url", "rounds"), [("folder", 30), ("redis", 60), ("s3", 3)], indirect=["engine_url"])
def test_of_those_who_take_over_at_once_one_has_it(engine_url: str, rounds: int) -> None:
    tiers = [open_shared(engine_url, trust=Trust(), timeout=20.0) for _ in range(4)]
    digests = [make_record(key=n).key.digest for n in range(rounds)]
    for digest in digests:
        assert tiers[0].take_lease(digest, "dead", 0.05)
    threading.Event().wait(2.5)
    start = threading.Barrier(len(tiers))

    def race(me: int) -> list[str]:
        won = []
        for digest in digests:
            start.wait(GENEROUS_S)
            if tiers[me].take_lease(digest, f"rival {me}", 600):
                won.append(digest)
        return won

    with ThreadPoolExecutor(len(tiers)) as pool:
        won = [digest for wins in pool.map(race, range(len(tiers))) for digest in wins]
    assert sorted(won) == sorted(digests)


class Skewed(FolderFiles):
    """A folder on a server whose clock is ahead of ours, or behind; it can be moved."""

    skew = 0.0

    def list(self, directory: str, prefix: str = "") -> list[Entry]:
        return [Entry(e.name, e.size, e.written + self.skew) for e in super().list(directory, prefix)]

    def now(self) -> float:
        return super().now() + self.skew


@pytest.mark.parametrize("skew", [-7200.0, 7200.0])
def test_the_folders_clock_counts(tmp_path: Path, skew: float) -> None:
    def engine() -> FilesEngine:
        files = Skewed(tmp_path, anybody=False)
        files.skew = skew
        return FilesEngine(files)

    assert engine().take(DIGEST, "a", 600)
    assert not engine().take(DIGEST, "b", 600)
    (file,) = tmp_path.rglob("*.lease")
    written = file.stat().st_mtime
    os.utime(file, (written - 700, written - 700))
    assert engine().take(DIGEST, "b", 600)


def test_a_lease_from_the_far_future_holds_nobody_up(tmp_path: Path) -> None:
    """The clock of the folder's server was set back."""
    engine = FilesEngine(FolderFiles(tmp_path, anybody=False))
    assert engine.take(DIGEST, "a", 600)
    (file,) = tmp_path.rglob("*.lease")
    written = file.stat().st_mtime
    os.utime(file, (written + 300,) * 2)
    assert not engine.take(DIGEST, "b", 600)
    os.utime(file, (written + 100_000,) * 2)
    assert engine.take(DIGEST, "b", 600)


@pytest.mark.parametrize("engine_url", ["redis"], indirect=True)
def test_a_value_that_ends_never_or_in_years_is_no_lease(engine_url: str) -> None:
    tier = open_shared(engine_url, trust=Trust(), timeout=20.0)
    assert isinstance(tier.engine, RedisEngine)
    with tier.engine._told() as client:
        for expiry in ({}, {"px": 10**12}):
            client.set(tier.engine._lease(DIGEST), b"planted", **expiry)
            assert tier.take_lease(DIGEST, "a", 600) and not tier.take_lease(DIGEST, "b", 600)


def test_one_that_slept_since_it_looked_gets_nothing(tmp_path: Path) -> None:
    engine, late = (FilesEngine(FolderFiles(tmp_path, anybody=False)) for _ in range(2))
    seen = late._lease(DIGEST)
    for owner in ("a", "b", "c"):
        assert engine.take(DIGEST, owner, 600)
        if owner != "c":
            engine.release(DIGEST, owner)
    assert not late._next(DIGEST, seen, "late", 600), "its generation was passed long ago"
    assert engine.renew(DIGEST, "c", 600)
    assert len(list(tmp_path.rglob("*.lease"))) <= 2


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"owner": 3, "seconds": 1}', b'{"owner": "x", "seconds": NaN}', b'{"owner": "x", "seconds": 1e300}', b"[" * 1000],
)
def test_a_lease_file_without_sense_is_somebodys_for_a_minute(tmp_path: Path, content: bytes) -> None:
    engine = FilesEngine(FolderFiles(tmp_path, anybody=False))
    files = engine._files
    assert files.create(f"leases/{DIGEST[:2]}/{DIGEST}.000000000007.lease", content)
    assert not engine.take(DIGEST, "a", 600)
    assert not engine.renew(DIGEST, "x", 600)
    (file,) = tmp_path.rglob("*.lease")
    os.utime(file, (file.stat().st_mtime - 61,) * 2)
    assert engine.take(DIGEST, "a", 600)
