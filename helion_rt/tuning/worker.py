"""The worker: ``python -m helion_rt.tuning.worker``, a process in which candidates may crash or hang.

It reads requests from standard input and answers on standard output (``wire``); it is gone when standard input closes, when
its parent dies, or when its client kills its process group. The program arrives as data: the user's code never runs here.

=========  ==================================================  =====================================================
request    fields                                              answer
=========  ==================================================  =====================================================
``open``   ``program`` bytes, ``target``, ``jax`` settings,    ``ok``
           ``inputs`` (a recipe, see ``inputs``)
``trial``  ``config``                                          ``seconds`` of one call, or ``fault``
``pairs``  ``a``, ``b`` configs, ``budget`` seconds            ``a``, ``b`` lists of seconds, ``cpu``, ``busy``
=========  ==================================================  =====================================================
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import jax
import numpy as np

from helion_rt import lowering, targets
from helion_rt.config import Config
from helion_rt.exc import HelionError
from helion_rt.program.codec import decode
from helion_rt.program.ir import Program
from helion_rt.targets import Target

from . import executable, inputs, measure, model, verify, wire

# Executables kept at a time: the default, the incumbent, the candidate, and one to spare.
KEPT = 4

# Compiling and timing share the machine with the server, so both run below it. Interleaved pairs compare two candidates
# under the same handicap, and a server that takes the processors away shows up as a busy machine.
NICE = 10

PR_SET_PDEATHSIG = 1


@dataclass
class Session:
    """One program under trial."""

    program: Program
    target: Target
    arrays: list[Any]
    expected: list[np.ndarray] | None
    rtol: float
    runs: OrderedDict[Config, Callable[[], object]] = field(default_factory=OrderedDict)
    calm: dict[Config, measure.Calm] = field(default_factory=dict)


def open_session(message: dict[str, Any]) -> Session:
    """Set JAX up as the server's is, make the inputs up and compute what the reference path says about them."""
    for name, value in message["jax"].items():
        jax.config.update(name, value)
    jax.config.update("jax_enable_compilation_cache", False)  # it would fill with losers
    program = decode(message["program"])
    target = targets.get(message["target"])
    if target.is_tpu:  # here it can only be compiled for
        return Session(program, target, [], None, 0.0)
    arrays = [jax.numpy.asarray(a) if isinstance(a, np.ndarray) else a for a in inputs.make(message["inputs"])]
    reference = executable.compiled(executable.function(program, None, target), program)
    expected = [np.asarray(out) for out in reference(*arrays)]
    return Session(program, target, arrays, expected, verify.tolerance(program))


def trial(session: Session, config: Config) -> dict[str, Any]:
    """Compile, run, compare with the reference and time one call of a candidate."""
    if session.target.is_tpu:
        fn = executable.function(session.program, config, session.target)
        targets.compile_for(fn, lowering.argument_specs(session.program), session.target)
        return {"seconds": model.seconds(session.program, config, session.target)}
    if config not in session.runs:
        compiled = executable.compiled(executable.function(session.program, config, session.target), session.program)
        session.runs[config] = lambda: jax.block_until_ready(compiled(*session.arrays))
        while len(session.runs) > KEPT:
            session.runs.popitem(last=False)
    session.runs.move_to_end(config)
    run = session.runs[config]
    outputs = [np.asarray(out) for out in run()]  # type: ignore[union-attr]
    assert session.expected is not None
    fault = verify.mismatch(outputs, session.expected, session.rtol)
    if fault:
        return {"fault": f"wrong result: {fault}"}
    return {"seconds": min(_timed(run) for _ in range(3))}


def _timed(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def pairs(session: Session, a: Config, b: Config, budget: float) -> dict[str, Any]:
    """Time two candidates (compiled again if they were dropped) in interleaved pairs."""
    for config in (a, b):
        if config not in session.runs:
            fault = trial(session, config).get("fault")
            if fault:
                return {"fault": fault}
    for config in (a, b):
        session.runs.move_to_end(config)
    found = measure.interleave(session.runs[a], session.runs[b], budget)
    busy = session.calm.setdefault(a, measure.Calm()).judge(found.a_ms / 1e3, found.cpu)
    return {"a": list(found.a), "b": list(found.b), "cpu": found.cpu, "busy": busy}


def answer(session: Session | None, message: dict[str, Any]) -> tuple[Session | None, dict[str, Any]]:
    """Carry out one request. What a candidate does wrong is an answer, not an error."""
    request = message.get("do")
    try:
        if request == "open":
            return open_session(message), {"ok": True}
        if session is None:
            return None, {"fault": "no program was opened"}
        if request == "trial":
            return session, trial(session, Config.from_dict(message["config"]))
        if request == "pairs":
            a, b = (Config.from_dict(message[name]) for name in ("a", "b"))
            return session, pairs(session, a, b, float(message["budget"]))
        return session, {"fault": f"unknown request {request!r}"}
    except HelionError as error:
        return session, {"fault": f"{type(error).__name__}: {getattr(error, 'reason', error)}"[:2000]}
    except Exception as error:  # the compiler's and the runtime's own errors have no common base
        return session, {"fault": f"{type(error).__name__}: {error}"[:2000]}


def serve(source: BinaryIO, sink: BinaryIO) -> None:
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
        session, reply = answer(session, waiting.get())
        wire.write_frame(sink, reply)


def be_modest() -> None:
    """Die with the parent, and run at a lower priority than it."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if hasattr(os, "nice"):
        os.nice(NICE)
        # Where the kernel groups by session, nice counts only inside the group: the group itself must be lowered.
        try:
            with open("/proc/self/autogroup", "w") as group:
                group.write(str(NICE))
        except OSError:
            return  # no autogroups here


def main() -> int:
    # Frames own the standard output; whatever prints (XLA, a debug print in a kernel) goes to standard error.
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    be_modest()
    serve(sys.stdin.buffer, sink)
    return 0


if __name__ == "__main__":
    sys.exit(main())
