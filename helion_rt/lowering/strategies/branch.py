"""Branches and whiles on values: functions that carry values, run by ``lax.cond`` and ``lax.while_loop``.

What they load and store goes through the references of the kernel, from inside.
"""

from __future__ import annotations

from ...program.ir import Arg, Op, Region
from ...program.regions import inits_of
from ..layout import Form
from ..ops import Operand, literal
from ..writer import KernelWriter
from . import write_region
from .resident import bind_carried, bind_results, pack, tuple_text


def write_branch(w: KernelWriter, op: Op) -> None:
    """``hl.if``. Without carried variables a side is a block of its own, else both are functions of the carried values."""
    condition, (then, otherwise) = _condition(w, op.args[0]), op.regions
    if not op.results:
        for region, text in ((then, condition), (otherwise, f"jnp.logical_not({condition})")):
            if region.ops:
                with w.when(text):
                    write_region(w, region)
        return
    first = tuple_text([pack(w, w.carried(x, p), p) for x, p in zip(inits_of(op), then.params, strict=True)])
    names = [_write_side(w, region, stem) for region, stem in ((then, "then"), (otherwise, "otherwise"))]
    bind_results(w, op, f"lax.cond({condition}, {', '.join(names)}, {first})")


def _write_side(w: KernelWriter, region: Region, stem: str) -> str:
    name = w.name(stem)
    with w.function(f"def {name}(carry):"):
        bind_carried(w, region)
        write_region(w, region)
        w.out.add(f"return {_next(w, region)}")
    return name


def write_while(w: KernelWriter, op: Op) -> None:
    """``hl.while``. The test is carried along as a number: a condition that reads memory is no condition to Pallas."""
    test, body = op.regions
    first = tuple_text([pack(w, w.carried(x, p), p) for x, p in zip(inits_of(op), body.params, strict=True)])
    test_name, name = w.name("test"), w.name("again")
    with w.function(f"def {test_name}(carry):"):
        bind_carried(w, test)
        write_region(w, test)
        w.out.add(f"return jnp.asarray({_condition(w, test.results[0])}, jnp.int32)")
    with w.function(f"def {name}(state):"):
        w.out.add("_, carry = state")
        bind_carried(w, body)
        write_region(w, body)
        w.out.add(f"carry = {_next(w, body)}")
        w.out.add(f"return {test_name}(carry), carry")
    start = w.name("first")
    w.out.add(f"{start} = {first}")
    text = f"lax.while_loop(lambda state: state[0] != 0, {name}, ({test_name}({start}), {start}))"
    bind_results(w, op, f"{text}[1]")


def _next(w: KernelWriter, region: Region) -> str:
    return tuple_text([pack(w, w.carried(x, p), p) for x, p in zip(region.results, region.params, strict=True)])


def _condition(w: KernelWriter, condition: Arg) -> str:
    operand = w.operand(condition, Form.ROW)
    return operand.text if isinstance(operand, Operand) else literal(bool(operand))
