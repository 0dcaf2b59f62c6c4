"""Aiming JAX's compiler at a target, present or not: libtpu carries the TPU compiler and needs no TPU."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..exc import CompileError
from .target import Target, detect

if TYPE_CHECKING:
    import jax

# Keep libtpu from asking a cloud metadata server about a machine that has no TPU (it waits, then complains).
_NO_CHIP_VARIABLES = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
}
# Without it a second process that loads libtpu dies on a lock file in the temporary directory.
_SHARED_LOAD = "ALLOW_MULTIPLE_LIBTPU_LOAD"

_lock = threading.Lock()
_aimed: dict[Target, jax.sharding.Sharding] = {}


def prepare_environment() -> None:
    """Sets libtpu's variables in this process, where the user has not. Called when an absent TPU is first asked for, and by the commands,
    so that they do not begin with libtpu's complaint of a machine without a TPU.

    Works before and after JAX has started its CPU backend. ``JAX_PLATFORMS`` is never touched: JAX's default device stays
    what it was. On a machine with a TPU nothing is said about its topology: the real one must be found.
    """
    os.environ.setdefault(_SHARED_LOAD, "1")
    if not has_chips():
        for name, value in _NO_CHIP_VARIABLES.items():
            os.environ.setdefault(name, value)


def aim(target: Target) -> jax.sharding.Sharding:
    """A sharding on one device of ``target``, for ``jit``'s ``in_shardings`` and ``out_shardings``; made once a process.

    The device is the machine's own where that is a ``target``. Else it is a described one that need not exist: what is
    compiled for it cannot be run. Raises ``CompileError`` if libtpu is missing or refuses.
    """
    with _lock:  # two threads may ask at once; describing a topology twice would load libtpu twice
        if target not in _aimed:
            _aimed[target] = _describe(target)
        return _aimed[target]


def lower_for(fn: Callable[..., Any], specs: Sequence[Any], target: Target, *, kernel: str | None = None) -> jax.stages.Lowered:
    """``fn`` traced with ``specs`` (arrays or ``jax.ShapeDtypeStruct``) and lowered for ``target``.

    Raises ``CompileError``, its cause kept, if tracing or lowering fails.
    """
    import jax

    where = aim(target)
    try:
        jitted = jax.jit(fn, in_shardings=where, out_shardings=where)
        # Parts of Pallas (nested pipelines, one-dimensional memory) ask what chip they are traced for: the mesh says.
        mesh = getattr(where, "mesh", None)  # the CPU's sharding has none
        with jax.set_mesh(mesh) if mesh is not None else contextlib.nullcontext():
            return jitted.trace(*specs).lower(lowering_platforms=("tpu" if target.is_tpu else "cpu",))
    except Exception as error:
        raise _refused(error, target, kernel) from error


def compile_lowered(lowered: jax.stages.Lowered, target: Target, *, kernel: str | None = None) -> jax.stages.Compiled:
    """Compiles what ``lower_for`` gave. Raises ``CompileError`` with the compiler's own reason."""
    if not target.is_tpu:
        uncached: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    else:
        prepare_environment()
        uncached = _uncached()
    try:
        with uncached:
            return lowered.compile()
    except Exception as error:
        raise _refused(error, target, kernel) from error


def _uncached() -> contextlib.AbstractContextManager[Any]:
    """Nothing that is compiled inside is kept in JAX's persistent cache.

    An executable for a chip that is not there cannot be loaded again: JAX would store it, and warn at every later read.
    """
    try:
        from jax._src.config import persistent_cache_min_compile_time_secs as threshold

        return threshold(float("inf"))
    except (ImportError, TypeError):  # another JAX: the warning is harmless
        return contextlib.nullcontext()


def compile_for(
    fn: Callable[..., Any], specs: Sequence[Any], target: Target, *, kernel: str | None = None
) -> tuple[jax.stages.Lowered, jax.stages.Compiled]:
    """``lower_for`` and ``compile_lowered``. Raises ``CompileError``."""
    lowered = lower_for(fn, specs, target, kernel=kernel)
    return lowered, compile_lowered(lowered, target, kernel=kernel)


@contextlib.contextmanager
def interpreted_as(target: Target) -> Iterator[None]:
    """While JAX's TPU interpreter runs a kernel on the CPU, parts of Pallas that ask for the chip are told ``target``'s.

    Registers the chip under the CPU's device kind, in the place that JAX keeps for such descriptions. Process-wide.
    """
    from jax._src.pallas.mosaic import tpu_info

    before = tpu_info.registry.get("cpu")
    tpu_info.registry["cpu"] = lambda: target.info
    try:
        yield
    finally:
        if before is None:
            del tpu_info.registry["cpu"]
        else:
            tpu_info.registry["cpu"] = before


def count_tpu_custom_calls(stage: jax.stages.Lowered | jax.stages.Compiled) -> int:
    """How many Mosaic kernels a lowered or compiled function holds; 0 means that it fell back to plain XLA."""
    text = stage.as_text() or ""
    return len(re.findall(r'custom_call @tpu_custom_call\b|custom_call_target="tpu_custom_call"', text))


def compiler_reason(text: str) -> str:
    """The one line of a compiler's message that says why, at most 300 characters."""
    for pattern in _TELLING:
        if found := re.search(pattern, text):
            return found.group(0).strip()[:300]
    lines = [line for line in map(str.strip, text.splitlines()) if line and not _PREAMBLE.fullmatch(line)]
    reason = re.sub(r"^(?:[A-Z_]{5,}: )+", "", lines[0]) if lines else "no reason given"
    return reason.removeprefix("Mosaic failed to compile TPU kernel: ")[:300]


# What libtpu says of memory, most exact first; the long dump around it names buffers.
_TELLING = (
    r"Scoped allocation with size [^\n]*?(?:exceeded|over)[^\n]*? by [\d.]+[KMG]?B?",
    r"Ran out of memory in memory space \w+\. Used [^\n]*",
    r"Allocation \(size=\d+\) would exceed memory \(size=\d+\)",
)
_PREAMBLE = re.compile(r"[A-Z_]{5,}: (?:E\d+: ?\w*:?)?|.*(?:Mosaic failed to compile TPU kernel|The MLIR operation involved):")


def _describe(target: Target) -> jax.sharding.Sharding:
    import jax

    if not target.is_tpu:
        return jax.sharding.SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
    if importlib.util.find_spec("libtpu") is None and "TPU_LIBRARY_PATH" not in os.environ:
        raise CompileError(
            "libtpu, which carries the TPU compiler, is not installed",
            target=target.name,
            hint="pip install libtpu (it has wheels for Linux x86-64 only)",
        )
    if has_chips() and detect() == target:
        return jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    from jax.experimental import topologies

    prepare_environment()
    try:
        topology = topologies.get_topology_desc(target.topology or "", platform="tpu")
    except Exception as error:
        raise _refused(error, target, None) from error
    mesh = jax.sharding.Mesh(topology.devices[:1], ("chip",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())


def has_chips() -> bool:
    """Whether this machine has a TPU, by its devices; starts nothing."""
    try:
        from jax._src.hardware_utils import num_available_tpu_chips_and_device_id
    except ImportError:  # another JAX: the device files of Cloud TPU machines
        return any(os.path.exists(f"/dev/accel{index}") for index in range(2))
    return num_available_tpu_chips_and_device_id()[0] > 0


def _refused(error: Exception, target: Target, kernel: str | None) -> CompileError:
    if isinstance(error, CompileError):
        return error
    text = str(error) or type(error).__name__
    return CompileError(compiler_reason(text), target=target.name, full_text=f"{type(error).__name__}: {text}", kernel=kernel)
