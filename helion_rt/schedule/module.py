"""A compiled module's time from the folder of the compiler's texts: its top level is run, and each kernel that it calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import bundles, scalar
from .copies import Copies
from .result import KernelEstimate
from .tables import Contents, Table, matching
from .units import Rates

_FILE = re.compile(
    r"^(\d+)-(.+)-(\d\d)-(final_bundles|final_hlo-static-per-bundle-utilization|pre-finalize-registers-and-allocations)\.txt$"
)
_ALLOCATION = re.compile(r"#allocation\d+ \[shape = '[^']*', space=vmem, size = (0x[0-9a-f]+)")
_TOP = "TLP"

# Turns of loops, over a whole kernel, that are run one by one; beyond them the rest of the grid is taken to be like what was run.
TURNS = 200_000


class Unreadable(Exception):
    """The compiler's texts are missing, or not in a form that is understood; the message says which."""


@dataclass
class Totals:
    """What the kernels of a module add up to. ``slots``: a unit's slots used, in cycles of the unit at full width."""

    cycles: float = 0.0
    mxu_cycles: float = 0.0
    hbm_bytes: float = 0.0
    spills: int = 0
    slots: dict[str, float] = field(default_factory=dict)
    kernels: dict[str, KernelEstimate] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Texts:
    bundles: Path
    utilization: Path | None
    allocations: Path | None


def weigh(folder: Path, rates: Rates, tables: Sequence[Table] = (), trips: int = 1) -> Totals:
    """The time of the module that was compiled with its texts in ``folder``. Raises ``Unreadable``.

    ``tables``: contents of scalar-prefetch operands where the caller knows them. ``trips``: turns of a loop whose end nobody knows.
    """
    texts = _texts(folder)
    if _TOP not in texts:
        raise Unreadable("the compiler left no text of the module's top level")
    totals = Totals()
    done: dict[str, tuple[float, Counts]] = {}

    def call(now: float, name: str) -> float:
        if name.startswith("<late"):
            return now
        if name not in texts:
            name = _like(name, texts, totals)
        if name not in done:
            done[name] = _kernel(name, texts, rates, tables, trips, totals)
        cycles, counts = done[name]
        _add(totals, name, cycles, counts)
        return now + cycles

    top = _translate(texts[_TOP].bundles.read_text(errors="replace"), rates, False, "the top level")
    # Both sides of what is not known at the top level: an early exit that depends on the machine's state would skip everything.
    unknowns = scalar.Unknowns(share=0.0, trips=trips)
    copies = Copies(rates.hbm, rates.latency)
    nothing = Contents(())
    cycles, cut = top.run(copies, unknowns, {}, nothing.copy_in, nothing.scalar, call, [0] * len(top.blocks), TURNS)
    if cut:
        totals.notes.append("the module's own loops were cut short: a lower bound")
    totals.cycles = copies.drain(cycles)
    totals.hbm_bytes += copies.moved
    return totals


@dataclass(frozen=True, slots=True)
class Counts:
    """What one call of a kernel used."""

    slots: Mapping[str, float]
    mxu_cycles: float
    hbm_bytes: float
    spills: int
    stalled: float
    steps: int
    vmem: int


def _add(totals: Totals, name: str, cycles: float, counts: Counts) -> None:
    for unit, used in counts.slots.items():
        totals.slots[unit] = totals.slots.get(unit, 0.0) + used
    totals.mxu_cycles += counts.mxu_cycles
    totals.hbm_bytes += counts.hbm_bytes
    totals.spills += counts.spills
    calls = totals.kernels[name].calls + 1 if name in totals.kernels else 1
    units = {unit: used / cycles for unit, used in counts.slots.items()} if cycles else {}
    totals.kernels[name] = KernelEstimate(
        name, calls, cycles, counts.stalled, counts.steps, counts.mxu_cycles, counts.hbm_bytes, units, counts.spills, counts.vmem
    )


def _like(name: str, texts: Mapping[str, _Texts], totals: Totals) -> str:
    """Of fusions with the same code only one has a text: one with the same stem stands for ``name``."""
    stem = name.rsplit(".", 1)[0]
    twins = sorted(other for other in texts if other.rsplit(".", 1)[0] == stem)
    if not twins:
        totals.notes.append(f"no text of {name}: left out")
        return name
    totals.notes.append(f"no text of {name}: taken to be like {twins[0]}")
    return twins[0]


def _texts(folder: Path) -> dict[str, _Texts]:
    found: dict[str, dict[str, Path]] = {}
    for path in sorted(folder.iterdir()):
        match = _FILE.match(path.name)
        if match and "schedule-analysis" not in path.name:
            found.setdefault(match.group(2), {})[match.group(4)] = path
    return {
        name: _Texts(
            files["final_bundles"],
            files.get("final_hlo-static-per-bundle-utilization"),
            files.get("pre-finalize-registers-and-allocations"),
        )
        for name, files in found.items()
        if "final_bundles" in files
    }


def _translate(text: str, rates: Rates, tables: bool, what: str) -> scalar.Scalar:
    try:
        return scalar.translate(bundles.parse(text), rates, tables)
    except (ValueError, SyntaxError, KeyError, IndexError) as error:
        raise Unreadable(f"{what}: {error}") from error


def _kernel(
    name: str, texts: Mapping[str, _Texts], rates: Rates, tables: Sequence[Table], trips: int, totals: Totals
) -> tuple[float, Counts]:
    """Cycles of one call of a kernel, and what it used."""
    if name not in texts:
        return 0.0, Counts({}, 0.0, 0.0, 0, 0.0, 0, 0)
    files = texts[name]
    text = files.bundles.read_text(errors="replace")
    table = matching(text, tables)
    contents = Contents(table.operands if table else ())
    translated = _translate(text, rates, table is not None, name)
    unknowns = scalar.Unknowns(trips=trips)
    copies = Copies(rates.hbm, rates.latency)
    counts = [0] * len(translated.blocks)
    run: Callable[..., tuple[float, bool]] = translated.run
    try:
        cycles, cut = run(copies, unknowns, {}, contents.copy_in, contents.scalar, lambda now, _: now, counts, TURNS)
    except (ArithmeticError, TypeError, ValueError, MemoryError) as error:
        raise Unreadable(f"{name}: {type(error).__name__}: {error}") from error
    factor = 1.0
    if cut:
        factor = _rest(translated, counts)
        totals.notes.append(
            f"{name}: {factor:.3g} times what was run of its grid" if factor > 1 else f"{name}: its loops were cut short: a lower bound"
        )
    if unknowns.used:
        totals.notes.append(f"{name}: {len(unknowns.used)} tests depend on values that the text does not hold: half of them taken to hold")
    cycles = copies.drain(cycles) * factor
    slots, mxu, spills = _used(translated, counts, files.utilization, text, rates)
    return cycles, Counts(
        {unit: used * factor for unit, used in slots.items()},
        mxu * factor,
        copies.moved * factor,
        round(spills * factor),
        copies.stalled * factor,
        round(max(counts, default=0) * factor),
        _vmem(files.allocations),
    )


def _rest(translated: scalar.Scalar, counts: Sequence[int]) -> float:
    if translated.outer is None:
        return 1.0
    block, turns = translated.outer
    return max(1.0, turns / max(1, counts[block]))


def _used(
    translated: scalar.Scalar, counts: Sequence[int], utilization: Path | None, text: str, rates: Rates
) -> tuple[dict[str, float], float, int]:
    """Slots used by unit (in cycles at the unit's full width), cycles of the busiest MXU, and registers spilled and filled."""
    mxu = 0.0
    slots: dict[str, float] = {}
    spills = 0
    matmuls = translated.matmul_cycles
    for block, times in zip(matmuls, counts, strict=True):
        mxu += block * times
    if utilization is None:
        return slots, mxu, spills
    names, capacity, rows = bundles.parse_utilization(utilization.read_text(errors="replace"))
    for block, times in zip(translated.blocks, counts, strict=True):
        if not times:
            continue
        for row in rows[block.begin : block.end]:
            for name, width, used in zip(names, capacity, row, strict=True):
                if used:
                    slots[name] = slots.get(name, 0.0) + used * times / width
                    if name.endswith((":FILL", ":SPILL")):
                        spills += used * times
    slots["MXU"] = mxu  # an operation keeps its MXU longer than its slot
    return slots, mxu, spills


def _vmem(allocations: Path | None) -> int:
    if allocations is None:
        return 0
    return sum(int(size, 16) for size in _ALLOCATION.findall(allocations.read_text(errors="replace")))
