"""The VMEM bill of a launch: what Mosaic will allocate for it, in bytes.

Three parts. *Windows*: each as often as it is buffered. *Scratch*: what outlives a step. *Values*: registers hold 64 tiles of 8 x 128
words, so a larger value that cannot be consumed as it is made is spilled, all of it. That is a value which something needs after an
operation that must see all of its input first (a reduction, a product): the scores of attention, needed again after their maximum.
What is loaded is no such value: it can be read again. Compared with the sizes in libtpu's refusals (matmul, softmax, layer norm,
attention; v5e, tpu7x): between the true size and 1.4 times it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..config import Issue, LoopStrategy
from ..program.ir import Op, Program, Region, inputs_of, refs_in, walk
from ..program.regions import CARRYING, bodies_of
from ..targets import Target
from . import ops
from .layout import Form, infer_forms, phys_shape
from .ops import ITEMSIZE, Kind
from .windows import LANES, SUBLANES

if TYPE_CHECKING:
    from .plan import Launch, Operand

REGISTERS = 64 * SUBLANES * LANES * 4  # bytes: a value that is smaller need not be spilled
SLACK = 5 << 18  # what Mosaic uses beside all this; seen: up to 1.1 MiB
RESERVED = 2 << 20  # of a core's VMEM: a limit above the rest is refused (seen on all five generations)
MOSTLY_PADDING = 4  # times what a value has itself
WAITING = (Kind.REDUCTION, Kind.CONTRACT, Kind.PERMUTE, Kind.OTHER)  # these need all of their input


def padded_bytes(shape: Sequence[int], dtype: str) -> int:
    """Bytes of an array in VMEM, where its last two dimensions fill tiles of (8, 128) 32-bit words."""
    if not shape:
        return 0
    itemsize = ITEMSIZE[dtype]
    packing = max(1, 4 // itemsize)
    *lead, rows, lanes = (1, *shape) if len(shape) == 1 else shape
    rows = -(-rows // (SUBLANES * packing)) * SUBLANES * packing if rows > 1 else packing
    return math.prod(lead) * rows * (-(-lanes // LANES) * LANES) * itemsize


def most_vmem(target: Target) -> int:
    """The most VMEM, in bytes, that a kernel can have on a TPU: what it can ask for, or what it gets unasked (v4: all)."""
    capacity, given = target.vmem_capacity_bytes, target.vmem_bytes
    assert capacity is not None and given is not None
    return max(capacity - RESERVED, given)


def vmem_limit(need: int, target: Target, *, most: bool = False) -> int | None:
    """The ``vmem_limit_bytes`` that a launch with a bill of ``need`` asks for; None where what it gets unasked is plenty.

    ``most``: all that it can have. Else with room to spare, as refused is worse than unused: it takes nothing from the kernel itself,
    only from what XLA would keep in VMEM across the call.
    """
    given = target.vmem_bytes
    assert given is not None
    asked = most_vmem(target) if most else min(most_vmem(target), need + need // 2)
    return asked if (most or need + need // 4 > given) and asked > given else None


def window_bytes(operand: Operand, *, tpu: bool) -> int:
    """All buffers of an operand; on a TPU the old contents of what is written have buffers of their own."""
    if operand.window is None:
        return 0
    return operand.buffers * (2 if operand.init and tpu else 1) * padded_bytes(operand.block_shape(), operand.dtype)


def bill(program: Program, launch: Launch, *, tpu: bool) -> int:
    """Bytes of VMEM that ``launch`` needs; on the CPU, where there is no limit, only those of the windows."""
    windows = sum(window_bytes(operand, tpu=tpu) for operand in launch.operands)
    return windows + _inside_bytes(program, launch) + SLACK if tpu else windows


# By the region (kept alive here), the block sizes and how the loops run: configs that differ in knobs have these in common.
_KNOWN: dict[tuple[Any, ...], tuple[Region, int]] = {}
_MAX_KNOWN = 4096


def _inside_bytes(program: Program, launch: Launch) -> int:
    """Scratch and values in flight."""
    region = launch.op.regions[0]
    how = tuple((loop.strategy, loop.steps, loop.dynamic, loop.issue) for loop in launch.loops)
    key = (id(region), tuple(launch.windows.blocks), how)
    found = _KNOWN.get(key)
    if found is None:
        values = _Values(program, launch)
        if len(_KNOWN) >= _MAX_KNOWN:
            _KNOWN.clear()
        found = _KNOWN[key] = (region, values.scratch() + values.peak(region))
    return found[1]


class _Values:
    """The values of a launch and what they need."""

    def __init__(self, program: Program, launch: Launch):
        self.program, self.launch = program, launch
        self.region: Region = launch.op.regions[0]
        self.shapes: dict[int, tuple[int, ...]] = {}
        self.forms = infer_forms(program, self.region, self.shape)

    def shape(self, value: int) -> tuple[int, ...]:
        if value not in self.shapes:
            self.shapes[value] = self.launch.windows.shape(value)
        return self.shapes[value]

    def bytes(self, value: int) -> int:
        """A value as it lies in VMEM: one number a row takes a tile's width."""
        form, dtype = self.forms.get(value, Form.ROW), self.program.types[value].dtype
        shape = phys_shape(self.shape(value), Form.ROW if form is Form.FLEXIBLE else form)
        return padded_bytes(shape, "int32" if dtype == "bool" else dtype)

    # -------------------------------------------------------------------------------------------- scratch

    def scratch(self) -> int:
        """What the steps of the grid, or of a nested pipeline, hand on to each other."""
        stepping = (LoopStrategy.GRID, LoopStrategy.EMIT_PIPELINE)
        kept = {p for loop in self.launch.loops if loop.strategy in stepping and not loop.never for p in loop.op.regions[0].params}
        if self.launch.folded:
            kept |= self.across_steps()
        return sum(map(self.bytes, kept))

    def across_steps(self) -> set[int]:
        """Values from outside of folded loops that a later step needs (loads are done again there)."""
        folded, found, home, part = {id(loop.op) for loop in self.launch.folded}, set(), {}, 0
        for op in self.region.ops:
            if id(op) in folded:
                part += 1
                found |= {r.id for inner in walk(op.regions[0]) for r in inputs_of(inner) if r.id in home}
                continue
            found |= {r.id for inner in (op, *_inside(op)) for r in inputs_of(inner) if home.get(r.id, part) != part}
            if op.name != "hl.load" and not op.name.startswith("hl.tile_"):
                home.update(dict.fromkeys(op.results, part))
        return {v for v in found if self.forms.get(v) is not Form.FLEXIBLE}

    # -------------------------------------------------------------------------------------------- values in flight

    def peak(self, region: Region) -> int:
        """The most bytes of large values that are in flight at once in ``region`` and inside of it.

        A value's *phase* is how many waiting operations are before it; it is in flight while it is needed in a later phase.
        """
        phase: dict[int, int] = {}
        until: dict[int, int] = {}
        again: set[int] = set()  # values that are read once more instead of being held
        inner = extra = 0
        for op in region.ops:
            inputs = [r.id for r in inputs_of(op) if r.id in phase]
            at = max((phase[v] for v in inputs), default=0)
            until.update((v, max(until.get(v, 0), at)) for v in inputs)
            if op.name in CARRYING:
                inner = max(inner, self.carried(op) + self.ahead(op) * max(map(self.peak, op.regions), default=0))
            kind = ops.kind_of(op.name) if op.name not in ("hl.load", *CARRYING) else None
            if kind is Kind.CONTRACT:
                extra = max(extra, self.split(op))
            if kind in (Kind.PERMUTE, Kind.OTHER):
                extra = max(extra, self.relaid([*inputs, *op.results]))
            if op.name == "hl.load" or (kind is Kind.CREATE or op.name.startswith("hl.tile_")):
                again.update(op.results)
            after = at + (kind in WAITING or op.name in CARRYING)
            phase.update(dict.fromkeys(op.results, after))
        last = max(phase.values(), default=0)
        until.update((r.id, last) for r in refs_in(region.results) if r.id in phase)
        held = {v: size for v in phase if v not in again and until.get(v, 0) > phase[v] and (size := self.bytes(v)) > REGISTERS}
        outer = max((sum(size for v, size in held.items() if phase[v] <= at < until[v]) for at in range(last)), default=0)
        return max(outer, extra) + inner

    def carried(self, op: Op) -> int:
        """What a loop that is no grid carries: its old and its next value."""
        if op.name == "hl.loop" and self.launch.loop_of(op).strategy in (LoopStrategy.GRID, LoopStrategy.EMIT_PIPELINE):
            return 0
        sizes = [self.bytes(p) for p in bodies_of(op)[0].params]
        return 2 * sum(size for size in sizes if size > REGISTERS)

    def ahead(self, op: Op) -> int:
        """How many steps of a loop have values in flight at once."""
        return 2 if op.name == "hl.loop" and self.launch.loop_of(op).issue is Issue.AHEAD else 1

    def split(self, op: Op) -> int:
        """A product of float32 is six of bfloat16: its operands are taken apart first."""
        operands = [r.id for r in inputs_of(op)[:2]]
        wide = all(self.program.types[v].dtype == "float32" for v in operands)
        return sum(map(self.bytes, operands)) * 5 // 4 if wide else 0


    def relaid(self, values: Sequence[int]) -> int:
        """Values with few lanes (pairs to take apart or put together), each row of which takes a tile's width while it is laid out anew."""
        plain = sum(math.prod(self.shape(v)) * ITEMSIZE[self.program.types[v].dtype] for v in values)
        padded = sum(map(self.bytes, values))
        return padded if padded > max(MOSTLY_PADDING * plain, REGISTERS) else 0


def _inside(op: Op) -> Iterator[Op]:
    for region in op.regions:
        yield from walk(region)


__all__ = ["bill", "most_vmem", "padded_bytes", "vmem_limit", "window_bytes"]
