"""Buckets: ``@kernel(dynamic={"x": (0,)})`` says which extents vary, and these are rounded up before a record is looked for.

The rule (``round_up``): up to 16 an extent is its own bucket; above, it is rounded up to the next of 2^k and 3 * 2^(k-1): 24, 32, 48,
64, 96, ... So a bucket is less than half as large again as what is in it, and extents that must agree round alike by themselves.

The program that runs is always the exact one. What a bucket decides is which record serves: the key is that of the program captured at
the rounded extents, and that program is what is tuned, once for all extents of the bucket. Its winner is fitted to the exact program,
compiled and tried there. Where the kernel cannot be captured at the rounded extents (dimensions that must agree and were not all
listed), the exact program is tuned, as without ``dynamic=``.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import ml_dtypes  # noqa: F401  (registers bfloat16 and its like with NumPy)
import numpy as np

from helion_rt.capture.reach import Opened
from helion_rt.config import Config
from helion_rt.database import Key, Record, Status
from helion_rt.exc import ConfigError, PlanError
from helion_rt.program.ir import Program
from helion_rt.tuning.inputs import LOOK_LIMIT_ELEMENTS
from helion_rt.tuning.space import Space

from . import door, variants
from . import facts as facts_of_call
from .slot import Recapture
from .standing import distance

if TYPE_CHECKING:
    from helion_rt.program.signature import Fact

    from .kernel import Kernel
    from .prepare import Found

logger = logging.getLogger("helion_rt.runtime")

EXACT_UP_TO = 16

# Programs at rounded extents that a kernel keeps: of so many signatures, and so many of each, for other values that are compiled in.
MAX_ROUNDED = 1024
MAX_PROGRAMS_OF_ONE = 16


def round_up(extent: int) -> int:
    """The bucket of an extent: itself up to 16, above the next of 2^k and 3 * 2^(k-1)."""
    if extent <= EXACT_UP_TO:
        return extent
    power = 1 << (extent - 1).bit_length()
    return power * 3 // 4 if extent <= power * 3 // 4 else power


def checked(dynamic: Any, parameters: Sequence[str], place: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """``dynamic`` as a dictionary. Raises ``ConfigError`` (at ``place``) for an unknown parameter and for what are no dimensions."""
    if not isinstance(dynamic, Mapping):
        raise ConfigError(f"dynamic= is a {type(dynamic).__name__}", **place, hint='for example dynamic={"x": (0,)}')
    found = {}
    for name, dims in dynamic.items():
        if name not in parameters:
            raise ConfigError(f"dynamic= names {name!r}, which is no parameter", **place, hint=f"parameters: {', '.join(parameters)}")
        listed = dims if isinstance(dims, (tuple, list)) else (dims,)
        if not listed or not all(type(dim) is int for dim in listed):
            raise ConfigError(f"dynamic={{{name!r}: {dims!r}}}: expected a tuple of dimensions", **place, hint="for example (0,)")
        found[name] = tuple(listed)
    return found


@dataclass(eq=False)
class Bucket:
    """What is tuned for a slot whose extents are not those of its bucket: what ``slot.Subject`` asks for, at the rounded extents.

    ``tried``: the configs that need not be tried again with the slot's own extents; ``unusable``: those that do not compile there.
    """

    kernel: Kernel
    program: Program
    space: Space
    recipe: list[dict[str, Any]]
    aliases: tuple[str, ...]  # under which the program is to be stored
    recapture: Recapture | None = None
    variants: dict[tuple[tuple[str, Any], ...], Program] = field(default_factory=dict)
    tried: set[Config] = field(default_factory=set)
    unusable: set[Config] = field(default_factory=set)
    looked_near: bool = False


def rounded(kernel: Kernel, bound: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Bound arguments with the dynamic extents rounded up; None if nothing changes. An array that changes becomes a shape-like,
    a small integer one NumPy's, its values repeated, so that they stay valid indices. Raises ``ConfigError`` for a dimension that
    an argument has not."""
    if not kernel.dynamic:
        return None
    place = kernel.place()
    changed = tuple(
        _rounded(name, value, kernel.dynamic[name], place) if name in kernel.dynamic else value
        for name, value in zip((*kernel.parameters, ""), bound, strict=False)
    )
    return None if all(new is old for new, old in zip(changed, bound, strict=True)) else changed


def _rounded(name: str, value: Any, dims: tuple[int, ...], place: Mapping[str, Any]) -> Any:
    if value is None or isinstance(value, Opened):
        return value
    if isinstance(value, (tuple, list)):
        new = [_rounded(f"{name}[{i}]", item, dims, place) for i, item in enumerate(value)]
        return value if all(a is b for a, b in zip(new, value, strict=True)) else type(value)(new)
    shape = list(value.shape) if facts_of_call.is_array(value) else []
    for dim in dims:
        if not -len(shape) <= dim < len(shape):
            what = f"has {len(shape)} dimensions" if shape else "is no array with dimensions"
            raise ConfigError(f"dynamic= says that dimension {dim} of '{name}' varies, but '{name}' {what}", **place)
        shape[dim] = round_up(shape[dim])
    return value if shape == list(value.shape) else _resized(value, tuple(shape))


def _resized(value: Any, shape: tuple[int, ...]) -> Any:
    dtype = np.dtype(door.dtype_name(value))
    live = facts_of_call.concrete(value) if dtype.kind in "iu" and math.prod(shape) <= LOOK_LIMIT_ELEMENTS else None
    if live is None or not hasattr(live, "__array__"):
        return jax.ShapeDtypeStruct(shape, dtype)
    flat = np.asarray(live).reshape(-1)
    made = np.resize(flat, shape).astype(dtype)
    return np.sort(made, axis=None).reshape(shape) if np.all(flat[1:] >= flat[:-1]) else made  # offsets of jagged rows stay in order


def fitted(config: Config, bucket: Space, exact: Space) -> Config | None:
    """``config`` of a bucket's space for the exact program: a block that covers its whole axis does so here too, else it is taken as it
    is. None if neither is legal."""
    if variants.values_of(exact.program, config):
        return config  # of another program: whoever builds it checks
    sizes = tuple(config.get("block_sizes") or ())
    if len(sizes) != len(bucket.infos) or len(sizes) != len(exact.infos):
        return None  # another number of loops at these extents
    axes = zip(sizes, bucket.infos, exact.infos, strict=True)
    whole = [ours.extent if size == theirs.extent else size for size, theirs, ours in axes]
    for candidate in dict.fromkeys((config.replace(block_sizes=whole) if sizes else config, config)):
        if exact.only and candidate not in exact.only:
            continue  # the user's own configs are taken as they are
        try:
            exact.check(candidate)
        except (ConfigError, PlanError) as error:
            logger.info("kernel %s: %r of the bucket is not legal here: %s", exact.program.name, candidate, error)
        else:
            return candidate
    return None


def near(records: Iterable[Record], wanted: Key, kernel: Kernel, program: Program) -> list[Record]:
    """Winners for other buckets of the kernel on the same target, the nearest first: their signatures differ in dynamic extents only."""
    mine = _blanked(wanted.signature, kernel, program)
    found: list[tuple[float, str, Record]] = []
    for record in records:
        key = record.key
        usable = record.status is Status.WINNER and not record.is_void and record.kernel == kernel.name
        if not usable or (key.target, key.numerics) != (wanted.target, wanted.numerics) or key == wanted:
            continue
        far = distance(key.signature, wanted.signature)
        if far is not None and _blanked(key.signature, kernel, program) == mine:
            found.append((far, key.digest, record))
    return [record for _, _, record in sorted(found, key=lambda entry: entry[:2])]


def _blanked(signature: Any, kernel: Kernel, program: Program) -> Any:
    """A signature (see ``prepare.signature_of``) without its dynamic extents."""
    parts = list(signature)
    for i, param in enumerate(program.params):
        at = param.path[0] if param.path else None
        name = kernel.parameters[at] if isinstance(at, int) and at < len(kernel.parameters) else None
        if param.value is not None and name in kernel.dynamic:
            kind, shape, dtype = parts[i]
            dims = {dim % len(shape) for dim in kernel.dynamic[name]} if shape else set()
            parts[i] = (kind, tuple("*" if d in dims else extent for d, extent in enumerate(shape)), dtype)
    return tuple(parts)


@dataclass(frozen=True, slots=True)
class Rounded:
    """Arguments at rounded extents and the program of them; ``aliases`` are the names under which it is still to be stored."""

    bound: tuple[Any, ...]
    program: Program
    aliases: tuple[str, ...] = ()


class Programs:
    """The programs of a kernel at rounded extents that this process has come by, so that the next extent of a bucket finds its own:
    the latest ones of each. Two threads at once may each find one; either does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[tuple[Fact, ...], tuple[Program, ...]] = {}
        self._refused: set[tuple[Fact, ...]] = set()

    def get(
        self, kernel: Kernel, bound: tuple[Any, ...], find: Callable[[], Found], fits: Callable[[Program, tuple[Fact, ...]], bool]
    ) -> Rounded | None:
        """``bound``, arguments at rounded extents, with its program: a known one that ``fits`` the values it is specialised to, else what
        ``find`` finds. None where the kernel cannot be captured there."""
        facts = kernel.facts(bound)
        if facts in self._refused:
            return None
        try:
            for program in self._found.get(facts, ()):
                if fits(program, facts):
                    return Rounded(bound, program)
            found = find()
        except Exception as error:  # whatever the kernel's own code does with extents that nobody asked for
            logger.log(
                logging.INFO if self._refused else logging.WARNING,
                "kernel %s cannot be captured with its dynamic extents rounded up, so the exact ones are tuned: %s. If dimensions must"
                " agree, list all of them in dynamic=.", kernel.name, error,
            )  # fmt: skip
            self._refused.add(facts)
            return None
        with self._lock:
            self._found[facts] = (found.program, *self._found.pop(facts, ()))[:MAX_PROGRAMS_OF_ONE]
            while len(self._found) > MAX_ROUNDED:
                del self._found[next(iter(self._found))]
        return Rounded(bound, found.program, found.aliases)
