"""The page: what the template is given. Everything that is not an SVG of ``plots`` is escaped by the template engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import jinja2
from markupsafe import Markup

from helion_rt._version import __version__
from helion_rt.database import EvidenceKind

from . import plots, text
from .contents import Crossing, Search

# What each kind of evidence is worth, in the words that the page uses.
KINDS = {
    EvidenceKind.MEASURED: "timed on this machine's own device",
    EvidenceKind.SCHEDULED: "estimated from the schedule that the target's own compiler made; not run on the device",
    EvidenceKind.MODELLED: "a roofline of flops, bytes and steps; neither compiled into a schedule nor run",
}
ROWS = 60  # of the table of candidates
Drawer = Callable[[Search, str], str | None]


@dataclass(frozen=True, slots=True)
class _Plot:
    title: str
    caption: str
    draw: Drawer


PLOTS = (
    _Plot("The landscape", "Each mark is a candidate; rest the pointer on it to read its config. What failed stands on the upper edge.",
          plots.landscape),
    _Plot("Best so far", "Against the time that the search had taken.", plots.progress),
    _Plot("The model against what was found", "On the dotted line both agree; what counts is the order.", plots.prediction),
    _Plot("Roofline", "Flops and bytes are those of the program, each array moved once, whatever the config does.", plots.roofline),
    _Plot("Busy units", "Occupancy of the functional units, as the evaluator reports it.", plots.occupancy),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Cell:
    """A field of the matrix. ``loss``: its time over that of the target's own winner, less 1; None where there is no such number."""

    text: str
    loss: float | None
    tip: str
    own: bool = False

    @property
    def shade(self) -> str:
        """From white (as good as the own winner) to red (twice as slow or worse); grey where there is no time."""
        if self.loss is None:
            return "#ececf0"
        depth = min(max(self.loss, 0.0), 1.0)
        return f"rgb(255, {round(250 - 105 * depth)}, {round(246 - 125 * depth)})"


def render(searches: Sequence[Search], crossings: Sequence[Crossing], title: str) -> str:
    """The HTML document."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("helion_rt.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(duration=text.duration, ratio=text.ratio, clock=text.clock, config=text.config_text, facts=text.facts)
    kinds = [kind for kind in KINDS if any(search.kind is kind for search in searches)]
    template = environment.get_template("page.html")
    return template.render(
        title=title,
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=__version__,
        kinds=[(kind.value, KINDS[kind]) for kind in kinds],
        measured_on_tpu=any(search.kind is EvidenceKind.MEASURED and search.target != "cpu" for search in searches),
        searches=[_section(search, f"s{number}") for number, search in enumerate(searches)],
        matrices=_matrices(crossings),
        rows=ROWS,
    )


def _section(search: Search, name: str) -> dict[str, object]:
    """One search, with its figures drawn."""
    figures = [(plot.title, plot.caption, drawn) for plot in PLOTS if (drawn := plot.draw(search, name)) is not None]
    ordered = sorted(search.good, key=lambda event: event.trial.seconds)
    return {
        "name": name,
        "search": search,
        "figures": [(heading, caption, Markup(drawn)) for heading, caption, drawn in figures],
        "reasons": text.reasons(search),
        "faults": text.grouped_faults(search),
        "candidates": ordered,
        "failed": search.faults,
        "others": search.of_other_kinds,
    }


def _matrices(crossings: Sequence[Crossing]) -> list[dict[str, object]]:
    """The crossings by kernel and arguments: a row a target that was tuned for, a column a target that it runs on."""
    matrices = []
    for kernel, arguments in dict.fromkeys((c.kernel, c.arguments) for c in crossings):
        mine = [c for c in crossings if (c.kernel, c.arguments) == (kernel, arguments)]
        rows = list(dict.fromkeys(c.tuned_for for c in mine))
        columns = list(dict.fromkeys((*rows, *(c.runs_on for c in mine))))
        found = {(c.tuned_for, c.runs_on): c for c in mine}
        cells = [(row, [_cell(found.get((row, column)), found.get((column, column))) for column in columns]) for row in rows]
        matrices.append({"kernel": kernel, "arguments": arguments, "columns": columns, "rows": cells})
    return matrices


def _cell(crossing: Crossing | None, own: Crossing | None) -> _Cell:
    if crossing is None:
        return _Cell("not tried", None, "")
    tip = text.config_text(crossing.config)
    trial = crossing.trial
    if trial.fault is not None:
        return _Cell("does not work", None, f"{tip}\n{trial.fault[:400]}")
    tip = f"{tip}\n{trial.kind.value}"
    if crossing.tuned_for == crossing.runs_on:
        return _Cell(text.duration(trial.seconds), 0.0, tip, own=True)
    if own is None or own.trial.fault is not None or own.trial.kind is not trial.kind or own.trial.seconds <= 0:
        return _Cell(text.duration(trial.seconds), None, tip)
    loss = trial.seconds / own.trial.seconds - 1
    return _Cell(f"{text.duration(trial.seconds)} ({loss:+.1%})", loss, tip)
