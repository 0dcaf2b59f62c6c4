"""The loops of random kernels: launches, inner loops with accumulators, stores. ``composed()`` is the strategy."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from .compose import FLOATS, INTS, UNIT, Composed, Composer, Value

MOST_DIMS = 4


@st.composite
def composed(draw: Any) -> Composed:
    """A kernel of one or two launches, its reference and its arguments."""
    composer = Composer(draw)
    launches = Launches(composer)
    for number in range(1 + composer.maybe(0.2)):
        launches.add(number)
    names = ", ".join(a.name for a in composer.arguments)
    returned = ", ".join(name for name, _, _ in launches.outputs)
    head, tail = f"def kernel({names}):", f"    return {returned},"
    texts = composer.texts
    return Composed(
        "\n".join([head, *texts.kernel, tail, ""]),
        "\n".join([head, *texts.reference, tail, ""]),
        tuple(composer.arguments),
        composer.lowest,
    )


class Launches:
    """Adds launches to the texts of ``composer``. ``outputs``: name, labels and dtype of what is stored."""

    def __init__(self, composer: Composer) -> None:
        self.c = composer
        self.outputs: list[tuple[str, tuple[str, ...], str]] = []
        self.tiled: list[str] = []  # labels of the loops around, outermost first
        self.wholes: list[str] = []
        self.host: tuple[list[str], list[str]] = ([], [])  # lines of this launch's host code, of the kernel and of the reference

    def add(self, number: int) -> None:
        """One launch: ``hl.tile`` over one to three labels, or ``hl.grid`` over one."""
        c = self.c
        starts, self.host = (len(c.texts.kernel), len(c.texts.reference)), ([], [])
        earlier = list(self.outputs)
        outer = 0 if c.maybe(0.1) else c.pick((1, 1, 2, 2, 2, 3))
        self.tiled = [c.add_label(f"{letter}{number}", f"tile_{letter}{number}") for letter in "abd"[:outer]]
        self.wholes = [c.add_label(f"{letter}{number}") for letter in "wz"[: c.pick((0, 1, 1, 2))]]
        if outer:
            self._open_tiles()
        else:
            c.grid = c.add_label(f"g{number}", f"g{number}", grid=True)
            c.texts.only_kernel(f"for {c.grid} in hl.grid({c.labels[c.grid].extent}):")
            c.texts.only_reference(f"for {c.grid} in range({c.labels[c.grid].extent}):")
            c.texts.reference_indent += 1
        c.texts.indent += 1
        pool = self._again(earlier, number) if earlier else []
        pool.append(self._load())
        self._statements(pool, c.whole_number(0, 3))
        for loop in range(c.pick((0, 0, 1, 1, 2))):
            pool += self._inner(pool, f"{'kj'[loop]}{number}", depth=0)
            self._statements(pool, c.whole_number(0, 2))
        if c.maybe(0.8) or not any(name.startswith(f"out{number}") for name, _, _ in self.outputs):
            self._statements(pool, c.whole_number(1, 2))
            self._store(pool[-1], number)
        for lines, start, new in zip((c.texts.kernel, c.texts.reference), starts, self.host, strict=True):
            lines[start:start] = new
        c.texts.indent = c.texts.reference_indent = 1
        c.grid = None

    def _open_tiles(self) -> None:
        c = self.c
        labels = [c.labels[d] for d in self.tiled]
        variables = ", ".join(str(label.tile) for label in labels)
        begins, ends, blocks = [x.begin for x in labels], [x.end for x in labels], [x.block for x in labels]
        if len(labels) == 1:
            bounds, sizes = labels[0].extent, repr(blocks[0])
        else:
            bounds, sizes = (f"{ends}" if not any(begins) else f"{begins}, {ends}"), repr(blocks)
        given = f", block_size={sizes}" if any(blocks) else ""
        c.texts.only_kernel(f"for {variables} in hl.tile({bounds}{given}):")

    # ---------------------------------------------------------------------------------------------- statements

    def _dims(self, *wanted: str) -> tuple[str, ...]:
        """Labels for a new load: those wanted, and some of the others, in any order."""
        c = self.c
        dims = list(wanted)
        for label in (*self.tiled, *self.wholes):
            if label not in dims and len(dims) < MOST_DIMS - (c.grid is not None) and c.maybe(0.6):
                dims.append(label)
        dims = [UNIT if d not in wanted and c.maybe(0.08) else d for d in dims] or [self.wholes[0] if self.wholes else UNIT]
        return tuple(c.draw(st.permutations(dims))) if c.maybe(0.4) else tuple(dims)

    def _load(self, *wanted: str) -> Value:
        c = self.c
        dtype = c.pick(("F32", "F32", "F32", "BF16", "F16", c.pick((*INTS, "BOOL"))))
        return c.load(self._dims(*wanted), dtype)

    def _again(self, earlier: list[tuple[str, tuple[str, ...], str]], number: int) -> list[Value]:
        """An output of the launch before, read in this one."""
        c = self.c
        name, labels, dtype = c.pick(earlier)
        renamed = [c.add_label(f"r{number}{i}", size=c.labels[d].size) for i, d in enumerate(labels)]
        if len(renamed) >= MOST_DIMS:
            return []
        self.wholes += renamed[:1]
        return [c.load_from(name, tuple(renamed), dtype, 60.0)]

    def _statements(self, pool: list[Value], count: int) -> None:
        for _ in range(count):
            pool.append(self._statement(pool))

    def _statement(self, pool: list[Value]) -> Value:
        c = self.c
        value = pool[-1] if c.maybe(0.6) else c.pick(pool)
        kind = c.whole_number(0, 12)
        if kind == 10 and any(d in value.dims for d in (*self.tiled, *self.wholes)):
            return c.gather(c.pick([d for d in value.dims if d in (*self.tiled, *self.wholes)]))
        if kind == 11 and value.dims and UNIT not in value.dims:
            return c.masked_load(value.dims)
        if kind == 12:
            return c.branch(value)
        if kind == 0:
            return c.select(*self._masked(value))
        if kind == 1 and value.is_float:
            return c.cast(value, c.pick(tuple(FLOATS)))
        if kind == 2:
            return c.view(value)
        whole = [d for d in value.dims if d != UNIT and c.labels[d].whole]
        if kind in (3, 4) and whole:
            return c.reduce(value, c.pick(whole))
        if kind == 5 and whole:
            k = c.pick(whole)
            found = c.product(value, self._partner(value, k), k)
            if found is not None:
                return found
        if kind in (6, 7, 8):
            other = c.pick(pool) if c.maybe() else self._load()
            if len({*value.dims, *other.dims} - {UNIT}) <= MOST_DIMS:
                return c.binary(value, other)
        return c.unary(value)

    def _masked(self, value: Value) -> tuple[Value, Value, tuple[str, ...]]:
        (mask, value), dims = self.c.together(self.c.condition(value), value)
        return mask, value, dims

    def _partner(self, value: Value, k: str) -> Value:
        """Something to multiply ``value`` with over ``k``: one new dimension, and the batch dimension if there must be one."""
        c = self.c
        others = [d for d in value.dims if d not in (k, UNIT)]
        batch = [c.pick(others)] if len(others) == 2 else []
        new = [d for d in (*self.tiled, *self.wholes) if d not in value.dims]
        if not new:
            new = [c.add_label(f"n{len(c.labels)}")]
        return c.load((*batch, k, c.pick(new)), c.pick(tuple(FLOATS)))

    # ---------------------------------------------------------------------------------------------- inner loops

    def _inner(self, pool: list[Value], k: str, depth: int) -> list[Value]:
        """A loop over ``k``: its accumulators, which have its label no more. Its own variables are not used after it."""
        c, texts = self.c, self.c.texts
        c.add_label(k, f"tile_{k}")
        label = c.labels[k]
        block = f"block_{k}" if label.block is None and c.maybe(0.3) else label.block
        if isinstance(block, str):
            self.host[0].append(f"    {block} = hl.register_block_size({label.size})")
        start, inits, ends = len(texts.kernel), [], []
        texts.only_kernel(f"for tile_{k} in hl.tile({label.extent}{f', block_size={block}' if block is not None else ''}):")
        texts.indent += 1
        self.tiled.append(k)
        inside = [*pool, self._load(k)]
        self._statements(inside, c.whole_number(0, 2))
        if depth == 0 and c.maybe(0.15):
            inside += self._inner(inside, f"{k}_", depth + 1)
            self._statements(inside, 1)
        results = []
        for _ in range(c.pick((1, 1, 2))):
            value = inside[-1] if k in inside[-1].dims else self._load(k)
            results.append(self._accumulate(value, k, block, inits, ends))
            self._statements(inside, 1)
        if c.maybe(0.2):
            self._store(inside[-1] if k in inside[-1].dims else self._load(k), int(k[1]))
        self.tiled.remove(k)
        texts.indent -= 1
        texts.kernel[start:start] = ["    " * texts.indent + line for line in inits]
        for line in ends:
            texts.only_kernel(line)
        return results

    def _accumulate(self, value: Value, k: str, block: object, inits: list[str], ends: list[str]) -> Value:
        """Adds ``value`` up over the loop."""
        c = self.c
        value = c.without_unit(value)
        at = value.dims.index(k)
        dims = tuple(d for d in value.dims if d != k)
        acc, count = c.name("acc"), c.labels[k].size
        kind = c.pick(("sum", "sum", "max", "product", "product", "logsumexp", "lanes"))
        if kind == "product":
            found = self._product(acc, value, k, inits)
            if found is not None:
                return found
        if value.is_float:
            value = c.cast(value, "F32") if value.dtype != "F32" else value
        elif kind in ("sum", "product"):
            return self._integer_sum(acc, value, k, inits)
        else:
            value = c.cast(value, "F32")
        v, shape = value.name, c.shape(dims)
        c.texts.only_reference(f"{acc} = {v}.{ {'max': 'amax', 'logsumexp': 'logsumexp'}.get(kind, 'sum') }({at})")
        if kind == "max":
            inits.append(f"{acc} = hl.full([{shape}], float('-inf'), dtype=F32)")
            c.texts.only_kernel(f"{acc} = torch.maximum({acc}, {v}.amax({at}))")
            return Value(acc, dims, "F32", value.bound)
        if kind == "logsumexp":
            inits += [f"{acc}m = hl.full([{shape}], float('-inf'), dtype=F32)", f"{acc}l = hl.zeros([{shape}], dtype=F32)"]
            c.texts.only_kernel(f"{acc}n = torch.maximum({acc}m, torch.amax({v}, {at}))")
            c.texts.only_kernel(f"{acc}l = {acc}l * torch.exp({acc}m - {acc}n) + torch.exp({v} - {acc}n.unsqueeze({at})).sum({at})")
            c.texts.only_kernel(f"{acc}m = {acc}n")
            ends.append(f"{acc} = {acc}m + torch.log({acc}l)")
            return Value(acc, dims, "F32", value.bound + 3)
        if kind == "lanes" and block is not None:
            lanes = ", ".join(str(block) if d == k else c.shape((d,)) for d in value.dims)
            inits.append(f"{acc} = hl.zeros([{lanes}], dtype=F32)")
            c.texts.only_kernel(f"{acc} = {acc} + {v}")
            ends.append(f"{acc} = {acc}.sum({at})")
        else:
            inits.append(f"{acc} = hl.zeros([{shape}], dtype=F32)")
            c.texts.only_kernel(c.pick((f"{acc} += {v}.sum({at})", f"{acc} = {acc} + torch.sum({v}, dim={at})")))
        return Value(acc, dims, "F32", value.bound * count)

    def _integer_sum(self, acc: str, value: Value, k: str, inits: list[str]) -> Value:
        dims, at = tuple(d for d in value.dims if d != k), value.dims.index(k)
        inits.append(f"{acc} = hl.zeros([{self.c.shape(dims)}], dtype=I32)")
        self.c.texts.only_kernel(f"{acc} += {value.name}.sum({at}, dtype=I32)")
        self.c.texts.only_reference(f"{acc} = {value.name}.sum({at}, dtype=I32)")
        return Value(acc, dims, "I32", value.bound * self.c.labels[k].size)

    def _product(self, acc: str, value: Value, k: str, inits: list[str]) -> Value | None:
        c = self.c
        found = c.operands(value, self._partner(value, k), k)
        if found is None:
            return None
        a, b, dims = found
        inits.append(f"{acc} = hl.zeros([{c.shape(dims)}], dtype=F32)")
        add = {2: "addmm", 3: "baddbmm"}[len(dims)]
        choices = [f"{acc} = torch.{add}({acc}, {a.name}, {b.name})", f"{acc} = hl.dot({a.name}, {b.name}, acc={acc})"]
        choices += [f"{acc} += {a.name} @ {b.name}"] if a.dtype == "F32" else []
        c.texts.only_kernel(c.pick(choices))
        c.texts.only_reference(f"{acc} = torch.matmul({a.name}.to(F32), {b.name}.to(F32))")
        return Value(acc, dims, "F32", a.bound * b.bound * c.labels[k].size)

    # ---------------------------------------------------------------------------------------------- stores

    def _store(self, value: Value, number: int) -> None:
        """To a new output, whose dimensions are those of ``value`` and of every loop around, in any order."""
        c = self.c
        value = c.without_unit(value)
        missing = [d for d in self.tiled if d not in value.dims]
        if missing and len(missing) + len(value.dims) <= MOST_DIMS:
            zeros = Value(c.name(), tuple(missing), "F32", 0.0)
            c.texts.only_kernel(f"{zeros.name} = hl.zeros([{c.shape(missing)}], dtype=F32)")
            sizes = ", ".join(str(c.labels[d].end - c.labels[d].begin) for d in missing)
            c.texts.only_reference(f"{zeros.name} = torch.zeros([{sizes}], dtype=F32)")
            (value, zeros), dims = c.together(value if value.dtype != "BOOL" else c.cast(value, "F32"), zeros)
            value = c.emit(f"{value.name} + {zeros.name}", dims, "F32" if value.dtype not in FLOATS else value.dtype, value.bound)
            value = c.cast(value, "F32")
        dims = tuple(c.draw(st.permutations(value.dims))) if c.maybe(0.3) else value.dims
        value = c.permuted(value, dims)
        everything = (c.grid, *dims) if c.grid else dims
        dtype = c.pick(("F32", value.dtype)) if value.is_float else value.dtype
        name = f"out{number}_{len(self.outputs)}"
        complete = all(d in dims for d in self.tiled)
        if complete and self.tiled and dims != tuple(self.tiled[:1]) and value.dtype in ("F32", "I32") and c.maybe(0.2):
            self._add_up(name, value, c.pick(self.tiled))
            return
        self.outputs.append((name, everything, dtype))
        covered = all((x.begin, x.end) == (0, x.size) for x in map(c.labels.__getitem__, everything))
        update, masked = dtype in (*FLOATS, "I32") and complete and c.maybe(0.2), complete and bool(dims) and c.maybe(0.1)
        self._allocate(name, everything, dtype, "torch.empty" if covered and not update and not masked else "")
        before = f"{name}[{{}}] + " if update and not masked else ""
        converted = f"({value.name}).to({dtype})" if before or c.maybe() else value.name
        if masked:
            mask = c.aligned(c.condition(value), dims).name
            subscript = c.subscript(everything).replace(":", "slice(None)")
            c.texts.only_kernel(f"hl.store({name}, [{subscript}], {value.name}, extra_mask={mask})")
            old = f"{name}[{c.slices(everything)}]"
            c.texts.only_reference(f"{old} = torch.where({mask}, {value.name}.to({dtype}), {old})")
            return
        c.texts.only_kernel(f"{name}[{c.subscript(everything)}] = {before.format(c.subscript(everything))}{converted}")
        c.texts.only_reference(f"{name}[{c.slices(everything)}] = {before.format(c.slices(everything))}{converted}")

    def _add_up(self, name: str, value: Value, dim: str) -> None:
        """Summed over a loop by ``hl.atomic_add``: every tile adds its part."""
        c = self.c
        at, dims = value.dims.index(dim), tuple(d for d in value.dims if d != dim)
        everything = (c.grid, *dims) if c.grid else dims
        self.outputs.append((name, everything, value.dtype))
        self._allocate(name, everything, value.dtype, "")
        part = f"{value.name}.sum({at}, dtype={value.dtype})"
        index = c.subscript(everything).replace(":", "slice(None)")
        c.texts.only_kernel(f"hl.atomic_add({name}, [{index}], {part})")
        old = f"{name}[{c.slices(everything)}]" if everything else f"{name}[()]"
        c.texts.only_reference(f"{old} = {old} + {part}")

    def _allocate(self, name: str, dims: tuple[str, ...], dtype: str, made: str) -> None:
        """The host's line for an output, the same in both."""
        shape = ", ".join(str(self.c.labels[d].size) for d in dims)
        line = f"    {name} = {made or self.c.pick(('torch.zeros', 'torch.ones'))}([{shape}], dtype={dtype})"
        for lines in self.host:
            lines.append(line)
