"""The command itself: versions, usage errors, and that it starts light."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helion_rt._version import __version__
from helion_rt.cli import main as module

ROOT = Path(module.__file__).parents[2]


RUN = "import sys; from helion_rt.cli.main import main; sys.exit(main())"


def command(*words: str, code: str = RUN) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, env=env, timeout=60)


def test_version() -> None:
    result = command("--version")
    assert (result.returncode, result.stdout) == (0, f"helion-rt {__version__}\n")


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        module.main(["--help"])
    out = " ".join(capsys.readouterr().out.split())  # long lines are wrapped
    assert stop.value.code == 0
    assert all(f"{command.name} " in out and command.help in out for command in module.COMMANDS)


@pytest.mark.parametrize("words", [[], ["bogus"], ["cache"], ["cache", "bogus"], ["cache", "show"], ["--bogus"]])
def test_a_usage_error_exits_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        module.main(words)
    assert stop.value.code == 2 and "usage: helion-rt" in capsys.readouterr().err


def test_only_the_chosen_command_is_imported() -> None:
    show = "import sys; from helion_rt.cli.main import main\ntry: main()\nexcept SystemExit: pass\nprint('MODULES', *sys.modules)"
    loaded = {words: set(command(*words, code=show).stdout.split("MODULES")[1].split()) for words in [("--help",), ("cache", "path")]}
    assert loaded["--help",].isdisjoint({"helion_rt.cli.cache", "helion_rt.cli.doctor", "helion_rt.database", "rich", "jax", "torch"})
    assert "helion_rt.cli.cache" in loaded["cache", "path"]
    assert loaded["cache", "path"].isdisjoint({"helion_rt.cli.doctor", "helion_rt.cli.prewarm", "rich", "jax", "torch", "diskcache"})


def test_a_reader_who_has_seen_enough_is_no_error() -> None:
    code = """
import os, sys
from helion_rt.cli.main import main
reader, writer = os.pipe()
os.dup2(writer, 1); os.close(writer); os.close(reader)
sys.exit(main(["cache", "path", "--dir", "/somewhere"]))
"""
    result = command(code=code)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_reader_that_has_seen_enough_is_no_failure(tmp_path: Path) -> None:
    """As in ``helion-rt cache ls | head``; rich by itself would make it status 1."""
    from helion_rt.database import Evidence, EvidenceKind, Key, LocalTier, Record, Status

    record = Record(Key("ab" * 32, (), "x64", "cpu"), "k", Status.NO_CANDIDATE, {}, 1, Evidence(EvidenceKind.SCHEDULED), {})
    assert LocalTier(tmp_path).put(record)
    reader, writer = os.pipe()
    os.close(reader)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HELION_RT_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", RUN, "cache", "ls"]
    result = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, env=env, timeout=60)
    os.close(writer)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_closed_standard_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert module.main(["cache", "ls", "--dir", str(tmp_path)]) == 0
