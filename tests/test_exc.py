from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from helion_rt import exc

ERRORS = [kind for _, kind in inspect.getmembers(exc, inspect.isclass) if issubclass(kind, exc.HelionError)]


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_names_kernel_place_source_and_hint(kind: type[exc.HelionError], tmp_path: Path) -> None:
    source = tmp_path / "mine.py"
    source.write_text("first\n    out[tile] = sort(x[tile])\n")
    error = kind("sort is not supported", kernel="my_kernel", file=str(source), line=2, hint="sort outside of the loop")
    assert str(error).splitlines() == [
        "sort is not supported",
        f"  in kernel 'my_kernel', {source}:2",
        "    out[tile] = sort(x[tile])",
        "hint: sort outside of the loop",
    ]
    assert (error.kernel, error.line, error.hint) == ("my_kernel", 2, "sort outside of the loop")


def test_parts_that_are_not_known_are_left_out() -> None:
    assert str(exc.CaptureError("no")) == "no"
    assert str(exc.CaptureError("no", file="/nowhere/x.py", line=3)) == "no\n  at /nowhere/x.py:3"
    assert str(exc.CaptureError("no", kernel="k")) == "no\n  in kernel 'k'"


def test_constructors_take_the_rest_by_keyword_only() -> None:
    with pytest.raises(TypeError):
        exc.CaptureError("no", "kernel")  # type: ignore[misc]


def test_compile_error_keeps_the_reason_and_the_whole_text() -> None:
    error = exc.CompileError("too big", target="v5e", full_text="long\nstory")
    assert (error.reason, error.full_text) == ("too big", "long\nstory")
    assert str(error) == "does not compile for v5e: too big"


def test_errors_of_the_caller_are_value_errors_too() -> None:
    assert issubclass(exc.ConfigError, ValueError)
    assert issubclass(exc.InputError, ValueError)


def test_helions_warning_can_be_filtered_as_ours() -> None:
    assert issubclass(exc.TensorOperationInWrapper, exc.HelionRtWarning)
    assert issubclass(exc.TensorOperationInWrapper, UserWarning)
