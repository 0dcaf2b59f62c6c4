"""The first call of a signature: program, key, record, and something that serves."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
from jax.core import Tracer

from helion_rt import targets
from helion_rt.capture.alias import alias
from helion_rt.config import Config
from helion_rt.database import Key, Record, Status
from helion_rt.database.tiers import Tiers
from helion_rt.exc import CaptureError, ConfigError, EmptyTensor, HelionError, HelionRtWarning, InputError, PlanError
from helion_rt.program import codec
from helion_rt.program.fingerprint import fingerprint
from helion_rt.program.ir import ArgKind, Param, Program, TensorType
from helion_rt.program.signature import Fact, ScalarFact, StaticFact, TensorFact
from helion_rt.settings import Settings, TuneMode
from helion_rt.targets import Target
from helion_rt.tuning import executable, inputs
from helion_rt.tuning.space import SPACE_VERSION, Space

from . import buckets, door, generator, jaxcache, log, probes, sharing, variants
from . import facts as facts_of_call
from .counters import counters
from .slot import Origin, Serving, Slot, Tuning
from .standing import Standing, other_versions, standing
from .standing import toolchain_here as toolchain

if TYPE_CHECKING:
    from .kernel import Kernel

logger = logging.getLogger("helion_rt.runtime")

MAX_SMALLER = 8


def numerics() -> str:
    """JAX's settings that change results: part of the key."""
    x64, precision = facts_of_call.jax_numerics()
    return f"x64={int(x64)};matmul={precision or 'default'}"


@dataclass(frozen=True, slots=True)
class Found:
    """A program and how it was come by; ``aliases`` are the names under which it is still to be stored.

    ``bucket``: the program whose record serves, where dynamic extents were rounded up.
    """

    program: Program
    captured: bool
    aliases: tuple[str, ...]
    bucket: buckets.Rounded | None = None


def find_program(
    kernel: Kernel, bound: tuple[Any, ...], settings: Settings, tier: Tiers, stored: bool = True
) -> Found:
    """The program of bound arguments: from the database by its alias (unless ``stored`` is False), else captured.

    Raises ``CaptureError``.
    """
    facts, values = kernel.facts(bound), tuple(map(facts_of_call.values_of, bound))
    general = None if facts_of_call.has_unstable(facts) else alias(kernel.fn, facts, settings, kernel.tunables)
    if general is not None and stored:
        program = _stored(tier, general, facts)
        if program is not None and _fits(program, facts, bound):
            return Found(program, False, ())
        if program is not None:  # another value of something that the program is specialised to
            special = alias(kernel.fn, _specialised(program, facts, bound), settings, kernel.tunables)
            program = _stored(tier, special, facts) if special is not None else None
            if program is not None and _fits(program, facts, bound):
                return Found(program, False, ())
    # Here and not above: a warm process needs neither torch's tracing machinery nor the time to import it.
    from helion_rt.capture import capture

    counters.captures += 1
    program = capture(
        kernel.fn, facts, values, settings=settings, kernel_name=kernel.name, tunables=kernel.tunables,
        read=functools.partial(probes.read, bound),
    )  # fmt: skip
    if general is None:
        return Found(program, True, ())
    special = alias(kernel.fn, _specialised(program, facts, bound), settings, kernel.tunables)
    return Found(program, True, tuple(dict.fromkeys(a for a in (general, special) if a is not None)))


def _stored(tier: Tiers, name: str, facts: tuple[Fact, ...]) -> Program | None:
    data = tier.get_program(name)
    if data is None:
        return None
    try:
        program = codec.decode(data)
        for param in program.params:
            _check_param(program, param, facts)
        for probe in program.probes:
            probes.reader(probe.program)
            for param in probe.program.params:
                _check_param(probe.program, param, facts)
    except ValueError as error:
        logger.info("a stored program cannot be used and is captured again: %s", error)
        counters.bad_programs += 1
        return None
    return program


def _check_param(program: Program, param: Param, facts: tuple[Fact, ...]) -> None:
    """Raise ``ValueError`` unless a parameter of a stored program is one of a call with these facts."""
    if param.kind is ArgKind.SEEDS:
        generator.check(program, param)
        return
    try:
        fact = facts_of_call.at(facts, param.path)
    except (LookupError, TypeError) as error:
        raise ValueError(f"its parameter {param.name} has no argument") from error
    kind = program.types[param.value] if param.value is not None else None
    if isinstance(fact, TensorFact):
        right = param.kind is ArgKind.TENSOR and kind == TensorType(fact.shape, fact.dtype)
    else:
        right = param.kind is ArgKind.STATIC or (param.kind is ArgKind.SCALAR and isinstance(fact, ScalarFact))
    if not right:
        raise ValueError(f"its parameter {param.name} is {param.kind.value} {kind}, the argument {fact}")


def static_paths(program: Program, facts: tuple[Fact, ...]) -> tuple[tuple[int | str, ...], ...]:
    """Where the numbers are that the program is specialised to."""
    return tuple(p.path for p in program.params if p.kind is ArgKind.STATIC and isinstance(facts_of_call.at(facts, p.path), ScalarFact))


def _fits(program: Program, facts: tuple[Fact, ...], bound: tuple[Any, ...]) -> bool:
    """Are the values that ``program`` is specialised to those of the arguments?"""
    stable, at = facts_of_call.stable, facts_of_call.at
    paths = set(static_paths(program, facts))
    if not all(stable(p.static) == stable(at(bound, p.path)) for p in program.params if p.path in paths):
        return False
    return all(probes.reader(p.program).key(bound) == probes.key_of(p.value) for p in program.probes)


def _specialised(program: Program, facts: tuple[Fact, ...], bound: tuple[Any, ...]) -> tuple[Fact, ...]:
    """``facts`` with the values that ``program`` is specialised to; those of probes at the end."""
    values = tuple(map(facts_of_call.values_of, bound))
    special = facts_of_call.specialise(facts, values, static_paths(program, facts))
    assert isinstance(special, tuple)
    return (*special, *(StaticFact(("probe", probes.reader(p.program).key(bound))) for p in program.probes))


def signature_of(program: Program) -> tuple[Any, ...]:
    """Shapes, dtypes and specialised values, as plain data."""
    parts: list[Any] = []
    for param in program.params:
        if param.value is None:
            parts.append(("static", *map(str, (type(param.static).__name__, param.static))))
        else:
            kind = program.types[param.value]
            parts.append((param.kind.value, tuple(map(str, kind.shape)), kind.dtype))
    return tuple(parts)


def key_of(program: Program, target: Target, configs: Sequence[Config], strict: bool = False) -> Key:
    """The database key. ``configs`` are the only ones the user allows: what is best of them is a question of its own, and so is what
    is best of those that give bitwise the default's results (``strict``)."""
    allowed = ("configs", *sorted(repr(sorted(config.to_dict().items())) for config in configs)) if configs else ()
    asked = (*signature_of(program), *allowed, *(("strict",) if strict else ()))
    return Key(fingerprint(program), asked, f"{program.numerics};{numerics()}", target.key())


def find(kernel: Kernel, bound: tuple[Any, ...], target: Target, stored: bool = True) -> tuple[Found, Key, Tiers, Settings]:
    """The program of bound arguments, its database key, and where records are. Raises ``CaptureError`` and ``InputError``."""
    settings = kernel.settings
    log.set_up(settings.log_level)
    jaxcache.set_up(settings.cache_dir)
    tier = sharing.tiers_of(settings)
    found = find_program(kernel, bound, settings, tier, stored)
    up = buckets.rounded(kernel, bound) if kernel.config is None else None
    if up is not None:
        bucket = kernel.bucket_programs.get(
            kernel, up, lambda: find_program(kernel, up, settings, tier, stored), lambda program, facts: _fits(program, facts, up)
        )
        found = replace(found, bucket=bucket)
    tuned = found.program if found.bucket is None else found.bucket.program
    return found, key_of(tuned, target, kernel.configs, settings.strict), tier, settings


def make_slot(kernel: Kernel, bound: tuple[Any, ...]) -> Slot:
    """Everything the first call of a signature needs. Raises what is the caller's own fault, and nothing else."""
    captures = counters.captures
    try:
        return _make_slot(kernel, bound, stored=True)
    except (CaptureError, InputError, ConfigError):
        raise
    except Exception as error:
        if counters.captures != captures:
            raise
        # The codec has let a stored program pass that means nothing: like any damaged entry it is a miss.
        logger.warning("kernel %s: its stored program does not work and is captured again: %s", kernel.name, error)
        counters.bad_programs += 1
        return _make_slot(kernel, bound, stored=False)


def _make_slot(kernel: Kernel, bound: tuple[Any, ...], stored: bool) -> Slot:
    target = targets.detect()
    found, key, tier, settings = find(kernel, bound, target, stored)
    program = found.program
    space = Space(program, target, kernel.configs)
    given = [None if p.kind is ArgKind.SEEDS else facts_of_call.at(bound, p.path) for p in program.array_params]
    leaves = list(map(facts_of_call.concrete, given))
    recipe, committed = inputs.recipe(program, leaves), tuple(map(_is_committed, given))
    slot = Slot(kernel, program, space, key, tier, settings, found.aliases, recipe, committed, found.captured)
    slot.jax_settings = jaxcache.settings()
    if program.notes:  # it has tunables
        slot.recapture = variants.recapture(kernel, kernel.facts(bound), bound, program, settings)
    slot.bucket = None if found.bucket is None else _bucket(kernel, found.bucket, target, settings)
    if kernel.config is not None:
        _serve_forced(slot, kernel.config)
    elif not space_has_work(program):
        serve(slot, None, Origin.REFERENCE)  # nothing to compute: quietly, it is no failure
    else:
        found_out = _serve_record(slot, tier.get(key))
        if found_out is Standing.MISS:
            serve_default(slot)
        if found_out is Standing.FINAL and slot.is_tried:
            slot.tuning = Tuning.DONE
        elif settings.tune is TuneMode.OFF or (target.is_tpu and not settings.measure_on_device):
            slot.tuning = Tuning.OFF
        else:
            slot.tuning = Tuning.QUEUED
        sharing.ask(slot)
    return slot


def _bucket(kernel: Kernel, up: buckets.Rounded, target: Target, settings: Settings) -> buckets.Bucket:
    """What is tuned for a slot whose extents were rounded up to those of ``up``."""
    program = up.program
    leaves = [None if p.kind is ArgKind.SEEDS else facts_of_call.concrete(facts_of_call.at(up.bound, p.path)) for p in program.array_params]
    again = variants.recapture(kernel, kernel.facts(up.bound), up.bound, program, settings)
    return buckets.Bucket(
        kernel, program, Space(program, target, kernel.configs), inputs.recipe(program, leaves), up.aliases, again
    )  # fmt: skip


def space_has_work(program: Program) -> bool:
    """False where an array has no elements: Pallas has no empty blocks, and the reference path has nothing to loop over."""
    arrays = [program.types[p.value] for p in program.array_params if p.value is not None]
    return all(0 not in kind.shape for kind in arrays) and all(
        0 not in program.types[i].shape for op in program.host.ops for i in op.results
    )


def serve(slot: Slot, config: Config | None, origin: Origin, evidence: dict[str, Any] | None = None) -> None:
    """Build, compile and swap in. Raises what building and compiling raise; then nothing has changed."""
    program = slot.program if config is None else variants.program_of(slot, config)
    fn = executable.function(program, config, slot.space.target)
    slot.serve(fn, executable.compiled(fn, program, slot.committed), config, origin, evidence)


def _is_committed(value: Any) -> bool:
    """Does the array of this argument come tied to the default device? Torch's do, through DLPack; NumPy's and numbers do not."""
    if isinstance(value, jax.Array) and not isinstance(value, Tracer):
        return bool(value.committed) and value.devices() == {jax.local_devices()[0]}
    return door.is_torch(value)


def _serve_forced(slot: Slot, config: Config) -> None:
    complete = slot.space.complete(config)
    slot.tuning = Tuning.OFF
    try:
        slot.space.check(complete)
        serve(slot, complete, Origin.FORCED)
    except EmptyTensor:  # as in ``serve_default``
        serve(slot, None, Origin.REFERENCE)


def _serve_record(slot: Slot, record: Record | None) -> Standing:
    """Serve what a record says, if it has a standing here; ``MISS``, and nothing serves, if it has not, or its config fails."""
    if record is None:
        counters.record_misses += 1
        return Standing.MISS
    counters.record_hits += 1
    found = adopt(slot, record)
    if found is Standing.MISS:
        counters.stale_records += 1
    return found


def adopt(slot: Slot, record: Record) -> Standing:
    """Serve what ``record`` says (nothing changes if that serves already), and say what is to be done with it.

    ``MISS``: it cannot be used here: of another space, void, not allowed by the user, or it does not compile. In the last case
    its config is put in quarantine.
    """
    found = standing(record, toolchain(), strict=slot.settings.strict)
    if found is Standing.MISS:
        return found
    evidence = evidence_dict(record)
    if record.status is not Status.WINNER:
        if not hasattr(slot, "serving"):
            serve_default(slot, evidence)
        return found
    config = recorded_config(slot.subject.space, record, variants_too=slot.recapture is not None)
    if config is None or config in slot.refused:
        return Standing.MISS
    here = config_here(slot, config)
    if here is not None and hasattr(slot, "serving") and slot.serving.config == here:
        return found
    if here is not None:
        try:
            serve(slot, here, Origin.RECORD, evidence)
            return found
        except Exception as error:  # the compilers' own errors have no common base
            if slot.bucket is None and _wants_memory(error):
                slot.refused.add(config)
                logger.warning("kernel %s: no memory for %r, the default serves: %s", slot.kernel.name, here, str(error)[:300])
                return Standing.MISS
            if slot.bucket is None:
                withdraw(slot, record, f"it does not compile: {error}")
                return Standing.MISS
            slot.bucket.unusable.add(here)  # with these extents: with others of the bucket it may
            logger.warning("kernel %s: %r of its bucket does not compile here, the default serves: %s", slot.kernel.name, here, error)
    if not hasattr(slot, "serving"):
        serve_default(slot, evidence)
    return found


def config_of(found: Found, space: Space, record: Record | None) -> Config | None:
    """The config of a record for the program that was found; None where there is none that is legal. ``space``: of that program."""
    if found.bucket is None:
        return recorded_config(space, record)
    bucket = Space(found.bucket.program, space.target, space.only)
    config = recorded_config(bucket, record)
    return None if config is None else buckets.fitted(config, bucket, space)


def config_here(slot: Slot, config: Config) -> Config | None:
    """A config of what is tuned for ``slot``, as its own program takes it; None if it cannot."""
    if slot.bucket is None:
        return config
    here = buckets.fitted(config, slot.bucket.space, slot.space)
    return None if here in slot.bucket.unusable else here


def withdraw(slot: Slot, record: Record, reason: str) -> None:
    """Put the winner of ``record`` in quarantine, for all processes that share the database.

    Of a winner of another toolchain only this slot will hear no more: it may well be right where it was found, and those who share
    tiers with us would lose it. What is found in its place has this toolchain.
    """
    counters.rollbacks += 1
    what, why = f"kernel {slot.kernel.name}: {record.config!r}", reason.splitlines()[0][:300]
    config = _config_of(record.config)
    if config is not None and (other := other_versions(record, toolchain())):
        slot.refused.add(config)
        logger.warning("%s, found under another toolchain (%s), is not taken here: %s", what, other, why)
    else:
        logger.warning("%s is rolled back and put in quarantine: %s", what, why)
        slot.tier.put(record.rolled_back())  # outranks what it takes back


def heed(slot: Slot, record: Record) -> None:
    """Serve the default where what serves is no winner any more by what ``record`` says: a peer has put it in quarantine, or has measured
    that it is no better than the default."""
    serving = slot.serving
    if serving.origin not in (Origin.RECORD, Origin.TUNED) or serving.config is None:
        return
    if _is_quarantined(slot, serving.config, record):
        counters.peer_rollbacks += 1
        logger.warning("kernel %s: %r was put in quarantine by a peer, the default serves", slot.kernel.name, serving.config)
        serve_default(slot)
    elif record.status is Status.NO_CANDIDATE and standing(record, toolchain()) is Standing.FINAL:
        serve_default(slot, evidence_dict(record))  # what served was a hint


def _is_quarantined(slot: Slot, config: Config, record: Record) -> bool:
    """Is a config that serves ``slot`` one that ``record`` knows to be in quarantine?"""
    if slot.bucket is None:
        return replace(record, status=Status.WINNER, config=config.to_dict()).is_void
    known = [bad for bad in map(_config_of, record.quarantined) if bad is not None]
    return config in [buckets.fitted(bad, slot.bucket.space, slot.space) for bad in known]


def _config_of(plain: dict[str, Any]) -> Config | None:
    try:
        return Config.from_dict(plain)
    except ConfigError:  # of another version
        return None


def recorded_config(space: Space, record: Record | None, variants_too: bool = False) -> Config | None:
    """The config of a record, if it is a winner and legal in today's space.

    One that has other values of the kernel's tunables is for another program: only with ``variants_too``, and not checked.
    """
    if record is None or record.status is not Status.WINNER or record.space_version != SPACE_VERSION or record.is_void:
        return None
    try:
        config = Config.from_dict(record.config)
        if space.only and config not in (*space.only, space.default()):
            return None
        if variants.values_of(space.program, config):
            return config if variants_too else None
        space.check(config)
    except (ConfigError, PlanError) as error:
        logger.info("kernel %s: the recorded config is not legal today: %s", space.program.name, error)
        return None
    return config


def serve_default(slot: Slot, evidence: dict[str, Any] | None = None) -> None:
    """The safe default; smaller ones if it does not compile; then the reference path, with a warning. Raises if that fails too."""
    config: Config | None = None
    try:
        config = slot.space.default()
    except EmptyTensor:  # nothing to compute: the reference path is as good as any
        serve(slot, None, Origin.REFERENCE)
        return
    except PlanError as error:
        logger.warning("kernel %s: no config is legal: %s", slot.kernel.name, error.reason)
    for _ in range(MAX_SMALLER):
        if config is None:
            break
        try:
            serve(slot, config, Origin.DEFAULT, evidence)
            return
        except Exception as error:  # as above
            counters.default_failures += 1
            logger.warning("kernel %s: %r does not compile, trying a smaller one: %s", slot.kernel.name, config, error)
            config = slot.space.smaller(config)
    fall_back(slot)


def fall_back(slot: Slot) -> None:
    """Serve the reference path, loudly. Raises ``PlanError`` for a kernel that has none, ``HelionError`` if it does not compile."""
    try:
        serve(slot, None, Origin.REFERENCE)
    except PlanError:  # what the kernel says cannot be done with these sizes: the error names the line
        raise
    except Exception as error:
        program = slot.program
        hint = "please report it with the kernel's source"
        raise HelionError(
            f"neither a config nor the reference path works: {error}",
            kernel=program.name,
            file=program.file,
            line=program.first_line,
            hint=hint,
        ) from error
    counters.reference_fallbacks += 1
    warnings.warn(
        f"kernel '{slot.kernel.name}' ({slot.program.file}:{slot.program.first_line}) runs on the slow reference path for"
        f" {signature_of(slot.program)}: no config works (see the log of 'helion_rt')",
        HelionRtWarning,
        stacklevel=2,
    )


def rescue(slot: Slot, failed: Serving, error: Exception) -> None:
    """Serve something else than what just failed in a call: the default in place of a winner, else the reference path."""
    if slot.serving is not failed:  # another thread has seen to it
        return
    if failed.origin not in (Origin.TUNED, Origin.RECORD) or failed.config is None:
        fall_back(slot)
        return
    record = slot.tier.get(slot.key)
    if record is not None and record.config == failed.config.to_dict() and not _wants_memory(error):
        withdraw(slot, record, f"a call failed: {type(error).__name__}: {error}")
    else:
        logger.warning("kernel %s: a call failed under %r, the default serves: %s", slot.kernel.name, failed.config, str(error)[:300])
        if slot.bucket is not None:
            slot.bucket.unusable.add(failed.config)  # or the bucket's record would bring it back
    serve_default(slot)


def _wants_memory(error: Exception) -> bool:
    """Has something failed for want of memory? That may be the fault of what else the process, or the machine, is doing."""
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)


def evidence_dict(record: Record) -> dict[str, Any]:
    """A record's evidence as plain data, for status reports."""
    evidence = record.evidence
    return {
        "kind": evidence.kind.value, "status": record.status.value, "ms": evidence.ms, "default_ms": evidence.default_ms,
        "spread": evidence.spread, "pairs": evidence.pairs, "candidates_tried": evidence.candidates_tried, "date": record.date,
    }  # fmt: skip
