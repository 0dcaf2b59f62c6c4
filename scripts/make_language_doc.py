"""Writes docs/language.md from the code: ``python -m scripts.make_language_doc``."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import helion_rt.language as hl
from docs.language_examples import EXAMPLES, Example
from helion_rt import exc
from helion_rt.capture import compositions, draws
from helion_rt.lowering import legalize, ops

FILE = Path(__file__).resolve().parent.parent / "docs" / "language.md"
HEAD = """# The language

Written by `python -m scripts.make_language_doc` from the code; a test checks that it is up to date. The examples are those of
`language_examples.py` in this folder: the tests run each on the CPU against torch, and the slow ones compile each for v5e, v6e and tpu7x.

A kernel is a function decorated with `@helion_rt.kernel`. What is outside of its tile loops is host code: it makes tensors, looks at
shapes and takes views. What is in them is device code: it reads and writes tiles of tensors, and computes with torch's functions on them.
`import helion_rt.language as hl` gives the names below.
"""
DTYPES = """## Dtypes

| dtype | as an argument or result | in device code |
| --- | --- | --- |
| float32, bfloat16, float16 | yes | yes; functions such as `exp` are computed in float32 and rounded once |
| float8_e4m3fn, float8_e5m2 | yes | loads, stores, conversions, products (accumulated in float32) |
| float64 | no: `InputError`; convert it, or enable x64 in JAX where there is no TPU | |
| int32, int16, int8, uint8, bool | yes | yes; products of int8 accumulate in int32 |
| int64 | yes: values must fit int32, else `InputError`; results come back as int64 | as int32 |
| complex | no: `InputError`, `DTypeError` | no |

Python numbers are rank-0 values: ints as int32, floats as float32. A number that Python code of the kernel looks at (`if n > 4`,
`hl.specialize(n)`, a parameter annotated `hl.constexpr`) is part of the signature: another value gives another program.
"""
# Operations of PyTorch that are no functions that a user writes.
_INTERNAL = ("_", "native_", "lift_fresh", "detach", "alias", "convert_element")


def document() -> str:
    """The text of docs/language.md."""
    parts = [HEAD, "\n".join(_names()), DTYPES, "\n".join(_torch()), "\n".join(_refusals())]
    return "\n".join(part.strip() + "\n" for part in parts)


def signature_of(name: str) -> str:
    """``hl.zeros(shape, dtype=None)``: parameters without their annotations."""
    value = getattr(hl, name)
    if inspect.isclass(value):
        return f"hl.{name}"
    parameters = [p.replace(annotation=inspect.Parameter.empty) for p in inspect.signature(value).parameters.values()]
    return f"hl.{name}{inspect.Signature(parameters)}"


def _names() -> Iterator[str]:
    yield "## Names\n"
    yield "| name | CPU | v5e, v6e, tpu7x |\n| --- | --- | --- |"
    of = {name: example for example in EXAMPLES for name in example.names}
    for name in hl.__all__:
        yield f"| [`hl.{name}`](#{_anchor(name)}) | yes | {of[name].tpu or 'yes'} |"
    for name in hl.__all__:
        yield f"\n### hl.{name}\n"
        yield f"`{signature_of(name)}`\n"
        yield inspect.cleandoc(getattr(hl, name).__doc__ or "").replace("``", "`") + "\n"
        first = of[name].names[0]
        yield f"```python\n{_code(of[name])}\n```" if name == first else f"Example: see [`hl.{first}`](#{_anchor(first)})."


def _anchor(name: str) -> str:
    return f"hl{name.lower()}"


def _code(example: Example) -> str:
    """The source of the example's kernel and of the functions of its file that it calls, without what registers it."""
    function = example.kernel.fn
    helpers = [function.__globals__[n] for n in function.__code__.co_names if inspect.isfunction(function.__globals__.get(n))]
    texts = [textwrap.dedent(inspect.getsource(f)) for f in (*helpers, function)]
    lines = [line for line in "\n\n".join(texts).splitlines() if not line.startswith("@example(")]
    return "\n".join(lines)


_RANDOM = """
Random functions work in tile loops. Each place that draws has a seed of its own, which every call draws from torch's default CPU generator,
also for JAX arrays: `torch.manual_seed` makes a kernel reproducible. Numbers do not depend on block sizes, and they are not those that
torch draws outside of kernels. Under a JAX transformation such a kernel is refused: use `hl.rand` with a seed among the arguments."""


def _torch() -> Iterator[str]:
    yield "## PyTorch in device code\n"
    yield "The operations that PyTorch's functions, methods and operators become. What decomposes into these works too (`F.softmax`,"
    yield "`torch.einsum`, `F.linear`, `x.mean()`, `x[:, None]`, ...); any other is refused with `Unsupported` at its line.\n"
    kinds: list[tuple[str, Sequence[Any]]] = [
        ("elementwise", list(ops.ELEMENTWISE)),
        ("reductions", list(ops.REDUCTIONS)),
        ("views and shapes", [*ops.VIEWS, *ops.PERMUTES, "expand"]),
        ("creation", list(ops.CREATIONS)),
        ("in other ways", list(ops.OTHERS)),
        ("made of the others", [*legalize.REWRITES, *compositions.OWN]),
        ("random", [*(func._schema.name.split("::")[1] for func in draws.SPECIAL), "dropout"]),
    ]
    seen: set[str] = set()
    for title, names in kinds:
        shown = sorted({n for n in names if not n.startswith((*_INTERNAL, "hl.")) and n not in seen})
        seen |= set(shown)
        if shown:
            yield from (f"- {title}: {line}" for line in [", ".join(f"`{n}`" for n in shown)])
    yield _RANDOM


_REFUSALS: tuple[type[Exception], ...] = (
    exc.Unsupported, exc.SourceUnavailable, exc.ShapeMismatch, exc.DTypeError, exc.ConfigError, exc.PlanError, exc.CompileError,
    exc.InputError, exc.ValueNeeded, exc.DifferentiationError, exc.TargetError,
)  # fmt: skip


def _first_sentence(kind: type) -> str:
    return " ".join(inspect.cleandoc(kind.__doc__ or "").split(". ")[0].split()).replace("``", "`").removesuffix(".") + "."


def _refusals() -> Iterator[str]:
    yield "## What is refused\n"
    yield "Every refusal is an exception of `helion_rt.exc` that shows the line of the kernel and, where there is one, a way around.\n"
    yield "| exception | when |\n| --- | --- |"
    for kind in _REFUSALS:
        yield f"| `{kind.__name__}` | {_first_sentence(kind)} |"
    yield "\nNames of Helion that are refused with `Unsupported`:\n\n| name | instead |\n| --- | --- |"
    by_hint: dict[str, list[str]] = {}
    for name, hint in sorted(hl._REFUSED.items()):
        by_hint.setdefault(hint, []).append(f"`{name}`")
    yield from (f"| {', '.join(names)} | {hint.replace('|', chr(92) + '|')} |" for hint, names in by_hint.items())


def main() -> None:
    FILE.write_text(document())
    print(f"wrote {FILE}")


if __name__ == "__main__":
    main()
