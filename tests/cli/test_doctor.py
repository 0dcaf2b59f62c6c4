from __future__ import annotations

import argparse
import importlib.util
import json
from pathlib import Path

import pytest

from helion_rt import targets
from helion_rt.cli import doctor
from helion_rt.exc import CompileError
from helion_rt.settings import Settings


def _cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Aims at the CPU only: the compiler has tests of its own."""
    monkeypatch.setattr(targets, "TPU_NAMES", ())


def test_the_report_is_json_and_all_is_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HELION_RT_CACHE_DIR", str(tmp_path / "cache"))
    assert doctor.run(argparse.Namespace(json=True)) == 0
    report = json.loads(capsys.readouterr().out)
    assert [target["name"] for target in report["targets"]] == [*targets.TPU_NAMES, "cpu"]
    has_libtpu = importlib.util.find_spec("libtpu") is not None
    assert all(target["compiles"] for target in report["targets"] if has_libtpu or target["name"] == "cpu")
    assert report["backend"] == {"platform": "cpu", "device": "cpu", "target": "cpu"}
    assert report["settings"]["tune"] == "off" and any("tuning is off" in text for text in report["warnings"])
    assert report["problems"] == []
    assert not (tmp_path / "cache").exists()  # looking creates nothing


def test_the_report_for_people_names_targets_and_problems(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _cheap(monkeypatch)
    monkeypatch.setenv("HELION_RT_TUNE", "perhaps")
    assert doctor.run(argparse.Namespace(json=False)) == 1
    out = capsys.readouterr().out
    assert "cpu/" in out and "problem:" in out and "HELION_RT_TUNE='perhaps'" in out


def test_a_target_that_does_not_compile_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    _cheap(monkeypatch)

    def refuse(*args: object, **kwargs: object) -> None:
        raise CompileError("it will not", target="cpu")

    monkeypatch.setattr(targets, "compile_for", refuse)
    report = doctor.examine({})
    assert report["targets"][0]["compiles"] is False
    assert any("it will not" in text for text in report["problems"])


def test_a_file_in_the_place_of_the_cache_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _cheap(monkeypatch)
    (tmp_path / "file").write_text("")
    report = doctor.examine({"HELION_RT_CACHE_DIR": str(tmp_path / "file" / "below")})
    assert any("is a file" in text for text in report["problems"])


def test_a_cache_that_cannot_be_written_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _cheap(monkeypatch)
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: False)  # as an unprivileged user sees it; tests may run as root
    report = doctor.examine({"HELION_RT_CACHE_DIR": str(tmp_path)})
    assert any("cannot be written" in text for text in report["warnings"]) and not report["problems"]


def test_traps_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    _cheap(monkeypatch)
    monkeypatch.setattr(targets, "has_chips", lambda: True)
    env = {"HELION_RT_CACHEDIR": "x", "JAX_PLATFORMS": "cpu", "LIBTPU_INIT_ARGS": "--x"}
    warnings = "\n".join(doctor.examine(env)["warnings"])
    assert "did you mean HELION_RT_CACHE_DIR?" in warnings
    assert "has a TPU, but JAX_PLATFORMS=cpu hides it" in warnings
    assert "LIBTPU_INIT_ARGS is set" in warnings


def test_shared_tiers_are_tried_once_and_no_password_is_shown(tmp_path: Path) -> None:
    settings = Settings(cache_dir=tmp_path)
    well = doctor._shared(f"file://{tmp_path}", settings)
    assert well["ms"] > 0 and well["reason"] is None and well["mode"] == "write-through"
    gone = doctor._shared(f"file://{tmp_path}/gone", settings)
    assert gone["ms"] is None and "does not exist" in gone["reason"]
    wrong = doctor._shared("redis://user:secret@127.0.0.1:1/0?color=red", settings)
    assert "color" in wrong["reason"] and "secret" not in str(wrong)
