"""Numbers and configs as people read them, and why a winner won."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from helion_rt.config import Config
from helion_rt.tuning.evidence import Trial

from .contents import Search

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_SIZES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
RIVALS = 3
UNIT = "unit:"


def duration(seconds: float | None) -> str:
    """``0.00119`` is "1.19 ms"; None is a dash."""
    if seconds is None:
        return "–"
    for scale, unit in _UNITS:
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.2g} ns"


def clock(seconds: float) -> str:
    """Minutes and seconds: ``75`` is "1:15"."""
    whole = max(0, round(seconds))
    return f"{whole // 60}:{whole % 60:02d}"


def size(count: float) -> str:
    """Bytes: ``1572864`` is "1.5 MiB"."""
    for scale, unit in _SIZES:
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} B"


def ratio(value: float | None) -> str:
    """``1.4142`` is "1.41×"."""
    return "–" if value is None else f"{value:.2f}×"


def config_text(config: Config | None) -> str:
    """``block_sizes=[512, 512] loop_strategies=['grid']``."""
    if config is None:
        return "–"
    return " ".join(f"{name}={value!r}" for name, value in config.to_dict().items()) or "nothing to choose"


def differences(a: Config, b: Config) -> list[str]:
    """The choices of ``b`` that are not those of ``a``: "block_sizes [128, 128] → [512, 512]"."""
    left, right = a.to_dict(), b.to_dict()
    names = dict.fromkeys((*left, *right))
    return [f"{name} {_shown(left.get(name))} → {_shown(right.get(name))}" for name in names if left.get(name) != right.get(name)]


def units(trial: Trial | None) -> dict[str, float]:
    """Occupancy by functional unit, 0..1; empty where the evaluator told none."""
    if trial is None:
        return {}
    return {name.removeprefix(UNIT): float(value) for name, value in trial.facts.items() if name.startswith(UNIT) and _is_number(value)}


def facts(trial: Trial) -> list[tuple[str, str]]:
    """What the evaluator saw beside unit occupancy, as (name, text)."""
    shown = []
    for name, value in trial.facts.items():
        if name.startswith(UNIT):
            continue
        if name.endswith("_bytes") and _is_number(value):
            shown.append((name.removesuffix("_bytes").replace("_", " "), size(float(value))))
        elif name.endswith("_ms") and _is_number(value):
            shown.append((name.removesuffix("_ms").replace("_", " "), duration(float(value) / 1e3)))
        elif isinstance(value, float):
            shown.append((name.replace("_", " "), f"{value:.4g}"))
        else:
            shown.append((name.replace("_", " "), str(value)))
    return shown


def grouped_faults(search: Search) -> list[tuple[str, int]]:
    """Why candidates failed, numbers in the reason left out, the most frequent first."""
    counts = Counter(_reason(event.trial.fault or "") for event in search.faults)
    return counts.most_common()


def reasons(search: Search) -> list[str]:
    """Sentences that say why the winner was chosen, or why the default stays."""
    kind = search.kind.value
    if not search.log:
        # ``remark`` tells where the answer came from.
        return [search.remark or "Nothing was tried."]
    lines = [_headline(search, kind)]
    if search.winner is not None and search.default is not None:
        changed = differences(search.default, search.winner)
        lines.append(f"What it does differently from the default: {'; '.join(changed)}." if changed else "")
    lines.append(_bound(search))
    lines.append(_floors(search))
    lines.extend(_rivals(search))
    lines.extend(f"Had it chosen {choice}: {outcome}." for choice, outcome in search.alternatives.items())
    return [line for line in lines if line]


def _headline(search: Search, kind: str) -> str:
    tried, failed = len(search.log), len(search.faults)
    after = f"after {tried} configs were tried, {failed} of which failed" if failed else f"after {tried} configs were tried"
    if search.winner is None:
        if not search.good:
            return f"No candidate works {after}: there is no time to tell."
        return f"Nothing beat the default's {duration(search.default_seconds)} ({kind}) by enough {after}: it stays."
    if search.default_seconds is None:
        return f"The winner takes {duration(search.winner_seconds)} ({kind}) {after}; the default does not work here."
    return (
        f"The winner takes {duration(search.winner_seconds)} ({kind}) {after}: "
        f"{ratio(search.gain)} the speed of the default, which takes {duration(search.default_seconds)}."
    )


def _bound(search: Search) -> str:
    parts = []
    for name, config in (("winner", search.winner), ("default", search.default)):
        event = search.event_of(config) if config is not None else None
        if event is None:
            continue
        bottleneck = event.trial.facts.get("bottleneck")
        busiest = max(units(event.trial).items(), key=lambda item: item[1], default=None)
        text = f"what limits the {name} is {bottleneck}" if bottleneck else ""
        if busiest is not None:
            busy = f"{busiest[0]} is busy {busiest[1]:.0%} of the time"
            text = f"{text} ({busy})" if text else f"of the {name}'s units, {busy}"
        if spills := event.trial.facts.get("spills"):
            text += f", with {spills} register spills" if text else f"the {name} has {spills} register spills"
        if text:
            parts.append(text)
    sentence = "; ".join(parts)
    return f"{sentence[0].upper()}{sentence[1:]}." if sentence else ""


def _floors(search: Search) -> str:
    if search.cost is None or search.rates is None or not search.best_seconds:
        return ""
    memory, matrix = search.cost.bytes / search.rates.memory, search.cost.dot_flops / search.rates.matrix
    floor, of = max((memory, "moving its bytes once"), (matrix, f"its matrix products at the {search.rates.dtype} peak"))
    if floor <= 0:
        return ""
    return f"The floor of the hardware is {duration(floor)} ({of}); what serves reaches {floor / search.best_seconds:.0%} of it."


def _rivals(search: Search) -> Iterable[str]:
    """The best candidates with other choices than the block sizes, where there are such; else the next best."""
    best, best_seconds = search.best, search.best_seconds
    if best is None or not best_seconds:
        return
    seen = {_family(best)}
    ordered = sorted(search.good, key=lambda event: event.trial.seconds)
    others = [event for event in ordered if not (_family(event.config) in seen or seen.add(_family(event.config)))]
    chosen = others or [event for event in ordered if event.config not in (best, search.default)]
    for event in chosen[:RIVALS]:
        bottleneck = event.trial.facts.get("bottleneck")
        behind = event.trial.seconds / best_seconds - 1
        how = f"{behind:.1%} slower" if behind >= 0 else f"{-behind:.1%} faster by itself, not by more than the noise"
        yield (
            f"The best of {'another form' if others else 'the others'}, {config_text(event.config)}, takes "
            f"{duration(event.trial.seconds)}: {how}{f', limited by {bottleneck}' if bottleneck else ''}."
        )


def _family(config: Config) -> Config:
    return Config(**{name: value for name, value in config.to_dict().items() if name != "block_sizes"})


def _reason(fault: str) -> str:
    """The first line of a fault with its numbers taken out, so that alike ones fall together."""
    first = fault.strip().splitlines()[0] if fault.strip() else "no reason given"
    return re.sub(r"\d[\d.,]*", "#", first)[:200]


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
