"""A matplotlib figure as one inline SVG element: ids of its own, and a text to every mark that the pointer rests on."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

from matplotlib import rc_context
from matplotlib.figure import Figure

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
_REFERENCE = re.compile(r"url\(#([^)]+)\)")

# Text stays text (it can be searched, and scales), dollar signs are no formulas, and the same figure is the same bytes.
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "helion_rt",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e8",
    "legend.frameon": False,
}

ElementTree.register_namespace("", _SVG)
ElementTree.register_namespace("xlink", _XLINK)


def element(figure: Figure, name: str, tips: Mapping[str, str], label: str) -> str:
    """The figure as an ``<svg>``. ``name`` makes its ids unique in the page; ``tips``: text by the ``gid`` of an artist;
    ``label``: what it shows, for those who cannot see it."""
    buffer = io.BytesIO()
    with rc_context(STYLE):
        figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    root = ElementTree.fromstring(buffer.getvalue())
    for child in list(root):
        if child.tag == f"{{{_SVG}}}metadata":
            root.remove(child)
    for node in root.iter():
        tip = tips.get(node.get("id", ""))
        if tip is not None:
            title = ElementTree.Element(f"{{{_SVG}}}title")
            title.text = tip
            node.insert(0, title)
        _rename(node, name)
    root.set("role", "img")
    root.set("aria-label", label)
    # The page decides how wide; the view box keeps the proportions.
    width = root.attrib.pop("width", "640pt").removesuffix("pt")
    root.attrib.pop("height", None)
    root.set("style", f"width: {float(width) * 4 / 3:.0f}px; max-width: 100%; height: auto")
    return ElementTree.tostring(root, encoding="unicode")


def _rename(node: ElementTree.Element, prefix: str) -> None:
    """Put ``prefix`` before a node's id and before the ids that it refers to."""
    for key, value in node.attrib.items():
        if key == "id":
            node.set(key, f"{prefix}-{value}")
        elif key in ("href", f"{{{_XLINK}}}href") and value.startswith("#"):
            node.set(key, f"#{prefix}-{value[1:]}")
        elif "url(#" in value:
            node.set(key, _REFERENCE.sub(rf"url(#{prefix}-\1)", value))
