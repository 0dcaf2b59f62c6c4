"""Many processes that want the same keys at once: each key is tuned once, and everybody has the winner soon."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import helion_rt.database
from helion_rt.database import Record, encode_record, open_local

sys.path.insert(0, str(Path(__file__).parent / "shared"))
import shared_servers

CLIENT = Path(__file__).with_name("swarm_client.py")
ROOT = Path(helion_rt.database.__file__).parents[2]
Make = Callable[..., Record]


class Swarm:
    """Processes on one empty shared tier."""

    def __init__(self, url: str, place: Path, wanted: Sequence[Record], lease_seconds: float) -> None:
        self.url, self.place, self.wanted, self.lease_seconds = url, place, list(wanted), lease_seconds
        self.processes: list[subprocess.Popen[str]] = []
        (place / "wanted").write_text("\n".join(encode_record(record).hex() for record in wanted))

    def start(self, *more: str) -> subprocess.Popen[str]:
        """One more client, ready to begin."""
        n = len(self.processes)
        command = [sys.executable, str(CLIENT), self.url, self.cache(n), self.log, self.place / "wanted", self.lease_seconds, *more]
        process = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        self.processes.append(process)
        return process

    def go(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        for process in processes:
            expect(process, "ready")
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()

    def cache(self, n: int) -> Path:
        return self.place / f"cache-{n}"

    @property
    def log(self) -> Path:
        return self.place / "log"

    def events(self) -> list[tuple[float, str, str, str]]:
        """(time, process, what, key) in the order of the log."""
        lines = [line.split() for line in self.log.read_text().splitlines()]
        return [(float(when), who, what, digest) for when, who, what, digest in lines]

    def tunes(self) -> Counter[str]:
        return Counter(digest for _, _, what, digest in self.events() if what == "tune")

    def slowest(self) -> float:
        """Seconds from a key's publication, or from when a process wanted it, if that was later, until the last of them had seen it. Who
        publishes has it already."""
        since: dict[tuple[str, str], float] = {}
        published: dict[str, float] = {}
        late = 0.0
        for when, who, what, digest in sorted(self.events()):
            if what == "published":
                published.setdefault(digest, when)
            elif what == "wanted":
                since.setdefault((who, digest), when)
            elif what == "seen":
                late = max(late, when - max(published.get(digest, when), since.get((who, digest), when)))
        return late


def expect(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line == word, (line, process.stderr.read() if process.stderr and process.poll() is not None else "")


def finish(process: subprocess.Popen[str], limit: float = 240) -> None:
    out, err = process.communicate(timeout=limit)
    assert process.returncode == 0 and out.splitlines()[-1] == "done", err
    assert "Traceback" not in err, err


@pytest.fixture
def swarm(request: pytest.FixtureRequest, tmp_path: Path, make_record: Make) -> Iterator[Callable[..., Swarm]]:
    swarms: list[Swarm] = []
    servers: list[Any] = []

    def make(engine: str, keys: int, lease_seconds: float = 30.0) -> Swarm:
        if engine == "redis":
            if shared_servers.REDIS is None:
                pytest.skip("there is no redis-server on this machine (Debian: apt-get install redis-server)")
            servers.append(shared_servers.redis_server())
            url = f"redis://127.0.0.1:{servers[-1].port}/0/swarm"
        else:
            (tmp_path / "shared").mkdir()
            url = f"file://{tmp_path / 'shared'}"
        swarms.append(Swarm(url, tmp_path, [make_record(1, key=key) for key in range(keys)], lease_seconds))
        return swarms[-1]

    yield make
    for one in swarms:
        for process in one.processes:
            process.kill()
            process.communicate()
    for server in servers:
        server.end()


def check(swarm: Swarm, clients: range, more: int = 0) -> None:
    """Every key was tuned once (``more`` times more in all), and every client has every winner on its own disk."""
    tunes = swarm.tunes()
    assert set(tunes) == {record.key.digest for record in swarm.wanted}
    assert tunes.total() == len(swarm.wanted) + more, tunes
    for n in clients:
        local = open_local(swarm.cache(n))
        assert all(local.get(record.key) == record for record in swarm.wanted)


@pytest.mark.parametrize("engine", ["folder", "redis"])
def test_each_key_is_tuned_once(swarm: Callable[..., Swarm], engine: str) -> None:
    few = swarm(engine, keys=3)
    processes = [few.start() for _ in range(3)]
    few.go(processes)
    for process in processes:
        finish(process)
    check(few, range(3))


@pytest.mark.parametrize("engine", ["folder", "redis"])
def test_a_holder_that_is_killed_is_succeeded(swarm: Callable[..., Swarm], engine: str) -> None:
    few = swarm(engine, keys=2, lease_seconds=2.0)
    holder, others = few.start("hold"), [few.start() for _ in range(2)]
    few.go([holder])
    expect(holder, "holding")
    holder.kill()
    few.go(others)
    for process in others:
        finish(process)
    check(few, range(1, 3), more=1)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["folder", "redis"])
def test_sixteen_processes_and_ten_keys(swarm: Callable[..., Swarm], engine: str) -> None:
    many = swarm(engine, keys=10)
    processes = [many.start() for _ in range(16)]
    many.go(processes)
    for process in processes:
        finish(process)
    check(many, range(16))
    assert many.slowest() <= 5.0


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["folder", "redis"])
def test_holders_are_killed_while_all_want_their_keys(swarm: Callable[..., Swarm], engine: str) -> None:
    many = swarm(engine, keys=10, lease_seconds=4.0)
    holders, others = [many.start("hold") for _ in range(2)], [many.start() for _ in range(10)]
    many.go(holders)
    for holder in holders:
        expect(holder, "holding")
    many.go(others)
    for holder in holders:
        holder.kill()
    for process in others:
        finish(process)
    check(many, range(2, 12), more=2)
