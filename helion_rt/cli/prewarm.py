"""``helion-rt prewarm``: fill the tuning database before the service starts.

The manifest is TOML or JSON, or JSON Lines as HELION_RT_RECORD_KEYS=FILE.jsonl writes them while a service runs::

    targets = ["cpu", "tpu7x"]                      # optional; --target overrides
    seconds_each = 30                               # optional; --seconds-each overrides

    [[kernels]]
    kernel = "my_package.kernels:softmax"           # or "kernels.py:softmax", relative to the manifest
    args = [{ shape = [4096, 2560], dtype = "float32" }, { value = 1e-6 }]
    kwargs = { causal = { value = true } }          # optional; parameters that are given by name only

The machine's own target is tuned and measured. For a TPU that is not here a worker compiles the candidates with libtpu, and the
compiler's own schedule says what they take: what is stored is labelled ``scheduled`` (``modelled`` where there is no schedule).
Each record is stored when it is found, so what was done stays done after a crash or Ctrl-C, and is not done again.
The exit status is 0 only if every key is filled.

With --check nothing is tuned or stored: the exit status is 0 only if some tier has a record of every key that serves here, found under
today's toolchain.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helion_rt.exc import HelionError
from helion_rt.targets import host

from . import manifest
from .keys import Entry, Result, fill, tune_nothing
from .live import View, view

if TYPE_CHECKING:
    from helion_rt.report import Crossing
    from helion_rt.runtime.ahead import Filled
    from helion_rt.tuning.pool import Workers

INTERRUPTED = 130
CROSSING_SECONDS = 60.0  # about what the one compile may take
FILLING_SHARE = 0.8  # of the time for everything, where winners are tried on other targets afterwards


def add_parser(subparsers: Any) -> None:
    """Add ``prewarm`` to the subparsers of ``helion-rt``."""
    parser = subparsers.add_parser(
        "prewarm",
        help="tune kernels and shapes of a manifest ahead of time",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("manifest", type=Path, metavar="MANIFEST")
    parser.add_argument("--target", action="append", metavar="NAME", help="cpu, v4, v5e, v5p, v6e, tpu7x; may be given several times")
    parser.add_argument("--seconds-each", type=seconds, metavar="N", help="budget of one key (default: HELION_RT_TUNE_SECONDS, 60)")
    parser.add_argument("--within", type=seconds, metavar="MINUTES", help="for all keys together: each gets its share of what is left")
    parser.add_argument("--jobs", type=int, choices=(1, 2, 3, 4), help="keys for absent TPUs at a time (default: 2, on one core 1)")
    parser.add_argument("--again", action="store_true", help="also keys that the database has an answer for")
    parser.add_argument("--check", action="store_true", help="tune nothing: exit 1 with the keys that no tier has a good record of")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write an HTML report; also tries each target's winner on the others")
    parser.add_argument("--json", action="store_true", help="print JSON")


def seconds(text: str) -> float:
    """A budget on the command line: a number of seconds above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


@dataclass
class Work:
    """The keys to fill and what became of them, at the same place; None: not done yet.

    ``seconds``: budget of one key; ``deadline`` (monotonic): when all should be done.
    """

    entries: Sequence[Entry]
    seconds: float
    again: bool
    deadline: float | None = None
    stopped: threading.Event = field(default_factory=threading.Event)
    results: list[Result | None] = field(init=False)
    filled: list[Filled | None] = field(init=False)
    crossings: list[Crossing | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.results = [None] * len(self.entries)
        self.filled = [None] * len(self.entries)

    def share(self, jobs: int) -> float:
        """The budget of the next key: its share of what is left of the time, where that is less than a key may have."""
        if self.deadline is None:
            return self.seconds
        left = sum(result is None for result in self.results)
        return max(1.0, min(self.seconds, (self.deadline - time.monotonic()) * jobs / max(left, 1)))

    def done(self) -> list[Result]:
        return [result for result in self.results if result is not None]


def run(args: argparse.Namespace) -> int:
    """Carry out ``prewarm``: 0 if every key is filled, 1 if not, 2 for a manifest or options that cannot be used."""
    from helion_rt import targets

    targets.prepare_environment()
    if args.check:
        tune_nothing()
    try:
        if args.report is not None:
            check_report(args.report)
        data = manifest.load(args.manifest)
        entries = list(manifest.entries(data, args.manifest.parent, args.target))
        budget = args.seconds_each or manifest.seconds_of(data)
    except (HelionError, OSError, ValueError) as error:
        print(f"helion-rt: {args.manifest}: {error}", file=sys.stderr)
        return 2
    if args.check:
        from . import check

        return check.run(entries, args.json)
    begin = time.monotonic()
    within = args.within * 60 if args.within is not None else None
    work = Work(entries, budget, args.again, None if within is None else begin + within * (1 if args.report is None else FILLING_SHARE))
    jobs = args.jobs or min(2, host.usable_cores())
    interrupted = False
    try:
        with view(len(entries), quiet=args.json) as shown:
            fill_all(work, jobs, shown)
        if args.report is not None:
            work.deadline = None if within is None else begin + within
            cross(work, jobs, quiet=args.json)
    except KeyboardInterrupt:
        interrupted = True
    if args.report is not None:
        write_report(args.report, work)
    _tell(work, args, time.monotonic() - begin)
    return INTERRUPTED if interrupted else status(work)


def status(work: Work) -> int:
    """The exit status: 0 if every key is filled."""
    return 0 if all(result is not None and result.filled for result in work.results) else 1


def _tell(work: Work, args: argparse.Namespace, spent: float) -> None:
    """Print what became of the keys."""
    done = work.done()
    if args.json:
        print(json.dumps([asdict(r) for r in done], indent=2))
    else:
        from helion_rt.report.text import clock

        print(f"{sum(r.filled for r in done)} of {len(work.entries)} keys filled in {clock(spent)}")
        if args.report is not None:
            print(f"report: {args.report}")
    for result in done:
        if not result.filled:
            print(f"not filled: {result.entry}: {result.status}", file=sys.stderr)


def fill_all(work: Work, jobs: int, shown: View) -> None:
    """Fill every entry: absent TPUs with ``jobs`` workers, then this machine's own target alone, so that nothing disturbs its clock."""
    from helion_rt import targets

    own = targets.detect()
    absent = [i for i, e in enumerate(work.entries) if e.target != own]
    _in_parallel(work, absent, jobs, shown)
    _in_parallel(work, [i for i, e in enumerate(work.entries) if e.target == own], 1, shown)


def _in_parallel(work: Work, numbers: Sequence[int], jobs: int, shown: View) -> None:
    """Fill the entries of these numbers, each job with a worker process of its own."""
    mine, pools = _pools(jobs)

    def one(number: int) -> None:
        if not work.stopped.is_set():
            found = fill(work.entries[number], mine(), work.share(jobs), work.again, shown, work.stopped.is_set)
            work.results[number], work.filled[number] = found

    try:
        _all(ThreadPoolExecutor(jobs, thread_name_prefix="helion-rt-prewarm"), one, numbers, work.stopped)
    finally:
        for workers in pools:
            workers.stop()


def _pools(jobs: int) -> tuple[Callable[[], Workers], list[Workers]]:
    """(the workers of the calling thread, the list of all that were made). Together they take no more memory than one alone may."""
    from helion_rt.settings import Settings
    from helion_rt.tuning import pool, usage

    own, made = threading.local(), []
    each = usage.limit(Settings.from_env().worker_gb) // jobs

    def mine() -> Workers:
        if not hasattr(own, "workers"):
            own.workers = pool.Workers(memory_bytes=each)
            made.append(own.workers)
        return own.workers

    return mine, made


def _all(executor: ThreadPoolExecutor, one: Callable[[int], None], numbers: Sequence[int], stopped: threading.Event) -> None:
    """Call ``one`` with every number. Ctrl-C lets nothing new begin, and ends what has."""
    futures: list[Future[None]] = [executor.submit(one, number) for number in numbers]
    try:
        for future in futures:
            future.result()
    except BaseException:
        stopped.set()
        executor.shutdown(wait=False, cancel_futures=True)
        raise
    executor.shutdown()


def cross(work: Work, jobs: int, quiet: bool) -> None:
    """Find out what each TPU's winner would take on the other TPUs, for the same kernel and arguments: one compile each, at most."""
    from helion_rt.report import Crossing
    from helion_rt.report.text import duration
    from helion_rt.runtime import ahead

    groups: dict[tuple[str, str], list[tuple[Entry, Filled]]] = {}
    for what, filled in zip(work.entries, work.filled, strict=True):
        if filled is not None and filled.target.is_tpu and filled.record is not None:
            groups.setdefault((what.name, what.arguments()), []).append((what, filled))
    pairs = [(a, b) for group in groups.values() if len(group) > 1 for a in group for b in group]
    found = work.crossings = [None] * len(pairs)
    mine, pools = _pools(jobs)

    def one(number: int) -> None:
        (what, filled), (_, other) = pairs[number]
        if work.deadline is not None and time.monotonic() > work.deadline:
            return  # "not tried" in the report
        label = f"{what.label()}: its winner on {other.target}"
        key = shown.begin(label, CROSSING_SECONDS)
        trial = ahead.across(filled, other, mine())
        config = filled.winner or filled.default()
        found[number] = Crossing(what.short_name, what.arguments(), filled.target.name, other.target.name, config, trial)
        # That it does not work there is a finding, not a failure.
        shown.end(key, True, f"{label}: {duration(trial.seconds) if trial.fault is None else 'does not work there'}")

    with view(len(pairs), quiet=quiet or not pairs) as shown:
        try:
            _all(ThreadPoolExecutor(jobs, thread_name_prefix="helion-rt-prewarm"), one, range(len(pairs)), work.stopped)
        finally:
            for workers in pools:
                workers.stop()


def check_report(path: Path) -> None:
    """Raise, before any work is done, what would keep a report from being written."""
    from helion_rt import report

    report.require()
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent} for the report")


def write_report(path: Path, work: Work, title: str = "helion_rt prewarm report") -> None:
    """The report of what was done. What is wrong with it must not cost the records: it is told."""
    from helion_rt import report
    from helion_rt.report.gather import search_of

    searches = [
        search_of(filled, what.short_name, what.arguments())
        for what, filled in zip(work.entries, work.filled, strict=True)
        if filled is not None
    ]
    try:
        report.write(path, searches, [crossing for crossing in work.crossings if crossing is not None], title)
    except OSError as error:
        print(f"helion-rt: the report cannot be written: {error}", file=sys.stderr)
