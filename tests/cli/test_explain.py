"""``helion-rt cache explain``: arguments, exit statuses, both forms of what is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helion_rt.cli.main import main
from helion_rt.database import Evidence, EvidenceKind, Record, Status, open_local
from helion_rt.runtime import prepare
from helion_rt.runtime.explain import explain
from helion_rt.tuning.space import SPACE_VERSION

TENSOR = '{shape = [64, 128], dtype = "float32"}'


@pytest.fixture(autouse=True)
def here(folder: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(["cache", "explain", *words])
    out, err = capsys.readouterr()
    return status, out, err


def test_arguments_in_every_form_mean_one_key(capsys: pytest.CaptureFixture[str]) -> None:
    forms = [
        (TENSOR, "{value = 3.0}"),
        ('{"shape": [64, 128], "dtype": "float32"}', "{value = 3.0}"),
        ("--args", f"[{TENSOR}, {{value = 3.0}}]"),
        (TENSOR, "--kwargs", "{by = {value = 3.0}}"),
        (TENSOR, "--kwargs", '{"by": {"value": 3.0}}'),
    ]
    keys = set()
    for form in forms:
        status, out, err = run(capsys, "my_kernels.py:double", *form, "--target", "v5e", "--json")
        assert (status, err) == (1, "")
        keys.add(json.loads(out)["key"])
    assert len(keys) == 1


def test_a_miss_and_a_hit(capsys: pytest.CaptureFixture[str], own_cache: Path) -> None:
    words = ("my_kernels.py:double", TENSOR, "--target", "v5e")
    status, out, _ = run(capsys, *words)
    assert status == 1 and "x.shape          64x128" in out and "local    miss: no record" in out and "nearest keys: none" in out
    from helion_rt.cli.keys import argument, load_kernel

    shaped = argument({"shape": [64, 128], "dtype": "float32"}, "")
    key = explain(load_kernel("my_kernels.py:double", Path.cwd()), shaped, target="v5e").key
    evidence = Evidence(EvidenceKind.SCHEDULED, 1.0, 2.0)
    record = Record(key, "double", Status.WINNER, {"block_sizes": [8, 128]}, SPACE_VERSION, evidence, prepare.toolchain())
    open_local(own_cache).put(record)
    status, out, _ = run(capsys, *words)
    assert status == 0 and "local    hint: not measured, only predicted (scheduled)" in out
    assert "winner; block_sizes=[8, 128]; 1 ms, 2 ms by the default (scheduled)" in out
    other = TENSOR.replace("64", "32")
    status, out, _ = run(capsys, "my_kernels.py:double", other, "--target", "v5e")
    assert status == 1 and f"{key.digest[:12]} (local): x.shape is 64x128, here 32x128" in out


def test_a_forced_config_serves(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "my_kernels.py:forced", TENSOR, "--target", "v5e")
    assert status == 0 and "forced: " in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["my_kernels.py:none"], "has no none"),
        (["my_kernels.py:double"], "missing a required argument"),
        (["my_kernels.py:double", "nonsense"], "ARG is a table"),
        (["my_kernels.py:double", TENSOR, "--args", "[]"], "not both"),
        (["my_kernels.py:double", "--args", "{}"], "--args is a list"),
        (["my_kernels.py:double", TENSOR, "--kwargs", "[]"], "--kwargs is a table"),
        (["my_kernels.py:double", TENSOR, "--kwargs", "{no = {value = 1}}"], "no"),
        (["my_kernels.py:double", TENSOR, "--target", "v99"], "v99"),
    ],
)
def test_what_cannot_be_used(capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    status, out, err = run(capsys, *words)
    assert status == 2 and out == "" and says in err and len(err.splitlines()) < 5
