"""Programs as text, for people."""

from __future__ import annotations

import math

from .ir import Arg, Axis, BlockInfo, DType, Op, Param, Program, Ref, Region, Span, TileIndex


def to_text(program: Program) -> str:
    """A listing of ``program``: parameters, blocks, axes, and the operations with the type of each value and the user's line."""
    lines = [f"program {program.name}  # {program.file}:{program.first_line}"]
    lines += [f"  param {_param(program, p)}" for p in program.params]
    lines += [f"  block B{i} {_block(b)}" for i, b in enumerate(program.blocks)]
    lines += [f"  axis {i} {_axis(a)}" for i, a in enumerate(program.axes)]
    lines += [f"  assert {c}  # line {c.line}" for c in program.constraints]
    for probe in program.probes:
        lines += ["  where", *_region(probe.program, probe.program.host, "    "), f"    is {_arg(probe.value)}"]
    lines += _region(program, program.host, "  ")
    lines.append(f"  return {_arg(program.outputs)}")
    lines += [f"  param {program.params[i].name} becomes {ref}" for i, ref in program.mutated]
    return "\n".join(lines)


def _param(program: Program, param: Param) -> str:
    if param.value is None:
        return f"{param.name} = {_arg(param.static)}"
    return f"%{param.value}: {_type(program, param.value)}  # {param.name}, {param.kind.value}"


def _block(block: BlockInfo) -> str:
    if block.fixed is not None:
        return f"= {block.fixed}"
    bounds = f", {block.low} to {block.high}" if block.high is not None else ""
    return f"tunable, for an extent of {block.extent}{bounds}"


def _axis(axis: Axis) -> str:
    limit = f", at most {axis.limit}" if axis.limit is not None else ""
    return f"from {axis.begin} to {axis.end} in steps of B{axis.block}{limit}{' (grid)' if axis.is_grid else ''}"


def _region(program: Program, region: Region, indent: str) -> list[str]:
    lines: list[str] = []
    for op in region.ops:
        lines.append(f"{indent}{_op(program, op)}  # line {op.line}")
        for inner in op.regions:
            if inner.params:
                lines.append(f"{indent}  carry " + ", ".join(f"%{p}" for p in inner.params))
            lines += _region(program, inner, indent + "  ")
            if inner.results:
                lines.append(f"{indent}  yield " + ", ".join(map(_arg, inner.results)))
    return lines


def _op(program: Program, op: Op) -> str:
    results = ", ".join(f"%{r}: {_type(program, r)}" for r in op.results)
    args = ", ".join([*map(_arg, op.args), *(f"{k}={_arg(v)}" for k, v in op.kwargs)])
    return f"{results} = {op.name}({args})" if results else f"{op.name}({args})"


def _type(program: Program, value: int) -> str:
    kind = program.types[value]
    return f"{kind.dtype}[{', '.join(map(str, kind.shape))}]"


def _arg(arg: Arg) -> str:
    if isinstance(arg, tuple):
        return "(" + ", ".join(map(_arg, arg)) + ("," if len(arg) == 1 else "") + ")"
    if isinstance(arg, TileIndex):
        return f"tile {arg.axis}"
    if isinstance(arg, Span):
        ends = ":".join("" if e is None else str(e) for e in (arg.start, arg.stop))
        return ends if arg.step == 1 else f"{ends}:{arg.step}"
    if isinstance(arg, DType):
        return arg.name
    if isinstance(arg, str):
        return repr(arg)
    if isinstance(arg, float) and not math.isfinite(arg):
        return f"float('{arg}')"
    return str(arg) if isinstance(arg, Ref) or arg is not None else "None"
