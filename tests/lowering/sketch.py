"""Programs put together by hand, for tests of the lowering alone: one launch, its operations as they are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from helion_rt import lowering, targets
from helion_rt.config import Config
from helion_rt.program.expr import Block
from helion_rt.program.ir import Arg, ArgKind, Axis, BlockInfo, Op, Param, Program, Ref, Region, TensorType


class Sketch:
    """Collects a program: arguments, the axes of its launch, device operations. Every stored tensor is an argument and a result."""

    def __init__(self, **extents: int) -> None:
        self.types: list[TensorType] = []
        self.params: list[Param] = []
        self.ops: list[Op] = []
        self.axes = {name: n for n, name in enumerate(extents)}
        self.blocks = [BlockInfo(None, n) for n in extents.values()]
        self.infos = [Axis(n, 0, extent) for n, extent in enumerate(extents.values())]
        self.written: dict[int, int] = {}  # value -> result

    def value(self, shape: Sequence[Any], dtype: str) -> Ref:
        self.types.append(TensorType(tuple(Block(self.axes[d]) if isinstance(d, str) else d for d in shape), dtype))
        return Ref(len(self.types) - 1)

    def argument(self, shape: Sequence[int], dtype: str) -> Ref:
        ref = self.value(shape, dtype)
        n = len(self.params)
        self.params.append(Param(f"a{n}", (n,), ArgKind.TENSOR, ref.id))
        return ref

    def op(self, name: str, args: tuple[Arg, ...], shape: Sequence[Any] = (), dtype: str | None = None, **kwargs: Arg) -> Ref:
        """``shape``: of its result, axes by name. No ``dtype``: it has no result."""
        result = self.value(shape, dtype) if dtype else None
        self.ops.append(Op(name, args, tuple(kwargs.items()), (result.id,) if result else (), len(self.ops) + 1))
        if name in ("hl.store", "hl.atomic"):
            target = args[1] if name == "hl.atomic" else args[0]
            assert isinstance(target, Ref)
            self.written.setdefault(target.id, -1)
        return result or Ref(-1)

    def program(self) -> Program:
        for target in self.written:
            kind = self.types[target]
            self.types.append(kind)
            self.written[target] = len(self.types) - 1
        writes = tuple(Ref(t) for t in self.written)
        launch = Op("hl.launch", (tuple(self.axes.values()), writes), (), tuple(self.written.values()), 1, (Region(tuple(self.ops)),))
        at = {p.value: n for n, p in enumerate(self.params)}
        mutated = tuple((at[t], Ref(r)) for t, r in self.written.items())
        return Program("sketch", "sketch.py", 1, "", tuple(self.params), tuple(self.types), tuple(self.blocks), tuple(self.infos),
                       Region((launch,)), None, mutated)  # fmt: skip


PATHS = ("plan", "reference")  # on the CPU


def runs(program: Program, blocks: Sequence[int], paths: Sequence[str] = PATHS) -> dict[str, Callable[..., Any]]:
    """The program by each of its paths: functions of its arrays. ``tpu``: a plan for a TPU, in JAX's TPU interpreter."""
    config = Config(block_sizes=list(blocks))
    made = {
        "plan": lambda: jax.jit(lowering.build(program, config, targets.get("cpu"))),
        "reference": lambda: jax.jit(lowering.reference(program, blocks)),
        "tpu": lambda: lowering.lower(program, config, targets.get("tpu7x")).interpret,
    }
    return {path: made[path]() for path in paths}
