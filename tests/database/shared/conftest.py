"""Fixtures: a fresh shared tier on each engine."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for shared_servers, whatever pytest's import mode
import shared_servers
from shared_servers import Server

ENGINES = ["folder", "redis", "s3"]


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Server]:
    """A Redis that no test disturbs."""
    if shared_servers.REDIS is None:
        pytest.skip("there is no redis-server on this machine (Debian: apt-get install redis-server)")
    server = shared_servers.redis_server()
    yield server
    server.end()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Server]:
    """An S3 server that no test disturbs."""
    pytest.importorskip("moto.server", reason="moto[server] is not installed")
    server = shared_servers.s3_server()
    yield server
    server.end()


@pytest.fixture
def own_redis() -> Iterator[Server]:
    """A Redis to stop, pause and start again."""
    if shared_servers.REDIS is None:
        pytest.skip("there is no redis-server on this machine (Debian: apt-get install redis-server)")
    server = shared_servers.redis_server()
    yield server
    server.end()


@pytest.fixture
def s3_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in shared_servers.S3_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


def new_url(engine: str, request: pytest.FixtureRequest) -> str:
    """The URL of a shared tier that nobody has used yet."""
    if engine == "folder":
        folder = request.getfixturevalue("tmp_path") / f"shared-{uuid.uuid4().hex[:8]}"
        folder.mkdir()
        return f"file://{folder}"
    if engine == "redis":
        return f"redis://127.0.0.1:{request.getfixturevalue('redis_server').port}/0/{uuid.uuid4().hex[:8]}"
    request.getfixturevalue("s3_environment")
    server, bucket = request.getfixturevalue("s3_server"), f"bucket-{uuid.uuid4().hex[:8]}"
    shared_servers.make_bucket(server.port, bucket)
    return f"s3://{bucket}/team/a?endpoint_url=http://127.0.0.1:{server.port}"


@pytest.fixture(params=ENGINES)
def shared_url(request: pytest.FixtureRequest) -> str:
    return new_url(request.param, request)


@pytest.fixture
def engine_url(request: pytest.FixtureRequest) -> str:
    """For tests that name their engines: ``@pytest.mark.parametrize("engine_url", ["folder", ...], indirect=True)``."""
    return new_url(request.param, request)
