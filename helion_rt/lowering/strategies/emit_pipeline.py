"""``emit_pipeline``: a nested pipeline over operands in HBM; any length. What the loop carries lives in VMEM scratch."""

from __future__ import annotations

from ..index_maps import pipeline_spec
from ..windows import Loop
from ..writer import KernelWriter, Position
from .resident import dynamic_steps
from .tiles import write_turn


def write_loop(w: KernelWriter, loop: Loop) -> None:
    inits = loop.op.args[1]
    assert isinstance(inits, tuple)
    region = loop.op.regions[0]
    kept = [w.scratch[p] for p in region.params]
    for scratch, text in zip(kept, [w.carried(x, p) for x, p in zip(inits, region.params, strict=True)], strict=True):
        w.out.add(scratch.write(text))
    operands = [o for o in w.launch.operands if o.level == loop.number]
    read, written = [o for o in operands if not o.written], [o for o in operands if o.written]
    hbm = {o.name: o.name for o in operands}
    name = w.name(f"loop_{loop.number}")
    steps = [dynamic_steps(w, loop)] if loop.dynamic else [str(n) for n in loop.turns]
    names = [w.name("k") for _ in steps]
    positions = {a: Position(k, w.begin_of(a, k)) for a, k in zip(loop.axes, names, strict=True)}
    specs = {o.name: pipeline_spec(w, o, names, positions) for o in operands}
    inner = {o.name: f"{o.name.removesuffix('_ref')}_block" for o in operands}
    with w.function(f"def {name}({', '.join(inner[o.name] for o in (*read, *written))}):"):
        for d, k in enumerate(names):
            w.out.add(f"{k} = pl.program_id({d})")
        w.positions.update(positions)  # of the turn
        for o in operands:
            o.name = inner[o.name]
        write_turn(w, loop, names[-1])
        for o in operands:
            o.name = next(outer for outer, block in inner.items() if block == o.name)
    ins = ", ".join(specs[o.name] for o in read)
    outs = ", ".join(specs[o.name] for o in written)
    args = ", ".join(hbm[o.name] for o in (*read, *written))
    grid = ", ".join(steps)
    w.out.add(f"pltpu.emit_pipeline({name}, grid=({grid},), in_specs=[{ins}], out_specs=[{outs}])({args})")
    for result, param in zip(loop.op.results, region.params, strict=True):
        w.assign((result, w.form(param)), "last", w.scratch[param].read())
