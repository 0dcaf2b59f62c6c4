"""Manifests: lists of the keys that a service needs, as ``prewarm`` takes them: TOML, JSON, or JSON Lines as live traffic records them.

A file whose name ends with ``.jsonl`` has an entry a line (see ``helion_rt.runtime.recording``); empty lines and lines that begin with
``#`` are skipped. Equal entries count once, and those with the most calls come first. A line that cannot be read is an entry with a
problem: it is told, and keeps no other from being filled.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .keys import Entry, entry

JSON_LINES = ".jsonl"
_SETTINGS = frozenset(("numerics", "strict"))  # of the process that recorded it: they are part of the key
_ENTRY = frozenset(("kernel", "args", "kwargs", "target")) | _SETTINGS


def load(path: Path) -> dict[str, Any]:
    """The manifest in ``path`` as a table. Raises ``OSError`` and ``ValueError``."""
    if path.suffix == JSON_LINES:  # a line that was cut may end in half a character
        return {"kernels": list(from_lines(path.read_text("utf-8", errors="replace").splitlines()))}
    text = path.read_text()
    data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    if not isinstance(data, dict):
        raise ValueError("expected a table at the top")
    return data


def from_lines(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The entries of JSON Lines, each once, the most called first. What cannot be read is ``{"line": number, "problem": text}``."""
    found: dict[str, dict[str, Any]] = {}
    ids: dict[str, str] = {}
    calls: dict[str, int] = {}
    problems = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            item = json.loads(line)
            if not isinstance(item, dict):
                raise ValueError("expected an object")
            identity = item.pop("id", "")
            if not isinstance(identity, str):
                raise ValueError(f"id is no text: {identity!r:.80}")
            if "kernel" in item:
                _check(number, item)
                text = json.dumps(item, sort_keys=True)
                ids.setdefault(text, identity)
                found.setdefault(text, item)
            elif identity and type(item.get("calls")) is int:
                calls[identity] = calls.get(identity, 0) + item["calls"]
            else:
                raise ValueError("expected a kernel, or calls of one")
        except (ValueError, RecursionError) as error:
            problems.append({"line": number, "problem": f"line {number}: {error}"})
    yield from sorted(found.values(), key=lambda item: -calls.get(ids[json.dumps(item, sort_keys=True)], 0))
    yield from problems


def entries(data: dict[str, Any], folder: Path, only: Sequence[str] | None) -> Iterator[Entry]:
    """The entries of a manifest, for the targets ``only``, or an entry's own, or the manifest's, or this machine's. A kernel that cannot be
    had is an entry with a problem; raises ``ValueError`` or ``HelionError`` for a manifest that makes no sense."""
    from helion_rt import targets

    names = only or data.get("targets") or [targets.detect().name]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f'expected targets = ["cpu", ...], a list of names, not {names!r:.80}')
    wanted = list(dict.fromkeys(map(targets.get, names)))
    listed = data.get("kernels")
    if not isinstance(listed, list) or not listed:
        raise ValueError("expected a list 'kernels' with at least one entry")
    for number, item in enumerate(listed, 1):
        if isinstance(item, dict) and "problem" in item:
            yield Entry(f"line {item.get('line')}", None, (), wanted[0], str(item["problem"]))
            continue
        _check(number, item)
        own = [targets.get(item["target"])] if "target" in item and not only else wanted
        for target in own:
            made = entry(item["kernel"], item["args"], target, folder, item.get("kwargs"))
            yield made if made.kernel is None else _under(made, item)


def _check(number: int, item: Any) -> None:
    if not isinstance(item, dict) or not isinstance(item.get("kernel"), str) or not isinstance(item.get("args"), list):
        raise ValueError(f'kernel {number}: expected kernel = "module:name" and args = [...]')
    if not isinstance(item.get("kwargs", {}), dict) or not isinstance(item.get("target", ""), str):
        raise ValueError(f'kernel {number}: expected kwargs = {{name = ...}} and target = "name"')
    if unknown := item.keys() - _ENTRY:
        raise ValueError(f"kernel {number}: unknown field '{min(unknown)}'; fields: {', '.join(sorted(_ENTRY))}")


def _under(made: Entry, item: dict[str, Any]) -> Entry:
    """``made``, unless it was recorded under settings that this process does not have: then it would be another key."""
    from dataclasses import replace

    from helion_rt.runtime import prepare

    assert made.kernel is not None
    here = {"numerics": prepare.numerics(), "strict": made.kernel.settings.strict}
    other = [f"{name}={item[name]}, here {here[name]}" for name in sorted(_SETTINGS & item.keys()) if item[name] != here[name]]
    return replace(made, kernel=None, problem=f"recorded under other settings: {'; '.join(other)}") if other else made


def seconds_of(data: dict[str, Any]) -> float:
    """The budget of one key, in seconds. Raises ``ValueError``."""
    from helion_rt.settings import Settings

    value = data.get("seconds_each", Settings.from_env().tune_seconds)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"expected seconds_each = a number above 0, not {value!r:.80}")
    return float(value)
