"""The tuning database with 100,000 records: opening, look-ups, puts, ``cache ls``; beside plain diskcache, plain Redis, a file a key.

Times are by the clock; "CPU" is what the calling thread itself worked, which tells them apart from what else the machine did (a server's
own work is not in it).

All sides hold the same encoded records under the same names, and every look-up ends with a checked ``Record``: what differs is how the
bytes are kept. They take turns, one operation each. Of the plain ones none merges, none sets a damaged entry aside; Redis keeps all in
memory and is asked over loopback (left out where there is no redis-server). Files are read from the page cache on all sides. "Process"
is a hit in ``Tiers``, what a new slot of a running server pays for a key that was asked for before.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helion_rt.database import Evidence, EvidenceKind, Key, LocalTier, Record, Status, decode_record, encode_record, open_local

from . import common

OPEN_LIMIT_MS = 1000.0
LOCAL_LIMIT_MS = 1.0
PROCESS_LIMIT_US = 5.0
FIRST_LINE_LIMIT = 0.5  # of the time that the whole list takes
LIST_LIMIT_MIB = 64.0  # more than for an empty database
OURS = "helion_rt"
_TOOLCHAIN = {"helion_rt": "0.1.0", "jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.50.1", "torch": "2.13.0"}


def record(number: int) -> Record:
    """The record of a matrix product: a signature, a config and evidence as large as real ones."""
    shape = (str(128 + number % 1024), str(number // 1024 + 1))
    signature = (("tensor", shape, "bfloat16"), ("tensor", shape[::-1], "bfloat16"))
    key = Key(f"{number % 97:064x}", signature, "default;x64=0;matmul=default", "v5e")
    config = {"block_sizes": [128, 128 + number % 7, 512], "loop_strategies": ["emit_pipeline"], "buffer_counts": [2, 2, 1]}
    evidence = Evidence(EvidenceKind.SCHEDULED, 1.0 + number % 13, 3.0, 0.01, 9, 40, 31.5)
    return Record(key, f"kernel_{number % 97}", Status.WINNER, config, 2, evidence, _TOOLCHAIN)


@dataclass
class Side:
    """A way to keep bytes by name. ``opening`` gives a look-up, as a process that has just begun would make it."""

    name: str
    opening: Callable[[], Callable[[str], Any]]
    put: Callable[[str, bytes], object]
    close: Callable[[], object] = field(default=lambda: None)


def plain_diskcache(folder: Path, entries: dict[str, bytes]) -> Side:
    import diskcache

    cache = diskcache.Cache(str(folder))
    with cache.transact():
        for name, data in entries.items():
            cache.set(name, data)
    # Its default limit is 1 GiB of files: entries of this size stay.
    return Side("diskcache", lambda: diskcache.Cache(str(folder)).get, cache.set, cache.close)


def plain_files(folder: Path, entries: dict[str, bytes]) -> Side:
    for number in range(256):
        (folder / f"{number:02x}").mkdir()

    def place(name: str) -> Path:
        return folder / name[:2] / name

    def put(name: str, data: bytes) -> None:
        draft = folder / "draft"
        draft.write_bytes(data)
        os.replace(draft, place(name))

    def get(name: str) -> bytes | None:
        try:
            return place(name).read_bytes()
        except FileNotFoundError:
            return None

    for name, data in entries.items():
        put(name, data)
    return Side("files", lambda: get, put)


@contextlib.contextmanager
def redis_server(folder: Path) -> Iterator[int | None]:
    """The port of a server of our own on loopback that keeps nothing on disk; None where there is no redis-server."""
    program = shutil.which("redis-server")
    if program is None:
        yield None
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no", "--dir", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield port
    finally:
        server.terminate()
        server.wait(10)


def plain_redis(port: int, entries: dict[str, bytes]) -> Side:
    import redis
    from redis.exceptions import ConnectionError

    def connect() -> redis.Redis:
        return redis.Redis(host="127.0.0.1", port=port, socket_timeout=30)

    client = connect()
    end = time.monotonic() + 10
    while True:
        try:
            client.ping()
            break
        except ConnectionError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
    waiting = client.pipeline(transaction=False)
    for number, (name, data) in enumerate(entries.items()):
        waiting.set(name, data)
        if number % 1000 == 999:
            waiting.execute()
    waiting.execute()
    return Side("Redis", lambda: connect().get, client.set, client.close)


def filled(folder: Path, entries: dict[str, bytes]) -> LocalTier:
    """Our local tier with the entries, put in one transaction: put one by one they would take minutes, and give the same file."""
    tier = open_local(folder)
    tier.put(record(0))
    cache = tier.store._writable()  # type: ignore[attr-defined]
    with cache.transact():
        for name, data in entries.items():
            cache.set(f"r-{name}", data)
    cache.close()
    return tier


def quantiles(times: list[float]) -> tuple[float, float]:
    """(median, 99th percentile)."""
    return statistics.median(times), statistics.quantiles(times, n=100)[98]


@dataclass
class Times:
    """Milliseconds by side: by the clock, and worked by the calling thread."""

    clock: dict[str, list[float]]
    worked: dict[str, list[float]]

    @classmethod
    def of(cls, sides: list[str]) -> Times:
        return cls({side: [] for side in sides}, {side: [] for side in sides})

    @contextlib.contextmanager
    def of_one(self, side: str) -> Iterator[None]:
        start, worked = time.perf_counter(), time.thread_time()
        yield
        self.worked[side].append((time.thread_time() - worked) * 1e3)
        self.clock[side].append((time.perf_counter() - start) * 1e3)


def look_ups(gets: dict[str, Callable[[str], Record | None]], names: list[str], expected: bool) -> Times:
    """One look-up of each name on each side, in turn."""
    order = list(gets)
    times = Times.of(order)
    for number, name in enumerate(names):
        turn = number % len(order)
        for side in order[turn:] + order[:turn]:
            with times.of_one(side):
                found = gets[side](name)
            if (found is not None) is not expected:
                raise RuntimeError(f"{side}: {name} was {'not ' if expected else ''}there")
    return times


def decoded(get: Callable[[str], bytes | None]) -> Callable[[str], Record | None]:
    def look_up(name: str) -> Record | None:
        data = get(name)
        return None if data is None else decode_record(data)

    return look_up


def figures(times: dict[str, list[float]], worked: dict[str, list[float]] | None = None) -> dict[str, float]:
    """p50 and p99 of each side, and the medians of our ratios to the others."""
    found: dict[str, float] = {}
    for name, values in times.items():
        found[f"{name} p50"], found[f"{name} p99"] = quantiles(values)
        if worked is not None:
            found[f"{name} p50, CPU"] = statistics.median(worked[name])
    for name in times:
        if name != OURS:
            found[f"{OURS} / {name} ratio"] = common.median_ratio(times, OURS, name)
    return found


def opening_row(folder: Path, sides: list[Side], key: Key, records: int) -> common.Row:
    """Opening, and the first look-up."""
    ways: dict[str, Callable[[], object]] = {OURS: lambda: open_local(folder).get(key)}
    for side in sides:
        ways[side.name] = lambda side=side: decoded(side.opening())(key.digest)
    times = common.interleaved(ways, 5.0, least=20, most=200)
    found = figures(times)
    return common.Row(f"opening and one look-up, {records:,} records", found, "ms", found[f"{OURS} p50"], OPEN_LIMIT_MS, "under 1 s")


def process_row(cache: Path, key: Key) -> common.Row:
    """The same in a process that has just begun, the import of the database included."""
    code = (
        "import time; start = time.perf_counter(); import json, sys; from helion_rt.database import Key, open_local;"
        "found = open_local(sys.argv[1]).get(Key.from_plain(json.loads(sys.argv[2]))); took = time.perf_counter() - start;"
        "assert found is not None; print(took, time.process_time())"
    )
    command = [sys.executable, "-c", code, str(cache), json.dumps(key.to_plain())]
    seen = []
    for _ in range(7):
        done = subprocess.run(command, cwd=common.ROOT, capture_output=True, text=True, check=True)
        seen.append([float(seconds) * 1e3 for seconds in done.stdout.split()])
    times, worked = zip(*seen, strict=True)
    middle = statistics.median(times)
    figures = {"median": middle, "worst": max(times), "median, CPU, the interpreter's start too": statistics.median(worked)}
    return common.Row("a new process: import, opening, one look-up", figures, "ms", middle, OPEN_LIMIT_MS, "under 1 s")


def look_up_rows(tier: LocalTier, sides: list[Side], keys: list[Key]) -> Iterator[common.Row]:
    by_name = {key.digest: key for key in keys}
    gets: dict[str, Callable[[str], Record | None]] = {OURS: lambda name: tier.get(by_name[name])}
    gets.update({side.name: decoded(side.opening()) for side in sides})
    times = look_ups(gets, list(by_name), True)
    found = figures(times.clock, times.worked)
    yield common.Row("look-up of a record", found, "ms", found[f"{OURS} p50"], LOCAL_LIMIT_MS, "local: p50 under 1 ms")
    absent = {key.digest: key for key in (Key("ab" * 32, (str(number),), "default", "v5e") for number in range(len(keys)))}
    gets[OURS] = lambda name: tier.get(absent[name])
    times = look_ups(gets, list(absent), False)
    yield common.Row("look-up of what is not there", figures(times.clock, times.worked))


def process_hits(tier: LocalTier, keys: list[Key]) -> common.Row:
    """A hit in process memory, in microseconds: some dozens at a time, as the clock itself takes a part of one."""
    from helion_rt.database.tiers import Tiers

    tiers, plain = Tiers(tier), {key.digest: tier.get(key) for key in keys}
    for key in keys:
        tiers.get(key)
    ways: dict[str, Callable[[], object]] = {
        "tiers": lambda: [tiers.get(key) for key in keys],
        "dict": lambda: [plain.get(key.digest) for key in keys],
    }
    times = common.interleaved(ways, 3.0, least=20, most=50_000)
    found = {f"{name} p50": statistics.median(values) * 1e3 / len(keys) for name, values in times.items()}
    return common.Row("hit in process memory", found, "us", found["tiers p50"], PROCESS_LIMIT_US, "under 5 us")


def put_row(tier: LocalTier, sides: list[Side], first: int, puts: int) -> common.Row:
    """Records that are new. Ours are merged with what is there under a lock that holds for all processes."""
    made = [record(first + number) for number in range(puts)]
    encoded = {one.key.digest: encode_record(one) for one in made}
    ways: dict[str, Callable[[Record], object]] = {OURS: tier.put}
    ways |= {side.name: lambda one, put=side.put: put(one.key.digest, encoded[one.key.digest]) for side in sides}
    order, times = list(ways), Times.of(list(ways))
    for number, one in enumerate(made):
        turn = number % len(order)
        for side in order[turn:] + order[:turn]:
            with times.of_one(side):
                ways[side](one)
    found = figures(times.clock, times.worked)
    return common.Row("put of a new record", found, note=f"{1e3 / found[f'{OURS} p50']:.0f} a second by {OURS}")


@dataclass(frozen=True)
class Listing:
    """One run of ``cache ls``: milliseconds to the first line and to the end, and worked; MiB of memory at the peak; lines."""

    first: float
    whole: float
    worked: float
    peak: float
    lines: int


def listing(folder: Path) -> Listing:
    # Not the maximum that wait4 tells: that one may be of this process, before the child became another program.
    code = (
        "import sys; from helion_rt.cli.main import main; status = main(sys.argv[1:]); sys.stdout.flush();"
        "print([line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')][0], file=sys.stderr); sys.exit(status)"
    )
    start, before = time.perf_counter(), _children_seconds()
    child = subprocess.Popen(
        [sys.executable, "-c", code, "cache", "ls", "--dir", str(folder)], cwd=common.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None and child.stderr is not None
    first, lines = 0.0, 0
    for line in child.stdout:
        # Its heading says nothing yet: the line of a record does.
        if not lines and b"kernel_" in line:
            first = (time.perf_counter() - start) * 1e3
        lines += b"kernel_" in line
    whole, said = (time.perf_counter() - start) * 1e3, child.stderr.read().decode()
    if child.wait():
        raise RuntimeError(f"cache ls ended with {child.returncode}: {said}")
    return Listing(first, whole, (_children_seconds() - before) * 1e3, int(said.split()[-1]) / 1024, lines)


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def list_rows(folder: Path, empty: Path, records: int) -> Iterator[common.Row]:
    none, found = listing(empty), listing(folder)
    if found.lines < records:
        raise RuntimeError(f"{found.lines} records were listed, of {records}")
    times = {"first record": found.first, "all": found.whole, "all, CPU": found.worked}
    times |= {"empty database": none.whole, "empty database, CPU": none.worked, "first / all ratio": found.first / found.whole}
    limit = "it streams: the first line in half of the time at most"
    yield common.Row("cache ls", times, "ms", times["first / all ratio"], FIRST_LINE_LIMIT, limit)
    memory = {"peak": found.peak, "empty database": none.peak, "more": found.peak - none.peak}
    yield common.Row("cache ls: memory", memory, "MiB", memory["more"], LIST_LIMIT_MIB, f"at most {LIST_LIMIT_MIB:.0f} MiB more")


def rows(folders: list[Path], port: int | None, records: int, look_ups: int, puts: int) -> Iterator[common.Row]:
    ours, empty, disk, files = folders
    entries = {(one := record(number)).key.digest: encode_record(one) for number in range(records)}
    keys = [record(number).key for number in random.Random(7).sample(range(records), look_ups)]
    tier = filled(ours, entries)
    sides = [plain_diskcache(disk, entries), plain_files(files, entries), *([plain_redis(port, entries)] if port is not None else [])]
    try:
        yield opening_row(ours, sides, keys[0], records)
        yield process_row(ours, keys[0])
        yield from look_up_rows(tier, sides, keys)
        yield process_hits(tier, keys[:50])
        yield put_row(tier, sides, records, puts)
        yield from list_rows(ours, empty, records)
        sizes = {OURS: _bytes(ours), "diskcache": _bytes(disk), "files": _bytes(files)}
        size = sum(map(len, entries.values())) / 2**20
        yield common.Row("on disk", {name: size / 2**20 for name, size in sizes.items()}, "MiB", note=f"{size:.1f} MiB of entries")
    finally:
        for side in sides:
            side.close()


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())


def main(argv: list[str]) -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--look-ups", type=int, default=3000)
    parser.add_argument("--puts", type=int, default=500)
    options = parser.parse_args(argv)
    with common.caches("ours", "empty", "diskcache", "files", "redis") as (*folders, scratch), redis_server(scratch) as port:
        made = list(rows(folders, port, options.records, min(options.look_ups, options.records), options.puts))
        return common.report(f"The tuning database with {options.records:,} records", made, options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
