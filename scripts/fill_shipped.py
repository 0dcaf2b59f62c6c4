"""Fill the shipped tier (``cache/``): ``python scripts/fill_shipped.py [--target tpu7x] [--only softmax] [--seconds-each 30] [--jobs 1]``.

Tunes what ``scripts/model_shapes.toml`` lists, for TPUs that need not be there: a worker process compiles the candidates with libtpu, whose
own schedule says what they take. Records with that evidence (``scheduled``) are merged into ``cache/<target>/<kernel>.pack``, and nothing
else: not what was measured on one machine, nor what a model only guesses. A pack is written whenever it has a record more, so a run that
was stopped goes on where it was; ``--again`` tunes also what the packs have. The exit status is 0 only if every key has a record.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

# Before JAX is imported: on a machine that has a TPU, its own would be measured.
os.environ["JAX_PLATFORMS"] = "cpu"

from helion_rt.cli import manifest
from helion_rt.cli.keys import Entry, fill
from helion_rt.cli.live import View, view
from helion_rt.database import EvidenceKind, Record, open_local, pack
from helion_rt.database.shipped import ShippedTier
from helion_rt.database.signing import Trust
from helion_rt.runtime import prepare
from helion_rt.settings import Settings
from helion_rt.tuning import pool, usage
from helion_rt.tuning.space import SPACE_VERSION

if TYPE_CHECKING:
    from helion_rt.runtime.ahead import Filled

ROOT = Path(__file__).parent.parent
# Nothing but the packs says what is known: not this machine's own records, and no cluster's.
TIERS = {"HELION_RT_TIERS": "local=write-through,shared=off,shipped=off"}


class Packs:
    """The packs of a folder. ``add`` may be called from any thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()

    def records(self) -> list[Record]:
        """What is in them; raises ``ValueError`` for a pack that is damaged: it is to be looked at, not written over."""
        tier = ShippedTier(self.folder)
        found = list(tier.records())
        if tier.bad:
            raise ValueError(f"{self.folder}: {tier.bad} damaged packs or lines (see the log)")
        return found

    def add(self, record: Record) -> Path:
        """Merge a record into its pack. Records of other versions of the space serve nobody any more, and go."""
        file = self.folder / record.key.target / f"{record.kernel}.pack"
        with self._lock:
            file.parent.mkdir(parents=True, exist_ok=True)
            found, problems = pack.read(file, Trust()) if file.exists() else ([], [])
            if problems:
                raise ValueError(f"{file}: {problems[0]}")
            pack.write([r for r in (*found, record) if r.space_version == SPACE_VERSION], file, Trust())
        return file


def shippable(filled: Filled | None) -> Record | None:
    """The record of a filled key, if it may ship: for a TPU, and known by the compiler's schedule."""
    if filled is None or filled.record is None or not filled.target.is_tpu:
        return None
    scheduled = filled.record.evidence.kind is EvidenceKind.SCHEDULED
    return filled.record if scheduled and not filled.record.is_void else None


def is_known(entry: Entry, records: dict[str, Record]) -> bool:
    """Is there a record of this key, by digest, that today's space can use?"""
    assert entry.kernel is not None
    bound = entry.kernel.at_bucket(entry.kernel.bound(*entry.args, **entry.kwargs))
    _, key, _, _ = prepare.find(entry.kernel, bound, entry.target)
    record = records.get(key.digest)
    return record is not None and record.space_version == SPACE_VERSION and not record.is_void


def fill_packs(entries: Sequence[Entry], packs: Packs, seconds: float, jobs: int, again: bool, shown: View) -> list[Entry]:
    """Tune the entries and pack what came of it; the entries that have no record afterwards."""
    own, pools, left = threading.local(), list[pool.Workers](), list[Entry]()
    stopped = threading.Event()
    each = usage.limit(Settings.from_env().worker_gb) // jobs

    def one(entry: Entry) -> None:
        if stopped.is_set():
            return left.append(entry)
        if not hasattr(own, "workers"):
            own.workers = pool.Workers(memory_bytes=each)
            pools.append(own.workers)
        _, filled = fill(entry, own.workers, seconds, again, shown, stopped.is_set)
        record = shippable(filled)
        left.append(entry) if record is None else packs.add(record)

    executor = ThreadPoolExecutor(jobs, thread_name_prefix="fill-shipped")
    try:
        for future in [executor.submit(one, entry) for entry in entries]:
            future.result()
    except BaseException:
        stopped.set()
        executor.shutdown(wait=False, cancel_futures=True)
        raise
    finally:
        for workers in pools:
            workers.stop()
    executor.shutdown()
    return left


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--manifest", type=Path, default=ROOT / "scripts" / "model_shapes.toml")
    parser.add_argument("--cache", type=Path, default=ROOT / "cache", help="the folder of the packs (default: cache/)")
    parser.add_argument("--target", action="append", metavar="NAME", help="may be given several times (default: the manifest's)")
    parser.add_argument("--only", action="append", metavar="KERNEL", help="only these kernels, e.g. softmax; may be given several times")
    parser.add_argument("--seconds-each", type=float, metavar="N", help="budget of one key (default: the manifest's)")
    parser.add_argument("--limit", type=int, metavar="N", help="at most N keys, of those that the packs have not")
    parser.add_argument("--jobs", type=int, choices=(1, 2, 3, 4), default=1, help="keys at a time (default: 1)")
    parser.add_argument("--again", action="store_true", help="also keys that the packs have")
    args = parser.parse_args(argv)
    data = manifest.load(args.manifest)
    entries = list(manifest.entries(data, args.manifest.parent, args.target))
    if wrong := [e for e in entries if not e.target.is_tpu or e.problem]:
        print(f"{wrong[0].label()}: {wrong[0].problem or 'only TPUs ship'}", file=sys.stderr)
        return 2
    entries = [e for e in entries if not args.only or e.short_name in args.only]
    packs = Packs(args.cache)
    with tempfile.TemporaryDirectory(prefix="helion_rt_fill_") as folder:
        os.environ.update(TIERS, HELION_RT_CACHE_DIR=folder)
        os.environ.pop("HELION_RT_SHARED", None)
        tier, known = open_local(folder), {record.key.digest: record for record in packs.records()}
        for record in known.values():  # winners of other shapes and targets are where a search begins
            tier.put(record)
        entries = [e for e in entries if args.again or not is_known(e, known)][: args.limit]
        with view(len(entries), quiet=False) as shown:
            left = fill_packs(entries, packs, args.seconds_each or manifest.seconds_of(data), args.jobs, args.again, shown)
    for entry in left:
        print(f"no record: {entry.label()}", file=sys.stderr)
    print(f"{len(entries) - len(left)} of {len(entries)} keys filled, in {args.cache}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
