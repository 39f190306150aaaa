"""Pages in a browser: on a phone, in the dark, under the pointer; tables that sort and filter."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jinja2 import ChoiceLoader, DictLoader
from markupsafe import Markup

from helpers.browser import browser
from helpers.digits import digits
from hge import GatedExperts
from hge.drawing.pages import render
from hge.drawing.svg import SMALL, svg_figure
from hge.reporting.run_report import notices

WHOLE = {"dnf": False, "experts": 5, "experts_unpromoted": 0, "switches_found": 4, "switches_missed": 0}
FIGURES = """{% extends "page.html.j2" %}{% block title %}t{% endblock %}{% block body %}{% for svg in drawn %}
<div class="figure">{{ svg }}</div>{% endfor %}{% endblock %}"""
TABLE = """{% extends "page.html.j2" %}{% block title %}t{% endblock %}{% block body %}<input data-filters="t">
<table class="sortable" id="t"><tr><th>name</th><th>number</th></tr><tr><td>b two</td><td>10 ± 1</td></tr>
<tr><td>a</td><td>9.5</td></tr><tr><td>c two</td><td>1,000</td></tr></table>{% endblock %}"""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None),
        ({"dnf": True}, "did not finish"),
        ({"experts_unpromoted": 2}, "2 of 5 experts were never promoted"),
        ({"switches_missed": 1}, "1 of 5 changes of task were missed"),
    ],
)
def test_a_run_says_what_is_wrong_and_what_to_do(change: dict[str, int], words: str | None) -> None:
    found = notices(WHOLE | change)
    assert len(found) == (words is not None)
    if words:
        assert words in found[0]
        assert "--" in found[0]


@pytest.mark.slow
def test_a_report_on_a_phone_in_the_dark(tmp_path: Path) -> None:
    model = GatedExperts()
    for low in (True, False):
        model.partial_fit(*(part[:320] for part in digits(low)))
    path = model.report(tmp_path / "report.html")
    assert path.stat().st_size < 2 * 2**20
    assert not re.search(r"""(src|href)=["']http""", path.read_text())  # nothing is loaded
    with browser(tmp_path / "profile") as page:
        page.size(390, 800, dark=True)
        page.open(path.as_uri())
        assert page.value("document.documentElement.scrollWidth") == 390
        hint = "getComputedStyle(document.querySelector('.figure'), '::before').content"
        assert "scroll it sideways" in page.value(hint)
        assert page.value("getComputedStyle(document.body).backgroundColor") == "rgb(22, 25, 29)"
        page.value(
            "(() => { const svg = document.querySelector('svg[data-hover]'), box = svg.getBoundingClientRect();"
            "svg.dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + box.width, clientY: 9})); })()"
        )
        before = page.value("document.querySelector('svg[data-hover]').clientWidth")
        page.value("document.querySelector('.zoom').click()")
        assert page.value("document.querySelector('svg[data-hover]').clientWidth") > 1.5 * before
        assert page.value("document.documentElement.scrollWidth") == 390
        last = int(model.history_["step"][-1])
        assert page.value("document.getElementById('tip').textContent").startswith(f"batch {last}: loss ")


@pytest.mark.slow
def test_a_small_figure_is_as_wide_as_a_phone_and_a_wide_one_says_that_there_is_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    for width in (SMALL, 11):
        with svg_figure(width, 3) as (figure, svg):
            figure.subplots()
        drawn.append(svg.getvalue())
    own = DictLoader({"f": FIGURES})
    monkeypatch.setattr("hge.drawing.pages.ChoiceLoader", lambda loaders: ChoiceLoader([own, *loaders]))
    (tmp_path / "f.html").write_text(render("f", drawn=map(Markup, drawn)))
    tell_of_more = "[...document.querySelectorAll('.figure')].map(figure => figure.classList.contains('more')).join()"
    with browser(tmp_path / "profile") as page:
        page.size(390, 800)
        page.open((tmp_path / "f.html").as_uri())
        page.wait_for(f"{tell_of_more} === 'false,true'")
        page.size(1200, 800)
        page.wait_for(f"{tell_of_more} === 'false,false'")


@pytest.mark.slow
def test_a_table_is_sorted_and_filtered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = DictLoader({"t": TABLE})
    monkeypatch.setattr("hge.drawing.pages.ChoiceLoader", lambda loaders: ChoiceLoader([own, *loaders]))
    (tmp_path / "t.html").write_text(render("t"))
    cells = "[...document.querySelectorAll('#t td:first-child')]"
    shown = f"{cells}.filter(cell => !cell.parentNode.hidden).map(cell => cell.textContent)"
    with browser(tmp_path / "profile") as page:
        page.open((tmp_path / "t.html").as_uri())
        page.value("document.querySelectorAll('th')[1].click()")
        assert page.value(shown) == ["a", "b two", "c two"]
        page.value("document.querySelectorAll('th')[1].click()")
        assert page.value(shown) == ["c two", "b two", "a"]
        page.value("document.querySelector('input').value = 'Two b'")
        page.value("document.querySelector('input').dispatchEvent(new Event('input'))")
        assert page.value(shown) == ["b two"]
