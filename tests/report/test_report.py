"""The HTML report: what is in it, that it needs nothing from outside, and that nothing in it can do harm."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from helion_rt import report
from helion_rt.config import Config
from helion_rt.database import EvidenceKind
from helion_rt.exc import HelionError
from helion_rt.report import plots, text
from helion_rt.tuning.evidence import Event, Trial

sys.path.insert(0, str(Path(__file__).parent))
from report_support import DEFAULT, WINNER, crossing, events, search

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """The elements of a page, its texts, and whether every element that begins also ends."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.elements if name == tag]


@pytest.fixture(scope="module")
def page() -> Page:
    crossings = [
        crossing("v5e", "v5e", Trial(None, 2e-3, EvidenceKind.SCHEDULED)),
        crossing("tpu7x", "tpu7x", Trial(None, 1e-3, EvidenceKind.SCHEDULED)),
        crossing("v5e", "tpu7x", Trial(None, 1.5e-3, EvidenceKind.SCHEDULED)),
        crossing("tpu7x", "v5e", Trial("CompileError: out of VMEM", kind=EvidenceKind.SCHEDULED)),
    ]
    return Page(report.html([search(), search("softmax", "8x8 float32", target="v5e")], crossings))


def test_every_search_has_its_figures_and_its_reasons(page: Page) -> None:
    labels = [attrs["aria-label"] for attrs in page.all("svg")]
    assert len(labels) == 10 and len(set(labels)) == 5  # two searches, five figures each
    assert "The winner takes 1 ms (scheduled) after 4 configs were tried, 1 of which failed" in page.text
    assert "Had it chosen loop_strategies=['unroll']: not legal: 80 MiB of VMEM." in page.text
    assert "1 ×: CompileError: # MiB of VMEM, the limit is # MiB" in page.text
    assert "1,234 points" in page.text


def test_times_are_labelled_by_their_kind(page: Page) -> None:
    assert "Nothing on this page was measured on a TPU." in page.text
    badges = [attrs["class"] for attrs in page.all("span") if (attrs.get("class") or "").startswith("kind")]
    assert badges and set(badges) == {"kind scheduled"}
    assert page.text.count("time of one call (scheduled)") == 4  # two figures of each search


def test_the_matrix_says_what_each_winner_costs_elsewhere(page: Page) -> None:
    assert "on v5e" in page.text and "on tpu7x" in page.text
    assert "1.5 ms (+50.0%)" in page.text and "does not work" in page.text
    tips = [attrs["title"] or "" for attrs in page.all("td") if "title" in attrs]
    assert len(tips) == 4 and sum("out of VMEM" in tip for tip in tips) == 1


def test_it_is_one_file_that_asks_for_nothing(page: Page) -> None:
    for _tag, attrs in page.elements:
        for name in ("src", "href", "xlink:href", "srcset", "data", "action"):
            assert (attrs.get(name) or "#").startswith("#")
    assert not {"script", "iframe", "object", "embed", "form", "link"} & {tag for tag, _ in page.elements}
    assert "default-src 'none'" in str(page.all("meta"))


def test_no_two_elements_share_an_id_and_every_reference_is_there(page: Page) -> None:
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    referred = {(attrs.get(name) or "")[1:] for _, attrs in page.elements for name in ("href", "xlink:href") if attrs.get(name)}
    referred |= {match for _, attrs in page.elements for value in attrs.values() for match in re.findall(r"url\(#([^)]+)\)", value or "")}
    assert referred and referred <= set(ids)


HOSTILE = "<script>alert('x')</script>\"&$\\frac{a}{0}$ ]]> {{ 7*7 }} \u202e é"


def test_hostile_names_are_text() -> None:
    config = Config(block_sizes=[8, 8, 8], loop_strategies=["grid"], note=HOSTILE)
    trial = Trial(None, 1e-4, EvidenceKind.SCHEDULED, {"bottleneck": HOSTILE, f"unit:{HOSTILE}": 0.5, HOSTILE: HOSTILE})
    log = (Event(0.5, DEFAULT, 1e-3, Trial(HOSTILE), HOSTILE, None, None), Event(1.0, config, 2e-4, trial, HOSTILE, config, 1e-4))
    hostile = search(HOSTILE, HOSTILE, target=HOSTILE, winner=config, winner_seconds=1e-4, log=log, alternatives={HOSTILE: HOSTILE})
    crossings = [report.Crossing(HOSTILE, HOSTILE, HOSTILE, HOSTILE, config, Trial(HOSTILE))]
    page = Page(report.html([hostile], crossings, title=HOSTILE))
    assert "script" not in {tag for tag, _ in page.elements}
    assert all(not name.startswith("on") for _, attrs in page.elements for name in attrs)
    assert "{{ 7*7 }}" in page.text and "49" not in page.text  # a name is no template


def test_nothing_to_report() -> None:
    page = Page(report.html([]))
    assert "no search was made" in page.text and page.all("svg") == []


GOOD = Trial(None, 1e-3, EvidenceKind.SCHEDULED)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"log": (), "remark": "found in the database"}, "found in the database"),
        ({"winner": None, "winner_seconds": None}, "Nothing beat the default's 3 ms (scheduled)"),
        ({"log": events()[1:2], "winner": None, "default_seconds": None, "winner_seconds": None}, "No candidate works"),
        ({"default_seconds": None, "log": events()[1:]}, "the default does not work here"),
        ({"cost": None, "rates": None}, "The winner takes 1 ms"),
        ({"default": Config(), "winner": None, "log": (Event(0.1, Config(), 0.0, GOOD, "", Config(), 1e-3),)}, "Nothing beat"),
    ],
)  # fmt: skip
def test_searches_that_lack_something(changes: dict[str, object], says: str) -> None:
    assert any(says in line for line in text.reasons(search(**changes)))


def test_a_search_without_figures_is_a_page_all_the_same() -> None:
    found = Page(
        report.html([search(log=(), remark="found in the database", cost=None), search(log=events()[1:2], winner=None, cost=None)])
    )
    assert "found in the database" in found.text and "All candidates (1)" in found.text and found.all("svg") == []


def test_times_of_another_kind_are_compared_with_nothing() -> None:
    config = Config(block_sizes=[8, 8, 8], loop_strategies=["grid"])
    fallback = Event(6.0, config, 1e-6, Trial(None, 1e-9, EvidenceKind.MODELLED), "", WINNER, 1e-3)
    page = Page(report.html([search(log=(*events(), fallback))]))
    assert "1 candidates have a time of another kind (modelled)" in page.text
    assert "1 ns" not in page.text


def test_many_candidates_are_thinned() -> None:
    many = tuple(
        Event(float(i), Config(block_sizes=[8 * (i + 1), 8, 8], loop_strategies=["grid"]), 1e-3 + i * 1e-6,
              Trial(None, 2e-3 + i * 1e-6, EvidenceKind.SCHEDULED), "", WINNER, 1e-3)
        for i in range(1000)
    )  # fmt: skip
    found = search(log=(*events(), *many))
    drawn = plots.thinned(found)
    assert len(drawn) <= plots.MAX_MARKS and {DEFAULT, WINNER} <= {event.config for event in drawn}
    assert "are left out" in report.html([search(log=(*events()[1:2] * 100,), cost=None, default_seconds=None)])


def test_a_missing_library_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    with pytest.raises(HelionError, match="matplotlib") as caught:
        report.require()
    assert "helion_rt[report]" in str(caught.value)


def test_the_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    report.write(path, [])
    before = path.read_text()
    assert before.startswith("<!DOCTYPE html>")
    monkeypatch.setattr("os.replace", lambda *names: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        report.write(path, [], title="another")
    assert path.read_text() == before and [p.name for p in tmp_path.iterdir()] == ["report.html"]
