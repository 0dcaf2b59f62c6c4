"""What a record is worth here and now, and which records of other keys are near enough to start a search from."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from helion_rt.config import Config
from helion_rt.database import EvidenceKind, Key, Origin, Record, Status
from helion_rt.exc import ConfigError
from helion_rt.tuning.space import SPACE_VERSION

# A sweep in which everything failed is made again after this long: its reason may have been the machine's.
RETRY_AFTER = timedelta(days=1)
# A measured winner is compared with the default again after this long.
MEASURE_AGAIN_AFTER = timedelta(days=30)

# Whose versions may turn a winner into a loser, or a failure into a success.
COMPILERS = ("helion_rt", "jax", "jaxlib", "libtpu")

MAX_NEAREST = 4


class Standing(enum.Enum):
    """What is done with a record."""

    FINAL = "final"  # it serves, and nothing is to be found out
    HINT = "hint"  # it serves from the first call, and is tried here in the background
    MISS = "miss"  # it does not serve: of another space, void, or a failure that is due to be tried again


def standing(record: Record | None, toolchain: Mapping[str, str], *, strict: bool = False, now: datetime | None = None) -> Standing:
    """The standing of ``record`` in a process with this ``toolchain``. ``strict``: only what was measured may serve."""
    if record is None or record.space_version != SPACE_VERSION or record.is_void:
        return Standing.MISS
    measured = record.evidence.kind is EvidenceKind.MEASURED
    compilers = [name for name in COMPILERS if name != "libtpu" or not record.key.target.startswith("cpu")]
    alike = all(record.toolchain.get(name) == toolchain.get(name) for name in compilers)
    age = (now or datetime.now(UTC)) - datetime.strptime(record.date, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    if record.status is Status.ALL_FAILED:
        return Standing.FINAL if alike and age < RETRY_AFTER else Standing.MISS
    if strict and not measured:
        return Standing.MISS
    if not (measured and alike and record.origin is Origin.TUNED_HERE):
        return Standing.HINT
    return Standing.FINAL if record.status is Status.NO_CANDIDATE or age < MEASURE_AGAIN_AFTER else Standing.HINT


def nearest(records: Iterable[Record], key: Key, kernel: str, fitting: Config) -> list[Config]:
    """Winners of the same kernel for other shapes, or another target, the nearest first.

    Only configs with as many choices as ``fitting`` has under each of its keys: whether they are legal is the space's to say.
    """
    found: list[tuple[float, str, Config]] = []
    for record in records:
        if record.status is not Status.WINNER or record.kernel != kernel or record.key == key or record.is_void:
            continue
        distance = _distance(record.key.signature, key.signature)
        try:
            config = Config.from_dict(record.config)
        except ConfigError:  # what another version meant by it
            continue
        if distance is not None and _fits(config, fitting):
            found.append((distance + (record.key.target != key.target), repr(config), config))
    return list(dict.fromkeys(config for _, _, config in sorted(found, key=lambda entry: entry[:2])))[:MAX_NEAREST]


def _fits(config: Config, other: Config) -> bool:
    sizes = (len(c.get(name) or ()) for name in ("block_sizes", "loop_strategies") for c in (config, other))
    return next(sizes) == next(sizes) and next(sizes) == next(sizes)


def _distance(a: object, b: object) -> float | None:
    """Doublings between the shapes of two signatures; None if they are not of one form, dtypes included."""
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        if len(a) != len(b):
            return None
        parts = [_distance(x, y) for x, y in zip(a, b, strict=True)]
        return None if None in parts else sum(part for part in parts if part is not None)
    if isinstance(a, str) and isinstance(b, str) and a.isdigit() and b.isdigit():
        return abs(math.log2(max(int(a), 1) / max(int(b), 1)))
    return 0.0 if a == b else None
