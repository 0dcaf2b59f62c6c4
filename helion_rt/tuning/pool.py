"""The client of a worker process: starts it, asks it with a deadline, kills its process group, starts another."""

from __future__ import annotations

import logging
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import helion_rt
from helion_rt.config import Config

from . import wire
from .measure import Pairs
from .search import Trial

logger = logging.getLogger("helion_rt.tuning")

# Bringing JAX up and running the reference once; one candidate; pairs on top of their own budget.
OPEN_DEADLINE_SECONDS = 180.0
TRIAL_DEADLINE_SECONDS = 60.0
PAIRS_GRACE_SECONDS = 60.0

MAX_DEATHS = 4


class WorkerDied(Exception):
    """The worker crashed, hung past its deadline, or was stopped; the message says which."""


class Worker:
    """One worker process and the two pipes to it. Not thread-safe, but ``kill`` may be called from any thread."""

    def __init__(self) -> None:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the worker
        self.process = subprocess.Popen(
            [sys.executable, "-m", "helion_rt.tuning.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=_environment(),
            start_new_session=True,
            close_fds=True,
        )
        self.replies: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True, name="helion-rt-worker-pipe").start()

    def ask(self, message: dict[str, Any], deadline: float) -> dict[str, Any]:
        """Send a request and wait for its answer. After ``deadline`` seconds the worker is killed. Raises ``WorkerDied``."""
        assert self.process.stdin is not None
        try:
            wire.write_frame(self.process.stdin, message)  # type: ignore[arg-type]
            reply = self.replies.get(timeout=deadline)
        except queue.Empty:
            self.kill()
            raise WorkerDied(f"no answer within {deadline:.0f} s") from None
        except OSError as error:
            reply = None
            logger.debug("writing to the worker failed: %s", error)
        if reply is None:
            code = self.kill()
            raise WorkerDied(f"the worker ended with code {code}: {self._last_words()}")
        return reply

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
            logger.warning("worker %d does not die", self.process.pid)
        for pipe in (self.process.stdin,):
            if pipe is not None and not pipe.closed:
                try:
                    pipe.close()
                except OSError:
                    logger.debug("the worker's standard input was broken")
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
            self.errors.seek(max(0, size - 600))
            return self.errors.read().decode(errors="replace").strip().replace("\n", " | ") or "nothing on its standard error"
        except (OSError, ValueError):
            return "its standard error is lost"


class Workers:
    """The one worker of a process: started when it is needed, kept from one program to the next, and gone for good after ``stop``."""

    def __init__(self, started: Callable[[], None] = lambda: None) -> None:
        self._started = started
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self._stopped = False

    @property
    def alive(self) -> bool:
        return self._worker is not None

    def get(self) -> Worker:
        """The worker, a new one if there is none. Raises ``CannotOpen`` after ``stop``."""
        with self._lock:
            if self._stopped:
                raise CannotOpen("tuning was stopped")
            if self._worker is None:
                self._worker = Worker()
                self._started()
            return self._worker

    def drop(self) -> None:
        """Kill the worker, if there is one."""
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()

    def stop(self) -> None:
        """Kill the worker and start no other."""
        with self._lock:
            self._stopped = True
        self.drop()


class WorkerEvaluator:
    """An ``Evaluator`` for one program, on whatever worker ``workers`` has. A death is a verdict on the candidate.

    ``opening`` is the ``open`` request. Raises ``CannotOpen`` where no candidate is to blame.
    """

    def __init__(self, opening: dict[str, Any], workers: Workers) -> None:
        self.opening = {**opening, "do": "open"}
        self.workers = workers
        self.opened_on: Worker | None = None
        self.deaths = 0

    def trial(self, config: Config) -> Trial:
        try:
            reply = self._ask({"do": "trial", "config": config.to_dict()}, TRIAL_DEADLINE_SECONDS)
        except WorkerDied as death:
            self._bury(death)
            return Trial(str(death))
        return Trial(reply.get("fault"), float(reply.get("seconds", 0.0)))

    def pairs(self, a: Config, b: Config, budget: float) -> Pairs | None:
        message = {"do": "pairs", "a": a.to_dict(), "b": b.to_dict(), "budget": budget}
        try:
            reply = self._ask(message, budget + PAIRS_GRACE_SECONDS)
        except WorkerDied as death:
            self._bury(death)
            reply = {"fault": str(death)}
        if "fault" in reply:
            logger.info("no comparison of %r and %r: %s", a, b, reply["fault"])
            return None
        return Pairs(tuple(map(float, reply["a"])), tuple(map(float, reply["b"])), float(reply["cpu"]), bool(reply["busy"]))

    def _ask(self, message: dict[str, Any], deadline: float) -> dict[str, Any]:
        worker = self.workers.get()
        if worker is not self.opened_on:
            try:
                opened = worker.ask(self.opening, OPEN_DEADLINE_SECONDS)
            except WorkerDied as death:
                self.workers.drop()
                raise CannotOpen(f"the reference path does not run in a worker: {death}") from death
            if "fault" in opened:
                raise CannotOpen(f"the reference path does not run in a worker: {opened['fault']}")
            self.opened_on = worker
        return worker.ask(message, deadline)

    def _bury(self, death: WorkerDied) -> None:
        self.workers.drop()
        self.deaths += 1
        if self.deaths >= MAX_DEATHS:
            raise CannotOpen(f"{self.deaths} workers died, the last one: {death}") from death


class CannotOpen(Exception):
    """A program cannot be tuned in a worker at all: its reference fails there, or workers keep dying."""


def _environment() -> dict[str, str]:
    """The server's environment (thread settings included; the processors it may use are inherited anyway) and where the package is."""
    env = dict(os.environ)
    parent = str(Path(helion_rt.__file__).resolve().parent.parent)
    env["PYTHONPATH"] = os.pathsep.join(p for p in (parent, env.get("PYTHONPATH", "")) if p)
    # Only the CPU can be measured in another process, and a worker must never take the accelerator from the server.
    env["JAX_PLATFORMS"] = "cpu"
    # The caller's working directory is no place to import modules from (Python 3.11 and later).
    env["PYTHONSAFEPATH"] = "1"
    env["HELION_RT_TUNE"] = "off"
    return env
