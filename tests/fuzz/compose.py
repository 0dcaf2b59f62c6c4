"""Random kernels: one text for helion_rt, and one for torch that computes the same on whole arrays.

A value has a *label* for each of its dimensions. The outer loop runs over tiles of some labels, an inner loop over tiles of others, the
rest are whole (``:``). In the kernel a value is a tile of what the same name stands for in the reference, so that most statements are the
same text in both; loads, loops and stores differ. A label that an inner loop runs over is gone after the loop: accumulators sum it up.
"""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st

import helion_rt.language as hl

FLOATS = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
INTS = {"I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8}
DTYPES = {**FLOATS, **INTS, "BOOL": torch.bool}
UNIT = "u"  # a dimension of size 1 that broadcasts
MOST = 60.0  # no value becomes larger: float16 must hold it, and exp of it is never taken


@dataclass(frozen=True)
class Value:
    """A name in both texts. ``bound``: no element is larger."""

    name: str
    dims: tuple[str, ...]
    dtype: str
    bound: float

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS


@dataclass(frozen=True)
class Label:
    """A dimension: positions ``begin`` to ``end`` of ``size`` ones; ``tile`` is the loop variable, None where it is taken whole.

    ``grid``: ``hl.grid`` runs over it, a loop that the reference has too; values have no dimension of that label.
    """

    size: int
    begin: int
    end: int
    tile: str | None = None
    block: int | None = None
    grid: bool = False

    @property
    def whole(self) -> bool:
        return self.tile is None

    @property
    def slice(self) -> str:
        """Its positions in the reference."""
        return str(self.tile) if self.grid else f"{self.begin}:{self.end}"

    @property
    def extent(self) -> str:
        """As ``hl.tile`` takes it where the loop has this label alone."""
        return str(self.end) if self.begin == 0 else f"{self.begin}, {self.end}"


@dataclass(frozen=True)
class Argument:
    name: str
    shape: tuple[int, ...]
    dtype: str
    below: int | None = None  # positions from 0 to below this, for gathers

    def make(self, generator: torch.Generator) -> torch.Tensor:
        """Numbers that every dtype holds exactly enough: floats within 2 of 0, small integers."""
        if self.dtype in FLOATS:
            return (torch.rand(self.shape, generator=generator) * 4 - 2).to(DTYPES[self.dtype])
        if self.below is not None:
            return torch.randint(0, self.below, self.shape, generator=generator).to(DTYPES[self.dtype])
        low, high = (0, 2) if self.dtype == "BOOL" else (0, 6) if self.dtype == "U8" else (-5, 6)
        return torch.randint(low, high, self.shape, generator=generator).to(DTYPES[self.dtype])


@dataclass(frozen=True)
class Composed:
    """A kernel and its reference, as text, and the arguments of both."""

    kernel: str
    reference: str
    arguments: tuple[Argument, ...]
    lowest: str  # the coarsest float dtype in it

    def tensors(self) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(3)
        return [a.make(generator) for a in self.arguments]

    def kernel_function(self) -> Callable[..., Any]:
        return define(self.kernel, {"torch": torch, "hl": hl, **DTYPES})

    def reference_function(self, wide: bool) -> Callable[..., Any]:
        """On whole arrays; ``wide``: every float dtype is float64."""
        return define(self.reference, {"torch": torch, **DTYPES, **(dict.fromkeys(FLOATS, torch.float64) if wide else {})})


_NUMBERS = itertools.count()


def define(source: str, names: dict[str, Any]) -> Callable[..., Any]:
    """The function ``kernel`` of a source text that ``inspect`` finds again."""
    file = f"<composed {next(_NUMBERS)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), names)
    return names["kernel"]


def forget_sources() -> None:
    """Drop the texts of all functions that ``define`` made."""
    for file in [f for f in linecache.cache if f.startswith("<composed ")]:
        del linecache.cache[file]


@dataclass
class Texts:
    """The two texts in the making. ``indent`` is that of the kernel; the reference has no loops but those of ``hl.grid``."""

    kernel: list[str] = field(default_factory=list)
    reference: list[str] = field(default_factory=list)
    indent: int = 1
    reference_indent: int = 1

    def both(self, line: str) -> None:
        self.only_kernel(line)
        self.only_reference(line)

    def only_kernel(self, line: str) -> None:
        self.kernel.append("    " * self.indent + line)

    def only_reference(self, line: str) -> None:
        self.reference.append("    " * self.reference_indent + line)


class Composer:
    """Draws a kernel statement by statement. ``draw`` is Hypothesis' own."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self.draw = draw
        self.labels: dict[str, Label] = {UNIT: Label(1, 0, 1)}
        self.arguments: list[Argument] = []
        self.where: list[tuple[str, ...]] = []  # the labels of each argument
        self.texts = Texts()
        self.count = 0
        self.lowest = "F32"
        self.grid: str | None = None  # the label of the hl.grid around

    # ---------------------------------------------------------------------------------------------- drawing

    def pick(self, options: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(options))

    def maybe(self, chance: float = 0.5) -> bool:
        return self.draw(st.integers(0, 99)) < 100 * chance

    def whole_number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def name(self, prefix: str = "v") -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def add_label(self, name: str, tile: str | None = None, size: int | None = None, grid: bool = False) -> str:
        size = self.pick((1, 2, 3, 5, 8, 13, 16, 17)) if size is None else size
        assert size is not None
        begin = self.whole_number(0, size - 1) if tile is not None and self.maybe(0.15) else 0
        end = self.whole_number(begin + 1, size) if tile is not None and self.maybe(0.15) else size
        block = self.pick((1, 2, 4, 8, 16)) if tile is not None and not grid and self.maybe(0.15) else None
        self.labels[name] = Label(size, begin, end, tile, block, grid)
        return name

    # ---------------------------------------------------------------------------------------------- values

    def emit(self, text: str, dims: tuple[str, ...], dtype: str, bound: float) -> Value:
        """``name = text`` in both texts; squashed where it would become large."""
        made = Value(self.name(), dims, dtype, bound)
        self._note(dtype)
        self.texts.both(f"{made.name} = {text}")
        if made.is_float and bound > MOST:
            return self.emit(f"{made.name} * {4 / bound!r}", dims, dtype, 4.0)
        return made

    def load(self, dims: tuple[str, ...], dtype: str) -> Value:
        """A tile of an argument: of one that there is, or of a new one."""
        everything = (self.grid, *dims) if self.grid is not None and self.maybe(0.8) else dims
        argument = self.arguments[self._argument(everything, dtype)]
        return self.load_from(argument.name, everything, dtype, 2.0 if dtype in FLOATS else 6.0)

    def load_from(self, name: str, everything: tuple[str, ...], dtype: str, bound: float) -> Value:
        made = Value(self.name(), tuple(d for d in everything if not self.labels[d].grid), dtype, bound)
        self._note(dtype)
        self.texts.only_kernel(f"{made.name} = {name}[{self.subscript(everything)}]")
        self.texts.only_reference(f"{made.name} = {name}[{self.slices(everything)}]")
        return made

    def _note(self, dtype: str) -> None:
        if dtype in ("BF16", "F16"):
            self.lowest = "BF16" if "BF16" in (dtype, self.lowest) else "F16"

    def _argument(self, dims: tuple[str, ...], dtype: str) -> int:
        for i, (argument, labels) in enumerate(zip(self.arguments, self.where, strict=True)):
            if labels == dims and argument.dtype == dtype and argument.below is None and self.maybe():
                return i
        self.arguments.append(Argument(f"x{len(self.arguments)}", tuple(self.labels[d].size for d in dims), dtype))
        self.where.append(dims)
        return len(self.arguments) - 1

    def gather(self, dim: str) -> Value:
        """Rows of a table, one for each position of ``dim``: ``table[index[tile], :]``."""
        count, width = self.whole_number(1, 9), self.add_label(f"n{len(self.labels)}")
        index = Argument(f"x{len(self.arguments)}", (self.labels[dim].size,), "I32", count)
        table = Argument(f"x{len(self.arguments) + 1}", (count, self.labels[width].size), self.pick(tuple(FLOATS)))
        self.arguments += [index, table]
        self.where += [(dim,), ("", width)]
        rows = self.load_from(index.name, (dim,), "I32", float(count))
        self._note(table.dtype)
        made = Value(self.name(), (dim, width), table.dtype, 2.0)
        self.texts.both(f"{made.name} = {table.name}[{rows.name}, :]")
        return made

    def masked_load(self, dims: tuple[str, ...]) -> Value:
        """``hl.load`` with a mask by positions."""
        value = Value("", dims, "F32", 2.0)
        mask = self.aligned(self.condition(value), dims)
        argument = self.arguments[self._argument(dims, "F32")]
        made = Value(self.name(), dims, "F32", 2.0)
        subscript = self.subscript(dims).replace(":", "slice(None)")
        self.texts.only_kernel(f"{made.name} = hl.load({argument.name}, [{subscript}], extra_mask={mask.name})")
        self.texts.only_reference(f"{made.name} = torch.where({mask.name}, {argument.name}[{self.slices(dims)}], 0)")
        return made

    def branch(self, value: Value) -> Value:
        """One of two values by a number that is known only when the kernel runs."""
        flags = Argument(f"x{len(self.arguments)}", (4,), "I32")
        self.arguments.append(flags)
        self.where.append(("",))
        flag = self.name("s")
        self.texts.both(f"{flag} = {flags.name}[{self.whole_number(0, 3)}]")
        made = Value(self.name(), value.dims, value.dtype, 2 * value.bound)
        texts = [f"{value.name} * 2", f"-{value.name}", value.name] if value.dtype in (*FLOATS, "I32") else [value.name]
        self.texts.both(f"if {flag} > {self.whole_number(-4, 4)}:")
        self.texts.both(f"    {made.name} = {self.pick(texts)}")
        self.texts.both("else:")
        self.texts.both(f"    {made.name} = {self.pick(texts)}")
        return made

    def subscript(self, dims: Sequence[str]) -> str:
        return ", ".join(self.labels[d].tile or ":" for d in dims)

    def slices(self, dims: Sequence[str]) -> str:
        return ", ".join(self.labels[d].slice for d in dims)

    def shape(self, dims: Sequence[str]) -> str:
        return ", ".join(self.labels[d].tile or str(self.labels[d].size) for d in dims)

    def positions(self, dim: str) -> Value:
        """The positions of a tile, int32."""
        label = self.labels[dim]
        made = Value(self.name(), (dim,), "I32", float(label.size))
        self.texts.only_kernel(f"{made.name} = {label.tile}.index" if label.tile else f"{made.name} = hl.arange({label.size})")
        self.texts.only_reference(f"{made.name} = torch.arange({label.begin}, {label.end}, dtype=I32)")
        return made

    # ---------------------------------------------------------------------------------------------- shapes

    def permuted(self, value: Value, dims: tuple[str, ...]) -> Value:
        if dims == value.dims:
            return value
        order = [value.dims.index(d) for d in dims]
        how = self.pick(("permute", "transpose", "T")) if len(dims) == 2 else "permute"
        text = {"permute": f"permute({', '.join(map(str, order))})", "transpose": "transpose(0, 1)", "T": "T"}[how]
        return self.emit(f"{value.name}.{text}", dims, value.dtype, value.bound)

    def aligned(self, value: Value, dims: tuple[str, ...]) -> Value:
        """``value`` with the dimensions ``dims``, those that it lacks of size 1; leading ones may be missing."""
        value = self.permuted(value, tuple(d for d in dims if d in value.dims))
        missing = [d for d in dims if d not in value.dims]
        if not missing or (dims[len(missing) :] == value.dims and self.maybe()):
            return value
        new = tuple(d if d in value.dims else UNIT for d in dims)
        if len(missing) == 1 and self.maybe():
            return self.emit(f"{value.name}.unsqueeze({dims.index(missing[0]) - self.pick((0, len(dims)))})", new, value.dtype, value.bound)
        return self.emit(f"{value.name}[{', '.join(':' if d in value.dims else 'None' for d in dims)}]", new, value.dtype, value.bound)

    def without_unit(self, value: Value) -> Value:
        while UNIT in value.dims:
            at = value.dims.index(UNIT)
            value = self.emit(f"{value.name}.squeeze({at})", value.dims[:at] + value.dims[at + 1 :], value.dtype, value.bound)
        return value

    def union(self, *values: Value) -> tuple[str, ...]:
        dims: list[str] = []
        for value in values:
            dims += [d for d in value.dims if d not in dims]
        return tuple(self.draw(st.permutations(dims))) if self.maybe(0.3) else tuple(dims)

    def together(self, *values: Value) -> tuple[list[Value], tuple[str, ...]]:
        """The values, aligned to broadcast; and the dimensions of the result."""
        plain = [self.without_unit(v) for v in values]
        dims = self.union(*plain)
        return [self.aligned(v, dims) for v in plain], dims

    # ---------------------------------------------------------------------------------------------- operations

    def unary(self, value: Value) -> Value:
        x, big = value.name, value.bound
        if not value.is_float:
            text, bound = self.pick(((f"-{x}", big), (f"{x} * 2", 2 * big), (f"{x} & 3", 3.0), (f"torch.abs({x})", big)))
            if value.dtype != "I32":
                return self.cast(value, self.pick(("F32", "I32")))
            return self.emit(text, value.dims, value.dtype, bound)
        choices = [
            (f"torch.sin({x})", 1.0), (f"torch.tanh({x})", 1.0), (f"torch.sigmoid({x})", 1.0), (f"torch.relu({x})", big),
            (f"{x}.abs()", big), (f"-{x}", big), (f"{x} * 0.5 + 1", 0.5 * big + 1), (f"torch.sqrt({x}.abs() + 1)", big**0.5 + 1),
            (f"torch.rsqrt({x} * {x} + 1.0)", 1.0), (f"torch.log({x}.abs() + 1)", big), (f"torch.clamp({x}, -1.5, 1.0)", 1.5),
            (f"torch.where({x} > 0, {x}, 0.25 * {x})", big), (f"torch.nn.functional.silu({x})", big),
            (f"torch.nn.functional.gelu({x}, approximate='tanh')", big), (f"torch.nn.functional.gelu({x})", big), (f"1 - {x}", big + 1),
        ]  # fmt: skip
        if big <= 3:
            choices += [(f"torch.exp({x})", 20.0), (f"torch.exp2({x})", 8.0), (f"{x} ** 2", big**2)]
        text, bound = self.pick(choices)
        return self.emit(text, value.dims, value.dtype, bound)

    def binary(self, left: Value, right: Value) -> Value:
        (a, b), dims = self.together(left, right)
        dtype = promoted(a.dtype, b.dtype)
        if dtype == "BOOL" or "BOOL" in (a.dtype, b.dtype):
            return self.select(a, b, dims)
        most = max(a.bound, b.bound)
        choices = [
            (f"{a.name} + {b.name}", a.bound + b.bound), (f"{a.name} - {b.name}", a.bound + b.bound),
            (f"{a.name} * {b.name}", a.bound * b.bound), (f"torch.maximum({a.name}, {b.name})", most),
            (f"torch.minimum({a.name}, {b.name})", most), (f"torch.add({a.name}, {b.name}, alpha=2)", a.bound + 2 * b.bound),
        ]  # fmt: skip
        if dtype in FLOATS:
            choices.append((f"{a.name} / ({b.name} * {b.name} + 1)", a.bound))
        if dtype not in FLOATS and a.bound * b.bound > 1e6:
            choices = choices[3:5]
        text, bound = self.pick(choices)
        return self.emit(text, dims, dtype, bound)

    def select(self, a: Value, b: Value, dims: tuple[str, ...]) -> Value:
        """One of two by a condition that is exact: of integers, positions, or bools."""
        if a.dtype == "BOOL" and b.dtype == "BOOL":
            x, y = a.name, b.name
            return self.emit(self.pick((f"{x} & {y}", f"{x} | {y}", f"~{x} ^ {y}", f"torch.logical_and({x}, {y})")), dims, "BOOL", 1.0)
        mask, value = (a, b) if a.dtype == "BOOL" else (b, a)
        other = self.pick(("0", f"-{value.name}", f"{value.name} * 2")) if value.dtype in (*FLOATS, "I32") else "0"
        return self.emit(f"torch.where({mask.name}, {value.name}, {other})", dims, value.dtype, 2 * value.bound)

    def condition(self, value: Value) -> Value:
        """A bool of exact numbers."""
        if all(d == UNIT for d in value.dims):
            return self.load((UNIT,), "BOOL")
        dim = self.pick([d for d in value.dims if d != UNIT])
        index = self.positions(dim)
        number = self.whole_number(0, self.labels[dim].size)
        test = self.pick((f"{index.name} < {number}", f"{index.name} >= {number}", f"{index.name} % 2 == 0", f"{index.name} != {number}"))
        return self.emit(test, (dim,), "BOOL", 1.0)

    def cast(self, value: Value, dtype: str) -> Value:
        return self.emit(f"{value.name}.to({dtype})", value.dims, dtype, value.bound)

    def reduce(self, value: Value, dim: str) -> Value:
        """Over a whole dimension: gone, kept with size 1, or a softmax over it."""
        at, size = value.dims.index(dim), self.labels[dim].size
        shown = at - self.pick((0, len(value.dims)))
        value = value if value.is_float else self.cast(value, "F32")
        x, big = value.name, value.bound
        if self.maybe(0.15):
            return self.emit(f"torch.nn.functional.softmax({x}, dim={shown})", value.dims, value.dtype, 1.0)
        if self.maybe(0.15):
            return self.emit(f"torch.cumsum({x}, dim={shown})", value.dims, value.dtype, size * big)
        keep = self.maybe(0.4)
        choices = [("sum", size * big), ("amax", big), ("amin", big), ("mean", big)]
        choices += [("var", 2 * big * big)] if size > 1 else []
        what, bound = self.pick(choices)
        how = self.pick((f"torch.{what}({x}, dim={shown}, keepdim={keep})", f"{x}.{what}({shown}, keepdim={keep})"))
        dims = tuple(UNIT if d == dim and keep else d for d in value.dims if keep or d != dim)
        return self.emit(how, dims, value.dtype, bound)

    def operands(self, a: Value, b: Value, k: str) -> tuple[Value, Value, tuple[str, ...]] | None:
        """Two values as the operands of a product over ``k``; None where they cannot be."""
        a, b = self.without_unit(a), self.without_unit(b)
        batch = tuple(d for d in a.dims if d in b.dims and d != k)
        rows, columns = [d for d in a.dims if d not in b.dims], [d for d in b.dims if d not in a.dims]
        if k not in a.dims or k not in b.dims or len(batch) > 1 or len(rows) != 1 or len(columns) != 1:
            return None
        dtype = self.pick([d for d in ("F32", a.dtype, b.dtype) if d in FLOATS])
        a, b = (v if v.dtype == dtype else self.cast(v, dtype) for v in (a, b))
        return self.permuted(a, (*batch, *rows, k)), self.permuted(b, (*batch, k, *columns)), (*batch, *rows, *columns)

    def product(self, a: Value, b: Value, k: str) -> Value | None:
        """Over a whole dimension."""
        found = self.operands(a, b, k)
        if found is None:
            return None
        a, b, dims = found
        name = {2: "mm", 3: "bmm"}[len(dims)]
        text = self.pick((f"{a.name} @ {b.name}", f"torch.matmul({a.name}, {b.name})", f"torch.{name}({a.name}, {b.name})"))
        return self.emit(text, dims, a.dtype, self.labels[k].size * a.bound * b.bound)

    def view(self, value: Value) -> Value:
        """There and back: the elements stay, in their order."""
        sizes = [str(self.labels[d].size) if self.labels[d].whole else f"{value.name}.size({i})" for i, d in enumerate(value.dims)]
        whole = [i for i, d in enumerate(value.dims[:-1]) if self.labels[d].whole and self.labels[value.dims[i + 1]].whole]
        if whole:
            at = self.pick(whole)
            flat = [*sizes[:at], f"{sizes[at]} * {sizes[at + 1]}", *sizes[at + 2 :]]
            middle = self.emit(f"{value.name}.reshape({', '.join(flat)})", (), value.dtype, value.bound)
            middle = self.emit(f"{middle.name} + 1" if value.dtype in (*FLOATS, "I32") else middle.name, (), value.dtype, value.bound + 1)
            return self.emit(f"{middle.name}.reshape({', '.join(sizes)})", value.dims, value.dtype, middle.bound)
        new = (*value.dims, UNIT)
        return self.emit(f"{value.name}.reshape({', '.join([*sizes, '1'])})", new, value.dtype, value.bound)


def promoted(a: str, b: str) -> str:
    """PyTorch's promotion of two tensors that are no scalars, by our names."""
    dtype = torch.promote_types(DTYPES[a], DTYPES[b])
    return next(name for name, known in DTYPES.items() if known is dtype)
