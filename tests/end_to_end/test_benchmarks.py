"""What the benchmarks share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import common


def test_interleaved_takes_turns() -> None:
    order: list[str] = []
    times = common.interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, seconds=0, least=4)
    assert order == ["a", "b", *"abbaabba"]  # one untimed call each, then the first of a round changes
    assert {name: len(values) for name, values in times.items()} == {"a": 4, "b": 4}


def test_median_ratio_is_of_pairs() -> None:
    # The machine was ten times slower in the second round, for both.
    assert common.median_ratio({"a": [2.0, 20.0, 2.0], "b": [1.0, 10.0, 1.0]}, "a", "b") == 2.0


@pytest.mark.parametrize(("compared", "limit", "holds"), [(1.0, 1.0, True), (1.1, 1.0, False), (None, None, None)])
def test_limits(compared: float | None, limit: float | None, holds: bool | None, capsys: pytest.CaptureFixture[str]) -> None:
    row = common.Row("x", {"ours": 1.0}, compared=compared, limit=limit, limit_text="the limit")
    assert row.holds is holds
    assert common.report("title", [row], as_json=True) == (1 if holds is False else 0)
    assert json.loads(capsys.readouterr().out)["rows"][0]["holds"] is holds
    common.report("title", [row], as_json=False)
    assert ("DOES NOT HOLD" in capsys.readouterr().out) is (holds is False)


def test_a_failed_process_is_told(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"No module named benchmarks\.nothing"):
        common.fresh_process("benchmarks.nothing", cache=tmp_path)
