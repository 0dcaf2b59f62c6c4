"""Manifests: what the three forms say, and what is wrong with one."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from helion_rt.cli import manifest
from helion_rt.cli.keys import argument
from helion_rt.exc import HelionError, InputError

ENTRY = {"kernel": "my_kernels.py:double", "args": [{"shape": [64, 128], "dtype": "float32"}, {"value": 3.0}], "target": "v5e"}


def lines(*items: object) -> list[str]:
    return [item if isinstance(item, str) else json.dumps(item) for item in items]


def test_equal_lines_count_once_and_the_most_called_come_first() -> None:
    other, third = {**ENTRY, "target": "v6e"}, {**ENTRY, "target": "v4"}
    listed = lines(
        {**ENTRY, "id": "a"}, "# a comment", "", {**other, "id": "b"}, {"id": "b", "calls": 3, "process": 1}, {**ENTRY, "id": "a"},
        {"id": "b", "calls": 4, "process": 2}, {"id": "a", "calls": 6, "process": 1}, {"id": "unknown", "calls": 9}, third,
    )  # fmt: skip
    assert list(manifest.from_lines(listed)) == [other, ENTRY, third]


@pytest.mark.parametrize(
    "line",
    [
        *('{"kernel": "a', "[]", "3", "[" * 100_000, '{"kernel": 3, "args": []}', '{"kernel": "a:b"}'),
        *('{"calls": 3}', '{"id": "a"}', '{"id": "a", "calls": true}', '{"id": ["a"], "calls": 3}'),
        *('{"kernel": "a:b", "args": [], "newer": 1}', '{"kernel": "a:b", "args": [], "kwargs": []}'),
        *('{"kernel": "a:b", "args": [], "target": 3}', '{"kernel": "a:b", "args": [], "id": ["a"]}'),
    ],
)
def test_a_line_that_means_nothing_is_told_by_its_number_and_harms_no_other(line: str) -> None:
    good, bad = manifest.from_lines(lines("# first", line, ENTRY))
    assert good == ENTRY and bad["line"] == 2 and bad["problem"]


def test_a_bad_line_is_an_entry_with_a_problem(folder: Path) -> None:
    path = folder / "keys.jsonl"
    path.write_bytes("\n".join(lines(ENTRY, "{\N{EURO SIGN}")).encode()[:-1])  # whoever wrote it was killed
    good, bad = manifest.entries(manifest.load(path), folder, None)
    assert good.kernel is not None and good.target.name == "v5e" and good.label() == "double(64x128, 3.0) on v5e"
    assert bad.kernel is None and bad.name == "line 2"


def test_targets_of_a_line_of_the_manifest_and_of_the_command_line(folder: Path) -> None:
    plain = {"kernel": ENTRY["kernel"], "args": ENTRY["args"]}
    data = {"targets": ["v6e", "v4"], "kernels": [ENTRY, plain]}
    assert [e.target.name for e in manifest.entries(data, folder, None)] == ["v5e", "v6e", "v4"]
    assert [e.target.name for e in manifest.entries(data, folder, ["v5p"])] == ["v5p", "v5p"]


def test_kwargs_reach_the_call_and_the_label(folder: Path) -> None:
    item = {"kernel": "my_kernels.py:double", "args": ENTRY["args"][:1], "kwargs": {"by": {"value": 4.0}}}
    (entry,) = manifest.entries({"targets": ["v5e"], "kernels": [item]}, folder, None)
    assert entry.kwargs == {"by": 4.0} and entry.label() == "double(64x128, by=4.0) on v5e"
    assert entry.arguments() == "64x128 float32, by=4.0"


def test_arguments_of_every_kind() -> None:
    assert argument({"value": None}, "k") is None and argument({"value": "text"}, "k") == "text"
    assert argument({"float": "-inf"}, "k") == -math.inf and math.isnan(argument({"float": "nan"}, "k"))
    assert argument({"dtype": "bfloat16"}, "k") is torch.bfloat16
    shaped, three = argument({"items": [{"shape": [2], "dtype": "int8"}, {"value": 3}]}, "k")
    assert shaped.shape == (2,) and shaped.dtype == "int8" and three == 3


@pytest.mark.parametrize(
    "item", [{"float": "3"}, {"float": 3.0}, {"dtype": "nn"}, {"dtype": 3}, {"items": 3}, {"items": [3]}, {"value": 1, "dtype": "int8"}, {}]
)
def test_arguments_that_mean_nothing(item: object) -> None:
    with pytest.raises(InputError):
        argument(item, "k")


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"kernels": []}', '{"kernels": [3]}', '{"kernels": [{"kernel": "a:b", "args": [], "x": 1}]}']
)
def test_a_manifest_that_makes_no_sense(tmp_path: Path, text: str) -> None:
    path = tmp_path / "m.json"
    path.write_text(text)
    with pytest.raises((ValueError, HelionError)):
        list(manifest.entries(manifest.load(path), tmp_path, ["v5e"]))
