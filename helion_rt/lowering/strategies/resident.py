"""What ``unroll`` and ``fori`` share: a loop over operands that are wholly in VMEM, carrying values, as a function."""

from __future__ import annotations

from ..plan import Loop
from ..writer import KernelWriter, Position
from . import write_region


def write_body(w: KernelWriter, loop: Loop, *, static: bool) -> tuple[str, str]:
    """Writes the loop's body as a function of (step, carry); returns its name and the text of the first carry."""
    inits = loop.op.args[1]
    assert isinstance(inits, tuple)
    region = loop.op.regions[0]
    first = [w.carried(x, p) for x, p in zip(inits, region.params, strict=True)]
    name, step = w.name(f"loop_{loop.number}"), w.name("k")
    with w.function(f"def {name}({step}, carry):"):
        bind_positions(w, loop, step, static=static)
        names = []
        for param in region.params:
            names.append(w.name("carried"))
            w.bind((param, w.form(param)), names[-1])
        if names:
            w.out.add(f"{_tuple(names)} = carry")
        write_region(w, region)
        results = [w.next_value(x, p, loop.axes) for x, p in zip(region.results, region.params, strict=True)]
        w.out.add(f"return {_tuple(results)}")
    return name, _tuple(first)


def bind_positions(w: KernelWriter, loop: Loop, step: str, *, static: bool = False) -> None:
    """The position of each axis of ``loop`` at flat step ``step``, the last axis fastest."""
    stride = loop.steps
    for axis, trips in zip(loop.axes, loop.trips, strict=True):
        stride //= trips
        id = "0" if trips == 1 and not loop.dynamic else step
        if id == step and stride > 1:
            id = f"({step} // {stride})"
        if id != "0" and stride * trips < loop.steps:
            id = f"({id} % {trips})"
        w.positions[axis] = Position(id, w.begin_of(axis, id), static)


def bind_results(w: KernelWriter, loop: Loop, text: str) -> None:
    """Names the carried values after the loop."""
    region = loop.op.regions[0]
    names = []
    for result, param in zip(loop.op.results, region.params, strict=True):
        names.append(w.name("last"))
        w.bind((result, w.form(param)), names[-1])
    w.out.add(f"{_tuple(names)} = {text}" if names else text)


def dynamic_steps(w: KernelWriter, loop: Loop) -> str:
    """The number of steps of a loop whose end is known only at run time."""
    (axis,) = loop.axes
    begin, size = w.begin_of(axis, "0"), w.block(axis)
    end = w.end(axis)
    return f"pl.cdiv({end} - {begin}, {size})" if begin != "0" else f"pl.cdiv({end}, {size})"


def _tuple(items: list[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


__all__ = ["bind_positions", "bind_results", "dynamic_steps", "write_body"]
