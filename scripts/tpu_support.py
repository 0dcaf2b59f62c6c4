"""What TPUs make of every kernel: compiled by libtpu for each generation, and run in JAX's TPU interpreter. Writes docs/tpu_support.md.

    python -m scripts.tpu_support [--examples DIR --cases FILE] [--lines FILE] [--only-render] [word ...]

Kernels: those of ``tests/tpu_cases.py``, and those of a folder of kernels written for Helion (see ``benchmarks/example_folder.py``). Each
kernel has a process of its own, with a limit of time and of memory. What is found is kept, a line of JSON a kernel; a rerun goes on where
the lines end and writes the document from all of them. Words choose kernels by their names; those are run again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "tpu_support.md"
LINES = ROOT / ".tpu_support.jsonl"
TARGETS = ("v5e", "v6e", "tpu7x")
INTERPRETED_AS = "tpu7x"
LIMIT_S, LIMIT_BYTES = 420, 9 << 30
TOO_LONG = f"more than {LIMIT_S} s"
OURS, COMPILER = "helion_rt", "the compiler"

# ------------------------------------------------------------------------------------------------ in the process of one kernel


@dataclass(frozen=True)
class Subject:
    """A kernel with arguments; ``expected`` gets them with floats in float64 and may give a predicate."""

    kernel: Any
    arguments: tuple[Any, ...]
    expected: Callable[..., Any]
    tolerance: float
    pick: Callable[[Any], Any] | None = None


def subject(name: str, examples: str | None, cases: str | None, smaller: bool = False) -> Subject:
    """The one of this name; one of a folder of kernels at ``smaller_sizes``, if that is asked for."""
    if name.startswith("examples."):
        from benchmarks import example_folder

        assert examples and cases
        case_id, variant = name.removeprefix("examples.").rsplit(" ", 1)
        case = example_folder.find(Path(cases), case_id)
        kernel = example_folder.kernel(Path(examples), case, "helion_rt")
        if smaller:
            case = dataclasses.replace(case, sizes={variant: smaller_sizes(case.sizes[variant])})
            kernel = with_smaller_blocks(kernel, case.arguments(variant))
        return Subject(kernel, case.arguments(variant), case.expected, max(case.tolerance, 2e-3), case.pick)
    from tests.tpu_cases import all_cases

    found = next(case for case in all_cases() if case.name == name)
    return Subject(found.kernel, found.arguments(), found.expected, found.tolerance)


def smaller_sizes(sizes: dict[str, Any]) -> dict[str, Any]:
    """Dimensions of at most 16, three lengths of at most 8, of a case that takes too long in the interpreter."""

    def of(size: Any) -> Any:
        if isinstance(size, tuple):
            return tuple(n if n <= 8 else 8 - n % 2 for n in size[:3])  # odd ones stay odd
        return 16 - size % 8 if type(size) is int and size > 16 else size

    return {name: of(size) for name, size in sizes.items()}


def with_smaller_blocks(kernel: Any, arguments: tuple[Any, ...]) -> Any:
    """The kernel under its default config, but for blocks above 32: where a kernel bounds its blocks, small dimensions do not."""
    import helion_rt

    chosen = kernel.lower(*arguments, target=INTERPRETED_AS).config.to_dict()
    chosen["block_sizes"] = [min(size, 32) for size in chosen.get("block_sizes", ())]
    return helion_rt.kernel(kernel.fn, config=helion_rt.Config(**chosen))


def examine(one: Subject) -> Iterator[dict[str, Any]]:
    """Facts, each as soon as it is known: for each target ``{target: calls}`` or who refuses and why; then the interpreter's result."""
    from helion_rt.exc import CompileError, HelionError

    last = None
    for target in TARGETS:
        try:
            lowered = one.kernel.lower(*one.arguments, target=target)
            last = lowered if target == INTERPRETED_AS else last
            yield {target: {"calls": lowered.compile().tpu_custom_calls}}
        except CompileError as error:
            yield {target: {"by": COMPILER, "why": _first_line(error.reason)}}
        except HelionError as error:
            yield {target: {"by": OURS, "why": f"{type(error).__name__}: {_first_line(error.message)}"}}
    if last is not None:
        try:
            yield {"interpreter": "right" if _is_right(one, _interpreted(last, one)) else "WRONG"}
        except Exception as error:
            yield {"interpreter": f"fails: {type(error).__name__}: {_first_line(str(error))}"}


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:200]


def _interpreted(lowered: Any, one: Subject) -> Any:
    """What the kernel returns in the TPU interpreter, of torch tensors; of a kernel that returns nothing, what it writes."""
    from helion_rt.program.ir import Ref, output_leaves

    program = lowered.program
    outputs = list(map(_to_torch, lowered.interpret(*_arrays(lowered, one))))
    returned = iter(outputs[: len(output_leaves(program.outputs))])

    def filled(tree: Any) -> Any:
        if isinstance(tree, Ref):
            return next(returned)
        return tuple(map(filled, tree)) if isinstance(tree, tuple) else tree

    if program.outputs is None:
        return tuple(outputs) if len(outputs) > 1 else outputs[0]
    return filled(program.outputs)


def _arrays(lowered: Any, one: Subject) -> list[Any]:
    """The arguments that the executable takes, as JAX arrays."""
    slot = one.kernel.bind(*one.arguments)
    return one.kernel._arrays(slot, one.kernel.bound(*one.arguments))


def _to_torch(array: Any) -> Any:
    import numpy as np
    import torch

    return torch.from_numpy(np.asarray(array, np.float64).copy())


def _is_right(one: Subject, out: Any) -> bool:
    from benchmarks import comparison

    return comparison.is_right(out, one.expected(*comparison.widened(one.arguments)), one.tolerance, one.pick)


# ------------------------------------------------------------------------------------------------ one process after the other


def run(name: str, options: argparse.Namespace, known: dict[str, Any] | None) -> dict[str, Any]:
    """The facts of one kernel. Where the interpreter did not end in time, what it says at smaller sizes stands in for that."""
    found = known or _run(name, options)
    if is_too_long(found):
        again = _run(name, options, "--smaller")
        found["smaller"] = again.get("interpreter", again.get("ended", ""))
    return found


def is_too_long(found: dict[str, Any]) -> bool:
    """Whether a kernel of a folder compiled, but did not end in the interpreter."""
    return found.get("ended") == TOO_LONG == found.get("smaller", TOO_LONG) and found["name"].startswith("examples.")


def _run(name: str, options: argparse.Namespace, *more: str) -> dict[str, Any]:
    """What a process finds out that is ended when it takes too long or too much."""
    command = [sys.executable, "-m", "scripts.tpu_support", "--child", name, *more]
    command += ["--examples", options.examples, "--cases", options.cases] if options.examples and options.cases else []
    found: dict[str, Any] = {"name": name}
    with TemporaryDirectory(prefix="helion_rt-tpu-") as folder:
        env = {**os.environ, "JAX_PLATFORMS": "cpu", "HELION_RT_TUNE": "off", "HELION_RT_CACHE_DIR": folder}
        output = Path(folder) / "facts"
        with output.open("w") as file:
            process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=file, stderr=subprocess.PIPE, text=True, start_new_session=True)
            ended = _wait(process)
        errors = process.stderr.read().splitlines() if process.stderr is not None else []
        for line in output.read_text().splitlines():
            if line.startswith("{"):
                found |= json.loads(line)
    if ended or process.returncode:
        found["ended"] = ended or next((e for e in reversed(errors) if "Error" in e), f"ended with {process.returncode}")[:200]
    return found


def _wait(process: subprocess.Popen[str]) -> str:
    """Until it is done; otherwise why it was ended."""
    end = time.monotonic() + LIMIT_S
    while process.poll() is None:
        reason = TOO_LONG if time.monotonic() > end else ""
        reason = f"more than {LIMIT_BYTES >> 30} GiB" if _memory(process.pid) > LIMIT_BYTES else reason
        if reason:
            os.killpg(process.pid, signal.SIGKILL)  # our own child, in a session of its own
            process.wait()
            return reason
        time.sleep(0.2)
    return ""


def _memory(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def names(options: argparse.Namespace) -> list[str]:
    from tests.tpu_cases import all_cases

    found = [case.name for case in all_cases()]
    if options.examples and options.cases:
        from benchmarks import example_folder

        found += [f"examples.{case.id} {variant}" for case in example_folder.cases(Path(options.cases)) for variant in case.sizes]
    return found


# ------------------------------------------------------------------------------------------------ the document

HEAD = """# What TPUs make of each kernel

Produced by `python -m scripts.tpu_support` (with `--examples` and `--cases` for the kernels of a folder written for Helion); not by hand.
Each kernel is lowered under the default config and compiled by libtpu for v5e, v6e and tpu7x: the number is that of its Mosaic kernels
(`tpu_custom_call`). The interpreter is JAX's for TPUs, as tpu7x, with race detection and NaN in uninitialized memory; "right" is against
torch in float64. "Round" sizes divide evenly, "ragged" ones do not. What takes the interpreter too long is run again with dimensions of at
most 16, three rows of at most 8 and blocks of at most 32.
"""


def document(found: Sequence[dict[str, Any]]) -> str:
    """The text of docs/tpu_support.md."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for one in found:
        groups.setdefault(one["name"].split(".")[0], []).append(one)
    parts = [HEAD]
    for group, members in groups.items():
        full = sum(all("calls" in one.get(t, {}) for t in TARGETS) for one in members)
        right = sum("right" in (one.get("interpreter"), one.get("smaller")) for one in members)
        parts.append(f"\n## {group}\n\n{full} of {len(members)} compile for all three, {right} are right in the interpreter.\n")
        parts.append(f"| kernel | {' | '.join(TARGETS)} | interpreter | who refuses, and why |\n|{' --- |' * (len(TARGETS) + 3)}")
        parts += map(_table_row, members)
    return "\n".join(parts) + "\n"


def _table_row(one: dict[str, Any]) -> str:
    cells, reasons = [], []
    for target in TARGETS:
        fact = one.get(target, {})
        cells.append(str(fact["calls"]) if fact.get("calls") else "no")
        if "why" in fact:
            reasons.append(f"{fact['by']}: {fact['why']}")
        elif fact.get("calls") == 0:
            reasons.append(f"{OURS}: no Mosaic kernel in it")
    interpreter = one.get("interpreter", f"{one['smaller']}, smaller" if "smaller" in one else "")
    if interpreter.startswith("fails"):
        reasons.append(f"interpreter {interpreter}")
    if "ended" in one:
        reasons.append(f"interpreter: {one['ended']}" if "smaller" in one else one["ended"])
    name = one["name"].split(".", 1)[1].replace(" div", " round").replace(" rag", " ragged").replace("raggedged", "ragged")
    why = "; ".join(dict.fromkeys(reasons)).replace("|", "\\|")
    return f"| {name} | {' | '.join(cells)} | {interpreter.split(':')[0]} | {why} |"


def read(lines: Path) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in map(json.loads, lines.read_text().splitlines())} if lines.exists() else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", help="folder of kernels")
    parser.add_argument("--cases", help="case table (see benchmarks/example_folder.py)")
    parser.add_argument("--lines", type=Path, default=LINES, help="where what is found is kept")
    parser.add_argument("--only-render", action="store_true", help="write the document from what was found before")
    parser.add_argument("--child", help="examine one kernel in this process (the command does that itself)")
    parser.add_argument("--smaller", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*")
    options = parser.parse_args()
    if options.child:
        for fact in examine(subject(options.child, options.examples, options.cases, options.smaller)):
            print(json.dumps(fact), flush=True)
        return
    known, every = read(options.lines), names(options)
    if options.words:
        chosen = [n for n in every if any(word in n for word in options.words)]
    else:
        chosen = [n for n in every if n not in known or is_too_long(known[n])]
    for number, name in enumerate([] if options.only_render else chosen):
        known[name] = run(name, options, None if options.words else known.get(name))
        with options.lines.open("a") as file:
            file.write(json.dumps(known[name]) + "\n")
        print(f"{number + 1}/{len(chosen)} {json.dumps(known[name])}", flush=True)
    order = {name: i for i, name in enumerate(every)}
    DOCUMENT.write_text(document(sorted(known.values(), key=lambda one: order.get(one["name"], len(order)))))
    print(f"wrote {DOCUMENT}")


if __name__ == "__main__":
    main()
