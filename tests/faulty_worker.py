"""The worker, with a fault in some of its candidates: ``FAULT`` says which, ``FAULTY`` in what blocks (JSON; null: any). Not a test."""

import json
import os
import signal
import subprocess
import sys
import time

from helion_rt.tuning import executable, worker

FAULT, FAULTY = os.environ["FAULT"], json.loads(os.environ.get("FAULTY", "null"))
real_trial, real_function = worker.trial, executable.function


def is_faulty(config):
    return config is not None and (FAULTY is None or (config.get("block_sizes") or []) in FAULTY)


def trial(session, config):
    if is_faulty(config):
        misbehave()
    return real_trial(session, config)


def misbehave():
    match FAULT:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "abort":
            os.write(2, b"F1129 12:00:00.0 scheduler.cc:1] Check failed: slots > 0 Cannot schedule FIFO push\n*** Stack trace: ***\n")
            os.abort()
        case "hang":
            time.sleep(3600)
        case "eat":
            held = []
            while True:
                held.append(b"x" * (64 << 20))
                time.sleep(0.02)
        case "raise":
            raise RuntimeError("the runtime is in a bad state")
        case "spawn":  # something of its own that would live on
            subprocess.Popen(["sleep", "3600"])
            time.sleep(3600)


def function(program, config, target):
    fn = real_function(program, config, target)
    return (lambda *arrays: tuple(out + 1 for out in fn(*arrays))) if FAULT == "wrong" and is_faulty(config) else fn


worker.trial, executable.function = trial, function

if __name__ == "__main__":
    sys.exit(worker.main(sys.argv[1:]))
