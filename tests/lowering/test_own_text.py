"""The text of the functions that generated source carries along."""

import inspect

import pytest

from helion_rt.lowering import memory_source, memory_tpu_source, unaligned_source
from helion_rt.lowering.own_text import texts_of


@pytest.mark.parametrize("module", [memory_source, memory_tpu_source, unaligned_source])
def test_it_is_the_whole_function_and_nothing_else(module):
    assert module.HELPERS
    for name, text in module.HELPERS.items():
        assert text == "\n" + inspect.getsource(getattr(module, name))


def test_parameters_over_several_lines_and_the_end_of_a_file():
    assert texts_of(_long, _last) == {f.__name__: "\n" + inspect.getsource(f) for f in (_long, _last)}


def test_without_the_file_it_says_what_is_missing():
    space = {}
    exec(compile("def lost(): pass", "/nowhere/lost.py", "exec"), space)
    with pytest.raises(OSError, match=r"/nowhere/lost\.py cannot be read"):
        texts_of(space["lost"])


def _long(
    a,
    b,
):
    # the bracket above is at the margin

    return a + b


def _last(a):
    return a
