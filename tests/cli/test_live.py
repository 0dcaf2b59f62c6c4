"""What operators see while keys are tuned."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from helion_rt.cli.live import Plain, Terminal, View, view
from helion_rt.config import Config
from helion_rt.database import EvidenceKind
from helion_rt.tuning.evidence import Event, Trial

A, B = Config(block_sizes=[8]), Config(block_sizes=[16])
FIRST = Event(1.0, A, 1e-3, Trial(None, 3e-3, EvidenceKind.SCHEDULED), "the default", A, 3e-3)
FAULT = Event(2.0, B, 1e-3, Trial("does not compile [bold]really[/bold]"), "does not compile [bold]really[/bold]", A, 3e-3)
BETTER = Event(3.0, B, 1e-3, Trial(None, 1e-3, EvidenceKind.SCHEDULED), "new best", B, 1e-3)


class Clock:
    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def seen(shown: View, out: io.StringIO) -> str:
    with shown:
        one = shown.begin("matmul(8x8) on v5e", 60.0)
        other = shown.begin("softmax(8) on v5e", 60.0)
        for event in (FIRST, FAULT, BETTER):
            shown.event(one, event)
        shown.end(one, True, "winner [1 ms]")
        shown.end(other, False, "no config compiles")
    return out.getvalue()


def test_lines_tell_new_bests_and_ends() -> None:
    out = io.StringIO()
    lines = seen(Plain(2, Console(file=out, width=40)), out).splitlines()
    assert lines == [
        "[1/2] matmul(8x8) on v5e",
        "[2/2] softmax(8) on v5e",
        "[1/2] candidate 1: 3 ms scheduled, 1.00× the default's speed",
        "[1/2] candidate 3: 1 ms scheduled, 3.00× the default's speed",
        "[1/2] winner [1 ms]",
        "[2/2] NOT FILLED: no config compiles",
    ]


def test_the_picture_of_a_terminal() -> None:
    clock, out = Clock(), io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system=None)
    shown = Terminal(3, console, clock)
    key = shown.begin("matmul(8x8) on v5e", 60.0)
    for event in (FIRST, BETTER, replace(FAULT, best=B, best_seconds=1e-3)):
        shown.event(key, event)
    clock.seconds += 15
    console.print(shown.render())
    picture = out.getvalue()
    assert "3 done, 1 failed" in picture and "0:45 of 1:00" in picture and "1 ms scheduled, 3.00× the default's speed" in picture
    assert "does not compile [bold]really[/bold]" in picture  # a verdict is no markup
    assert "0 of 3 keys, 0:15" in picture


def test_the_live_view_ends_with_what_was_done() -> None:
    out = io.StringIO()
    text = seen(Terminal(2, Console(file=out, width=100, force_terminal=True, color_system=None)), out)
    assert "✓ winner [1 ms]" in text and "✗ no config compiles" in text and "2 of 2 keys, 1 not filled" in text


def test_which_view_suits_standard_error() -> None:
    assert type(view(1, quiet=True)) is View
    assert type(view(1, console=Console(file=io.StringIO()))) is Plain
    xterm = {"TERM": "xterm"}
    assert type(view(1, console=Console(file=io.StringIO(), force_terminal=True, _environ=xterm))) is Terminal
    assert type(view(1, console=Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"}))) is Plain
