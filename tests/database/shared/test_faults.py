"""Servers that are not there, stop, hang and come back: SharedError, in bounded time, and work goes on afterwards."""

from __future__ import annotations

import errno
import queue
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import shared_servers
from database_support import make_record
from shared_servers import Server

from helion_rt.database.shared import SharedError, SharedTier, open_shared
from helion_rt.database.shared.folder import FolderFiles
from helion_rt.database.signing import Trust

GENEROUS_S = 60.0


def all_operations(tier: SharedTier) -> list[Callable[[], object]]:
    record = make_record(3)
    digest = record.key.digest
    return [
        lambda: tier.get(record.key),
        lambda: tier.put(record),
        lambda: list(tier.records()),
        lambda: list(tier.digests()),
        lambda: tier.forget(digest),
        lambda: tier.take_lease(digest, "a", 60),
        lambda: tier.renew_lease(digest, "a", 60),
        lambda: tier.release_lease(digest, "a"),
    ]


def assert_unreachable(tier: SharedTier) -> None:
    before = tier.stats().failures
    operations = all_operations(tier)
    with ThreadPoolExecutor(len(operations)) as pool:
        for answer in [pool.submit(operation) for operation in operations]:
            assert isinstance(answer.exception(timeout=GENEROUS_S), SharedError)
    assert tier.stats().failures == before + len(operations)
    assert tier.stats().last_failure


def assert_works(tier: SharedTier, n: int) -> None:
    assert tier.put(make_record(n)) == make_record(n) == tier.get(make_record().key)


@pytest.fixture
def own_s3() -> Iterator[Server]:
    pytest.importorskip("moto.server", reason="moto[server] is not installed")
    server = shared_servers.s3_server()
    yield server
    server.end()


class TestRedis:
    @pytest.fixture
    def tier(self, own_redis: Server) -> Iterator[SharedTier]:
        tier = open_shared(f"redis://127.0.0.1:{own_redis.port}", trust=Trust(), timeout=0.5)
        yield tier
        tier.close()

    def test_stopped_and_started_again(self, tier: SharedTier, own_redis: Server) -> None:
        assert_works(tier, 1)
        own_redis.stop()
        assert_unreachable(tier)
        own_redis.start()
        assert_works(tier, 2)

    def test_not_there_at_first(self, tier: SharedTier, own_redis: Server) -> None:
        own_redis.stop()
        assert_unreachable(tier)
        own_redis.start()
        assert_works(tier, 1)

    def test_restarted_between_two_operations(self, tier: SharedTier, own_redis: Server) -> None:
        assert_works(tier, 1)
        own_redis.stop()
        own_redis.start()
        assert tier.get(make_record().key) is None, "the dead connection is not the caller's business"
        assert tier.stats().failures == 0

    def test_paused_and_resumed(self, tier: SharedTier, own_redis: Server) -> None:
        assert_works(tier, 1)
        own_redis.pause()
        assert_unreachable(tier)
        own_redis.resume()
        assert_works(tier, 2)

    def test_what_is_published_is_heard_and_a_restart_is_survived(self, tier: SharedTier, own_redis: Server) -> None:
        heard: queue.Queue[str] = queue.Queue()
        other = open_shared(tier.url, trust=Trust(), timeout=5.0)
        stop = tier.subscribe(heard.put, lambda: heard.put("listening"))
        assert stop is not None
        assert heard.get(timeout=GENEROUS_S) == "listening"
        digest = make_record().key.digest
        other.put(make_record(1))
        assert heard.get(timeout=GENEROUS_S) == digest
        other.put(make_record(1))  # nothing new: nothing is said
        other.put(make_record(1, key=1))
        assert heard.get(timeout=GENEROUS_S) == make_record(key=1).key.digest
        own_redis.stop()
        own_redis.start()
        assert heard.get(timeout=GENEROUS_S) == "listening"
        other.put(make_record(2))
        assert heard.get(timeout=GENEROUS_S) == digest
        stop()
        other.put(make_record(3))
        assert heard.empty()

    def test_a_listener_that_fails_is_called_again(self, tier: SharedTier) -> None:
        heard: queue.Queue[str] = queue.Queue()

        def listener(digest: str) -> None:
            heard.put(digest)
            raise RuntimeError("a bug of the listener")

        stop = tier.subscribe(listener, lambda: listener("listening"))
        assert stop is not None and heard.get(timeout=GENEROUS_S) == "listening"
        for n in (1, 2):
            tier.put(make_record(n))
            assert heard.get(timeout=GENEROUS_S) == make_record().key.digest
        stop()


class TestFolder:
    def test_not_mounted_at_first_gone_and_back(self, tmp_path: Path) -> None:
        tier = open_shared(f"file://{tmp_path}/mount", trust=Trust())
        assert_unreachable(tier)
        assert not (tmp_path / "mount").exists(), "an unmounted folder must not be made up"
        (tmp_path / "mount").mkdir()
        assert_works(tier, 1)
        (tmp_path / "mount").rename(tmp_path / "gone")
        assert_unreachable(tier)
        (tmp_path / "gone").rename(tmp_path / "mount")
        assert tier.get(make_record().key) == make_record(1)
        assert_works(tier, 2)

    def test_a_file_where_the_folder_should_be(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        tier = open_shared(f"file://{tmp_path}/file", trust=Trust())
        with pytest.raises(SharedError):
            tier.put(make_record())

    def test_what_was_listed_cannot_be_looked_at(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        class Stale:
            name = f"{make_record().key.digest}.0.rec"

            def stat(self, *, follow_symlinks: bool) -> object:
                raise OSError(errno.ESTALE, "Stale file handle")

            is_dir = stat

        monkeypatch.setattr(FolderFiles, "_scan", lambda *_: [Stale()])
        tier = open_shared(f"file://{tmp_path}", trust=Trust())
        for ask in (lambda: tier.get(make_record().key), lambda: list(tier.digests())):
            with pytest.raises(SharedError, match="Stale file handle"):
                ask()

    def test_it_is_emptied_while_it_is_used(self, tmp_path: Path) -> None:
        tier = open_shared(f"file://{tmp_path}", trust=Trust())
        assert_works(tier, 1)
        shutil.rmtree(tmp_path / "helion_rt-v1")
        assert tier.get(make_record().key) is None
        assert_works(tier, 1)


class TestS3:
    def test_paused_resumed_stopped_and_a_wrong_bucket(self, own_s3: Server, s3_environment: None) -> None:
        shared_servers.make_bucket(own_s3.port, "right")
        address = f"endpoint_url=http://127.0.0.1:{own_s3.port}"
        wrong = open_shared(f"s3://wrong?{address}", trust=Trust(), timeout=20.0)
        assert_unreachable(wrong)
        assert "bucket" in wrong.stats().last_failure.lower()
        tier, quick = (open_shared(f"s3://right/a?{address}", trust=Trust(), timeout=timeout) for timeout in (20.0, 1.0))
        assert_works(tier, 1)
        own_s3.pause()
        assert_unreachable(quick)
        own_s3.resume()
        assert_works(tier, 2)
        own_s3.stop()
        assert_unreachable(quick)


def test_no_thread_but_the_listeners_is_started_by_redis(own_redis: Server, run_script: Any) -> None:
    source = """
import threading
from helion_rt.database.shared import open_shared
from helion_rt.database.signing import Trust
tier = open_shared(sys.argv[1], trust=Trust())
tier.put(make_record())
assert threading.active_count() == 1, threading.enumerate()
"""
    run_script(source, f"redis://127.0.0.1:{own_redis.port}")
