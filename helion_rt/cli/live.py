"""What an operator sees while keys are tuned: a live view on a terminal, plain lines elsewhere, nothing with ``--json``.

All of it goes to standard error; standard output is for the result.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from helion_rt.report.text import clock, duration, ratio
from helion_rt.tuning.evidence import Event

REFRESHES_PER_SECOND = 4
SHOWN = 12  # of the keys that are done


@dataclass(slots=True)
class Key:
    """A key that is being tuned. ``default``: seconds of the first candidate, which is the default; ``began`` by the view's clock."""

    label: str
    number: int
    budget: float
    began: float
    tried: int = 0
    faults: int = 0
    default: float | None = None
    best: float | None = None
    kind: str = ""
    verdict: str = ""

    def take(self, event: Event) -> bool:
        """Take a step of the search in; True if it is a new best."""
        self.tried += 1
        self.verdict = event.verdict
        if event.trial.fault is not None:
            self.faults += 1
        else:
            self.kind = event.trial.kind.value
            if self.tried == 1:
                self.default = event.trial.seconds
        better = event.best_seconds is not None and event.best_seconds != self.best
        self.best = event.best_seconds
        return better

    def best_text(self) -> str:
        """``119 µs scheduled, 1.42× the default's speed``."""
        if not self.best:
            return "nothing yet"
        gain = f", {ratio(self.default / self.best)} the default's speed" if self.default else ""
        return f"{duration(self.best)} {self.kind}{gain}"


class View:
    """Tells what is going on, or nothing. A context manager; ``begin``, ``event`` and ``end`` for each key, from any thread."""

    def __init__(self, total: int, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.total = total
        self.began = now()
        self.started = self.done = self.failed = 0
        self.running: list[Key] = []
        self.finished: deque[tuple[bool, str]] = deque(maxlen=SHOWN)
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None

    def begin(self, label: str, budget: float) -> Key:
        """A key is taken on; ``budget``: seconds that its search may take."""
        with self._lock:
            self.started += 1
            key = Key(label, self.started, budget, self.now())
            self.running.append(key)
            self._began(key)
        return key

    def event(self, key: Key, event: Event) -> None:
        """A candidate of the key was tried."""
        with self._lock:
            if key.take(event):
                self._bettered(key)

    def end(self, key: Key, good: bool, line: str) -> None:
        """The key is done; ``line`` says how."""
        with self._lock:
            self.running.remove(key)
            self.done += 1
            self.failed += not good
            self.finished.append((good, line))
            self._ended(key, good, line)

    def _began(self, key: Key) -> None: ...

    def _bettered(self, key: Key) -> None: ...

    def _ended(self, key: Key, good: bool, line: str) -> None: ...


class Plain(View):
    """Lines for logs: each key when it begins and ends, each new best."""

    def __init__(self, total: int, console: Console, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(total, now)
        self.console = console

    def _began(self, key: Key) -> None:
        self._line(key, key.label)

    def _bettered(self, key: Key) -> None:
        self._line(key, f"candidate {key.tried}: {key.best_text()}")

    def _ended(self, key: Key, good: bool, line: str) -> None:
        self._line(key, line if good else f"NOT FILLED: {line}")

    def _line(self, key: Key, text: str) -> None:
        self.console.print(f"[{key.number}/{self.total}] {text}", markup=False, highlight=False, soft_wrap=True)


class Terminal(View):
    """A view that is drawn anew in place."""

    def __init__(self, total: int, console: Console, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(total, now)
        self.live = Live(console=console, refresh_per_second=REFRESHES_PER_SECOND, get_renderable=self.render)

    def __enter__(self) -> Self:
        self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.live.stop()

    def render(self) -> RenderableType:
        """The picture of this moment."""
        now = self.now()
        parts: list[RenderableType] = []
        for good, line in tuple(self.finished):
            parts.append(Text.assemble(("✓ ", "green") if good else ("✗ ", "red"), line, overflow="ellipsis", no_wrap=True))
        for key in tuple(self.running):
            parts.append(Text(key.label, style="bold", overflow="ellipsis", no_wrap=True))
            parts.append(_picture(key, now))
        if self.total > 1:
            failed = f", {self.failed} not filled" if self.failed else ""
            bar = Table.grid(padding=(0, 1))
            words = f"{self.done} of {self.total} keys{failed}, {clock(now - self.began)}"
            bar.add_row(ProgressBar(total=self.total, completed=self.done, width=32), words)
            parts.append(bar)
        return Group(*parts)


def _picture(key: Key, now: float) -> Table:
    left = max(0.0, key.budget - (now - key.began))
    table = Table.grid(padding=(0, 2))
    failed = f", {key.faults} failed" if key.faults else ""
    for name, words, style in (
        ("candidates", f"{key.tried} done{failed}", ""),
        ("best so far", key.best_text(), "bold green" if key.best else "dim"),
        ("time left", f"{clock(left)} of {clock(key.budget)}" if left else "finishing", ""),
        ("last verdict", key.verdict or "–", "dim"),
    ):
        table.add_row(Text(f"  {name}", style="cyan"), Text(words, style=style, overflow="ellipsis", no_wrap=True))
    return table


def view(total: int, quiet: bool = False, console: Console | None = None) -> View:
    """The view for ``total`` keys that suits standard error: live on a terminal, lines elsewhere, none if ``quiet``."""
    if quiet:
        return View(total)
    console = console or Console(stderr=True)
    return Terminal(total, console) if console.is_terminal and not console.is_dumb_terminal else Plain(total, console)
