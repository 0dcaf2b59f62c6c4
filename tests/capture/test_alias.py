"""An alias changes with everything that a capture depends on, and with nothing else."""

from __future__ import annotations

import importlib.util
import itertools
import math
import pathlib
import types
from typing import Any

import pytest
import torch

from helion_rt.capture import alias
from helion_rt.program.signature import ScalarFact, TensorFact

FACTS = (TensorFact((8,), "float32"),)
_numbers = itertools.count()

BASE = """
import math
import torch
import helion_rt.language as hl
FACTOR = 2.0
def helper(v):
    return v * FACTOR
def kernel(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.exp(helper(x[tile])) + math.pi
    return out
"""


@pytest.fixture
def of(tmp_path: pathlib.Path) -> Any:
    """Writes a module, gives the alias of its ``kernel``."""

    def make(text: str) -> str | None:
        path = tmp_path / f"alias_kernel_{next(_numbers)}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return alias(module.kernel, FACTS)

    return make


def test_formatting_and_comments_do_not_matter(of: Any) -> None:
    base = of(BASE)
    assert base is not None and base == of(BASE)
    assert base == of("# first\n" + BASE.replace("    return out", "    # done\n\n    return (out)"))
    assert base == of(BASE.replace("def kernel(x):", 'def kernel(x):\n    """Says what it does."""'))
    assert base == of(BASE + "UNRELATED = 3\n")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("FACTOR = 2.0", "FACTOR = 2.5"),
        ("FACTOR = 2.0", "FACTOR = 2"),
        ("v * FACTOR", "v + FACTOR"),
        ("torch.exp", "torch.exp2"),
        ("math.pi", "math.e"),
        ("import torch\n", "import torch\nfrom torch import log as exp\n"),
    ],
)
def test_what_is_computed_matters(of: Any, old: str, new: str) -> None:
    assert BASE.count(old) >= 1
    changed = BASE.replace(old, new)
    if "as exp" in new:  # a name that the kernel does not read changes nothing
        assert of(changed) == of(BASE)
    else:
        assert of(changed) is not None and of(changed) != of(BASE)


def test_facts_matter() -> None:
    def kernel(x):
        return x

    aliases = {alias(kernel, f) for f in (FACTS, (TensorFact((9,), "float32"),), (TensorFact((8,), "bfloat16"),), (ScalarFact("int"),))}
    assert len(aliases) == 4 and None not in aliases


def _closure(value: Any) -> Any:
    def kernel(x):
        return x * value

    return kernel


def test_closures_and_defaults() -> None:
    assert alias(_closure(1)) == alias(_closure(1)) != alias(_closure(2))
    assert alias(_closure(torch.float32)) != alias(_closure(torch.bfloat16))
    assert alias(_closure((1, [2]))) != alias(_closure((1, [3])))
    assert alias(_closure(math.sin)) != alias(_closure(math.cos))

    def make(d: int) -> Any:
        def kernel(x, n=d):
            return x * n

        return kernel

    assert alias(make(1)) != alias(make(2))


@pytest.mark.parametrize("value", [object(), types.SimpleNamespace(a=1), {1: object()}], ids=["object", "namespace", "dict"])
def test_what_has_no_stable_value_has_no_alias(value: Any) -> None:
    assert alias(_closure(value)) is None


def test_a_tensor_is_a_parameter_whose_values_do_not_matter() -> None:
    assert alias(_closure(torch.ones(3))) == alias(_closure(torch.zeros(4))) is not None
    assert alias(_closure(torch.ones(3))) != alias(_closure(1))


def test_lambdas() -> None:
    scale = 2.0
    first = lambda acc, tile: acc * scale  # noqa: E731
    second = lambda acc, tile: acc + scale  # noqa: E731
    assert alias(first) is not None and alias(first) != alias(second)
    assert alias(torch.relu) is not None and alias(torch.relu) != alias(torch.exp)
    third, fourth = (lambda acc, tile: acc * scale), (lambda acc, tile: acc + scale)
    assert alias(third) == alias(first) and alias(fourth) == alias(second)


def test_recursion_ends(of: Any) -> None:
    text = "def helper(n):\n    return helper(n - 1) if n else 0\ndef kernel(x):\n    return x + helper(3)\n"
    assert of(text) is not None and of(text) != of(text.replace("else 0", "else 1"))


def test_names_inside_of_nested_functions_count(of: Any) -> None:
    text = "SCALE = 1\ndef kernel(x):\n    def inner(v):\n        return v * SCALE\n    return inner(x)\n"
    assert of(text) != of(text.replace("SCALE = 1", "SCALE = 2"))
