"""The page: complete, self-contained, and safe to put any text into."""

import base64
import re
from html.parser import HTMLParser
from pathlib import Path

from recall_runs import make_row

from rebased.analysis.report import render_report

_NEVER_CLOSED = ("meta", "img")


class Checker(HTMLParser):
    """Collects the text and the images' sources; what is opened must be closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _NEVER_CLOSED:
            self.open.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def page(tmp_path: Path, **changes: object) -> tuple[str, Checker]:
    rows = [make_row(tmp_path, "ReBased", [0.2, 0.99], [0.3, 0.95]), make_row(tmp_path, "x<2>", [0.5], [0.4])]
    given = {"findings": ["a < b"], "setting": {"width": "48"}, "environment": {"torch": "<b>2</b>"}}
    html = render_report(rows, **(given | {"figure": b"first", "similarities": b"second"} | changes))
    checker = Checker()
    checker.feed(html)
    assert checker.open == []
    return html, checker


def test_has_all_there_is_to_say(tmp_path: Path) -> None:
    _, checker = page(tmp_path)
    for text in ("0.970 ± 0.028", "0.990 0.950", "20", "0.003", "a < b", "48", "<b>2</b>", "x<2>"):
        assert text in " ".join(checker.text.split()), text


def test_needs_no_other_file(tmp_path: Path) -> None:
    html, checker = page(tmp_path)
    sources = [base64.b64decode(source.removeprefix("data:image/png;base64,")) for source in checker.sources]
    assert sources == [b"first", b"second"]
    assert not re.search(r"https?://|url\(|@import|<script", html)


def test_text_is_escaped(tmp_path: Path) -> None:
    evil = "<script>alert('&')</script>"
    html, checker = page(tmp_path, findings=[evil], setting={evil: evil}, environment={evil: evil})
    assert "<script" not in html
    assert checker.text.count(evil) == 5
