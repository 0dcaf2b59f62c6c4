"""The URLs of shared tiers: what is refused, what is kept secret, and that opening one asks nothing of network, disk or libraries."""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import shared_servers
from database_support import make_record
from shared_servers import Server

import helion_rt.database.shared as shared
from helion_rt.database.shared import SharedError, open_shared
from helion_rt.database.shared.redis import RedisEngine
from helion_rt.database.signing import Trust
from helion_rt.exc import ConfigError

TRUST = Trust()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "begins with one of file"),
        ("/mnt/shared", "begins with one of file"),
        ("ftp://host/x", "begins with one of file"),
        ("https://host/x", "begins with one of file"),
        ("file://host/mnt", "file:///absolute/path"),
        ("file:relative", "file:///absolute/path"),
        ("file:///mnt?mode=x", "'mode' wrongly"),
        ("redis://host?timeout=3", "'timeout' wrongly"),
        ("redis://host?prefix=a&prefix=b", "'prefix' wrongly"),
        ("redis://host?prefix=", "'prefix' wrongly"),
        ("redis://host/0/a?prefix=b", "a prefix twice"),
        ("redis://host?expire=30", "expire"),
        ("redis://host?expire=0d", "expire"),
        ("redis://host?expire=1e3s", "expire"),
        ("redis://host?ca=/etc/ca.pem", "no TLS"),
        ("redis://host:port", "cannot be read"),
        ("redis://[::1", "cannot be read"),
        ("redis://host/#x", "#fragment"),
        ("s3://", "s3://bucket/prefix"),
        ("s3://key:secret@bucket/x", "s3://bucket/prefix"),
        ("s3://bucket?key=AKIA", "'key' wrongly"),
        ("memory://bucket?region=x", "no use for"),
    ],
)
def test_refused(url: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        open_shared(url, trust=TRUST)


@pytest.mark.parametrize(
    ("url", "module", "hint"),
    [
        ("redis://host", "redis", r"helion_rt\[redis\]"),
        ("s3://bucket", "s3fs", r"helion_rt\[s3\]"),
        ("gs://bucket", "gcsfs", r"helion_rt\[gcs\]"),
        ("az://container", "adlfs", "pip install adlfs"),
    ],
)
def test_a_missing_library_is_told_with_what_installs_it(url: str, module: str, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shared.importlib.util.find_spec
    monkeypatch.setattr(shared.importlib.util, "find_spec", lambda name: None if name == module else real(name))
    with pytest.raises(ConfigError, match=module) as error:
        open_shared(url, trust=TRUST)
    assert hint.replace("\\", "") in str(error.value)


def test_what_a_redis_url_says() -> None:
    def engine(url: str) -> RedisEngine:
        found = open_shared(url, trust=TRUST, timeout=3.0).engine
        assert isinstance(found, RedisEngine)
        return found

    full = engine("rediss://me:p%40ss@host:7000/2/team/a?expire=30d&ca=/etc/ca.pem")
    server = full._server
    assert (server.host, server.port, server.number, server.user, server.password) == ("host", 7000, 2, "me", "p@ss")
    assert (server.tls, server.ca, server.timeout) == (True, "/etc/ca.pem", 3.0)
    assert (full._prefix, full._expire) == ("team/a", 30 * 86400)
    plain = engine("valkey://host")
    server = plain._server
    assert (server.port, server.number, server.tls, plain._prefix, plain._expire) == (6379, 0, False, "helion_rt", None)
    for url in ("redis://host/team", "redis://host?prefix=team", "redis://host/0/team"):
        assert engine(url)._prefix == "team"


@pytest.fixture
def guarded_redis() -> Iterator[Server]:
    if shared_servers.REDIS is None:
        pytest.skip("there is no redis-server on this machine (Debian: apt-get install redis-server)")
    server = shared_servers.redis_server("--requirepass", "swordfish")
    yield server
    server.end()


@pytest.mark.parametrize("given", ["redis://:{}@127.0.0.1:{}/0/x", "redis://me:{}@127.0.0.1:{}/0/x", "rediss://:{}@127.0.0.1:{}/0/x"])
def test_passwords_are_told_to_nobody(given: str, guarded_redis: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = "hunter2hunter2"
    tier = open_shared(given.format(wrong, guarded_redis.port), trust=TRUST, timeout=2.0)
    stop = tier.subscribe(print)
    with pytest.raises(SharedError) as error:
        tier.get(make_record().key)
    assert stop is not None
    stop()
    tier.close()
    assert isinstance(tier.engine, RedisEngine)
    said = [repr(tier), tier.url, repr(tier.stats()), str(error.value), repr(error.value), repr(tier.engine._server), caplog.text]
    assert not [text for text in said if wrong in text]


def test_the_right_password(guarded_redis: Server) -> None:
    tier = open_shared(f"redis://:swordfish@127.0.0.1:{guarded_redis.port}", trust=TRUST, timeout=20.0)
    assert tier.put(make_record(1)) == make_record(1)


@pytest.mark.parametrize("url", ["redis://:hunter2@host:port", "redis://:hunter2@host/#x", "redis://:hunter2@host?expire=x", "ftp://:hunter2@host",
                                 "s3://key:hunter2@bucket", "file://:hunter2@host/x", "redis://:hunter2@host?x=hunter2"])  # fmt: skip
def test_nor_in_what_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as error:
        open_shared(url, trust=TRUST)
    assert "hunter2" not in str(error.value)


def test_records_expire_where_that_is_asked_for(own_redis: Server) -> None:
    with_end = open_shared(f"redis://127.0.0.1:{own_redis.port}/0/a?expire=30d", trust=TRUST, timeout=20.0)
    for_ever = open_shared(f"redis://127.0.0.1:{own_redis.port}/0/b", trust=TRUST, timeout=20.0)
    for tier in (with_end, for_ever):
        tier.put(make_record(1))
    assert isinstance(with_end.engine, RedisEngine) and isinstance(for_ever.engine, RedisEngine)
    digest = make_record().key.digest
    with with_end.engine._told() as client:
        assert 29 * 86400 < client.ttl(f"a:r:{digest}") <= 30 * 86400
        assert client.ttl(f"b:r:{digest}") == -1
        client.pexpire(f"a:r:{digest}", 1)
        while client.exists(f"a:r:{digest}"):
            pass
    assert with_end.get(make_record().key) is None


def test_databases_and_prefixes_are_apart(own_redis: Server) -> None:
    urls = [f"redis://127.0.0.1:{own_redis.port}/{path}" for path in ("0/a", "0/b", "1/a", "0/a*", "0/[ab]")]
    tiers = [open_shared(url, trust=TRUST, timeout=20.0) for url in urls]
    for n, tier in enumerate(tiers):
        tier.put(make_record(n))
        assert list(tier.records()) == [make_record(n)]
    for n, tier in enumerate(tiers):
        assert tier.get(make_record().key) == make_record(n)
        assert list(tier.records()) == [make_record(n)]


def test_opening_touches_nothing_and_imports_no_client(tmp_path: Path, run_script: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    source = """
import threading
touched = []
def hook(event, arguments):
    if event.startswith("socket.") or (event in ("open", "os.mkdir", "os.listdir", "os.scandir") and "/nowhere/" in str(arguments[0])):
        touched.append(event)
from helion_rt.database.shared import open_shared
from helion_rt.database.signing import Trust
sys.addaudithook(hook)
for url in ("file:///nowhere/at/all", "redis://10.255.255.1/0/x", "rediss://10.255.255.1", "s3://bucket/x?endpoint_url=http://10.255.255.1",
            "memory://a/b"):
    tier = open_shared(url, trust=Trust())
    tier.stats(), repr(tier), tier.close()
assert not touched, touched
heavy = {"jax", "torch", "redis", "fsspec", "s3fs", "aiobotocore", "botocore", "asyncio", "diskcache"} & set(sys.modules)
assert not heavy, heavy
assert threading.active_count() == 1
"""
    run_script(source)


def test_any_other_store_of_fsspec(tmp_path: Path) -> None:
    """One that has no conditional put beside what fsspec makes of it, and no event loop."""
    tier = open_shared("memory://bucket/x", trust=TRUST)
    assert tier.get(make_record().key) is None
    assert tier.put(make_record(2)) == make_record(2)
    assert tier.put(make_record(1)) == make_record(2) == tier.get(make_record().key)
    assert list(tier.records()) == [make_record(2)]
    digest = make_record().key.digest
    assert tier.take_lease(digest, "a", 60) and not tier.take_lease(digest, "b", 60)
    tier.release_lease(digest, "a")
    assert tier.take_lease(digest, "b", 60)
    assert tier.forget(digest) and list(tier.digests()) == []


class TestTls:
    @pytest.fixture
    def certificate(self, tmp_path: Path) -> Path:
        """A certificate for localhost that only itself vouches for; its key beside it."""
        openssl = shutil.which("openssl")
        if openssl is None:
            pytest.skip("there is no openssl on this machine")
        subprocess.run(
            [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
             "-addext", "subjectAltName=DNS:localhost", "-keyout", tmp_path / "key.pem", "-out", tmp_path / "ca.pem"],
            check=True, capture_output=True,
        )  # fmt: skip
        return tmp_path / "ca.pem"

    @pytest.fixture
    def tls_redis(self, certificate: Path) -> Iterator[Server]:
        if shared_servers.REDIS is None:
            pytest.skip("there is no redis-server on this machine (Debian: apt-get install redis-server)")
        program, key = shared_servers.REDIS, certificate.with_name("key.pem")
        server = Server(
            lambda port: [program, "--port", "0", "--tls-port", str(port), "--bind", "127.0.0.1", "--save", "", "--tls-auth-clients", "no",
                          "--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--tls-ca-cert-file", str(certificate)]
        )  # fmt: skip
        yield server
        server.end()

    def test_the_server_has_to_be_who_it_says(self, tls_redis: Server, certificate: Path) -> None:
        tier = open_shared(f"rediss://localhost:{tls_redis.port}/0/x?ca={certificate}", trust=TRUST, timeout=20.0)
        assert tier.put(make_record(1)) == make_record(1) == tier.get(make_record().key)
        for url in (f"rediss://localhost:{tls_redis.port}/0/x", f"rediss://127.0.0.1:{tls_redis.port}/0/x?ca={certificate}"):
            with pytest.raises(SharedError, match="certificate"):
                open_shared(url, trust=TRUST, timeout=20.0).get(make_record().key)
