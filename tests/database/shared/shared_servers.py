"""Servers of the engines, on loopback, each a process of its own that ends with the test."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

REDIS = shutil.which("redis-server") or shutil.which("valkey-server")
S3_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
}  # fmt: skip


class Server:
    """A process that answers on ``port`` of 127.0.0.1."""

    def __init__(self, command: Callable[[int], list[str]]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self._command = command
        self._place = Path(tempfile.mkdtemp(prefix="helion_rt_server_"))
        self.start()

    def start(self) -> None:
        """Start (again, on the same port), and wait until it accepts connections."""
        with open(self._place / "log", "ab") as log:
            self.process = subprocess.Popen(
                self._command(self.port),
                cwd=self._place, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **S3_ENVIRONMENT},
            )  # fmt: skip
        for _ in range(1200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self.process.poll() is None, (self._place / "log").read_text()
            time.sleep(0.05)
        raise AssertionError("the server does not start")

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        self.stop()
        shutil.rmtree(self._place, ignore_errors=True)


def redis_server(*options: str) -> Server:
    assert REDIS is not None
    program = REDIS
    return Server(lambda port: [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", *options])


def s3_server() -> Server:
    return Server(lambda port: [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)])


def make_bucket(port: int, name: str) -> None:
    import fsspec

    store = fsspec.filesystem("s3", endpoint_url=f"http://127.0.0.1:{port}", skip_instance_cache=True)
    store.mkdir(name)
