"""Compiling for a target with the compiler's texts: in a process that was started for it, since libtpu reads its flags once.

``environment`` says how such a process must be started, ``compile_and_estimate`` works inside of one. ``api.estimate`` starts one for
everybody else.
"""

from __future__ import annotations

import ctypes
import logging
import os
import resource
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from helion_rt import targets
from helion_rt.database import EvidenceKind
from helion_rt.targets import Target

from . import module
from .floors import floors
from .result import Bottleneck, Estimate
from .tables import Table
from .units import Rates, rates

logger = logging.getLogger("helion_rt.schedule")

_FLAGS = "--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=.*final.*"

# A unit that is busy for less than this share of the time is not what limits a kernel: something waits.
FULL = 0.4
# A schedule shorter than this share of its products at the peak rate of bfloat16 has left something out (8-bit products take half).
BELIEVED = 0.4


def environment(folder: Path | str) -> dict[str, str]:
    """Variables with which a process must be started so that libtpu leaves its texts in ``folder``, flags of the user kept."""
    flags = " ".join(filter(None, [os.environ.get("LIBTPU_INIT_ARGS", ""), _FLAGS.format(folder=folder)]))
    return {"LIBTPU_INIT_ARGS": flags}


def compile_and_estimate(
    fn: Callable[..., Any],
    specs: Sequence[Any],
    target: Target,
    folder: Path | str,
    *,
    tables: Sequence[Table] = (),
    trips: int = 1,
    work: tuple[float, float] | None = None,
) -> Estimate:
    """Compile ``fn`` for ``target`` and weigh the compiler's schedule. The process was started with ``environment(folder)``.

    ``specs``: ``jax.ShapeDtypeStruct`` an argument. ``tables``: contents of prefetched operands. ``trips``: mean turns of loops whose end
    depends on data. ``work``: (matmul flops, bytes of arguments and results) where the caller knows them. The folder is emptied.
    Raises ``CompileError`` if the compiler refuses. Texts that cannot be read give a ``modelled`` estimate that says so.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    empty(folder)
    work = work if work is not None else floors(fn, specs)
    try:
        targets.compile_for(fn, specs, target)
        return read(folder, target, tables=tables, trips=trips, work=work)
    finally:
        empty(folder)


def read(folder: Path, target: Target, *, tables: Sequence[Table], trips: int, work: tuple[float, float]) -> Estimate:
    """The estimate of the module whose texts are in ``folder``; ``modelled`` if they cannot be read."""
    try:
        totals = module.weigh(folder, rates(target), tables, trips)
    except module.Unreadable as error:
        logger.warning("the compiler's texts cannot be read (%s): falling back to flops and bytes", error)
        return modelled(*work, target, f"not scheduled: {error}")
    floor, _ = _floors(*work, rates(target))
    if totals.cycles < BELIEVED * floor:
        found = f"the compiler's text accounts for {totals.cycles:.3g} cycles, the products alone take {floor:.3g}"
        logger.warning("%s: falling back to flops and bytes", found)
        return modelled(*work, target, f"not scheduled: {found}")
    return _summary(totals, *work, target)


def modelled(flops: float, size: float, target: Target, why: str) -> Estimate:
    """The estimate where there is no schedule: the larger of the two floors."""
    core = rates(target)
    mxu, hbm = _floors(flops, size, core)
    cycles = max(mxu, hbm, core.latency)
    return Estimate(
        ms=cycles / core.clock * 1e3,
        cycles=cycles,
        kind=EvidenceKind.MODELLED,
        target=target.name,
        bottleneck=Bottleneck.MXU if mxu >= hbm else Bottleneck.HBM,
        units={"MXU": mxu / cycles, "HBM": hbm / cycles},
        hbm_floor_ms=hbm / core.clock * 1e3,
        mxu_floor_ms=mxu / core.clock * 1e3,
        notes=(why,),
    )


def _floors(flops: float, size: float, core: Rates) -> tuple[float, float]:
    """Cycles of the matrix products and of the arguments and results, all cores of a device together."""
    return flops / core.mxu_flops / core.cores, size / core.hbm / core.cores


def _summary(totals: module.Totals, flops: float, size: float, target: Target) -> Estimate:
    core: Rates = rates(target)
    cycles = max(totals.cycles, 1.0)
    mxu, hbm = _floors(flops, size, core)
    units = {name: min(1.0, used / cycles) for name, used in totals.slots.items()}
    units["HBM"] = min(1.0, totals.hbm_bytes / core.hbm / cycles)
    names = {member.value for member in Bottleneck}
    busiest = max((name for name in units if name in names), key=lambda name: units[name], default="HBM")
    return Estimate(
        ms=cycles / core.clock * 1e3,
        cycles=cycles,
        kind=EvidenceKind.SCHEDULED,
        target=target.name,
        bottleneck=Bottleneck(busiest) if units[busiest] >= FULL else Bottleneck.LATENCY,
        units=units,
        spills=totals.spills,
        vmem_bytes=max((kernel.vmem_bytes for kernel in totals.kernels.values()), default=0),
        hbm_floor_ms=hbm / core.clock * 1e3,
        mxu_floor_ms=mxu / core.clock * 1e3,
        kernels=tuple(totals.kernels.values()),
        notes=tuple(totals.notes),
    )


def empty(folder: Path) -> None:
    """Delete what is in ``folder``: the texts of one compile take megabytes: none are kept."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends."""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    except (OSError, AttributeError):
        logger.debug("no prctl here: the deadline of the parent is what ends this process")


def limit_memory(size: int) -> None:
    """Let this process have ``size`` bytes of memory of its own: allocations beyond fail, instead of the machine's other processes."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (size if hard == resource.RLIM_INFINITY else min(size, hard), hard))
