"""``helion-rt estimate``: factories, exit statuses and what is printed; the estimates themselves are made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import helion_rt.schedule
from helion_rt.cli import estimate as command
from helion_rt.cli.main import main
from helion_rt.database import EvidenceKind
from helion_rt.exc import CompileError, InputError
from helion_rt.schedule import Bottleneck, Estimate, KernelEstimate

FACTORIES = """
def good():
    return (lambda x, y: x), ["first", "second"], "more that the factory keeps for itself"

def flat():
    return len, "only"

def wrong():
    return 5

def broken():
    raise RuntimeError("no such thing")
"""


@pytest.fixture
def factories(tmp_path: Path) -> Path:
    path = tmp_path / "factories.py"
    path.write_text(FACTORIES)
    return path


def made_up(target: Any) -> Estimate:
    kernel = KernelEstimate("matmul.1", 2, 1e6, 5e4, 34, 9e5, 2.0**25, {"MXU": 0.9}, 12, 1 << 20)
    return Estimate(
        1.25,
        2e6,
        EvidenceKind.SCHEDULED,
        target.name,
        Bottleneck.MXU,
        {"MXU": 0.9, "HBM": 0.5},
        24,
        1 << 20,
        0.3,
        1.1,
        (kernel,),
        ("a note",),
    )


def test_a_factory_gives_a_function_and_its_arguments(factories: Path) -> None:
    function, arguments = command.load(f"{factories}:good")
    assert callable(function) and arguments == ("first", "second")
    assert command.load(f"{factories}:flat") == (len, ("only",))


@pytest.mark.parametrize("name", ["wrong", "broken", "missing"])
def test_a_factory_that_cannot_be_used_is_an_input_error(factories: Path, name: str) -> None:
    with pytest.raises(InputError):
        command.load(f"{factories}:{name}")


@pytest.mark.parametrize("place", ["nothing", "missing.py:f", "no_such_module:f", ":f", "file.py:"])
def test_a_place_that_does_not_exist_exits_with_2(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", place]) == 2
    assert capsys.readouterr().err


def test_json_and_text(factories: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[Any] = []

    def fake(function: Any, *arguments: Any, target: Any, **options: Any) -> Estimate:
        asked.append((arguments, target.name, options))
        return made_up(target)

    monkeypatch.setattr(helion_rt.schedule, "estimate", fake)
    assert main(["estimate", f"{factories}:good", "--target", "v5e", "--target", "7x", "--trips", "3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["target"] for one in told] == ["v5e", "tpu7x"] and told[0]["kind"] == "scheduled"
    assert asked[0] == (("first", "second"), "v5e", {"trips": 3, "deadline": 300.0})
    assert main(["estimate", f"{factories}:good"]) == 0
    text = capsys.readouterr().out
    assert "1.25 ms" in text and "not measured" in text and "bound by MXU" in text and "matmul.1" in text and "note: a note" in text


def test_a_refusal_of_the_compiler_exits_with_1(
    factories: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fake(*arguments: Any, target: Any, **options: Any) -> Estimate:
        raise CompileError("out of VMEM", target=target.name)

    monkeypatch.setattr(helion_rt.schedule, "estimate", fake)
    assert main(["estimate", f"{factories}:good", "--json"]) == 1
    captured = capsys.readouterr()
    assert "out of VMEM" in captured.err and json.loads(captured.out) == []
    assert main(["estimate", f"{factories}:good", "--target", "cpu9"]) == 2
