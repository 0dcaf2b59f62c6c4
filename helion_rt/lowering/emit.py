"""The generated source: a Pallas file that a person can read and that runs with only JAX installed."""

from __future__ import annotations

import hashlib
import keyword
import linecache
import re
from collections.abc import Callable
from typing import Any

from ..config import KNOWN, LoopStrategy
from ..exc import PlanError
from ..program.ir import Op, Program, Ref, inputs_of, output_leaves, refs_in
from . import ops
from .access import write_load
from .evaluate import count, expression, resolve, shape_of
from .helpers import BUILTINS, HELPERS
from .helpers import used as used_helpers
from .index_maps import grid_spec
from .ops import Operand as Tensor
from .ops import Result, dtype_text, literal
from .plan import Launch, Operand, Plan
from .strategies import write_region
from .strategies.grid import keep, write_folded
from .writer import KernelWriter, Lines, Position

HEADER = '''\
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
'''
# Only where something needs it: importing it takes a tenth of a second, and on a CPU most kernels never do.
TPU_IMPORT = "from jax.experimental.pallas import tpu as pltpu"


# Names that generated code uses: no function, argument or value may take one of them.
RESERVED = frozenset(("functools", "jax", "jnp", "lax", "pl", "pltpu", *sorted(BUILTINS), *HELPERS))


def entry_name(program: Program) -> str:
    """The name of the generated function: the kernel's, made an identifier."""
    name = re.sub(r"\W", "_", program.name) or "kernel"
    return f"_{name}_" if name[0].isdigit() or keyword.iskeyword(name) or name in RESERVED else name


def write_source(plan: Plan) -> str:
    """The whole file for ``plan``."""
    program, entry = plan.program, entry_name(plan.program)
    out = Lines()
    title = re.sub(r"[^\x20-\x7e]|[\\\"]", " ", f"{program.name} ({program.file}:{program.first_line})")
    config = {"block_sizes": list(plan.config.get("block_sizes", ())), "loop_strategies": [str(s) for s in _strategies(plan)]}
    config |= {key: value for key, value in plan.config.to_dict().items() if key in KNOWN and key not in config}
    out.add(f'"""Pallas source of kernel {title} for {plan.target.name}.')
    out.add("")
    out.add(f"Made by helion_rt under {config}. Comments give the line of the kernel that each part comes from.")
    out.add('"""')
    out.add("")
    kernels = Lines()
    calls: list[tuple[KernelWriter, str]] = []
    for n, launch in enumerate(plan.launches):
        if launch.empty:
            continue
        name = f"{entry}_kernel" if len(plan.launches) == 1 else f"{entry}_kernel_{n}"
        kernels.add("")
        kernels.add("")
        writer = write_kernel(plan, launch, name)
        kernels.lines += writer.out.lines
        calls.append((writer, name))
    host = Lines()
    _write_host(plan, entry, calls, host)
    helpers = [line for text in used_helpers([*kernels.lines, *host.lines]) for line in ("", *text.splitlines())]
    body = [*helpers, *kernels.lines, "", "", *host.lines]
    out.lines += [*HEADER.splitlines(), *([TPU_IMPORT] if any("pltpu." in line for line in body) else [])]
    for module, name, local in sorted({(*key, local) for w, _ in calls for key, local in w.imports.items()}):
        out.add(f"from {module} import {name} as {local}")
    out.lines += body
    return "\n".join(out.lines) + "\n"


def _strategies(plan: Plan) -> list[LoopStrategy]:
    return [loop.strategy for launch in plan.launches for loop in launch.loops]


# ------------------------------------------------------------------------------------------------ kernels


def write_kernel(plan: Plan, launch: Launch, name: str) -> KernelWriter:
    """Writes the kernel function of one launch."""
    w = KernelWriter(plan, launch, write_load)
    _name_operands(w)
    for loop in launch.loops:
        if not loop.never and loop.strategy in (LoopStrategy.GRID, LoopStrategy.EMIT_PIPELINE):
            for param, result in zip(loop.op.regions[0].params, loop.op.results, strict=True):
                keep(w, param, "carried")
                if loop.strategy is LoopStrategy.GRID:
                    w.scratch[result] = w.scratch[param]
    body_at = len(w.out.lines)
    with w.out.indented():
        for n, (axis, trips) in enumerate(zip(launch.axes, launch.trips, strict=True)):
            id = f"i{n}" if trips > 1 else "0"
            if trips > 1:
                w.out.add(f"{id} = pl.program_id({n})")
            w.positions[axis] = Position(id, w.begin_of(axis, id))
        if launch.folded:
            w.out.add(f"s = pl.program_id({len(launch.axes)})")
        _write_init(w)
        if launch.folded:
            write_folded(w, "s")
        else:
            write_region(w, launch.op.regions[0])
    w.out.lines.insert(body_at, f"def {name}({', '.join(_kernel_params(w))}):")
    return w


def _name_operands(w: KernelWriter) -> None:
    names = {p.value: p.name for p in w.program.params if p.value is not None}
    w.taken.update({"s", "carry", "step", *RESERVED})
    for operand in w.launch.operands:
        stem = names.get(operand.tensor) or ("out" if operand.written else f"t{operand.tensor}")
        operand.name = w.name(f"{re.sub(r'[^0-9A-Za-z_]', '_', stem)}_ref")


def _kernel_params(w: KernelWriter) -> list[str]:
    operands = w.launch.operands
    scratch = {s.name: None for s in w.scratch.values()}
    return [
        *(o.name for o in operands if not o.written),
        *(f"{o.name}_before" for o in operands if o.init),
        *(o.name for o in operands if o.written),
        *scratch,
    ]


def _write_init(w: KernelWriter) -> None:
    """The first visit of a block whose old contents matter copies them in: on a TPU, where a window begins with anything.

    In interpret mode a window is cut out of the array at every step, which begins as the aliased argument.
    """
    launch = w.launch
    if not w.plan.target.is_tpu:
        return
    for operand in launch.operands:
        if not operand.init:
            continue
        moving = operand.axes()
        still = [f"(i{n} == 0)" for n, (a, t) in enumerate(zip(launch.axes, launch.trips, strict=True)) if a not in moving and t > 1]
        if launch.folded and operand.loop is None:
            still.append("(s == 0)")
        with w.when(" & ".join(still) or None):
            w.out.add(f"{operand.name}[...] = {operand.name}_before[...]")


# ------------------------------------------------------------------------------------------------ the host part


def _write_host(plan: Plan, entry: str, calls: list[tuple[KernelWriter, str]], out: Lines) -> None:
    program = plan.program
    names: dict[int, str] = {}
    taken = {"interpret", entry, *RESERVED, *(kernel for _, kernel in calls)}

    def fresh(stem: str) -> str:
        stem = re.sub(r"\W", "_", stem)
        stem = f"{stem}_" if keyword.iskeyword(stem) else stem
        name, n = stem, 1
        while name in taken:
            n += 1
            name = f"{stem}_{n}"
        taken.add(name)
        return name

    for param in program.array_params:
        assert param.value is not None
        names[param.value] = fresh(param.name)
    params = [names[p.value] for p in program.array_params if p.value is not None]
    out.add(f"def {entry}({', '.join([*params, '*', f'interpret={not plan.target.is_tpu}'])}):")
    with out.indented():
        rest, used = list(calls), _used_on_host(plan)
        launches = {id(launch.op): launch for launch in plan.launches}
        for op in program.host.ops:
            if op.name == "hl.launch":
                names.update((result, names[ref.id]) for ref, result in unwritten(op, launches[id(op)]))
                if rest and rest[0][0].launch.op is op:
                    _write_call(plan, *rest.pop(0), op, names, fresh, out)
            elif used.intersection(op.results):
                result = op.results[0]
                names[result] = fresh(ops.base_name(op.name))
                out.add(f"{names[result]} = {_host_expression(plan, op, names)}")
        leaves = [*output_leaves(program.outputs), *(ref for _, ref in program.mutated)]
        texts = ", ".join(names[leaf.id] for leaf in leaves)
        out.add(f"return ({texts}{',' if len(leaves) == 1 else ''})")


def _used_on_host(plan: Plan) -> set[int]:
    """Host values that something needs; an output that is written from end to end needs no first contents."""
    program = plan.program
    launches = {id(launch.op): launch for launch in plan.launches}
    used = {r.id for r in output_leaves(program.outputs)} | {r.id for _, r in program.mutated}
    for op in reversed(program.host.ops):
        if id(op) in launches:
            used.update(op.results)
            used.update(o.tensor for o in launches[id(op)].operands if o.init or not o.written)
            used.update(ref.id for ref, _ in unwritten(op, launches[id(op)]))
        elif used.intersection(op.results):
            used.update(r.id for r in inputs_of(op))
    return used


def unwritten(op: Op, launch: Launch) -> list[tuple[Ref, int]]:
    """(tensor, result) of what a launch could have written, but has no step that does: it stays as it was."""
    stored = {o.tensor for o in launch.operands if o.written}
    return [(ref, result) for ref, result in zip(refs_in(op.args[1]), op.results, strict=True) if ref.id not in stored]


def _host_expression(plan: Plan, op: Op, names: dict[int, str]) -> str:
    def operand(x: Any) -> Any:
        if isinstance(x, Ref):
            shape = shape_of(plan.program, x.id, plan.blocks)
            return Tensor(names[x.id], shape, shape, plan.program.types[x.id].dtype)
        return tuple(operand(i) for i in x) if isinstance(x, tuple) else resolve(x, plan.blocks)

    if op.name == "hl.count" and isinstance(op.args[0], Ref):
        return literal(float(count(op, shape_of(plan.program, op.args[0].id, plan.blocks))))
    if op.name.startswith("hl.") and op.name != "hl.dot":
        raise PlanError(f"{op.name} outside of a tile loop", kernel=plan.program.name, file=plan.program.file, line=op.line)
    shape = shape_of(plan.program, op.results[0], plan.blocks)
    out = Result(shape, shape, plan.program.types[op.results[0]].dtype, not plan.target.is_tpu)
    return expression(op.name, [operand(a) for a in op.args], {k: operand(v) for k, v in op.kwargs}, out)


def _write_call(plan: Plan, w: KernelWriter, kernel: str, op: Op, names: dict[int, str], fresh: Any, out: Lines) -> None:
    launch = w.launch
    read = [o for o in launch.operands if not o.written]
    before = [o for o in launch.operands if o.init]
    written = [o for o in launch.operands if o.written]
    grid = [*launch.trips, *([launch.folded_steps] if launch.folded else [])]
    results = [fresh("out") for _ in written]
    out.add(f"{', '.join(results)}{',' if len(results) == 1 else ''} = pl.pallas_call(" if results else "pl.pallas_call(")
    with out.indented():
        out.add(f"{kernel},")
        out.add(f"grid=({', '.join(map(str, grid))},),")
        _add_list(out, "in_specs", [grid_spec(w, o) for o in (*read, *before)])
        _add_list(out, "out_specs", [grid_spec(w, o) for o in written])
        _add_list(out, "out_shape", [f"jax.ShapeDtypeStruct({o.shape}, {dtype_text(o.dtype)})" for o in written])
        scratch = {s.name: s.spec() for s in w.scratch.values()}
        if scratch:
            _add_list(out, "scratch_shapes", list(scratch.values()))
        aliases = {len(read) + i: written.index(o) for i, o in enumerate(before) if o.alias}
        if aliases:
            out.add(f"input_output_aliases={aliases},")
        if plan.target.is_tpu:
            out.add(f"compiler_params=pltpu.CompilerParams({_compiler_params(launch)}),")
        out.add("interpret=interpret,")
        out.add(f'name="{kernel}",')
    args = [*(_shown(plan, o, names[o.tensor]) for o in read), *(_shown(plan, o, names[o.tensor]) for o in before)]
    out.add(f")({', '.join(args)})")
    by_tensor = dict(zip((o.tensor for o in written), zip(results, written, strict=True), strict=True))
    for ref, result in zip(refs_in(op.args[1]), op.results, strict=True):
        if ref.id not in by_tensor:
            continue
        text, operand = by_tensor[ref.id]
        names[result] = text
        shape = shape_of(plan.program, ref.id, plan.blocks)
        if shape != operand.shape:
            out.add(f"{text} = {text}.reshape({shape})")


def _add_list(out: Lines, name: str, items: list[str]) -> None:
    out.add(f"{name}=[")
    with out.indented():
        for item in items:
            out.add(f"{item},")
    out.add("],")


def _shown(plan: Plan, operand: Operand, name: str) -> str:
    """A host tensor as Pallas gets it: rank 1 as a row unless it is flat, in SMEM as 32-bit words."""
    shape = shape_of(plan.program, operand.tensor, plan.blocks)
    if operand.window is None:
        wide = "float32" if operand.dtype in ops.FLOATS else "int32"
        cast = "" if operand.dtype == wide else f".astype({dtype_text(wide)})"
        return f"{name}.reshape({operand.shape}){cast}"
    return name if operand.flat or shape == operand.shape else f"{name}.reshape({operand.shape})"


def _compiler_params(launch: Launch) -> str:
    semantics = ["parallel" if axis in launch.parallel else "arbitrary" for axis in launch.axes]
    if launch.folded:
        semantics.append("arbitrary")
    text = f"dimension_semantics={tuple(semantics)!r}"
    return text if launch.vmem_limit is None else f"{text}, vmem_limit_bytes={launch.vmem_limit}"


def load_source(text: str, entry: str) -> Callable[..., Any]:
    """The function ``entry`` of generated source; its lines show up in tracebacks."""
    # The same in every process: the name can become part of what JAX caches.
    file = f"<helion_rt {entry} {hashlib.sha256(text.encode()).hexdigest()[:12]}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"__name__": entry}
    exec(compile(text, file, "exec"), namespace)
    return namespace[entry]
