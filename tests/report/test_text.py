"""Numbers as people read them, and rank correlation."""

from __future__ import annotations

import pytest

from helion_rt.config import Config
from helion_rt.report import text
from helion_rt.tuning.evidence import Trial


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "–"), (1.19e-4, "119 µs"), (0.0015, "1.5 ms"), (2.0, "2 s"), (9.96e-9, "9.96 ns"), (1e-12, "0.001 ns")],
)
def test_durations(seconds: float | None, shown: str) -> None:
    assert text.duration(seconds) == shown


def test_clock_and_size() -> None:
    assert [text.clock(s) for s in (0, 59.6, 75, 3600)] == ["0:00", "1:00", "1:15", "60:00"]
    assert [text.size(n) for n in (12, 3 << 19, 5 << 30)] == ["12 B", "1.5 MiB", "5 GiB"]


def test_differences_of_configs() -> None:
    a = Config(block_sizes=[8, 8], loop_strategies=["grid"])
    b = Config(block_sizes=[16, 8], loop_strategies=["grid"], flatten=True)
    assert text.differences(a, b) == ["block_sizes [8, 8] → [16, 8]", "flatten unset → True"]
    assert text.differences(a, a) == []


def test_facts_of_a_trial() -> None:
    trial = Trial(None, 1e-3, facts={"bottleneck": "HBM", "unit:MXU": 0.5, "vmem_bytes": 2 << 20, "hbm_floor_ms": 0.119, "spills": 3})
    assert text.units(trial) == {"MXU": 0.5} and text.units(None) == {}
    assert text.facts(trial) == [("bottleneck", "HBM"), ("vmem", "2 MiB"), ("hbm floor", "119 µs"), ("spills", "3")]


def test_rank_correlation() -> None:
    plots = pytest.importorskip("helion_rt.report.plots")
    assert plots.spearman([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1.0)
    assert plots.spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1.0)
    # scipy.stats.spearmanr([1, 2, 2, 3], [1, 3, 2, 4]): ties at their mean rank
    assert plots.spearman([1, 2, 2, 3], [1, 3, 2, 4]) == pytest.approx(0.9486832980505138)
    assert plots.spearman([1, 1, 1], [1, 2, 3]) is None and plots.spearman([1, 2], [1, 2]) is None
