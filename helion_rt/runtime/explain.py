"""``explain``: the key of a call field by field, what each tier has for it and what that is worth here, and the nearest other keys."""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from helion_rt import targets
from helion_rt.config import Config
from helion_rt.database import Key, Record, Status
from helion_rt.database.key import Plain
from helion_rt.exc import ConfigError, PlanError
from helion_rt.settings import Settings
from helion_rt.targets import Target
from helion_rt.tuning.space import Space

from . import prepare, sharing
from .places import Place, Places, Source, places
from .slot import Slot, registry
from .standing import Reason, Standing, Verdict, distance, judge

if TYPE_CHECKING:
    from .kernel import Kernel

MAX_NEAR = 4
_ABSENT = "-"
_PROGRAM, _ALLOWED, _STRICT, _TARGET = "program", "allowed configs", "strict", "target"
_OWN = frozenset((_PROGRAM, _ALLOWED, _STRICT, _TARGET))
_ORDER = {Standing.FINAL: 0, Standing.HINT: 1, Standing.MISS: 2}


@dataclass(frozen=True, slots=True)
class Held:
    """What one tier has for the key. ``problem``: why the tier could not be asked; then nothing is known."""

    tier: str
    record: Record | None
    verdict: Verdict
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """A field in which another key differs from the one that is asked for."""

    field: str
    here: str
    there: str

    def __str__(self) -> str:
        if self.field == _PROGRAM:
            return "another source or format of this kernel"
        return f"{self.field} is {self.there}, here {self.here}"


@dataclass(frozen=True, slots=True)
class Near:
    """A record of another key of the same kernel."""

    tier: str
    record: Record
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """``fields`` of the key by name, ``held`` by tier in the order they serve, ``near`` only where nothing serves.

    ``bucketed``: the extents in the key are those of a bucket (``dynamic=``), not of the call. ``empty``: an array has no
    elements, nothing is tuned. ``forced``: the user's ``config=``, which serves whatever the tiers have. ``slot``: what serves this key in
    this process.
    """

    kernel: str
    place: str
    target: str
    key: Key
    fields: dict[str, str]
    held: tuple[Held, ...]
    near: tuple[Near, ...] = ()
    bucketed: bool = False
    empty: bool = False
    forced: Config | None = None
    slot: Slot | None = None

    @property
    def best(self) -> Held | None:
        """The tier whose record has the best standing, the first of several; None where no tier answers."""
        answered = [held for held in self.held if not held.problem]
        return min(answered, key=lambda held: _ORDER[held.verdict.standing]) if answered else None

    @property
    def standing(self) -> Standing:
        return self.best.verdict.standing if self.best is not None else Standing.MISS

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "kernel": self.kernel, "place": self.place, "target": self.target, "key": self.key.digest, "fields": self.fields,
            "standing": self.standing.value, "bucketed": self.bucketed,
            "forced": None if self.forced is None else self.forced.to_dict(),
            "serving": None if self.slot is None else _serving(self.slot),
            "tiers": [_held(held) for held in self.held],
            "nearest": [
                {"tier": near.tier, "key": near.record.key.digest, "record": _brief(near.record),
                 "differences": [{"field": d.field, "here": d.here, "there": d.there} for d in near.differences]}
                for near in self.near
            ],
        }  # fmt: skip

    def __str__(self) -> str:
        return "\n".join(map(_printable, self._lines()))

    def _lines(self) -> Iterator[str]:
        yield f"{self.kernel} ({self.place}) on {self.target}"
        yield f"key {self.key.digest}" + (", of the bucket (dynamic=)" if self.bucketed else "")
        width = max(map(len, self.fields))
        yield from (f"  {name:<{width}}  {value}" for name, value in self.fields.items())
        if self.forced is not None:
            yield f"forced: {json.dumps(self.forced.to_dict())} serves, whatever the tiers have"
        if self.slot is not None:
            serving = _serving(self.slot)
            yield f"serving in this process: {serving['origin']}, {json.dumps(serving['config'])}; tuning: {serving['tuning']}"
        yield "tiers"
        width = max((len(held.tier) for held in self.held), default=0)
        for held in self.held:
            yield f"  {held.tier:<{width}}  {held.problem or held.verdict}"
            if held.record is not None:
                yield f"  {'':<{width}}  {_told(held.record)}"
        if self.near:
            yield "nearest keys"
            for near in self.near:
                yield f"  {near.record.key.digest[:12]} ({near.tier}): {'; '.join(map(str, near.differences))}"
                yield f"  {'':<12} {_told(near.record)}"
        elif self.standing is Standing.MISS and self.forced is None:
            yield "nearest keys: none; no tier has a record of this kernel"


def explain(kernel: Kernel, *args: Any, target: Target | str | None = None, **kwargs: Any) -> Explanation:
    """Why a call of ``kernel`` with these arguments (arrays or shape-likes) is served as it is, on ``target`` (default: this machine's).

    Nothing is tuned, stored or changed. Every tier is asked, shared ones too, so it may take a second or two where one does not
    answer. Raises ``InputError``, ``CaptureError`` and ``TargetError`` for what no call could have.
    """
    aimed = targets.detect() if target is None else targets.get(target)
    settings = kernel.settings
    with places(local_tier(settings), settings) as asked:
        return explain_bound(kernel, kernel.bound(*args, **kwargs), aimed, asked)


def explain_bound(kernel: Kernel, bound: tuple[Any, ...], target: Target, asked: Places, near: bool = True) -> Explanation:
    """As ``explain``, of bound arguments, by the tiers ``asked``; without the nearest keys unless ``near``."""
    found, key, _, settings = prepare.find(kernel, bound, target)
    program = found.program if found.bucket is None else found.bucket.program  # of which the key and the record are
    space = Space(program, target, kernel.configs)
    names = [param.name for param in program.params]
    held = tuple(_look(place, key, space, settings.strict) for place in asked.tiers)
    said = Explanation(
        kernel.name, f"{os.path.basename(program.file)}:{program.first_line}", target.name, key, key_fields(key, names), held,
        bucketed=found.bucket is not None, empty=not prepare.space_has_work(program),
        forced=None if kernel.config is None else space.complete(kernel.config),
        slot=next((slot for slot in registry.all() if slot.kernel is kernel and slot.key == key), None),
    )  # fmt: skip
    if near and said.standing is Standing.MISS and said.forced is None:
        said = replace(said, near=nearest_keys(asked.tiers, key, kernel.name, names))
    return said


def local_tier(settings: Settings) -> Source:
    """The tier of the cache directory alone, without those that it stands before."""
    return sharing.tiers_of(settings).local


def key_fields(key: Key, names: Sequence[str] = ()) -> dict[str, str]:
    """A key as named text. ``names``: of the program's parameters, in order; without one it is ``argument 1`` and so on."""
    found = {_PROGRAM: key.fingerprint}
    arguments, asked = _parts(key)
    for number, part in enumerate(arguments):
        name = names[number] if number < len(names) else f"argument {number + 1}"
        name = f"{name} (argument)" if name in _OWN else name
        match part:
            case ("static", str(kind), value):
                found[name] = f"{value} ({kind})"
            case ("tensor", tuple(shape), dtype):
                found[f"{name}.shape"] = "x".join(map(str, shape)) or "()"
                found[f"{name}.dtype"] = str(dtype)
            case (str(kind), tuple(shape), dtype):
                found[name] = f"any {kind} of {dtype}" + (f" and shape {'x'.join(map(str, shape))}" if shape else "")
            case _:
                found[name] = repr(part)
    for number, part in enumerate(key.numerics.split(";")):
        name, equals, value = part.partition("=")
        found[f"numerics.{name}" if equals else "numerics" if number == 0 else f"numerics.{number}"] = value if equals else part
    strict = asked[-1:] == ("strict",)
    allowed = asked[1 : len(asked) - strict] if asked[:1] == ("configs",) else ()
    return {
        **found, _ALLOWED: " or ".join(map(str, allowed)) or "any", _STRICT: "yes" if strict else "no", _TARGET: key.target,
    }  # fmt: skip


def differences(here: dict[str, str], there: dict[str, str]) -> tuple[Difference, ...]:
    """The fields in which two keys differ. Other arguments make another program: then that one is not told."""
    names = dict.fromkeys((*here, *there))
    pairs = ((name, here.get(name, _ABSENT), there.get(name, _ABSENT)) for name in names)
    found = [Difference(name, a, b) for name, a, b in pairs if a != b]
    arguments = any(d.field not in _OWN and not d.field.startswith("numerics") for d in found)
    return tuple(d for d in found if d.field != _PROGRAM or not arguments)


def nearest_keys(asked: Iterable[Place], key: Key, kernel: str, names: Sequence[str]) -> tuple[Near, ...]:
    """The records of the kernel (by name or by program) whose keys differ least: in the fewest fields, then by the fewest doublings.

    All records are looked at, a few at a time are kept. A key that several tiers have is told once.
    """
    own, arguments = key_fields(key, names), len(_parts(key)[0])

    def candidates() -> Iterator[tuple[tuple[int, float, str, int], Near]]:
        for number, place in enumerate(asked):
            for record in place.records():
                if record.key == key or (record.kernel != kernel and record.key.fingerprint != key.fingerprint):
                    continue
                # Parameters have the names they have here only where the signatures have one form.
                found = differences(own, key_fields(record.key, names if len(_parts(record.key)[0]) == arguments else ()))
                apart = distance(record.key.signature, key.signature)
                rank = (len(found), float("inf") if apart is None else apart, record.key.digest, number)
                yield rank, Near(place.name, record, found)

    found: dict[str, Near] = {}
    for _, near in heapq.nsmallest(MAX_NEAR * 3, candidates(), key=lambda entry: entry[0]):  # three tiers may have the same one
        found.setdefault(near.record.key.digest, near)
    return tuple(found.values())[:MAX_NEAR]


def _parts(key: Key) -> tuple[tuple[Plain, ...], tuple[Plain, ...]]:
    """(the arguments of a signature, each a tuple; what ``prepare.key_of`` puts behind them: allowed configs, strict)."""
    parts = key.signature if isinstance(key.signature, tuple) else (key.signature,)
    end = next((number for number, part in enumerate(parts) if part in ("configs", "strict")), len(parts))
    return parts[:end], parts[end:]


def _look(place: Place, key: Key, space: Space, strict: bool) -> Held:
    record = place.get(key)
    verdict = judge(record, prepare.toolchain(), strict=strict)
    if record is not None and verdict.standing is not Standing.MISS and record.status is Status.WINNER:
        reason = _why_illegal(space, record)
        verdict = verdict if reason is None else Verdict(Standing.MISS, Reason.NOT_LEGAL, reason)
    return Held(place.name, record, verdict, place.problem)


def _why_illegal(space: Space, record: Record) -> str | None:
    """Why the config of a record cannot serve in this space; None where it can, as far as that is known before it compiles."""
    if prepare.recorded_config(space, record, variants_too=True) is not None:
        return None
    try:
        config = Config.from_dict(record.config)
        if space.only and config not in (*space.only, space.default()):
            return "it is none of configs="
        space.check(config)
    except (ConfigError, PlanError) as error:
        return getattr(error, "reason", None) or getattr(error, "message", None) or str(error)
    return "it cannot be used here"


def _serving(slot: Slot) -> dict[str, Any]:
    serving = slot.serving
    config = None if serving.config is None else serving.config.to_dict()
    return {"origin": serving.origin.value, "config": config, "tuning": slot.tuning.value, "generation": serving.generation}


def _held(held: Held) -> dict[str, Any]:
    verdict = held.verdict
    if held.problem:
        return {"tier": held.tier, "standing": None, "reason": None, "detail": held.problem, "record": None}
    return {
        "tier": held.tier, "standing": verdict.standing.value, "reason": verdict.reason.name.lower(), "detail": verdict.detail,
        "record": None if held.record is None else _brief(held.record),
    }  # fmt: skip


def _brief(record: Record) -> dict[str, Any]:
    return {
        "kernel": record.kernel, "config": record.config, "origin": record.origin.value, "space_version": record.space_version,
        "toolchain": dict(record.toolchain), "machine": record.machine, "quarantined": len(record.quarantined),
        "evidence": prepare.evidence_dict(record),
    }  # fmt: skip


def _told(record: Record) -> str:
    """A record in one line."""
    evidence = record.evidence
    times = [f"{value:.4g} ms{what}" for value, what in ((evidence.ms, ""), (evidence.default_ms, " by the default")) if value is not None]
    config = " ".join(f"{name}={json.dumps(value)}" for name, value in record.config.items())
    said = [record.status.value, config, f"{', '.join(times)} ({evidence.kind.value})" if times else evidence.kind.value, record.date]
    return "; ".join(part for part in said if part)


def _printable(text: str) -> str:
    """Text that may come from another machine's record, without control characters of a terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
