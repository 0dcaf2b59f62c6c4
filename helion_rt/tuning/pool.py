"""The clients of worker processes: start one, ask it with a deadline, watch its memory, kill its process group, start another."""

from __future__ import annotations

import enum
import logging
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import helion_rt
from helion_rt import targets
from helion_rt.config import Config
from helion_rt.database import EvidenceKind

from . import usage, wire
from .evidence import Trial
from .measure import Pairs

logger = logging.getLogger("helion_rt.tuning")

# Bringing JAX up and running the reference once; one candidate; pairs on top of their own budget.
OPEN_DEADLINE_SECONDS = 180.0
TRIAL_DEADLINE_SECONDS = 60.0
COMPILE_DEADLINE_SECONDS = 150.0
PAIRS_GRACE_SECONDS = 60.0

# How often the memory of a worker at work is looked at.
WATCH_SECONDS = 0.2
# A worker at rest that holds more than this share of its limit is replaced: what libtpu does not give back adds up.
REST_SHARE = 0.5

# Deadlines are for a processor of one's own. On a busy machine a worker that is at work has so many times as long; one that had less than
# this share of a processor is not at work, but hangs.
PATIENCE = 3.0
AT_WORK_SHARE = 0.05

MAX_DEATHS = 4

COMMAND = (sys.executable, "-m", "helion_rt.tuning.worker")


class Role(enum.Enum):
    """What a worker is for: its environment depends on it, and libtpu reads that once, when it is loaded."""

    MEASURE = "measure"  # runs candidates on the CPU
    COMPILE = "compile"  # compiles for a TPU that it never touches


def is_overdue(deadline: float, elapsed: float, worked: float) -> bool:
    """Whether a worker should have answered ``elapsed`` seconds after it was asked, of which it had a processor for ``worked`` seconds."""
    at_work = AT_WORK_SHARE * elapsed < worked < deadline
    return elapsed >= (PATIENCE * deadline if at_work else deadline)


class WorkerDied(Exception):
    """The worker crashed, hung past its deadline, or was stopped; the message says which.

    ``doubtful``: on another day it might have lived.
    """

    def __init__(self, message: str, doubtful: bool = False) -> None:
        super().__init__(message)
        self.doubtful = doubtful


class Worker:
    """One worker process and the two pipes to it. Not thread-safe, but ``kill`` may be called from any thread.

    ``memory_bytes``: resident memory above which it is killed. A worker that compiles has a folder of its own for libtpu's dumps.
    """

    def __init__(self, role: Role = Role.MEASURE, memory_bytes: int | None = None) -> None:
        self.role = role
        self.memory_bytes = usage.limit(None) if memory_bytes is None else memory_bytes
        self.folder = Path(tempfile.mkdtemp(prefix="helion_rt-dumps-")) if role is Role.COMPILE else None
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the worker
        self.process = subprocess.Popen(
            [*COMMAND, *([str(self.folder)] if self.folder else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=_environment(self.folder),
            start_new_session=True,
            close_fds=True,
        )
        self.replies: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True, name="helion-rt-worker-pipe").start()

    def ask(self, message: dict[str, Any], deadline: float) -> dict[str, Any]:
        """Send a request and wait for its answer. When it is overdue (see ``is_overdue``), or over its memory, the worker is killed.

        Raises ``WorkerDied``.
        """
        assert self.process.stdin is not None
        try:
            wire.write_frame(self.process.stdin, message)  # type: ignore[arg-type]
        except OSError as error:
            logger.debug("writing to the worker failed: %s", error)
            reply = None
        else:
            reply = self._await(deadline)
        if reply is None:
            code = self.kill()
            # SIGKILL is not what a process does to itself: a person, or the system that ran out of memory.
            killed = code == -getattr(signal, "SIGKILL", 9)
            raise WorkerDied(f"the worker ended with code {code}{_signal_name(code)}: {self._last_words()}", doubtful=killed)
        return reply

    def _await(self, deadline: float) -> dict[str, Any] | None:
        pid, begin = self.process.pid, time.monotonic()
        before = usage.processor_seconds(pid)
        while True:
            try:
                return self.replies.get(timeout=min(WATCH_SECONDS, deadline))
            except queue.Empty:
                held, elapsed, worked = usage.resident(pid), time.monotonic() - begin, usage.processor_seconds(pid) - before
                if held > self.memory_bytes:
                    self.kill()
                    text = f"out of memory: {held / 2**30:.1f} GiB in use, {self.memory_bytes / 2**30:.1f} allowed"
                    raise WorkerDied(text, doubtful=True) from None
                if is_overdue(deadline, elapsed, worked):
                    self.kill()
                    raise WorkerDied(f"no answer within {elapsed:.0f} s, {worked:.0f} of them at work", doubtful=True) from None

    @property
    def is_bloated(self) -> bool:
        """Does it hold so much at rest that the next candidate would pay for earlier ones?"""
        return usage.resident(self.process.pid) > REST_SHARE * self.memory_bytes

    def kill(self) -> int | None:
        """End the worker and everything it started; safe to call again."""
        if self.process.poll() is None:
            try:
                if hasattr(os, "killpg"):
                    os.killpg(self.process.pid, signal.SIGKILL)  # it leads its own group
                else:
                    self.process.kill()
            except ProcessLookupError:
                logger.debug("the worker was gone already")
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            logger.info("worker %d was killed and takes long to go", self.process.pid)  # the kernel frees gigabytes
        for pipe in (self.process.stdin,):
            if pipe is not None and not pipe.closed:
                try:
                    pipe.close()
                except OSError:
                    logger.debug("the worker's standard input was broken")
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        return self.process.returncode

    def _read(self) -> None:
        assert self.process.stdout is not None
        try:
            with self.process.stdout as stream:
                while (reply := wire.read_frame(stream)) is not None:  # type: ignore[arg-type]
                    self.replies.put(reply)
        except (wire.BadFrame, OSError, ValueError) as error:
            logger.debug("reading from the worker failed: %s", error)
        finally:
            self.replies.put(None)

    def _last_words(self) -> str:
        try:
            size = self.errors.seek(0, os.SEEK_END)
            self.errors.seek(max(0, size - LAST_WORDS_BYTES))
            return telling_line(self.errors.read().decode(errors="replace"))
        except (OSError, ValueError):
            return "its standard error is lost"


LAST_WORDS_BYTES = 16 * 1024
# What a dying process says of the reason, most telling first: glog's fatal lines, Python's.
_TELLING = (r"^F\d{4} .*", r".*Check failed:.*", r"^Fatal Python error: .*", r".*terminate called .*", r"^\w*(?:Error|Exception): .*")


def telling_line(text: str) -> str:
    """The one line of a dead process' standard error that says why, at most 200 characters."""
    for pattern in _TELLING:
        if found := re.findall(pattern, text, re.MULTILINE):
            return found[0].strip()[:200]
    lines = [line for line in map(str.strip, text.splitlines()) if line]
    return lines[-1][:200] if lines else "nothing on its standard error"


def _signal_name(code: int | None) -> str:
    try:
        return f" ({signal.Signals(-code).name})" if code is not None and code < 0 else ""
    except ValueError:  # a real-time signal has no name
        return ""


class Workers:
    """The workers of a process, one a role: started when needed, kept from one program to the next, and gone for good after ``stop``.

    ``memory_bytes``: see ``Worker``.
    """

    def __init__(self, started: Callable[[], None] = lambda: None, memory_bytes: int | None = None) -> None:
        self._started = started
        self.memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._workers: dict[Role, Worker] = {}
        self._stopped = False

    @property
    def alive(self) -> bool:
        return bool(self._workers)

    def get(self, role: Role = Role.MEASURE) -> Worker:
        """The worker, a new one if there is none. Raises ``CannotOpen`` after ``stop``."""
        with self._lock:
            if self._stopped:
                raise CannotOpen("tuning was stopped")
            if role not in self._workers:
                self._workers[role] = Worker(role, self.memory_bytes)
                self._started()
            return self._workers[role]

    def drop(self, role: Role | None = None) -> None:
        """Kill the worker of a role, or all of them."""
        with self._lock:
            gone = [self._workers.pop(r) for r in list(self._workers) if role in (None, r)]
        for worker in gone:
            worker.kill()

    def stop(self) -> None:
        """Kill the workers and start no other."""
        with self._lock:
            self._stopped = True
        self.drop()


class WorkerEvaluator:
    """An ``Evaluator`` for one program, on whatever worker ``workers`` has. A death is a verdict on the candidate.

    ``opening`` is the ``open`` request: its target says whether candidates are measured or compiled. ``quarantined`` configs are
    answered for without a trial. Raises ``CannotOpen`` where no candidate is to blame; when ``MAX_DEATHS`` candidates have taken a
    worker with them, the rest of them is refused.
    """

    def __init__(self, opening: dict[str, Any], workers: Workers, quarantined: Collection[Config] = ()) -> None:
        self.opening = {**opening, "do": "open"}
        self.role = Role.COMPILE if targets.get(opening["target"]).is_tpu else Role.MEASURE
        self.workers = workers
        self.quarantined = frozenset(quarantined)
        self.opened_on: Worker | None = None
        self.deaths = 0
        self.given_up: str | None = None

    @property
    def kind(self) -> EvidenceKind:
        """What its times are known by; a single trial says if it could only be modelled."""
        return EvidenceKind.SCHEDULED if self.role is Role.COMPILE else EvidenceKind.MEASURED

    def trial(self, config: Config) -> Trial:
        if config in self.quarantined:
            return Trial("quarantined: it was found to be wrong or slower than the default before", kind=self.kind)
        deadline = COMPILE_DEADLINE_SECONDS if self.role is Role.COMPILE else TRIAL_DEADLINE_SECONDS
        reply = self._ask({"do": "trial", "config": config.to_dict()}, deadline)
        if "fault" in reply:
            return Trial(str(reply["fault"]), kind=self.kind, doubtful=bool(reply.get("doubtful")))
        return Trial(None, float(reply["seconds"]), EvidenceKind(reply["kind"]), dict(reply["facts"]))

    def pairs(self, a: Config, b: Config, budget: float) -> Pairs | None:
        message = {"do": "pairs", "a": a.to_dict(), "b": b.to_dict(), "budget": budget}
        reply = self._ask(message, budget + PAIRS_GRACE_SECONDS)
        if "fault" in reply:
            logger.info("no comparison of %r and %r: %s", a, b, reply["fault"])
            return None
        return Pairs(tuple(map(float, reply["a"])), tuple(map(float, reply["b"])), float(reply["cpu"]), bool(reply["busy"]))

    def _ask(self, message: dict[str, Any], deadline: float) -> dict[str, Any]:
        """The worker's answer, or ``fault`` where it died, or where too many have."""
        if self.given_up:
            return {"fault": self.given_up, "doubtful": True}
        worker = self._open()
        if worker is None:
            return {"fault": self.given_up, "doubtful": True}
        try:
            reply = worker.ask(message, deadline)
        except WorkerDied as death:
            self.workers.drop(self.role)
            self.deaths += 1
            if self.deaths >= MAX_DEATHS:
                self.given_up = f"{self.deaths} candidates took their worker with them: no other is tried"
            return {"fault": str(death), "doubtful": death.doubtful}
        if reply.get("poisoned") or worker.is_bloated:
            self.workers.drop(self.role)
        return reply

    def _open(self) -> Worker | None:
        """A worker that has the program; None, with ``given_up`` set, where one had it before and none can any more."""
        worker = self.workers.get(self.role)
        if worker is self.opened_on:
            return worker
        try:
            fault = worker.ask(self.opening, OPEN_DEADLINE_SECONDS).get("fault")
        except WorkerDied as death:
            fault = str(death)
        if fault is None:
            self.opened_on = worker
            return worker
        self.workers.drop(self.role)
        reason = f"the reference path does not run in a worker: {fault}"
        if self.opened_on is None:
            raise CannotOpen(reason)
        self.given_up = reason
        return None


class CannotOpen(Exception):
    """A program cannot be tuned in a worker at all: its reference path fails there, or tuning was stopped."""


def _environment(folder: Path | None) -> dict[str, str]:
    """The server's environment (thread settings included; the processors it may use are inherited anyway) and where the package is.

    With ``folder``: what libtpu must find when it is loaded, so that it writes its dumps there.
    """
    env = dict(os.environ)
    parent = str(Path(helion_rt.__file__).resolve().parent.parent)
    env["PYTHONPATH"] = os.pathsep.join(p for p in (parent, env.get("PYTHONPATH", "")) if p)
    # Only the CPU can be measured in another process, and a worker must never take the accelerator from the server.
    env["JAX_PLATFORMS"] = "cpu"
    # The caller's working directory is no place to import modules from (Python 3.11 and later).
    env["PYTHONSAFEPATH"] = "1"
    env["HELION_RT_TUNE"] = "off"
    if folder is not None:
        from helion_rt.schedule import environment  # late: a process that only measures needs none of it

        env.update(environment(folder))
    return env
