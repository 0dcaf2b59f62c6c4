"""Block specs: which block of an operand a step of the grid, or of a nested pipeline, has in VMEM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..program.expr import evaluate
from ..program.ir import Op, Ref
from .plan import DimKind, Loop, Operand, WindowDim
from .writer import KernelWriter, Position


def grid_spec(w: KernelWriter, operand: Operand) -> str:
    """The ``BlockSpec`` of an operand of the ``pallas_call`` itself."""
    if operand.window is None:
        return "pl.BlockSpec(memory_space=pltpu.SMEM)"
    if operand.level is not None:
        return "pl.BlockSpec(memory_space=pl.ANY)"
    ids = {axis: f"i{n}" for n, axis in enumerate(w.launch.axes)}
    if operand.loop is not None:
        ids.update(_folded_ids(w, operand.loop))
    params = [f"i{n}" for n in range(len(w.launch.axes))] + (["s"] if w.launch.folded else [])
    indices = [_index(w, d, ids) for d in _shown(operand)]
    # JAX keeps a whole tensor in one buffer by itself.
    usual = 1 if all(d.kind is DimKind.WHOLE for d in operand.window) else 2
    return _spec(w, operand, params, indices, usual)


def pipeline_spec(w: KernelWriter, operand: Operand, params: Sequence[str], positions: Mapping[int, Position]) -> str:
    """The ``BlockSpec`` of an operand of a nested pipeline; it sees the positions of all loops around it."""
    ids = {axis: at.id for axis, at in {**w.positions, **positions}.items()}
    indices = [_index(w, d, ids) for d in _shown(operand)]
    return _spec(w, operand, params, indices, 2)


def _spec(w: KernelWriter, operand: Operand, params: Sequence[str], indices: Sequence[str], usual: int) -> str:
    """A ``BlockSpec``; ``usual``: the buffers it gets unasked."""
    more = f", pipeline_mode=pl.Buffered({operand.buffers})" if w.plan.target.is_tpu and operand.buffers != usual else ""
    return f"pl.BlockSpec({_block(_shown(operand))}, lambda {', '.join(params)}: ({', '.join(indices)},){more})"


def _shown(operand: Operand) -> tuple[WindowDim, ...]:
    """The window as Pallas has it."""
    assert operand.window is not None
    return operand.window[-1:] if operand.flat else operand.window


def _block(window: tuple[WindowDim, ...]) -> str:
    sizes = ", ".join("None" if d.kind is DimKind.POINT else str(d.size) for d in window)
    return f"({sizes},)"


def _index(w: KernelWriter, dim: WindowDim, ids: Mapping[int, str]) -> str:
    if dim.kind is DimKind.WHOLE:
        return "0"
    if dim.axis is None:
        return str(dim.position)
    begin = w.program.axes[dim.axis].begin
    assert not isinstance(begin, Ref)
    first = evaluate(begin, w.plan.blocks) // max(1, dim.size)
    return ids[dim.axis] if first == 0 else f"{ids[dim.axis]} + {first}"


def _folded_ids(w: KernelWriter, loop: Loop) -> dict[int, str]:
    """The tile of each axis of a folded loop at step ``s``; before and after its turn it stays at its first and last."""
    offset, total = w.launch.offset(loop), w.launch.folded_steps
    at = "s" if loop.steps == total else f"jnp.clip(s - {offset}, 0, {loop.steps - 1})"
    if loop.dynamic:
        last = _last_step(w, loop)
        at = f"jnp.minimum({at}, {last})" if last else at  # steps that will not run fetch nothing new
    ids: dict[int, str] = {}
    stride = loop.steps
    for axis, trips in zip(loop.axes, loop.turns, strict=True):
        stride //= trips
        text = at if stride == 1 else f"({at} // {stride})"
        ids[axis] = text if stride * trips == loop.steps else f"({text} % {trips})"
    return ids


def _last_step(w: KernelWriter, loop: Loop) -> str | None:
    """The last step that runs, where the end is the end or begin of a grid tile (as in causal attention)."""
    (axis,) = loop.axes
    end = w.program.axes[axis].end
    op: Op | None = w.defs.get(end.id) if isinstance(end, Ref) else None
    if op is None or op.name not in ("hl.tile_end", "hl.tile_begin"):
        return None
    outer = op.args[0]
    if outer not in w.launch.axes or not isinstance(outer, int) or w.program.axes[axis].begin != 0:
        return None
    begin, size = w.begin_of(outer, f"i{w.launch.axes.index(outer)}"), w.block(axis) * loop.tiles
    if op.name == "hl.tile_end":
        limit = w.program.axes[outer].end
        assert not isinstance(limit, Ref)
        begin = f"jnp.minimum({begin} + {w.block(outer)}, {evaluate(limit, w.plan.blocks)})"
    return f"jnp.maximum(({begin} + {size - 1}) // {size} - 1, 0)"
