"""The worker: ``python -m helion_rt.tuning.worker [FOLDER]``, a process in which candidates may crash or hang.

It reads requests from standard input and answers on standard output (``wire``); it is gone when standard input closes, when
its parent dies, or when its client kills its process group, and what it started goes with it. The program arrives as data: the
user's code never runs here. ``FOLDER`` is where libtpu writes its dumps, for a worker that compiles for TPUs.

=========  ==================================================  =====================================================
request    fields                                              answer
=========  ==================================================  =====================================================
``open``   ``program`` bytes, ``target``, ``jax`` settings,    ``ok``
           ``inputs`` (a recipe, see ``inputs``), ``like``
           (a config, or None; see ``judge``), ``variants``
           (values of tunables, program bytes; each)
``trial``  ``config``                                          ``seconds`` of one call, ``kind`` and ``facts`` (see
                                                               ``evidence``), or ``fault``
``pairs``  ``a``, ``b`` configs, ``budget`` seconds            ``a``, ``b`` lists of seconds, ``cpu``, ``busy``
=========  ==================================================  =====================================================

An answer has ``poisoned`` where the process may have suffered from the candidate: its client takes another one then.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import jax

from helion_rt import lowering, targets
from helion_rt.config import Config
from helion_rt.exc import HelionError
from helion_rt.program.codec import decode
from helion_rt.program.ir import Program
from helion_rt.targets import Target

from . import executable, measure, wire
from .evidence import EvidenceKind
from .inputs import Values
from .judge import Judge

# Executables kept at a time: the default, the incumbent, the candidate, and one to spare.
KEPT = 4

# Compiling and timing share the machine with the server, so both run below it. Interleaved pairs compare two candidates
# under the same handicap, and a server that takes the processors away shows up as a busy machine.
NICE = 10

# A candidate this quick, with inputs this small, is judged on all of them at once; else only when it has come as far as being compared.
QUICK_SECONDS = 0.2
SMALL_INPUT_BYTES = 32 << 20

PR_SET_PDEATHSIG = 1


@dataclass
class Session:
    """One program under trial. ``judge`` is None where it can only be compiled for its target."""

    program: Program
    target: Target
    judge: Judge | None
    folder: Path | None = None  # of libtpu's dumps
    runs: OrderedDict[Config, Callable[..., Sequence[Any]]] = field(default_factory=OrderedDict)
    calm: dict[Config, measure.Calm] = field(default_factory=dict)
    right: set[tuple[Config, Values]] = field(default_factory=set)
    variants: list[tuple[dict[str, Any], Program]] = field(default_factory=list)

    def program_of(self, config: Config) -> Program:
        """The program that a config is for: the one of its values of tunables."""
        own = config.own
        return next((p for values, p in self.variants if values.items() <= own.items()), self.program) if self.variants else self.program


def open_session(message: dict[str, Any], folder: Path | None = None) -> Session:
    """Set JAX up as the server's is, make the inputs up and compute what the reference path says about them."""
    for name, value in message["jax"].items():
        jax.config.update(name, value)
    jax.config.update("jax_enable_compilation_cache", False)  # it would fill with losers
    program = decode(message["program"])
    target = targets.get(message["target"])
    if target.is_tpu:  # here it can only be compiled for
        return Session(program, target, None, folder)
    variants = [(values, decode(data)) for values, data in message.get("variants", ())]
    like = message.get("like")
    judge = Judge(program, message["inputs"], target, None if like is None else Config.from_dict(like))
    judge.prepare()
    return Session(program, target, judge, variants=variants)


def trial(session: Session, config: Config) -> dict[str, Any]:
    """Compile a candidate and say what one call takes; where it can run, compare it with the reference and time it."""
    if session.judge is None:
        return scheduled(session, config)
    run = _run_of(session, config)
    fault = _fault(session, run, config, (Values.NORMAL,))
    if fault:
        return {"fault": fault}
    best = min(_timed(run, session.judge.normal) for _ in range(3))
    at_once = best < QUICK_SECONDS and session.judge.input_bytes < SMALL_INPUT_BYTES
    fault = _fault(session, run, config, session.judge.values) if at_once else None
    return {"fault": fault} if fault else {"seconds": best, "kind": EvidenceKind.MEASURED.value, "facts": {}}


def scheduled(session: Session, config: Config) -> dict[str, Any]:
    """What the target's compiler says of a candidate. A refusal of the compiler is the caller's to catch (``CompileError``)."""
    from helion_rt.schedule import compile_and_estimate  # late: a worker that measures never needs it

    if session.folder is None:
        raise RuntimeError("a worker that compiles for TPUs is started with a folder for dumps")
    fn = executable.function(session.program, config, session.target)
    begin = time.perf_counter()
    found = compile_and_estimate(fn, lowering.argument_specs(session.program), session.target, session.folder)
    facts: dict[str, float | int | str] = {f"unit:{name}": round(float(share), 4) for name, share in found.units.items()}
    facts["bottleneck"] = found.bottleneck.value
    facts["compile_seconds"] = round(time.perf_counter() - begin, 2)
    for name in ("cycles", "spills", "vmem_bytes", "hbm_floor_ms", "mxu_floor_ms"):
        if (value := getattr(found, name)) is not None:
            facts[name] = value
    if found.notes:
        facts["note"] = "; ".join(map(str, found.notes))[:400]
    return {"seconds": found.ms / 1e3, "kind": found.kind.value, "facts": facts}


def pairs(session: Session, a: Config, b: Config, budget: float) -> dict[str, Any]:
    """Time two candidates (compiled again if they were dropped) in interleaved pairs. Both are judged on all trial inputs before."""
    if session.judge is None:
        return {"fault": "nothing is measured on a target that is not here"}
    for config in (a, b):
        fault = _fault(session, _run_of(session, config), config, session.judge.values)
        if fault:
            return {"fault": fault}
    arrays = session.judge.normal
    first, second = (_run_of(session, config) for config in (a, b))
    found = measure.interleave(lambda: _finish(first, arrays), lambda: _finish(second, arrays), budget)
    busy = session.calm.setdefault(a, measure.Calm()).judge(found.a_ms / 1e3, found.cpu)
    return {"a": list(found.a), "b": list(found.b), "cpu": found.cpu, "busy": busy}


def _run_of(session: Session, config: Config) -> Callable[..., Sequence[Any]]:
    if config not in session.runs:
        program = session.program_of(config)
        session.runs[config] = executable.compiled(executable.function(program, config, session.target), program)
        while len(session.runs) > KEPT:
            session.runs.popitem(last=False)
    session.runs.move_to_end(config)
    return session.runs[config]


def _fault(session: Session, run: Callable[..., Sequence[Any]], config: Config, values: Sequence[Values]) -> str | None:
    """What is wrong with a candidate's answers to these inputs; what was right once is not asked again."""
    assert session.judge is not None
    for value in values:
        if (config, value) not in session.right:
            fault = session.judge.fault(run, config, value)
            if fault:
                return fault
            session.right.add((config, value))
    return None


def _finish(run: Callable[..., Sequence[Any]], arrays: Sequence[Any]) -> None:
    jax.block_until_ready(run(*arrays))


def _timed(run: Callable[..., Sequence[Any]], arrays: Sequence[Any]) -> float:
    begin = time.perf_counter()
    _finish(run, arrays)
    return time.perf_counter() - begin


def answer(session: Session | None, message: dict[str, Any], folder: Path | None = None) -> tuple[Session | None, dict[str, Any]]:
    """Carry out one request. What a candidate does wrong is an answer, not an error."""
    request = message.get("do")
    try:
        if request == "open":
            return open_session(message, folder), {"ok": True}
        if session is None:
            return None, {"fault": "no program was opened"}
        if request == "trial":
            return session, trial(session, Config.from_dict(message["config"]))
        if request == "pairs":
            a, b = (Config.from_dict(message[name]) for name in ("a", "b"))
            return session, pairs(session, a, b, float(message["budget"]))
        return session, {"fault": f"unknown request {request!r}"}
    except HelionError as error:  # a plan that is refused, or the compiler's own verdict
        return session, {"fault": f"{type(error).__name__}: {getattr(error, 'reason', error)}"[:2000]}
    except Exception as error:  # the compiler's and the runtime's own errors have no common base
        return session, {"fault": f"{type(error).__name__}: {error}"[:2000], "poisoned": not healthy(session)}


def healthy(session: Session | None) -> bool:
    """After an error that nobody expected: does what was right before still come out right? Unknown counts as no."""
    if session is None:
        return True  # nothing was opened, so nothing can have gone bad: the request was
    try:
        return session.judge is not None and session.judge.is_sound()
    except Exception:  # that is the answer
        return False


def serve(source: BinaryIO, sink: BinaryIO, folder: Path | None = None) -> None:
    """Answer requests until ``source`` ends. A thread reads, so that the end is noticed during a long compilation too."""
    waiting: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def read() -> None:
        try:
            while (message := wire.read_frame(source)) is not None:
                waiting.put(message)
        finally:
            os._exit(0)  # nothing here is worth saving, and a compilation cannot be interrupted otherwise

    threading.Thread(target=read, daemon=True, name="helion-rt-worker-reader").start()
    session: Session | None = None
    while True:
        session, reply = answer(session, waiting.get(), folder)
        wire.write_frame(sink, reply)


def be_modest() -> None:
    """Die with the parent, run at a lower priority than it, and be the first to go where memory runs out."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if hasattr(os, "nice"):
        os.nice(NICE)
    # Where the kernel groups by session, nice counts only inside the group: the group itself must be lowered.
    for file, value in (("/proc/self/autogroup", NICE), ("/proc/self/oom_score_adj", 1000)):
        with contextlib.suppress(OSError), open(file, "w") as setting:  # not on this system
            setting.write(str(value))


def post_guard(folder: Path | None) -> int | None:
    """Start a tiny process that ends this one's whole group, and removes ``folder``, when this one is gone, however it went.

    A signal to a dying process reaches none of its children, and a process that is stopped or stuck in the compiler cannot see to
    them itself. The guard waits for the end of a pipe that only this process holds open; the descriptor is returned.
    """
    if not hasattr(os, "getpgrp") or os.getpgrp() != os.getpid():  # started by hand: the group is somebody else's
        return None
    reader, writer = os.pipe()
    script = 'read -r _; [ -n "$1" ] && rm -rf -- "$1"; kill -9 0'
    command = ["/bin/sh", "-c", script, "sh", str(folder) if folder is not None else ""]
    try:
        subprocess.Popen(command, stdin=reader, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=True)
    except OSError:  # no shell here: the worker itself still goes with its parent
        os.close(writer)
        writer = None
    os.close(reader)
    return writer


def main(arguments: Sequence[str]) -> int:
    # Frames own the standard output; whatever prints (XLA, a debug print in a kernel) goes to standard error.
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    folder = Path(arguments[0]) if arguments else None
    be_modest()
    post_guard(folder)
    serve(sys.stdin.buffer, sink, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
