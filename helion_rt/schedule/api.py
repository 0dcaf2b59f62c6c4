"""``helion_rt.estimate``: the predicted TPU time of any JAX function. Traces here, compiles in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import msgpack
import numpy as np

import helion_rt
from helion_rt import targets
from helion_rt.exc import CompileError, InputError, TargetError
from helion_rt.targets import Target

from . import process
from .floors import floors_of
from .result import Estimate
from .tables import LARGEST, Table, known

# A compile takes 0.1 to 30 s; the rest is bringing JAX and libtpu up.
DEADLINE_SECONDS = 300.0
MEMORY_BYTES = 12 << 30


def estimate(
    fn: Callable[..., Any],
    *args: Any,
    target: str | Target = "tpu7x",
    trips: int = 1,
    deadline: float = DEADLINE_SECONDS,
    memory: int = MEMORY_BYTES,
) -> Estimate:
    """Predict the time of ``fn(*args)`` on one device of ``target``, which need not be here: ``scheduled`` by its own compiler.

    ``args``: arrays, numbers, ``jax.ShapeDtypeStruct`` or pytrees of them. Where ``fn`` reads tables of indices (scalar prefetch), pass
    those as arrays: how often a kernel's steps run can depend on them. ``trips``: mean turns of loops whose end depends on data that
    nobody knows. ``deadline`` seconds and ``memory`` bytes limit the compiler's process; if it dies, the estimate is ``modelled`` and
    its notes say why. Raises ``CompileError`` if ``fn`` cannot be lowered or the compiler refuses it, ``TargetError`` for ``cpu``.
    """
    goal = targets.get(target)
    if not goal.is_tpu:
        raise TargetError("estimates are for TPUs: the CPU is here and can be measured", hint=f"targets: {', '.join(targets.TPU_NAMES)}")
    leaves, tree = jax.tree.flatten(args)
    specs = [_spec(leaf) for leaf in leaves]

    def flat(*arrays: Any) -> Any:
        return fn(*jax.tree.unflatten(tree, arrays))

    function, work, tables = _trace(flat, specs, leaves, goal)
    request = {
        "function": function, "target": goal.name, "trips": trips, "memory": memory, "work": list(work),
        "tables": [[(o.dtype.str, list(o.shape), o.tobytes()) for o in table.operands] for table in tables],
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="helion_rt_schedule_", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "request").write_bytes(bytes(msgpack.packb(request, use_bin_type=True) or b""))
        answer = _ask(folder, deadline)
    if isinstance(answer, str):
        return process.modelled(*work, goal, f"not scheduled: the compiler's process {answer}")
    if "refused" in answer:
        raise CompileError(answer["refused"], target=goal.name, full_text=answer["text"])
    return Estimate.from_dict(answer["estimate"])


def _spec(leaf: Any) -> jax.ShapeDtypeStruct:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    try:
        aval: Any = jax.api_util.shaped_abstractify(leaf)
    except (TypeError, OverflowError) as error:
        raise InputError(f"an argument of the estimated function is neither an array nor a shape: {leaf!r:.60}") from error
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def _trace(
    fn: Callable[..., Any], specs: Sequence[Any], leaves: Sequence[Any], target: Target
) -> tuple[bytes, tuple[float, float], list[Table]]:
    """The function in JAX's serialised form for ``target``, its floors, and the tables that follow from constants and arguments."""
    where = targets.aim(target)
    jitted: Any = jax.jit(fn, in_shardings=where, out_shardings=where)
    try:
        try:
            with jax.set_mesh(getattr(where, "mesh", None)):  # parts of Pallas ask what chip they are traced for: the mesh says
                jaxpr, function = _exported(jitted, specs)
        except Exception:  # functions that make constants while they are traced cannot do so on a chip that is not here
            jitted.clear_cache()
            jaxpr, function = _exported(jitted, specs)
    except Exception as error:  # whatever the user's own function raises while it is traced
        raise CompileError(targets.compiler_reason(str(error)), target=target.name, full_text=f"{type(error).__name__}: {error}") from error
    values = [leaf if isinstance(leaf, (np.ndarray, jax.Array)) and leaf.size <= LARGEST else None for leaf in leaves]
    return function, floors_of(jaxpr), known(jaxpr, values)


def _exported(jitted: Any, specs: Sequence[Any]) -> tuple[Any, bytes]:
    jaxpr = jitted.trace(*specs).jaxpr
    exported = jax.export.export(jitted, platforms=["tpu"], disabled_checks=_ANY_CALL)(*specs)
    return jaxpr, bytes(exported.serialize())


_ANY_CALL = (jax.export.DisabledSafetyCheck.custom_call("tpu_custom_call"),)


def _ask(folder: Path, deadline: float) -> dict[str, Any] | str:
    """The worker's answer, or what became of it."""
    texts = folder / "texts"
    texts.mkdir()
    environment = {**os.environ, **process.environment(texts), "JAX_PLATFORMS": "cpu", "PYTHONSAFEPATH": "1"}
    package = str(Path(helion_rt.__file__).resolve().parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [package, environment.get("PYTHONPATH", "")]))
    with open(folder / "errors", "w+b") as errors:
        command = [sys.executable, "-m", "helion_rt.schedule.worker", str(folder / "request"), str(texts)]
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment, start_new_session=True)
        try:
            output, _ = worker.communicate(timeout=deadline)
        except subprocess.TimeoutExpired:
            return f"gave no answer within {deadline:.0f} s"
        finally:
            _kill(worker)
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - 400))
        words = " | ".join(errors.read().decode(errors="replace").split("\n")).strip(" |")
    try:
        return json.loads(output)
    except ValueError:
        return f"ended with code {worker.returncode}: {words or 'it said nothing'}"


def _kill(worker: subprocess.Popen[bytes]) -> None:
    """End the worker and whatever it started; it leads a process group of its own."""
    with contextlib.suppress(ProcessLookupError):  # it is gone, and nothing of its group is left
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
