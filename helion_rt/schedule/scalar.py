"""The scalar half of a kernel as a Python function: it is run, so that loops, guards and copies happen as often as on the chip.

Everything that decides how often a bundle is issued is scalar code in the compiler's text: loop counters, grid indices, the tests that
``pl.when`` and the pipeline make of them, flags and sizes of copies. ``translate`` keeps just that (a backward slice from branches and
copies), block by block; vectors only take time. What the text does not hold (values computed by vectors, tables in memory that
nobody supplied) is unknown: ``Unknowns`` decides such tests, half of them for and half against, and remembers that it did.

The function's source is plain ``while`` and ``if`` over basic blocks: it runs some hundred thousand blocks a second.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .bundles import Bundle, Op
from .units import GRANULE_BYTES, Rates

_WORD = 0xFFFFFFFF
_SIGN = 0x80000000
OPERAND_SHIFT = 20  # operand n is at (n + 1) << 20, in the units in which the text passes addresses
_ALLOCATION_SHIFT = 14

_TOKEN = re.compile(r"%([spv]m?\d+_[spv]m?\d+)|\[?#allocation(\d+)(_spill)?(?: \+ \$(0x[0-9a-f]+))?\]?|(-?\b\d+\b)|\$(0x[0-9a-f]+)")
_FIELD = re.compile(r"(\w+)=(\[#allocation\d+(?: \+ \$0x[0-9a-f]+)?\]|%\S+|\d+)")
_MEMORY = re.compile(r"\[smem:\[(.*?)\]\]|\[smem:\[(.*)\]")

# Binary operations on 32-bit words, kept unsigned.
_BINARY = {
    "sadd": "({a} + {b}) & M", "ssub": "({a} - {b}) & M", "smul": "({a} * {b}) & M", "sand": "{a} & {b}", "sor": "{a} | {b}",
    "sxor": "{a} ^ {b}", "sshll": "({a} << min({b}, 32)) & M", "sshrl": "{a} >> {b}",
    "sshra": "((({a} ^ S) - S) >> min({b}, 31)) & M", "smin": "min({a} ^ S, {b} ^ S) ^ S", "smax": "max({a} ^ S, {b} ^ S) ^ S",
    "pand": "{a} and {b}", "por": "{a} or {b}", "pnand": "not ({a} and {b})", "pnor": "not ({a} or {b})", "pxor": "{a} != {b}",
    "scalar_lea": "({a} + {b}) & M",
}  # fmt: skip
_UNSIGNED_MINMAX = {"smin.u32": "min({a}, {b})", "smax.u32": "max({a}, {b})"}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


class Untranslatable(ValueError):
    """The text has something in its control flow that is not understood; the message says what."""


@dataclass(slots=True)
class Unknowns:
    """Decides what the text does not tell. ``share``: of tests that hold; ``trips``: of a loop whose end is unknown."""

    share: float = 0.5
    trips: int = 1
    used: dict[int, int] = field(default_factory=dict)
    _credit: dict[int, float] = field(default_factory=dict)
    _turn: dict[int, int] = field(default_factory=dict)

    def test(self, place: int) -> bool:
        """Whether an unknown test at bundle ``place`` holds this time: evenly spread, the same in every run."""
        self.used[place] = self.used.get(place, 0) + 1
        credit = self._credit.get(place, 0.0) + self.share
        self._credit[place] = credit - (credit >= 1.0)
        return credit >= 1.0

    def again(self, place: int) -> bool:
        """Whether a loop that ends at bundle ``place``, at a bound that is unknown, goes round once more."""
        self.used[place] = self.used.get(place, 0) + 1
        turn = self._turn.get(place, 0) + 1
        self._turn[place] = 0 if turn >= self.trips else turn
        return turn < self.trips


@dataclass(frozen=True, slots=True)
class Block:
    """Bundles ``begin`` to ``end`` (not included), issued together. ``cycles``: at least their number, more where an MXU is behind."""

    begin: int
    end: int
    cycles: float


@dataclass(slots=True)
class Scalar:
    """A translated kernel. ``run(copies, unknowns, memory, copy_in, scalar, call, counts, budget)`` gives (cycles, loops cut short)."""

    blocks: list[Block]
    matmul_cycles: list[float]  # of each block: the busiest MXU
    run: Callable[..., tuple[float, bool]]
    source: str
    outer: tuple[int, int] | None  # (block, turns) of an outermost loop whose number of turns is written in the text


def translate(bundles: list[Bundle], rates: Rates, tables: bool) -> Scalar:
    """The scalar half of ``bundles``. ``tables``: whether SMEM's content will be supplied. Raises ``Untranslatable``."""
    flow = _Flow(bundles, rates)
    blocks = flow.blocks()
    slice_ = _Slice(bundles, tables)
    writer = _Writer(bundles, rates, flow, slice_, blocks)
    source = writer.source()
    namespace: dict[str, Any] = {"M": _WORD, "S": _SIGN, "G": GRANULE_BYTES}
    exec(compile(source, "<scalar half>", "exec"), namespace)
    return Scalar(blocks, [flow.matmuls(b.begin, b.end) for b in blocks], namespace["run"], source, flow.outer(blocks))


class _Flow:
    """Branches, where they go, and the basic blocks between them."""

    def __init__(self, bundles: list[Bundle], rates: Rates) -> None:
        self.bundles = bundles
        self.rates = rates
        starts = {region: bundle.address for bundle in bundles for region in bundle.regions}
        self.branches: dict[int, tuple[Op, int]] = {}  # address -> (operation, target)
        for bundle in bundles:
            for op in bundle.ops:
                if op.code.startswith("sbr"):
                    found = re.search(r"target = \$region(\d+)", op.args)
                    if found is None:
                        raise Untranslatable(f"a branch to nowhere: {op.args[:80]!r}")
                    # A region that is empty and last is not printed: the branch leaves the kernel.
                    self.branches[bundle.address] = (op, starts.get(int(found.group(1)), len(bundles) - 1))

    def lands(self, address: int) -> int:
        """The last bundle that is issued after the branch at ``address``, whether it is taken or not."""
        return min(address + self.rates.shadow, len(self.bundles) - 1)

    def blocks(self) -> list[Block]:
        count = len(self.bundles)
        leaders = {0, count}
        for address, (_, target) in self.branches.items():
            leaders |= {target, self.lands(address) + 1}
        edges = sorted(leader for leader in leaders if leader <= count)
        return [Block(a, b, max(float(b - a), self.matmuls(a, b))) for a, b in itertools.pairwise(edges)]

    def matmuls(self, begin: int, end: int) -> float:
        """Cycles for which the busiest MXU is kept."""
        queues: dict[str, float] = {}
        for bundle in self.bundles[begin:end]:
            for name in bundle.matmuls:
                mxu = name.rpartition(".")[2]
                queues[mxu] = queues.get(mxu, 0.0) + self.rates.matmul_cycles(name)
        return max(queues.values(), default=0.0)

    def outer(self, blocks: list[Block]) -> tuple[int, int] | None:
        """The longest outermost loop, by the number of turns that its exit test names."""
        best = None
        tests = {op.dest: op for bundle in self.bundles for op in bundle.ops if op.dest}
        for address, (op, target) in self.branches.items():
            if target > address or op.guard is None:
                continue
            test = tests.get(op.guard)
            found = re.search(r", (\d+)$", test.args) if test is not None and test.code.startswith("scmp") else None
            if self.bundles[target].depth == 1 and found is not None:
                block = next(number for number, b in enumerate(blocks) if b.begin == target)
                turns = int(found.group(1))
                if best is None or turns > best[1]:
                    best = (block, turns)
        return best


class _Slice:
    """Which operations decide control flow and copies, and which values nobody can know."""

    def __init__(self, bundles: list[Bundle], tables: bool) -> None:
        self.ops = [op for bundle in bundles for op in bundle.ops]
        self.tables = tables
        self.stores: dict[str, list[Op]] = {}  # a spill's cell -> its stores
        for op in self.ops:
            if op.code == "sst" and (cell := spill(op)):
                self.stores.setdefault(cell, []).append(op)
        self.live = self._live()
        self.unknown = self._unknown()

    def _live(self) -> set[int]:
        definitions = {op.dest: op for op in self.ops if op.dest}
        wanted = [op for op in self.ops if op.code.startswith(("sbr", "dma.", "inlined_call")) and "operand" not in op.code]
        live: set[int] = set()
        memory: set[str] = set()  # allocations that a load that matters reads; "" where the text does not say which
        while wanted:
            op = wanted.pop()
            if id(op) in live:
                continue
            live.add(id(op))
            wanted += [definitions[name] for name in names(op) if name in definitions]
            if op.code == "sld":
                cell = spill(op)
                if cell:
                    wanted += self.stores.get(cell, [])
                elif (place := allocation(op)) not in memory:
                    memory.add(place)
                    stores = [store for store in self.ops if store.code == "sst" and not spill(store)]
                    wanted += [store for store in stores if not place or allocation(store) in ("", place)]
        return live

    def _unknown(self) -> set[str]:
        unknown: set[str] = set()
        while True:
            before = len(unknown)
            for op in self.ops:
                if id(op) not in self.live:
                    continue
                name = op.dest or (spill(op) if op.code == "sst" else None)
                if name is not None and name not in unknown and self._is_unknown(op, unknown):
                    unknown.add(name)
            if len(unknown) == before:
                return unknown

    def _is_unknown(self, op: Op, unknown: set[str]) -> bool:
        if op.code == "sld":
            cell = spill(op)
            if cell:
                return cell in unknown
            if not self.tables and "core id" not in op.note and not self._stored(op, unknown):
                return True
        elif op.dest and not op.code.startswith("inlined_call_operand") and expression(op) is None and op.code != "sphi":
            return True
        if by_value(op):
            return not self.tables
        return any(name in unknown for name in names(op))

    def _stored(self, op: Op, unknown: set[str]) -> bool:
        """Whether a plain load finds what a store of known value to the same fixed place left."""
        place = _MEMORY.search(op.args)
        if place is None or "%" in place.group(0):
            return False
        stores = [store for store in self.ops if store.code == "sst" and place.group(0) in store.args]
        return bool(stores) and all(not any(name in unknown for name in names(store)) for store in stores)


def names(op: Op) -> Iterator[str]:
    """The registers that an operation reads."""
    text = op.args
    if op.code.startswith("dma.") and not op.code.startswith("dma.done"):  # where a copy goes to does not matter, unless to SMEM
        kept = ("size_in_granules", "dst_syncflagno", *(("vmem", "hbm", "smem") if "_to_smem" in op.code else ()))
        text = " ".join(value for name, value in _FIELD.findall(text) if name in kept)
    for found in _TOKEN.finditer(text + (" " + op.otherwise if op.otherwise else "")):
        if found.group(1):
            yield found.group(1)
    if op.guard:
        yield op.guard


def spill(op: Op) -> str | None:
    """The cell that a scalar load or store of a spilled register means; None for other memory."""
    found = re.search(r"#allocation(\d+)_spill(?: \+ \$(0x[0-9a-f]+))?\]", op.args)
    return f"m_{found.group(1)}_{found.group(2) or 0}" if found else None


def allocation(op: Op) -> str:
    """The allocation in the address of a scalar load or store; empty if registers alone say where."""
    found = re.search(r"#allocation\d+", op.args)
    return found.group(0) if found else ""


def by_value(op: Op) -> bool:
    """Whether an operation names an operand that is a number, not memory."""
    return op.code.startswith("inlined_call_operand.<no")


def operand(text: str) -> str:
    """An operand as a Python expression. Raises ``Untranslatable``."""
    found = _TOKEN.search(text)
    if found is None:
        if text.strip() in ("1", "0"):
            return text.strip()
        raise Untranslatable(f"an operand that is not understood: {text[:60]!r}")
    register, allocation, _, offset, number, word = found.groups()
    if register:
        return register
    if allocation:
        return str((int(allocation) << _ALLOCATION_SHIFT) + int(offset or "0", 16))
    return str(int(number) & _WORD) if number else str(int(word, 16))


def address(text: str) -> str:
    """The words inside ``[smem:[...]]`` as a sum."""
    found = _MEMORY.search(text)
    inside = (found.group(1) or found.group(2)) if found else text
    return " + ".join(operand(part) for part in inside.split(" + ") if part)


def expression(op: Op) -> str | None:
    """What an operation computes, as a Python expression; None if it is not known how."""
    code, args = op.code, [part.strip() for part in op.args.split(",") if part.strip()]
    stem, _, kind = code.partition(".")
    if code == "sld":
        return spill(op) or f"smem.get({address(op.args)}, 0)"
    if code.startswith("inlined_call_operand"):
        if by_value(op):
            return f"scalar({op.note.split()[0]})" if op.note else None
        return str((int(op.note.split()[0]) + 1) << OPERAND_SHIFT) if op.note else None
    if code == "scalar_select":
        fields = dict(_FIELD.findall(op.args))
        try:
            return f"({operand(fields['on_true'])} if {operand(fields['predicate'])} else {operand(fields['on_false'])})"
        except KeyError:
            return None
    if stem == "int_to_ptr":
        return operand(op.args.rpartition("]")[2])
    if stem in ("smov", "pmov"):
        return operand(args[0])
    if stem in ("sneg", "snot") and args:
        return f"-{operand(args[0])} & M" if stem == "sneg" else f"~{operand(args[0])} & M"
    if stem == "pneg":
        return f"not {operand(args[0])}"
    if stem == "scalar_lea" and len(args) == 1:
        return operand(args[0])
    if len(args) != 2:
        return None
    a, b = operand(args[0]), operand(args[1].split(" [")[0] if stem == "scalar_lea" else args[1])
    if stem == "scmp":
        test, sign = kind.split(".")[:2]
        mark = " ^ S" if sign == "s32" and test not in ("eq", "ne") else ""
        return f"({a}{mark}) {_COMPARE[test]} ({b}{mark})" if test in _COMPARE and sign in ("s32", "u32") else None
    form = _UNSIGNED_MINMAX.get(code) or _BINARY.get(stem)
    return form.format(a=a, b=b) if form else None


class _Writer:
    """Writes the function. Block ``n`` adds its cycles and names the next; ``pending`` branches act at the end of their shadow."""

    def __init__(self, bundles: list[Bundle], rates: Rates, flow: _Flow, slice_: _Slice, blocks: list[Block]) -> None:
        self.bundles, self.flow, self.slice, self.blocks = bundles, flow, slice_, blocks
        self.number = {block.begin: number for number, block in enumerate(blocks)}
        self.after: dict[str, list[str]] = {}  # a register -> the loop-carried registers that take its value over
        self.carried: list[str] = []
        for op in slice_.ops:
            if op.code == "sphi" and id(op) in slice_.live and op.dest:
                self.carried.append(op.dest)
                for name in names(op):
                    self.after.setdefault(name, []).append(op.dest)

    def source(self) -> str:
        registers = {op.dest for op in self.slice.ops if id(op) in self.slice.live and op.dest}
        cells = set(self.slice.stores)
        lines = ["def run(copies, unknowns, smem, copy_in, scalar, call, counts, budget):"]
        lines += [f"    {name} = 0" for name in sorted(registers | cells)]
        lines += [f"    n_{name} = 0" for name in self.carried]
        lines += [f"    t{address_} = False" for address_ in sorted(self.flow.branches)]
        lines += ["    start, wait, test, again = copies.start, copies.wait, unknowns.test, unknowns.again", "    t = 0.0", "    b = 0"]
        lines += ["    while True:"]
        lines += self._choose(0, len(self.blocks), "        ")
        return "\n".join(lines) + "\n"

    def _choose(self, low: int, high: int, indent: str) -> list[str]:
        """Binary choice among blocks: the function has no jump table."""
        if high - low == 1:
            return [indent + line for line in self._block(low)]
        middle = (low + high) // 2
        then = self._choose(low, middle, indent + " ")
        return [f"{indent}if b < {middle}:", *then, f"{indent}else:", *self._choose(middle, high, indent + " ")]

    def _block(self, number: int) -> list[str]:
        block = self.blocks[number]
        scale = block.cycles / (block.end - block.begin)
        lines = [f"counts[{number}] += 1"]
        for bundle in self.bundles[block.begin : block.end]:
            at = (bundle.address - block.begin) * scale
            ops = sorted((op for op in bundle.ops if id(op) in self.slice.live), key=_order)
            for op in ops:
                lines += self._op(op, bundle, f"{at:g}")
        lines.append(f"t += {block.cycles:g}")
        return lines + self._next(number)

    def _next(self, number: int) -> list[str]:
        block = self.blocks[number]
        lines = []
        for address_, (_, target) in sorted(self.flow.branches.items()):
            if self.flow.lands(address_) == block.end - 1:
                goes = [f"b = {self.number[target]}"]
                if target <= address_:
                    goes += ["budget -= 1", "if budget < 0: return t, True"]
                lines += [f"if t{address_}:", f" t{address_} = False", *(" " + line for line in goes), " continue"]
        if block.end >= len(self.bundles):
            return [*lines, "return t, False"]
        return [*lines, f"b = {number + 1}"]

    def _op(self, op: Op, bundle: Bundle, at: str) -> list[str]:
        if op.code == "sphi":
            return [f"{op.dest} = n_{op.dest}"]
        if op.code.startswith("sbr"):
            return self._branch(op, bundle.address)
        if op.code.startswith("dma.") or op.code == "inlined_call":
            return self._guarded(op, bundle, self._copy(op, at))
        if op.code == "sst":
            value = op.args.rpartition("]")[2].split(",")[-1]
            cell = spill(op)
            if self._hidden(op):
                return []
            return self._guarded(op, bundle, [f"{cell} = {operand(value)}" if cell else f"smem[{address(op.args)}] = {operand(value)}"])
        assert op.dest is not None
        if op.dest in self.slice.unknown:
            return []
        takers = "".join(f"n_{name} = " for name in self.after.get(op.dest, ()))
        value = expression(op)
        if value is None:
            raise Untranslatable(f"{op.code} {op.args[:60]}")
        if op.otherwise is not None:
            value, kept = operand(op.args), operand(op.otherwise)
            return [f"{op.dest} = {takers}{value} if {'not ' if op.negated else ''}{op.guard} else {kept}"]
        return self._guarded(op, bundle, [f"{op.dest} = {takers}{value}"])

    def _hidden(self, op: Op) -> bool:
        """Whether an operation handles values that nobody knows."""
        return any(name in self.slice.unknown for name in names(op) if name != op.guard)

    def _guarded(self, op: Op, bundle: Bundle, lines: list[str]) -> list[str]:
        return [f"if {self._test(op, bundle.address)}: {'; '.join(lines)}"] if op.guard else lines

    def _test(self, op: Op, address_: int) -> str:
        if op.guard in self.slice.unknown:
            return f"test({address_})"
        return f"{'not ' if op.negated else ''}{op.guard}"

    def _branch(self, op: Op, address_: int) -> list[str]:
        target = self.flow.branches[address_][1]
        if op.guard is None:
            taken = "True"
        elif op.guard in self.slice.unknown and target <= address_:
            taken = f"again({address_})"
        else:
            taken = self._test(op, address_)
        # A branch in the shadow of one that is taken does nothing.
        earlier = [a for a in self.flow.branches if a < address_ <= self.flow.lands(a)]
        return [f"t{address_} = {' and '.join([f'({taken})', *(f'not t{a}' for a in earlier)])}"]

    def _copy(self, op: Op, at: str) -> list[str]:
        if op.code == "inlined_call":
            return [f"t = call(t + {at}, {op.note!r}) - {at}"] if op.note else []
        if op.code.startswith("dma.done"):
            flag = self._known(op.args.split(",")[0])
            return [f"t = wait(t + {at}, {flag}) - {at}"]
        fields = dict(_FIELD.findall(op.args))
        flag = self._known(fields.get("dst_syncflagno", ""))
        size = self._known(fields.get("size_in_granules", ""))
        if size == "None":
            window = op.note.split()[0] if op.note else "0"
            size = str(int(window) // GRANULE_BYTES) if window.isdigit() else "0"
        hbm = "hbm" in op.code or (op.note.endswith("hbm") and op.code == "dma.general")
        lines = [f"start(t + {at}, {flag}, {size} * G, {hbm})"]
        if "_to_smem" in op.code and "smem" in fields:
            source = fields.get("vmem") or fields.get("hbm") or ""
            lines.append(f"copy_in(smem, {self._known(source)}, {self._known(fields['smem'])})")
        return lines

    def _known(self, text: str) -> str:
        found = _TOKEN.search(text)
        if found is None or found.group(1) in self.slice.unknown:
            return "None"
        return operand(text)


def _order(op: Op) -> int:
    """Loop-carried values first; stores and branches last: a bundle reads before it writes."""
    return 0 if op.code == "sphi" else 2 if op.code in ("sst",) or op.code.startswith("sbr") else 1
