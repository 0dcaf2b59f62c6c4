"""One of many processes that want the same keys: ``python swarm_client.py URL CACHE LOG WANTED LEASE_SECONDS [hold]``. Not a test itself.

Neither JAX nor torch: it "tunes" a key by waiting a little and publishing a record. ``WANTED`` is a file of records (see ``codec``), one
a line as hex: the keys, and what tuning them gives. It prints ``ready``, begins at a line on standard input, and ends when it has them
all. ``hold``: it never comes to an end of its first tune, and says ``holding``. What happens is appended to ``LOG``: time, who, what, key.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from pathlib import Path

from helion_rt.database import Key, Record, decode_record, open_local
from helion_rt.database.exchange import Asked, Exchange, Holder
from helion_rt.database.shared import open_shared
from helion_rt.database.signing import Trust
from helion_rt.database.tiers import Shared, Tiers

TUNE_SECONDS = 0.3
TRIES_A_LEASE = 10  # as the runtime: the winner comes by itself, the lease is tried again for when its holder dies


class Log:
    """Lines that several processes append to one file, each whole. Usable before and after a ``patch`` of the exchange."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def __call__(self, what: str, digest: str) -> None:
        os.write(self._file, f"{time.time():.4f} {os.getpid()} {what} {digest}\n".encode())

    def follow_exchanges(self) -> None:
        """From now on questions, publications and arrivals of this process are written."""
        ask, publish, arrive = Exchange.ask, Exchange._publish, Exchange._arrive

        def asked(exchange: Exchange, key: Key, question: Asked) -> None:
            self("wanted", key.digest)
            ask(exchange, key, question)

        def published(exchange: Exchange, record: Record) -> None:
            publish(exchange, record)
            self("published", record.key.digest)

        def arrived(exchange: Exchange, key: Key, found: Record | None, *, hand_on: bool = True) -> Record | None:
            after = arrive(exchange, key, found, hand_on=hand_on)
            if after is not None:
                self("seen", key.digest)
            return after

        Exchange.ask, Exchange._publish, Exchange._arrive = asked, published, arrived  # type: ignore[method-assign]


def main() -> int:
    url, cache, log_path, wanted_path, lease_seconds = sys.argv[1:6]
    hold = sys.argv[6:] == ["hold"]
    log = Log(log_path)
    log.follow_exchanges()
    wanted = [decode_record(bytes.fromhex(line)) for line in Path(wanted_path).read_text().split()]
    tiers = Tiers(
        open_local(cache), [Shared(lambda: open_shared(url, trust=Trust(), timeout=20))], lease_seconds=float(lease_seconds), timeout=20
    )
    nobodys = Key("0" * 64, "warm", "", "")  # as in a process that serves: what is imported late is there, connections are open
    tiers.get(nobodys)
    tiers.ask(nobodys).wait()
    assert not {"jax", "torch"} & set(sys.modules)
    print("ready", flush=True)
    sys.stdin.readline()
    random.shuffle(wanted)
    something = threading.Event()
    for record in wanted:
        tiers.ask(record.key).wait()
        tiers.watch(record.key, lambda record: something.set())
    next_try = dict.fromkeys((record.key for record in wanted), 0.0)
    while wanted := [record for record in wanted if tiers.get(record.key) is None]:
        record = min(wanted, key=lambda record: next_try[record.key])
        if (pause := next_try[record.key] - time.monotonic()) > 0:
            something.wait(pause)
            something.clear()
            continue
        with tiers.lease(record.key) as holder:
            if holder is not Holder.OTHERS and tiers.get(record.key) is None:
                tune(record, tiers, log, hold)
        next_try[record.key] = time.monotonic() + float(lease_seconds) / TRIES_A_LEASE
    tiers.close()
    print("done", flush=True)
    return 0


def tune(record: Record, tiers: Tiers, log: Log, hold: bool) -> None:
    log("tune", record.key.digest)
    if hold:
        print("holding", flush=True)
        threading.Event().wait()
    time.sleep(TUNE_SECONDS)
    tiers.put(record)


if __name__ == "__main__":
    sys.exit(main())
