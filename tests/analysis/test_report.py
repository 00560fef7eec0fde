"""The page: complete, self-contained, and safe to put any text into."""

import base64
import re
from pathlib import Path

from recall_runs import make_row

from page_checker import PageChecker
from rebased.analysis.report import render_report


def page(tmp_path: Path, **changes: object) -> tuple[str, PageChecker]:
    rows = [make_row(tmp_path, "ReBased", [0.2, 0.99], [0.3, 0.95]), make_row(tmp_path, "x<2>", [0.5], [0.4])]
    given = {"findings": ["a < b"], "setting": {"width": "48"}, "environment": {"torch": "<b>2</b>"}}
    html = render_report(rows, **(given | {"figure": b"first", "similarities": b"second"} | changes))
    return html, PageChecker(html)


def test_has_all_there_is_to_say(tmp_path: Path) -> None:
    _, checker = page(tmp_path)
    for text in ("0.970 ± 0.028", "0.990 0.950", "20", "0.003", "a < b", "48", "<b>2</b>", "x<2>"):
        assert text in checker.words, text


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
