"""HTML reports of searches: one self-contained file, no scripts, nothing fetched.

``write(path, searches, crossings)`` needs the extra ``report`` (matplotlib for the figures, jinja2 for the page); ``require()``
says so before any work is done.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from helion_rt.exc import HelionError

from .contents import Crossing, Rates, Search

__all__ = ["Crossing", "Rates", "Search", "html", "require", "write"]


def require() -> None:
    """Raise ``HelionError`` that names the extra where what reports are made with is not installed."""
    for module in ("matplotlib", "jinja2"):
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise HelionError(f"a report needs {module}, which is not installed", hint="pip install 'helion_rt[report]'") from error


def html(searches: Sequence[Search], crossings: Sequence[Crossing] = (), title: str = "helion_rt tuning report") -> str:
    """The report as one HTML document. Raises ``HelionError`` without the extra ``report``."""
    require()
    from . import page

    return page.render(searches, crossings, title)


def write(path: Path, searches: Sequence[Search], crossings: Sequence[Crossing] = (), title: str = "helion_rt tuning report") -> None:
    """Write the report to ``path``, whole or not at all. Raises ``HelionError`` without the extra, ``OSError`` where it cannot write."""
    text = html(searches, crossings, title)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
