"""Whole servers on shared tiers: a network that fails while they are called, and a cluster that starts all at once."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import helion_rt
from helion_rt.database import decode_record, open_local

sys.path.insert(0, str(Path(__file__).parents[1] / "database"))
sys.path.insert(0, str(Path(__file__).parents[1] / "database" / "shared"))
import shared_servers
from test_swarm import Swarm, expect

PROGRAM = Path(__file__).with_name("shared_program.py")
ROOT = str(Path(helion_rt.__file__).parent.parent)
pytestmark = pytest.mark.slow


def start(mode, place, **more):
    """A server with a cache, and a lock of tuners, of its own: as on a machine of its own."""
    own = {"HELION_RT_CACHE_DIR": str(place / "cache"), "HELION_RT_RUNTIME_DIR": str(place / "run"), "PYTHONPATH": ROOT}
    env = {**os.environ, **own, "HELION_RT_TUNE": "background", "HELION_RT_TUNE_SECONDS": "1", "HELION_RT_TUNE_AFTER": "1", **more}
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), mode], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.fixture
def watched(tmp_path):
    """``watched(url)``: a server that calls a kernel all the time and audits its calling threads; a function that asks it for a report."""
    processes = []

    def begin(url, **more):
        process = start("watch", tmp_path / "server", HELION_RT_SHARED=url, HELION_RT_TUNE="off", **more)
        processes.append(process)
        expect(process, "ready")

        def report(command="tell"):
            process.stdin.write(command + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            assert line, process.stderr.read()
            return json.loads(line)

        return report

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


class Delay:
    """A TCP proxy in front of a server that holds back each answer for ``seconds``."""

    def __init__(self, port):
        self.seconds, self._to = 0.0, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open = True
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while self._open:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                continue
            threading.Thread(target=self._pump, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, True), daemon=True).start()

    def _pump(self, source, sink, answers):
        try:
            while data := source.recv(65536):
                if answers:
                    time.sleep(self.seconds)
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                end.close()

    def close(self):
        self._open = False
        self._listener.close()


def shared_of(report):
    (tier,) = [tier for tier in report["tiers"] if tier["tier"] == "shared"]
    return tier


def until(report, condition, seconds=90.0):
    """Ask for reports, each with a new signature, until ``condition`` holds for one."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = report("new")
        if condition(shared_of(found)):
            return found
    raise AssertionError(found)


def check(found):
    assert found["errors"] == [] and found["touched"] == []


def test_a_redis_that_fails_in_every_way_is_never_noticed_by_a_call(watched):
    if shared_servers.REDIS is None:
        pytest.skip("there is no redis-server on this machine (Debian: apt-get install redis-server)")
    server = shared_servers.redis_server()
    proxy = Delay(server.port)
    try:
        report = watched(f"redis://127.0.0.1:{proxy.port}/0")
        check(until(report, lambda tier: tier["reachable"] is True and tier["subscribed"]))
        server.pause()
        check(until(report, lambda tier: tier["reachable"] is False))
        server.resume()
        check(until(report, lambda tier: tier["reachable"] is True))
        server.stop()
        check(until(report, lambda tier: tier["reachable"] is False))
        server.start()
        check(until(report, lambda tier: tier["reachable"] is True))
        proxy.seconds = 2.0
        check(until(report, lambda tier: tier["reachable"] is False or tier["busy_s"] > 1.0))
        proxy.seconds = 0.0
        found = until(report, lambda tier: tier["reachable"] is True and tier["questions"] == 0)
        check(found)
        assert found["elsewhere"] > 0, "the hook sees what the exchange does"
    finally:
        proxy.close()
        server.end()


def test_a_folder_that_comes_and_goes_is_never_noticed_by_a_call(watched, tmp_path):
    folder, away = tmp_path / "shared", tmp_path / "away"
    report = watched(f"file://{folder}", AUDIT_FOLDER=str(folder))
    check(until(report, lambda tier: tier["reachable"] is False))  # not there at the start
    folder.mkdir()
    check(until(report, lambda tier: tier["reachable"] is True))
    folder.rename(away)
    check(until(report, lambda tier: tier["reachable"] is False))
    away.rename(folder)
    found = until(report, lambda tier: tier["reachable"] is True and tier["questions"] == 0)
    check(found)
    assert found["elsewhere"] > 0, "the hook sees what the exchange does"


@pytest.mark.parametrize(("engine", "count", "others", "keys"), [("folder", 4, 16, 10), ("redis", 4, 16, 10), ("folder", 2, 0, 3)])
def test_a_cluster_that_starts_at_once_tunes_each_key_once(tmp_path, monkeypatch, engine, count, others, keys):
    """Servers and processes without JAX (they are quicker, and tune nearly all); servers alone, whose tunes are real ones."""
    monkeypatch.setenv("SIGNATURES", str(keys))
    known = start("keys", tmp_path / "keys", HELION_RT_TUNE="off")
    out, err = known.communicate(timeout=280)
    assert known.returncode == 0, err
    wanted = [decode_record(bytes.fromhex(line)) for line in out.split()]
    server = None
    if engine == "redis":
        if shared_servers.REDIS is None:
            pytest.skip("there is no redis-server on this machine (Debian: apt-get install redis-server)")
        server = shared_servers.redis_server()
        url = f"redis://127.0.0.1:{server.port}/0/cluster"
    else:
        (tmp_path / "shared").mkdir()
        url = f"file://{tmp_path / 'shared'}"
    swarm = Swarm(url, tmp_path, wanted, 30.0)
    servers = [start("serve", tmp_path / f"server-{n}", HELION_RT_SHARED=url, SWARM_LOG=str(swarm.log)) for n in range(count)]
    try:
        clients = [swarm.start() for _ in range(others)]
        swarm.go([*servers, *clients])
        reports = []
        for process in servers:
            out, err = process.communicate(timeout=280)
            assert process.returncode == 0, err
            reports.append(json.loads(out.splitlines()[-1]))
        for process in clients:
            process.communicate(timeout=280)
            assert process.returncode == 0
        tunes = swarm.tunes()
        assert tunes.total() == len(wanted) == len(tunes), tunes
        for report in reports:
            assert report["right"] and report["finished"] and all(tuning == "done" for tuning, _ in report["slots"].values())
        places = [*(tmp_path / f"server-{n}" / "cache" for n in range(count)), *map(swarm.cache, range(others))]
        found = [[open_local(place).get(record.key) for record in wanted] for place in places]
        assert all(one == found[0] for one in found) and None not in found[0], "everybody has the same"
        assert swarm.slowest() <= 5.0
    finally:
        for process in [*servers, *swarm.processes]:
            process.kill()
            process.communicate()
        if server is not None:
            server.end()
