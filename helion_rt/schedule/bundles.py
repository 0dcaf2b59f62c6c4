"""The compiler's text of a kernel: VLIW bundles, their operations, regions and branches. Text in, data out; nothing is weighed here.

libtpu writes one line a bundle (a cycle where nothing stalls)::

      0x42   : > { %194 = sbr.rel (%p2417_p12) target = $region28  ;;  %s196_s23 = sand.u32 (!%p2417_p12), 1, %s2226_s16 /* note */ }

``>`` marks count the loops around it, ``;;`` separates operations that are issued together, ``%s`` are scalar registers and ``%p``
predicates (``virtual_physical``: the first half is single assignment), a predicate in brackets guards its operation. Comments that
follow the bundle say which regions begin there; a branch names the region that it goes to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# Columns of the utilization file are slots used in a bundle.
_HEAD = re.compile(r"^ *(?:0x([0-9a-f]+)|0) *([A-Z]{2})?: *([> ]*)\{", re.MULTILINE)
_LABEL = re.compile(r"/\*(\w+)=\*/")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_REGION = re.compile(r"Start(?:/End empty)? region (\d+)")
_CALLEE = re.compile(r"call[^/]*/\* %([\w.\-]+) =")
_WINDOW = re.compile(r"^window_bounds: \(([\d, ]+)\).*?^element_size_in_bytes: (\d+)", re.MULTILINE | re.DOTALL)
_OPERAND = re.compile(r"shape: (\w+\[[\d,]*\]), index: (\d+), kind: (\w+)")
_DEFINITION = re.compile(r"%([spv]m?\d+_[spv]m?\d+|\d+) = (\S+)\s*(.*)", re.DOTALL)
_GUARD = re.compile(r"\((!?)%(p\d+_p\d+)(?:, ([^)]+))?\)")
_MATMUL = re.compile(r"\bvmatmul\.(\S+)")


@dataclass(slots=True)
class Op:
    """One operation of the scalar half: ``dest`` (None where nothing is defined), guard, operands as written.

    ``otherwise``: what ``dest`` is where the guard is false (a move that chooses). ``note``: what of its comment is used: the callee
    of a call, the shape and number of an operand, the bytes of a copy's window.
    """

    dest: str | None
    code: str
    guard: str | None
    negated: bool
    otherwise: str | None
    args: str
    note: str = ""


@dataclass(slots=True)
class Bundle:
    """One line. ``depth``: loops around it. ``regions`` begin here. ``matmuls``: names of the MXU operations, as ``bf16.gmra.mxu3``."""

    address: int
    depth: int
    ops: list[Op] = field(default_factory=list)
    regions: list[int] = field(default_factory=list)
    matmuls: list[str] = field(default_factory=list)


def parse(text: str) -> list[Bundle]:
    """The bundles of a ``final_bundles`` file, in order. Raises ``ValueError`` if there are none, or addresses do not follow each other."""
    heads = list(_HEAD.finditer(text))
    if not heads:
        raise ValueError("no bundles in the text")
    ends = [head.start() for head in heads[1:]] + [len(text)]
    bundles = []
    for number, (head, end) in enumerate(zip(heads, ends, strict=True)):
        address = int(head.group(1), 16) if head.group(1) else 0
        if address != number:
            raise ValueError(f"bundle {number} has the address {address:#x}")
        bundles.append(_bundle(address, head.group(3).count(">"), text[head.end() : end]))
    return bundles


def _bundle(address: int, depth: int, body: str) -> Bundle:
    bundle = Bundle(address, depth)
    if "region" in body:
        bundle.regions = [int(number) for number in _REGION.findall(body)]
    for piece in body.split(" ;;  "):
        piece = piece.lstrip()
        if piece.startswith(("%v", "}")) or " = vst" in piece[:24]:
            continue  # vectors: counted by the utilization file
        if (op := _op(piece)) is not None:
            bundle.ops.append(op)
        elif found := _MATMUL.search(piece):
            bundle.matmuls.append(found.group(1))
    return bundle


def _op(piece: str) -> Op | None:
    """An operation of the scalar half, or None for one of the vector half."""
    plain = _COMMENT.sub("", _LABEL.sub(r"\1=", piece)).rstrip("} \n")
    found = _DEFINITION.match(plain)
    if found is None:
        return None
    dest, code, rest = found.groups()
    if code == "call":  # a large function is not inlined; its arguments are addresses of buffers
        code, rest = "inlined_call", ""
    name = None if dest.isdigit() else dest
    if name is None and not code.startswith(("sst", "sbr", "dma.", "inlined_call", "sphi")):
        return None
    guard = negated = otherwise = None
    if match := _GUARD.search(rest):
        negated, guard, otherwise = match.group(1) == "!", match.group(2), match.group(3)
        rest = rest[: match.start()] + rest[match.end() :].lstrip(" ,")
    return Op(name, code, guard, bool(negated), otherwise, rest.strip(), _note(code, piece))


def _note(code: str, piece: str) -> str:
    if code.startswith("inlined_call_operand"):
        found = _OPERAND.search(piece)
        return f"{found.group(2)} {found.group(1)} {found.group(3)}" if found else ""
    if code == "inlined_call":
        found = _CALLEE.search(piece)
        return found.group(1) if found else ""
    if code == "sld":
        return "core id" if "core id" in piece else ""
    if code.startswith("dma.") and (found := _WINDOW.search(piece)):
        size = int(found.group(2))
        for bound in found.group(1).split(","):
            size *= int(bound)
        return f"{size} hbm"
    if code.startswith("dma.general"):
        return "hbm" if re.search(r"/\* [\w-]*hbm", piece) else ""
    return ""


def parse_utilization(text: str) -> tuple[tuple[str, ...], list[int], list[list[int]]]:
    """Unit names, their slots a bundle, and a row of used slots for each bundle. Raises ``ValueError`` for another format."""
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        names = tuple(name.strip() for name in lines[1].split(","))
        capacity = [int(word) for word in lines[2].split()]
        rows = [[int(word) for word in line.split()] for line in lines[4:]]
    except IndexError:
        raise ValueError("a utilization file has a header of four lines") from None
    if len(capacity) != len(names) or any(len(row) != len(names) for row in rows):
        raise ValueError("a row of the utilization file does not match its header")
    return names, capacity, rows
