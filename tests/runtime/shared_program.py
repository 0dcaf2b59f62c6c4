"""A server on shared tiers, for the tests of whole processes: ``python shared_program.py MODE``. Prints JSON. Not a test itself.

``keys``: what tuning its signatures would give, as records (hex), one a line. ``serve``: prints ``ready``, begins at a line on standard
input, calls every signature until nothing is left to tune, and reports. ``watch``: calls one signature all the time, while an audit hook
looks at what calling threads touch; each line on standard input is answered by a report.
"""

import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import torch

import helion_rt as helion
import helion_rt.language as hl
from helion_rt.database import Evidence, EvidenceKind, Record, Status, encode_record, machine_name
from helion_rt.runtime import improve, prepare
from helion_rt.runtime.slot import registry
from helion_rt.tuning.space import SPACE_VERSION

CONFIGS = [helion.Config(block_sizes=[n]) for n in (64, 32)]


@helion.kernel(configs=CONFIGS)
def doubled(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * 2
    return out


def signatures():
    return [jnp.arange(64 * n, dtype=jnp.float32) for n in range(1, 1 + int(os.environ.get("SIGNATURES", "10")))]


def keys():
    for x in signatures():
        slot = doubled.bind(x)
        evidence = Evidence(EvidenceKind.MEASURED, 1.0, 2.0, pairs=9, candidates_tried=2)
        fields = (slot.key, "doubled", Status.WINNER, {"block_sizes": [32]}, SPACE_VERSION, evidence, prepare.toolchain())
        record = Record(*fields, machine=machine_name())
        print(encode_record(record).hex())


def serve():
    sys.path.insert(0, str(Path(__file__).parents[1] / "database"))
    from swarm_client import Log

    log, real = Log(os.environ["SWARM_LOG"]), improve.improve
    log.follow_exchanges()

    def logged(slot, *rest):
        log("tune", slot.key.digest)
        real(slot, *rest)

    improve.improve = logged
    print("ready", flush=True)
    sys.stdin.readline()
    right = True
    for _ in range(3):
        for x in signatures():
            right = right and np.array_equal(doubled(x), x * 2)
    finished = helion.wait_for_tuning(200)
    right = right and all(np.array_equal(doubled(x), x * 2) for x in signatures())
    slots = {slot.key.digest: [slot.tuning.value, slot.serving.origin.value] for slot in registry.all()}
    records = [slot.tier.get(slot.key).config for slot in registry.all()]
    report = {"right": bool(right), "finished": finished, "slots": slots, "records": records, "counters": helion.process_counters()}
    print(json.dumps(report))


class Audit:
    """What calling threads have touched of the shared tiers: sockets, and paths in the shared folder."""

    def __init__(self, folder):
        self.folder, self.callers, self.found, self.others = folder, set(), [], 0
        sys.addaudithook(self)

    def __call__(self, event, args):
        if event.startswith("socket.") or (
            self.folder and event in ("open", "os.listdir", "os.scandir", "os.rename", "os.remove", "os.mkdir", "os.chmod")
            and args and isinstance(args[0], (str, bytes, os.PathLike)) and os.fspath(args[0]).startswith(self.folder)
        ):  # fmt: skip
            if threading.get_ident() in self.callers:
                self.found.append(event)
            else:
                self.others += 1


def watch():
    audit = Audit(os.environ.get("AUDIT_FOLDER"))
    audit.callers.add(threading.get_ident())
    # Sends and receives raise no audit event: count them where Python makes them.
    wrong: list[str] = []
    for name in ("send", "sendall", "recv", "recv_into", "connect"):
        method = getattr(socket.socket, name)

        def counted(sock, *args, _method=method, _name=name, **kwargs):
            if threading.get_ident() in audit.callers and sock.family in (socket.AF_INET, socket.AF_INET6):
                wrong.append(_name)
            return _method(sock, *args, **kwargs)

        setattr(socket.socket, name, counted)
    stop, counts, errors, fresh = threading.Event(), {"calls": 0}, [], iter(range(2, 100000))

    def call():
        audit.callers.add(threading.get_ident())
        x = jnp.arange(64, dtype=jnp.float32)
        expected = np.asarray(x * 2)
        while not stop.is_set():
            try:
                assert np.array_equal(doubled(x), expected)
            except BaseException as error:
                errors.append(repr(error))
            counts["calls"] += 1
            time.sleep(0.002)

    thread = threading.Thread(target=call)
    thread.start()
    print("ready", flush=True)
    for line in sys.stdin:
        command = line.strip()
        if command == "new":  # a signature that was not there, on the main thread
            x = jnp.arange(64 * next(fresh), dtype=jnp.float32)
            assert np.array_equal(doubled(x), x * 2)
        before = counts["calls"]
        while counts["calls"] < before + 5:
            time.sleep(0.005)
        print(json.dumps({"calls": counts["calls"], "errors": errors, "touched": audit.found + wrong, "elsewhere": audit.others,
                          "tiers": helion.tier_status(), "counters": helion.process_counters()}), flush=True)  # fmt: skip
        if command == "end":
            break
    stop.set()
    thread.join()


if __name__ == "__main__":
    {"keys": keys, "serve": serve, "watch": watch}[sys.argv[1]]()
