"""The figures of a report, one function a figure. Each returns an inline SVG, or None where there is nothing to show."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from helion_rt.config import Config
from helion_rt.database import EvidenceKind
from helion_rt.tuning.evidence import Event

from . import svg, text
from .contents import Search

# Okabe and Ito's colours: told apart by everyone.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a6d00", "#555555")
WINNER, DEFAULT, FAULT = "#d55e00", "#1a1a1a", "#b0b0b8"
MAX_BLOCKS = 4
# Marks of one figure; beyond it they cover each other and the page gets heavy.
MAX_MARKS = 160


def landscape(search: Search, name: str) -> str | None:
    """Time against the size of each tunable block, and against the rank that the model gave; what failed stands on the upper edge."""
    events = thinned(search)
    blocks = max((len(_blocks(event.config)) for event in events), default=0)
    shown = min(blocks, MAX_BLOCKS)
    if not search.good:
        return None
    order = sorted({event.modelled for event in events if event.modelled > 0})
    panels = shown + (1 if len(order) > 1 else 0)
    if panels == 0:
        return None
    with rc_context(svg.STYLE):
        figure = Figure(figsize=(2.6 * panels + 1.4, 3.3))
        axes = figure.subplots(1, panels, sharey=True, squeeze=False)[0]
        tips: dict[str, str] = {}
        families = _families(events)
        times = [event.trial.seconds for event in search.good]
        ceiling = max(times) * (1.6 if search.faults else 1.05)
        for i, ax in enumerate(axes):
            for number, event in enumerate(events):
                sizes = _blocks(event.config)
                if event.modelled <= 0 if i >= shown else i >= len(sizes):
                    continue
                x = sizes[i] if i < shown else order.index(event.modelled) + 1
                gid = f"p{i}-{number}"
                tips[gid] = _tip(event)
                _mark(ax, x, event, search, families, ceiling, gid)
            _block_axis(ax, i, events) if i < shown else ax.set_xlabel("rank by the model (1: best)")
        if panels > shown and len(order) > 10:
            axes[-1].set_xscale("log")
            axes[-1].xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
            axes[-1].xaxis.set_minor_locator(NullLocator())
        _time_axis(axes[0], "y", times, ceiling)
        axes[0].set_ylabel(f"time of one call ({search.kind.value})")
        _legend(figure, search, families)
        figure.subplots_adjust(wspace=0.08)
        return svg.element(figure, f"{name}-landscape", tips, "time of each candidate by block size")


def progress(search: Search, name: str) -> str | None:
    """Best so far against the time that the search had taken, with every candidate as a dot."""
    if not search.good:
        return None
    with rc_context(svg.STYLE):
        figure = Figure(figsize=(5.4, 3.1))
        ax = figure.subplots()
        tips: dict[str, str] = {}
        times = [event.trial.seconds for event in search.good]
        ceiling = max(times) * (1.6 if search.faults else 1.05)
        for number, event in enumerate(thinned(search)):
            failed = event.trial.fault is not None
            gid = f"t{number}"
            tips[gid] = _tip(event)
            colour, marker = (FAULT, "x") if failed else (COLOURS[0], "o")
            seconds = ceiling if failed else event.trial.seconds
            ax.plot([event.at], [seconds], marker, color=colour, markersize=4.5, alpha=0.75, gid=gid)
        steps = [(event.at, event.best_seconds) for event in search.log if event.best_seconds]
        if steps:
            steps.append((max(search.spent, steps[-1][0]), steps[-1][1]))
            ax.step([at for at, _ in steps], [s for _, s in steps], where="post", color=WINNER, linewidth=2, label="best so far")
        if search.default_seconds:
            ax.axhline(search.default_seconds, color=DEFAULT, linewidth=1, linestyle="--", label="default")
        ax.plot([], [], "o", color=COLOURS[0], markersize=4.5, label="candidate")
        if search.faults:
            ax.plot([], [], "x", color=FAULT, markersize=4.5, label="failed")
        ax.set_xlabel("time of the search in seconds")
        ax.set_ylabel(f"time of one call ({search.kind.value})")
        ax.set_xlim(left=0)
        _time_axis(ax, "y", times, ceiling)
        figure.legend(*ax.get_legend_handles_labels(), loc="outside upper right", ncols=4, fontsize=8.5)
        return svg.element(figure, f"{name}-progress", tips, "best time so far against the time of the search")


def prediction(search: Search, name: str) -> str | None:
    """What the model said against what was then scheduled or measured, with Spearman's rank correlation."""
    events = [e for e in search.good if e.modelled > 0 and e.trial.kind is not EvidenceKind.MODELLED]
    if len(events) < 2:
        return None
    with rc_context(svg.STYLE):
        figure = Figure(figsize=(4.2, 3.6))
        ax = figure.subplots()
        tips: dict[str, str] = {}
        families = _families(events)
        for number, event in enumerate(events[:MAX_MARKS]):
            gid = f"m{number}"
            tips[gid] = _tip(event)
            _mark(ax, event.modelled, event, search, families, math.inf, gid)
        both = [s for event in events for s in (event.modelled, event.trial.seconds)]
        ends = (min(both) / 1.3, max(both) * 1.3)
        ax.plot(ends, ends, color="#888888", linewidth=1, linestyle=":", zorder=0)
        _time_axis(ax, "x", both, ends[1])
        _time_axis(ax, "y", both, ends[1])
        ax.set_xlabel("modelled time")
        ax.set_ylabel(f"{search.kind.value} time")
        correlation = spearman([e.modelled for e in events], [e.trial.seconds for e in events])
        if correlation is not None:
            ax.set_title(f"rank correlation {correlation:.2f} over {len(events)} candidates", fontweight="normal")
        return svg.element(figure, f"{name}-prediction", tips, "modelled time against the time found")


def roofline(search: Search, name: str) -> str | None:
    """Rates reached by winner and default under the roof of the target: bytes and flops are the program's least, so rates are too."""
    cost, rates = search.cost, search.rates
    if cost is None or rates is None or cost.bytes <= 0 or cost.flops <= 0 or not search.best_seconds:
        return None
    intensity = cost.flops / cost.bytes
    ridge = rates.matrix / rates.memory
    with rc_context(svg.STYLE):
        figure = Figure(figsize=(4.6, 3.4))
        ax = figure.subplots()
        low, high = min(intensity, ridge) / 8, max(intensity, ridge) * 8
        xs = np.geomspace(low, high, 200)
        ax.plot(xs, np.minimum(xs * rates.memory, rates.matrix), color="#555555", linewidth=1.6, label=f"roof ({rates.dtype} peak, HBM)")
        tips: dict[str, str] = {}
        points = [("default", search.default, search.default_seconds, DEFAULT, "D", 6)]
        if search.winner is not None:
            points.append(("winner", search.winner, search.winner_seconds, WINNER, "*", 12))
        for label, config, seconds, colour, marker, width in points:
            if seconds:
                tips[label] = f"{label}: {text.config_text(config)}\n{text.duration(seconds)} ({search.kind.value})"
                ax.plot([intensity], [cost.flops / seconds], marker, color=colour, markersize=width, label=label, gid=label)
        for scale, axis in ((ax.set_xscale, ax.xaxis), (ax.set_yscale, ax.yaxis)):
            scale("log")
            axis.set_major_formatter(FuncFormatter(lambda value, _: _with_prefix(value)))
            axis.set_minor_locator(NullLocator())
        ax.set_ylim(rates.matrix / 1e3 if intensity >= ridge / 8 else None, rates.matrix * 2)
        ax.set_xlabel("flops of the program a byte of its arrays")
        ax.set_ylabel("flops a second")
        ax.legend(loc="lower right", fontsize=8.5)
        return svg.element(figure, f"{name}-roofline", tips, "roofline of the target with winner and default")


def occupancy(search: Search, name: str) -> str | None:
    """How busy each functional unit is under the winner and under the default, where the evaluator tells it."""
    found: list[tuple[str, dict[str, float], str]] = []
    for label, config, colour in (("default", search.default, DEFAULT), ("winner", search.winner, WINNER)):
        event = search.event_of(config) if config is not None else None
        if event is not None and (busy := text.units(event.trial)):
            found.append((label, busy, colour))
    if not found:
        return None
    most = {unit: max(busy.get(unit, 0.0) for _, busy, _ in found) for _, busy, _ in found for unit in busy}
    names = sorted(most, key=most.__getitem__)
    with rc_context(svg.STYLE):
        figure = Figure(figsize=(5.0, 0.42 * len(names) + 1.0))
        ax = figure.subplots()
        height = 0.8 / len(found)
        for i, (label, busy, colour) in enumerate(found):
            at = [row + height * (i - (len(found) - 1) / 2) for row in range(len(names))]
            ax.barh(at, [100 * busy.get(unit, 0.0) for unit in names], height=height * 0.92, color=colour, alpha=0.85, label=label)
        ax.set_yticks(range(len(names)), names)
        ax.set_xlim(0, 100)
        ax.set_xlabel("busy, per cent of the kernel's cycles")
        ax.grid(False, axis="y")
        handles, labels = ax.get_legend_handles_labels()
        figure.legend(handles[::-1], labels[::-1], loc="outside upper right", ncols=2, fontsize=8.5)
        return svg.element(figure, f"{name}-occupancy", {}, "occupancy of the functional units")


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Spearman's rank correlation, ties at their mean rank; None where one side does not vary or is too short."""
    if len(a) < 3 or len(set(a)) < 2 or len(set(b)) < 2:
        return None
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray:
    array = np.asarray(values, float)
    _, inverse, counts = np.unique(array, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse]


def _mark(ax: Axes, x: float, event: Event, search: Search, families: Sequence[str], ceiling: float, gid: str) -> None:
    """One candidate: a dot in its form's colour, a cross where it failed, a star for the winner, a diamond for the default."""
    if event.trial.fault is not None:
        ax.plot([x], [ceiling], "x", color=FAULT, markersize=5, gid=gid)
    elif event.config == search.winner:
        ax.plot([x], [event.trial.seconds], "*", color=WINNER, markersize=13, zorder=4, markeredgecolor="white", gid=gid)
    elif event.config == search.default:
        ax.plot([x], [event.trial.seconds], "D", color=DEFAULT, markersize=6, zorder=3, markeredgecolor="white", gid=gid)
    else:
        colour = COLOURS[families.index(_family(event.config)) % len(COLOURS)]
        ax.plot([x], [event.trial.seconds], "o", color=colour, markersize=5, alpha=0.75, gid=gid)


def _block_axis(ax: Axes, index: int, events: Sequence[Event]) -> None:
    sizes = sorted({_blocks(event.config)[index] for event in events if index < len(_blocks(event.config))})
    ax.set_xscale("log", base=2)
    kept = sizes if len(sizes) <= 8 else sizes[:: math.ceil(len(sizes) / 8)]
    ax.set_xticks(kept, [str(size) for size in kept], rotation=45 if len(kept) > 5 else 0, fontsize=8.5)
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel(f"block_sizes[{index}]")


def _time_axis(ax: Axes, which: str, times: Sequence[float], ceiling: float) -> None:
    """A logarithmic axis of seconds with readable marks: 1, 2, 5 of each decade; finer where the times are close together."""
    low, high = min(times) / 1.15, min(max(max(times), ceiling) * 1.08, 1e9)
    axis = ax.xaxis if which == "x" else ax.yaxis
    (ax.set_xscale if which == "x" else ax.set_yscale)("log")
    (ax.set_xlim if which == "x" else ax.set_ylim)(low, high)
    if high / low < 2.2:
        axis.set_ticks([tick for tick in MaxNLocator(4).tick_values(low, high) if low <= tick <= high])
    else:
        few = (1, 2, 5) if high / low < 300 else (1,)
        steps = (1, 1.5, 2, 3, 5, 7) if high / low < 8 else few
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        axis.set_ticks([step * 10.0**decade for decade in decades for step in steps if low <= step * 10.0**decade <= high])
    axis.set_major_formatter(FuncFormatter(lambda value, _: text.duration(value)))
    axis.set_minor_locator(NullLocator())


def _with_prefix(value: float) -> str:
    """``2e12`` is "2 T"."""
    for scale, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:.3g} {prefix}"
    return f"{value:.3g}"


def _legend(figure: Figure, search: Search, families: Sequence[str]) -> None:
    ax = figure.axes[0]
    handles = []
    if search.winner is not None:
        handles += ax.plot([], [], "*", color=WINNER, markersize=12, label="winner")
    if search.default is not None:
        handles += ax.plot([], [], "D", color=DEFAULT, markersize=5, label="default" + (" (stays)" if search.winner is None else ""))
    for i, family in enumerate(families[: len(COLOURS)]):
        handles += ax.plot([], [], "o", color=COLOURS[i % len(COLOURS)], markersize=5, label=family or "candidate")
    if search.faults:
        handles += ax.plot([], [], "x", color=FAULT, markersize=5, label="failed")
    figure.legend(handles=handles, loc="lower left", bbox_to_anchor=(0.1, 0.89), ncols=4 if len(figure.axes) > 2 else 2, fontsize=8.5)


def _families(events: Sequence[Event]) -> list[str]:
    """The forms (choices other than block sizes) among the events, the frequent first."""
    counts: dict[str, int] = {}
    for event in events:
        family = _family(event.config)
        counts[family] = counts.get(family, 0) + 1
    return sorted(counts, key=lambda family: -counts[family])


def _family(config: Config) -> str:
    words = [f"{name} {_short(value)}" for name, value in config.to_dict().items() if name != "block_sizes"]
    label = ", ".join(words).removeprefix("loop_strategies ")
    return label if len(label) <= 60 else label[:59] + "…"


def _short(value: object) -> str:
    return "/".join(map(str, value)) if isinstance(value, list) else str(value)


def _blocks(config: Config) -> tuple[int, ...]:
    return tuple(config.get("block_sizes") or ())


def _tip(event: Event) -> str:
    lines = [text.config_text(event.config)]
    if event.trial.fault is None:
        lines.append(f"{text.duration(event.trial.seconds)} ({event.trial.kind.value}); model: {text.duration(event.modelled)}")
    lines.append(event.verdict)
    return "\n".join(line[:300] for line in lines)


def thinned(search: Search) -> list[Event]:
    """The events that are drawn: all, or where there are too many the best, the default and an even choice of the rest."""
    events = [event for event in search.log if event.trial.fault is not None or event.trial.kind is search.kind]
    if len(events) <= MAX_MARKS:
        return events
    kept = {id(event) for event in sorted(search.good, key=lambda event: event.trial.seconds)[: MAX_MARKS // 3]}
    kept |= {id(event) for config in (search.default, search.winner) if (event := search.event_of(config)) is not None}
    kept |= {id(event) for event in events[:: math.ceil(len(events) / (MAX_MARKS // 3))]}
    return [event for event in events if id(event) in kept]
