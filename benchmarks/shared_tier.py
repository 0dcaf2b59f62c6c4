"""What a shared tier costs the calls of a kernel: nothing, whatever happens to it.

Servers, processes of their own, half of them with a shared tier, call the same kernel on the same array in turns, a burst each; round by
round the medians of both halves are compared. Several of each, because two processes that do the same differ by some per cent from start
to end: how much those without a shared tier do is told beside the ratio. The shared tier is a Redis that answers, one that is stopped
(SIGSTOP), and one that is gone. Needs ``redis-server``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from . import common

LIMIT = 1.02
CALLS = 500  # in a burst


def serve() -> int:
    """The server: each line on standard input is answered by the median microseconds of a burst of calls."""
    import jax

    from helion_rt import kernels
    from helion_rt.runtime import sharing

    sharing.SERVING_SECONDS = 0.5  # a key that serves is looked up every minute: here so often that every burst sees some
    x = jax.random.normal(jax.random.key(0), (64, 128))
    for _ in range(200):
        jax.block_until_ready(kernels.gelu(x))
    clock = time.perf_counter_ns
    print("ready", flush=True)
    for _ in sys.stdin:
        times = []
        for _ in range(CALLS):
            start = clock()
            jax.block_until_ready(kernels.gelu(x))
            times.append(clock() - start)
        print(statistics.median(times) / 1e3, flush=True)
    return 0


@contextlib.contextmanager
def server(cache: Path, url: str | None) -> Iterator[Callable[[], float]]:
    """A server; what asks it for a burst."""
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "HELION_RT_CACHE_DIR": str(cache), "HELION_RT_TUNE": "off"}
    env.pop("HELION_RT_SHARED", None)
    if url is not None:
        env["HELION_RT_SHARED"] = url
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.shared_tier", "--serve"], env=env, cwd=common.ROOT, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    asked, answers = process.stdin, process.stdout
    assert asked is not None and answers is not None

    def burst() -> float:
        asked.write("\n")
        asked.flush()
        return float(answers.readline())

    try:
        assert answers.readline() == "ready\n", "the server does not start"
        yield burst
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def redis(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A Redis on loopback, and its URL."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        raise SystemExit("there is no redis-server on this machine (Debian: apt-get install redis-server)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield process, f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.wait()


def main(argv: list[str]) -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--serve", action="store_true", help="be one of the servers")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each state of the shared tier (default 20)")
    parser.add_argument("--pairs", type=int, default=3, help="servers with a shared tier, and as many without (default 3)")
    options = parser.parse_args(argv)
    if options.serve:
        return serve()
    rows = []
    with contextlib.ExitStack() as stack:
        (place, *folders) = stack.enter_context(common.caches("redis", *map(str, range(2 * options.pairs))))
        process, url = stack.enter_context(redis(place))
        urls = [url, None] * options.pairs
        names = [f"{'shared' if url else 'alone'} {i // 2}" for i, url in enumerate(urls)]
        sides = {name: stack.enter_context(server(folder, url)) for name, folder, url in zip(names, folders, urls, strict=True)}
        rows.append(row("it answers", sides, options.seconds))
        process.send_signal(signal.SIGSTOP)
        rows.append(row("it is stopped (SIGSTOP)", sides, options.seconds))
        process.send_signal(signal.SIGCONT)
        process.kill()
        rows.append(row("it is gone", sides, options.seconds))
    return common.report("A call with a shared tier over one without", rows, options.json)


def row(name: str, sides: dict[str, Callable[[], float]], seconds: float) -> common.Row:
    """Bursts of all in turns for so long."""
    seen: dict[str, list[float]] = {side: [] for side in sides}

    def noted(side: str) -> Callable[[], object]:
        return lambda: seen[side].append(sides[side]())

    common.interleaved({side: noted(side) for side in sides}, seconds, least=10, most=10_000)
    rounds = list(zip(*seen.values(), strict=True))
    halves = [[statistics.median(r[first::2]) for r in rounds] for first in (0, 1)]
    ratio = statistics.median(a / b for a, b in zip(*halves, strict=True))
    alone = [statistics.median(values) for side, values in seen.items() if side.startswith("alone")]
    figures = {"shared": statistics.median(halves[0]), "alone": statistics.median(halves[1]), "ratio": ratio}
    note = f"{len(rounds)} bursts of {CALLS} calls each; those alone differ by {max(alone) / min(alone) - 1:.1%}"
    return common.Row(name, figures, "us", ratio, LIMIT, f"at most {LIMIT} times", note=note)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
