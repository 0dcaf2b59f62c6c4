"""The modelled ranking: bytes moved, grid steps and flops of a config as seconds. It orders candidates; it decides nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from helion_rt.config import Config
from helion_rt.program.expr import evaluate
from helion_rt.program.ir import Op, Program, Ref, Region, TileIndex, inputs_of
from helion_rt.program.regions import CARRYING, axes_of
from helion_rt.targets import Target

# Of a plain CPU, per second. Interpret mode copies the arrays of a launch once a grid step (measured: matmul 1024^3 with
# 128-blocks takes 0.5 ms a step on 12 MiB of arrays), so a step costs their bytes and something fixed.
CPU_FLOPS = 5e10
CPU_BYTES = 2e10
CPU_STEP_SECONDS = 2e-5
TPU_STEP_SECONDS = 3.5e-7

ITEM_BYTES = {"bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2, "float64": 8, "int64": 8, "uint64": 8}


@dataclass(slots=True)
class Work:
    """What a config makes the machine do: flops (padding counted), HBM bytes, steps of all loops, outer and inner."""

    flops: float = 0.0
    bytes: float = 0.0
    steps: float = 0.0
    array_bytes: float = 0.0  # of the arrays that a grid step may copy on the CPU, times grid steps


def work(program: Program, config: Config) -> Work:
    """Count the work of ``program`` under ``config``."""
    sizes = program.block_sizes(tuple(config.get("block_sizes") or ()))
    total = Work()
    for launch in program.launches:
        _walk(program, launch, sizes, 1.0, (), total)
        grid = _trips(program, launch.args[0], sizes)
        held = {ref.id for op in _ops(launch.regions[0]) if op.name in ("hl.load", "hl.store") for ref in inputs_of(op)[:1]}
        total.array_bytes += grid * sum(_bytes(program, i, sizes) for i in held)
    return total


def seconds(program: Program, config: Config, target: Target) -> float:
    """Modelled seconds of one call: a roofline on a TPU, work plus step overhead on the CPU."""
    done = work(program, config)
    if not target.is_tpu:
        return done.flops / CPU_FLOPS + (done.bytes + done.array_bytes) / CPU_BYTES + done.steps * CPU_STEP_SECONDS
    info = target.info
    if info is None:
        raise ValueError(f"no hardware facts of target {target.name}")
    flops = info.bf16_ops_per_second or 1e14
    return max(done.flops / flops, done.bytes / info.mem_bw_bytes_per_second) + done.steps * TPU_STEP_SECONDS


def _walk(program: Program, loop: Op, sizes: Sequence[int], times: float, axes: tuple[int, ...], total: Work) -> None:
    """Add the work of a launch, loop or branch that is entered ``times`` times inside the loops over ``axes``."""
    own = axes_of(loop)
    times *= _trips(program, own, sizes)
    axes = (*axes, *own)
    total.steps += times if own else 0
    for op in (op for region in loop.regions for op in region.ops):
        if op.name in CARRYING:  # a branch counts as both of its sides, a while as one round
            _walk(program, op, sizes, times, axes, total)
        elif op.name == "hl.load":
            total.bytes += _bytes(program, op.results[0], sizes) * _fetches(program, op.args[1], axes, sizes, times)
        elif op.name == "hl.store":
            value = op.args[2]
            total.bytes += (_bytes(program, value.id, sizes) if isinstance(value, Ref) else 4) * times
        else:
            total.flops += times * _flops(program, op, sizes)


def _fetches(program: Program, index: object, axes: tuple[int, ...], sizes: Sequence[int], times: float) -> float:
    """Times a block is fetched: not again in the innermost loops that do not move it."""
    moved = {item.axis for item in index if isinstance(item, TileIndex)} if isinstance(index, tuple) else set()
    if isinstance(index, tuple) and any(isinstance(item, Ref) for item in index):
        return times
    for axis in reversed(axes):
        if axis in moved:
            break
        times /= max(_trips(program, (axis,), sizes), 1)
    return max(times, 1.0)


def _trips(program: Program, axes: object, sizes: Sequence[int]) -> float:
    total = 1.0
    for axis_id in axes if isinstance(axes, tuple) else ():
        axis = program.axes[axis_id]
        begin = 0 if isinstance(axis.begin, Ref) else evaluate(axis.begin, sizes)
        if isinstance(axis.end, Ref):
            # A bound known at run time: half of the largest is the mean of a causal loop.
            extent = (axis.limit if axis.limit is not None else program.blocks[axis.block].extent) / 2
        else:
            extent = evaluate(axis.end, sizes) - begin
        total *= max(math.ceil(extent / max(sizes[axis.block], 1)), 0)
    return total


def _flops(program: Program, op: Op, sizes: Sequence[int]) -> float:
    if not op.results:
        return 0.0
    out = _elements(program, op.results[0], sizes)
    if op.name == "hl.dot" or any(word in op.name for word in ("mm.", "bmm", "matmul", "addmm")):
        operands = [r for r in inputs_of(op) if len(program.type_of(r).shape) >= 2]
        inner = evaluate(program.type_of(operands[-2 if "dot" not in op.name else 0]).shape[-1], sizes) if len(operands) >= 2 else 1
        return 2.0 * out * inner
    reads = max((_elements(program, r.id, sizes) for r in inputs_of(op)), default=0)
    return float(max(out, reads))


def _elements(program: Program, value: int, sizes: Sequence[int]) -> int:
    return math.prod(max(evaluate(dim, sizes), 0) for dim in program.types[value].shape)


def _bytes(program: Program, value: int, sizes: Sequence[int]) -> int:
    return _elements(program, value, sizes) * ITEM_BYTES.get(program.types[value].dtype, 4)


def _ops(region: Region):
    for op in region.ops:
        yield op
        for inner in op.regions:
            yield from _ops(inner)
