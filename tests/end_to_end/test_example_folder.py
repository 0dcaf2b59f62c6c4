"""The benchmarks that take a folder of kernels written for Helion, on a folder of one kernel."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import acceptance_speed, capture_time, comparison

KERNEL = """
import helion
import helion.language as hl
import torch
from helion._testing import DEVICE, run_example
from helion.autotuner import PowerOfTwoFragment


@helion.kernel(static_shapes=True)
def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] * by
    return out


def main() -> None:
    run_example(scaled, None, (torch.ones(4, device=DEVICE), 2.0))
"""
CASES = """
import torch

CASES = [dict(module="scaled", kernel="scaled", make=lambda m, n: (torch.randn(m, n), 3.0), ref=lambda x, by: x * {by},
              div=dict(m=8, n=128), rag=dict(m=5, n=50), tol=1e-4, pick=None)]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "scaled.py").write_text(KERNEL)
    return tmp_path


def _found(folder: Path, by: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, object]]:
    (folder / "table.py").write_text(CASES.format(by=by))
    arguments = ["--examples", str(folder), "--cases", str(folder / "table.py"), "--variants", "rag", "--seconds", "0", "--json"]
    status = acceptance_speed.main([*arguments, "--out", str(folder / "lines")])
    return status, json.loads(capsys.readouterr().out)


def test_a_case_is_measured_and_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = _found(folder, "by", capsys)
    assert status == 0
    (line,) = map(json.loads, (folder / "lines").read_text().splitlines())
    assert (line["case"], line["variant"], line["ours"]["right"]) == ("scaled.scaled#1", "rag", True)
    assert line["ours"]["first"] > 0 and line["ours"]["second"]["ours"] > 0
    assert _found(folder, "by", capsys) == (status, found)  # from the line that was kept


def test_a_wrong_result_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = _found(folder, "4", capsys)
    assert status == 1 and "scaled.scaled#1 rag" in json.dumps(found)


def test_what_is_right() -> None:
    want = torch.tensor([1.0, float("inf"), -2.0])
    assert comparison.is_right(want + 1e-6, want, 1e-4) and not comparison.is_right(want + 0.1, want, 1e-4)
    assert not comparison.is_right(torch.ones(2), want, 1e-4) and not comparison.is_right(torch.ones(3), want, 1e-4)
    assert comparison.is_right((want, None), (want, None), 1e-4) and not comparison.is_right((want,), (want, None), 1e-4)
    assert comparison.is_right((want, 7), (want, 8), 1e-4, pick=lambda out: out[0])


def test_the_chain_is_as_long_as_it_says() -> None:
    for count in (50, 800):
        inside = capture_time.chain_source(count).split("v = x_tile\n")[1].split("out[tile, :]")[0]
        assert count / 4 <= len(inside.splitlines()) <= count
