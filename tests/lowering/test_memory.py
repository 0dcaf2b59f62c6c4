"""Loads, stores and atomics: every way to index, on both paths, against a loop over single elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sketch import PATHS, Sketch, runs

from helion_rt import lowering, targets
from helion_rt.config import Config
from helion_rt.program.ir import Arg, Ref, Span, TileIndex

EXTENTS = {"ragged": {"m": 13, "n": 20}, "round": {"m": 16, "n": 32}}
BLOCKS = (8, 16)


@pytest.fixture(autouse=True)
def quickly_compiled() -> Iterator[None]:
    """Most of the time here is XLA's; nothing here is about speed."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@dataclass(frozen=True)
class Pattern:
    """An index: axes by name, slices, numbers, ``"scalar"`` (a position read from a tensor), tuples (index tensors of these axes).

    ``shape``: of the tensor, where None is what the axis there has.
    """

    index: tuple[Any, ...]
    shape: tuple[int | None, ...]

    @property
    def selected(self) -> tuple[Any, ...]:
        """The dimensions of what is selected: axes by name, or slices. Index tensors' shape takes the place of the first."""
        gathers = [e for e in self.index if isinstance(e, tuple)]
        rank = max(map(len, gathers), default=0)
        padded = [(None,) * (rank - len(g)) + g for g in gathers]
        common = [next((a for a in dims if a), None) for dims in zip(*padded, strict=True)]
        out: list[Any] = []
        for element in self.index:
            if isinstance(element, tuple):
                out += common
                common = []
            elif element is None or isinstance(element, slice) or (isinstance(element, str) and element != "scalar"):
                out.append(element)
        return tuple(out)


PATTERNS = {
    "tiles": Pattern(("m", "n"), (None, None)),
    "rows": Pattern((("m",), "n"), (30, None)),
    "lanes": Pattern(("m", ("n",)), (None, 40)),
    "outer": Pattern((("m", None), ("n",)), (30, 40)),
    "pairs": Pattern((("m",), slice(None), ("m",)), (30, 5, 7)),
    "flat": Pattern((("m", "n"),), (900,)),
    "matrix": Pattern((slice(None), ("n", "m"), slice(1, 6, 2)), (3, 600, 7)),
    "scalar": Pattern(("scalar", ("m",), 2, "n"), (6, 30, 4, None)),
    "point": Pattern(("scalar", "n"), (6, None)),
    "column": Pattern(("n", 3), (None, 5)),
    "slice": Pattern(("m", slice(2, 12, 3)), (None, 15)),
}


class Case:
    """A sketch of accesses of one pattern, its arrays, and where each selected element is."""

    def __init__(self, pattern: Pattern, extents: dict[str, int], *, unique: bool, blocks: tuple[int, int] = BLOCKS) -> None:
        self.pattern, self.extents = pattern, extents
        self.rng = np.random.default_rng(0)
        used = {a for e in pattern.index for a in (e if isinstance(e, tuple) else (e,)) if isinstance(a, str) and a in extents}
        self.sketch = Sketch(**{a: n for a, n in extents.items() if a in used})
        self.blocks = [b for a, b in zip(extents, blocks, strict=True) if a in used]
        self.arrays: list[Any] = []
        self.tensor_shape = [extents[e] if n is None else n for e, n in zip(pattern.index, pattern.shape, strict=True)]
        cut = iter([n for d, n in zip(pattern.index, self.tensor_shape, strict=True) if isinstance(d, slice)])
        self.shape = tuple(len(range(next(cut))[d]) if isinstance(d, slice) else extents[d] if d else 1 for d in pattern.selected)
        self.inside = np.ones(self.shape, bool)
        self.places: list[np.ndarray] = []  # the position of each selected element along each dimension of the tensor
        self.index = tuple(self._element(i, unique) for i in range(len(pattern.index)))

    def _element(self, i: int, unique: bool) -> Arg:
        """Element ``i`` of the index as a program has it; extends ``places``."""
        element, extent = self.pattern.index[i], self.tensor_shape[i]
        before = [e for e in self.pattern.index[:i] if isinstance(e, (slice, tuple)) or e in self.extents]
        rank = max((len(e) for e in self.pattern.index if isinstance(e, tuple)), default=0)
        gathers = [n for n, e in enumerate(before) if isinstance(e, tuple)]
        if isinstance(element, tuple):
            have = [self.extents[a] if a else 1 for a in element]
            values, count = self._positions(extent, int(np.prod(have)), unique).reshape(have), gathers[0] if gathers else len(before)
            shown = values.reshape((1,) * (count + rank - len(have)) + values.shape + (1,) * (len(self.shape) - count - rank))
            self.inside &= (shown >= -extent) & (shown < extent)
            self.places.append(np.broadcast_to(np.where(shown < 0, shown + extent, shown), self.shape))
            return self._loaded(values, element)
        if element == "scalar" or isinstance(element, int):
            position = -2 if element == "scalar" else element
            self.places.append(np.full(self.shape, position % extent))
            return self._loaded(np.asarray(position), ()) if element == "scalar" else element
        at = len(before) - len(gathers) + (rank if gathers else 0)
        values = np.arange(extent)[element] if isinstance(element, slice) else np.arange(extent)
        self.places.append(np.broadcast_to(values.reshape((-1,) + (1,) * (len(self.shape) - at - 1)), self.shape))
        if isinstance(element, slice):
            return Span() if element == slice(None) else Span(element.start, element.stop, element.step)
        return TileIndex(self.sketch.axes[element])

    def _positions(self, extent: int, count: int, unique: bool) -> np.ndarray:
        """Positions of either sign; if not ``unique``, some come twice and some are outside."""
        if unique and count <= extent:
            return self.rng.permutation(extent)[:count] - extent * self.rng.integers(0, 2, count)
        return self.rng.integers(-extent, extent, count) if unique else self.rng.integers(-extent - 3, extent + 3, count)

    def argument(self, shape: Sequence[int], dtype: str, values: Any = None) -> Ref:
        if values is None:
            values = self.rng.integers(0, 2, shape) if dtype == "bool" else self.rng.integers(-9, 9, shape)
        self.arrays.append(jnp.asarray(values, jnp.dtype(dtype)))
        return self.sketch.argument(shape, dtype)

    def tensor(self, dtype: str) -> tuple[Ref, np.ndarray]:
        """A new tensor to index."""
        ref = self.argument(self.tensor_shape, dtype)
        return ref, np.asarray(self.arrays[-1])

    def dims(self) -> list[Any]:
        """The selected shape as a program has it."""
        return [n if isinstance(d, slice) or d is None else d for d, n in zip(self.pattern.selected, self.shape, strict=True)]

    def _loaded(self, values: np.ndarray, axes: tuple[str | None, ...]) -> Ref:
        tensor = self.argument(values.shape, "int32", values)
        index = tuple(Span() if a is None else TileIndex(self.sketch.axes[a]) for a in axes)
        return self.sketch.op("hl.load", (tensor, index), [1 if a is None else a for a in axes], "int32")

    def tile_index(self) -> tuple[Arg, ...]:
        """Where a tensor of the selected shape has the tile."""
        return tuple(Span() if isinstance(d, slice) or d is None else TileIndex(self.sketch.axes[d]) for d in self.pattern.selected)

    def data(self, dtype: str) -> tuple[Ref, np.ndarray]:
        """A tile of a new tensor of the selected shape."""
        tensor = self.argument(self.shape, dtype)
        values = np.asarray(self.arrays[-1])
        return self.sketch.op("hl.load", (tensor, self.tile_index()), self.dims(), dtype), values

    def load(self, tensor: Ref, dtype: str, mask: Ref | None = None) -> Ref:
        return self.sketch.op("hl.load", (tensor, self.index, mask), self.dims(), dtype)

    def keeps(self, value: Ref) -> Ref:
        """Stores a tile to a new tensor, which is returned."""
        out = self.argument(self.shape, self.sketch.types[value.id].dtype)
        self.sketch.op("hl.store", (out, self.tile_index(), value))
        return out

    def results(self, paths: Sequence[str] = PATHS) -> dict[str, dict[int, np.ndarray]]:
        """By path, the new contents of each tensor that is written, by its value id."""
        outputs = {path: f(*self.arrays) for path, f in runs(self.sketch.program(), self.blocks, paths).items()}
        return {path: dict(zip(self.sketch.written, map(np.asarray, out), strict=True)) for path, out in outputs.items()}

    def in_order(self) -> list[tuple[int, ...]]:
        """The selected elements in the order of the steps, and in row-major order within one."""
        size = dict(zip(self.sketch.axes, self.blocks, strict=True))

        def step(at: tuple[int, ...]) -> list[int]:
            tile = {d: i // size[d] for d, i in zip(self.pattern.selected, at, strict=True) if isinstance(d, str)}
            return [tile.get(a, 0) for a in self.sketch.axes]

        return sorted(np.ndindex(*self.shape), key=lambda at: (step(at), at))


def check_everything(case: Case, paths: Sequence[str] = PATHS) -> None:
    """Loads and stores with and without a mask, and an atomic add whose results are used, in one program."""
    (read, old), (out, stored), (masked_out, masked_stored) = (case.tensor("float32") for _ in range(3))
    (value, new), (mask, held) = case.data("float32"), case.data("bool")
    plain, masked = case.keeps(case.load(read, "float32")), case.keeps(case.load(read, "float32", mask))
    case.sketch.op("hl.store", (out, case.index, value))
    case.sketch.op("hl.store", (masked_out, case.index, value, mask))
    sums, summed = case.tensor("float32")
    before = case.keeps(case.sketch.op("hl.atomic", ("add", sums, case.index, value, mask), case.dims(), "float32"))
    wanted = old[tuple(np.clip(p, 0, n - 1) for p, n in zip(case.places, case.tensor_shape, strict=True))]
    stored, masked_stored, summed, was = stored.copy(), masked_stored.copy(), summed.copy(), np.zeros(case.shape)
    for at in case.in_order():
        place = tuple(p[at] for p in case.places)
        if case.inside[at]:
            stored[place] = new[at]
        if case.inside[at] and held[at]:
            masked_stored[place], was[at] = new[at], summed[place]
            summed[place] += new[at]
    for path, got in case.results(paths).items():
        np.testing.assert_array_equal(got[plain.id][case.inside], wanted[case.inside], err_msg=path)
        np.testing.assert_array_equal(got[masked.id][case.inside], np.where(held, wanted, 0)[case.inside], err_msg=path)
        assert not got[masked.id][~held].any()
        np.testing.assert_array_equal(got[out.id], stored, err_msg=path)
        np.testing.assert_array_equal(got[masked_out.id], masked_stored, err_msg=path)
        np.testing.assert_array_equal(got[sums.id], summed, err_msg=path)
        np.testing.assert_array_equal(got[before.id][case.inside], was[case.inside], err_msg=path)


@pytest.mark.parametrize("name", list(PATTERNS))
def test_every_way_to_index(name: str) -> None:
    """Ragged; positions outside of the tensor, and places that come twice (of which the last one is kept)."""
    check_everything(Case(PATTERNS[name], EXTENTS["ragged"], unique=False))


def test_round_tiles() -> None:
    check_everything(Case(PATTERNS["rows"], EXTENTS["round"], unique=True))


STEP = {
    "add": lambda a, b, c: a + b, "max": lambda a, b, c: max(a, b), "min": lambda a, b, c: min(a, b),
    "and": lambda a, b, c: a & b, "or": lambda a, b, c: a | b, "xor": lambda a, b, c: a ^ b,
    "xchg": lambda a, b, c: b, "cas": lambda a, b, c: b if a == c else a,
}  # fmt: skip


def check_atomics(case: Case, dtypes: dict[str, str], *, read: bool, paths: Sequence[str] = PATHS) -> None:
    """Atomics of all ``dtypes`` (by kind) in one program, against the same done to one element after the other."""
    checks = []
    mask, held = case.data("bool")
    for kind, dtype in dtypes.items():
        tensor, old = case.tensor(dtype)
        (value, new), (expected, compared) = case.data(dtype), case.data(dtype)
        args = (kind, tensor, case.index, value, mask, *([expected] if kind == "cas" else []))
        result = case.sketch.op("hl.atomic", args, case.dims(), dtype)
        kept = case.keeps(result) if read else None
        exact = old.astype(np.float64 if dtype in ("float32", "bfloat16") else old.dtype)
        before = np.zeros(case.shape, exact.dtype)
        for at in case.in_order():
            if case.inside[at] and held[at]:
                place = tuple(p[at] for p in case.places)
                before[at] = exact[place]
                exact[place] = STEP[kind](exact[place], new[at].astype(exact.dtype), compared[at].astype(exact.dtype))
        checks.append((kind, tensor, exact, kept, before))
    for path, got in case.results(paths).items():
        for kind, tensor, exact, kept, before in checks:
            np.testing.assert_array_equal(got[tensor.id].astype(exact.dtype), exact, err_msg=f"{path} {kind}")
            if kept is not None:
                np.testing.assert_array_equal(got[kept.id].astype(exact.dtype)[case.inside], before[case.inside], err_msg=f"{path} {kind}")


@pytest.mark.parametrize("name", ["tiles", "rows", "flat"])
def test_atomics_give_what_was_there_at_their_turn(name: str) -> None:
    kinds = STEP if name == "rows" else ("xor", "cas")
    check_atomics(Case(PATTERNS[name], EXTENTS["ragged"], unique=False), dict.fromkeys(kinds, "int32"), read=True)


def test_atomics_without_their_results() -> None:
    dtypes = {"add": "bfloat16", "max": "float32", "min": "int32", "and": "bool", "or": "int8", "xchg": "bfloat16", "cas": "int8"}
    check_atomics(Case(PATTERNS["rows"], EXTENTS["ragged"], unique=False), dtypes, read=False)


def test_sums_of_a_narrow_type_are_rounded_once() -> None:
    sketch = Sketch(m=12)
    positions, value, out = sketch.argument((12,), "int32"), sketch.argument((12,), "bfloat16"), sketch.argument((2,), "bfloat16")
    at = sketch.op("hl.load", (positions, (TileIndex(0),)), ("m",), "int32")
    new = sketch.op("hl.load", (value, (TileIndex(0),)), ("m",), "bfloat16")
    sketch.op("hl.atomic", ("add", out, (at,), new, None), ("m",), "bfloat16")
    arrays = [jnp.zeros(12, jnp.int32), jnp.ones(12, jnp.bfloat16), jnp.asarray([256, 0], jnp.bfloat16)]
    for f in runs(sketch.program(), (12,)).values():
        assert float(f(*arrays)[0][0]) == 268.0  # one at a time, 256 + 1 is 256 each time


def test_dtypes() -> None:
    case = Case(PATTERNS["rows"], EXTENTS["ragged"], unique=True)
    mask, held = case.data("bool")
    checks = []
    for dtype in ("float16", "bfloat16", "int8", "uint8", "bool", "float8_e4m3fn"):
        (tensor, old), (value, new) = case.tensor(dtype), case.data(dtype)
        taken = case.keeps(case.load(tensor, dtype, mask))
        case.sketch.op("hl.store", (tensor, case.index, value, mask))
        wanted = old.copy()
        wanted[tuple(p[held] for p in case.places)] = new[held]
        checks.append((tensor, wanted, taken, np.where(held, old[tuple(case.places)], np.zeros((), old.dtype))))
    for path, got in case.results().items():
        for tensor, stored, taken, loaded in checks:
            np.testing.assert_array_equal(got[taken.id], loaded, err_msg=path)
            np.testing.assert_array_equal(got[tensor.id], stored, err_msg=path)


def test_index_tensors_of_narrow_integers() -> None:
    sketch = Sketch(m=13)
    positions, table, out = sketch.argument((13,), "int8"), sketch.argument((300,), "float32"), sketch.argument((13,), "float32")
    at = sketch.op("hl.load", (positions, (TileIndex(0),)), ("m",), "int8")
    sketch.op("hl.store", (out, (TileIndex(0),), sketch.op("hl.load", (table, (at,)), ("m",), "float32")))
    rng = np.random.default_rng(0)
    i, x = rng.integers(-128, 128, 13).astype("int8"), rng.normal(size=300).astype("float32")
    for f in runs(sketch.program(), (8,)).values():
        np.testing.assert_array_equal(f(i, x, np.zeros(13, "float32"))[0], x[i])


def test_a_single_position_outside_stores_nothing() -> None:
    sketch = Sketch(m=4)
    where, out = sketch.argument((), "int32"), sketch.argument((3,), "float32")
    sketch.op("hl.store", (out, (sketch.op("hl.load", (where, ()), (), "int32"),), 7.0))
    for path, f in runs(sketch.program(), (4,)).items():
        for position, wanted in ((1, [0, 7, 0]), (-1, [0, 0, 7]), (3, [0, 0, 0]), (-4, [0, 0, 0])):
            np.testing.assert_array_equal(f(jnp.int32(position), jnp.zeros(3))[0], wanted, err_msg=path)


def test_a_tile_shorter_than_where_it_goes_keeps_the_rest() -> None:
    """A ragged tile of one axis, stored to a slice: what the tile does not have stays as it was."""
    sketch = Sketch(m=13)
    x, out = sketch.argument((13, 6), "float32"), sketch.argument((20, 6), "float32")
    tile = sketch.op("hl.load", (x, (TileIndex(0), Span())), ("m", 6), "float32")
    sketch.op("hl.store", (out, (Span(4, 12), Span()), tile))
    before = -np.ones((20, 6), "float32")
    values, wanted = np.arange(78, dtype="float32").reshape(13, 6), before.copy()
    wanted[4:12] = values[:8]
    wanted[4:9] = values[8:]
    for path, f in runs(sketch.program(), (8,)).items():
        np.testing.assert_array_equal(f(values, before)[0], wanted, err_msg=path)


TPU_EXTENTS = {"m": 5, "n": 7}  # one tile: smaller blocks than whole dimensions are large, and the interpreter is slow


@pytest.mark.parametrize("name", [n if n in ("rows", "lanes") else pytest.param(n, marks=pytest.mark.slow) for n in PATTERNS])
def test_every_way_to_index_on_a_tpu(name: str) -> None:
    """One position after the other, in JAX's TPU interpreter."""
    check_everything(Case(PATTERNS[name], TPU_EXTENTS, unique=False, blocks=(5, 7)), ("tpu",))


# What Mosaic refuses: rows of which only every third lane is selected, and so many small tiles that VMEM does not hold them.
COMPILED = [name for name in PATTERNS if name not in ("slice", "matrix")]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["v5e", "v6e", "tpu7x"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", COMPILED)
def test_it_compiles_for_tpus(name: str, dtype: str, target: str) -> None:
    case = Case(PATTERNS[name], {"m": 128, "n": 200}, unique=False, blocks=(128, 128))
    (tensor, _), (value, _), (numbers, _) = case.tensor(dtype), case.data(dtype), case.data("int32")
    mask = case.sketch.op("aten.ne.Scalar", (numbers, 0), case.dims(), "bool")
    case.keeps(case.load(case.tensor(dtype)[0], dtype, mask))
    case.sketch.op("hl.store", (case.tensor(dtype)[0], case.index, value, mask))
    case.keeps(case.sketch.op("hl.atomic", ("add", tensor, case.index, value, mask), case.dims(), dtype))
    lowered = lowering.lower(case.sketch.program(), Config(block_sizes=case.blocks), targets.get(target))
    assert lowered.compile().tpu_custom_calls == 1
