"""The examples of docs/language.md are right, cover the language, and compile for the TPUs where the document says so."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import helion_rt.language as hl
from docs.language_examples import EXAMPLES, Example
from helion_rt.exc import CompileError, PlanError
from scripts import make_language_doc

TARGETS = ("v5e", "v6e", "tpu7x")
EVERY = [pytest.param(e, id=e.names[0]) for e in EXAMPLES]


def _check(out: Any, want: Any) -> None:
    if isinstance(want, tuple):
        assert len(out) == len(want)
        for o, w in zip(out, want, strict=True):
            _check(o, w)
    elif callable(want):
        assert want(out)
    else:
        torch.testing.assert_close(out.double(), want.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("example", EVERY)
def test_is_right(example: Example) -> None:
    wide = [a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in example.arguments()]
    _check(example.kernel(*example.arguments()), example.expected(*wide))


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("example", EVERY)
def test_compiles_where_the_document_says_so(example: Example, target: str) -> None:
    if example.tpu is None:
        assert example.kernel.lower(*example.arguments(), target=target).compile().tpu_custom_calls >= 1
    else:
        with pytest.raises((PlanError, CompileError)):
            example.kernel.lower(*example.arguments(), target=target).compile()


def test_every_name_has_an_example() -> None:
    assert sorted(name for e in EXAMPLES for name in e.names) == sorted(hl.__all__)


def test_the_document_is_what_the_code_says() -> None:
    written = make_language_doc.FILE.read_text()
    assert written == make_language_doc.document(), "run: python -m scripts.make_language_doc"
