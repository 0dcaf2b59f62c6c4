"""The source text of functions of this package."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any


def texts_of(*functions: Callable[..., Any]) -> dict[str, str]:
    """By name, the text of functions at the top of a module, an empty line first.

    ``inspect.getsource`` says the same, but tokenizes a function to find its end, which made a tenth of the time to import helion_rt.
    """
    return {f.__name__: "\n" + _text(f) for f in functions}


def _text(function: Callable[..., Any]) -> str:
    code = function.__code__
    lines = linecache.getlines(code.co_filename, function.__globals__)
    if not lines:
        raise OSError(f"{code.co_filename} cannot be read: helion_rt needs its own source, which generated kernels carry along")
    first = code.co_firstlineno - 1
    # A line at the margin is the next statement, but for the bracket that ends a long list of parameters.
    end = next((n for n in range(first + 1, len(lines)) if lines[n][:1] not in " \n)"), len(lines))
    return "".join(lines[first:end]).rstrip() + "\n"


__all__ = ["texts_of"]
