"""The parts of a page: what they say, to whom, and that they do not get into each other's way."""

import base64
import re
from collections.abc import Callable

import pytest
from matplotlib.figure import Figure

from page_checker import PageChecker
from rebased.analysis.html import (
    Html,
    bullets,
    claims,
    command,
    definitions,
    folded,
    image,
    page,
    paragraph,
    picture,
    render,
    section,
    table,
)
from rebased.analysis.pages import Cell, Claim, Picture, Table

EVIL = "<script>alert('&')</script> \" onclick=\"x"


def drawing(label: str = "a line") -> Figure:
    """With what matplotlib names and refers to: clipped lines, markers, a band."""
    figure = Figure(figsize=(5, 3))
    axes = figure.subplots()
    axes.plot([1, 2, 3], [1, 4, 9], "o-", label=label)
    axes.fill_between([1, 2, 3], [0, 3, 8], [2, 5, 10], alpha=0.2)
    axes.imshow([[0, 1], [1, 0]])
    axes.set_xlabel("x < y & z")
    figure.legend()
    return figure


def test_page_is_whole_and_headings_are_in_order() -> None:
    parts = [section("one", [paragraph("first")], anchor="here"), section("two", [folded("how", [paragraph("so")])])]
    html = page("tab", "top", parts)
    checker = PageChecker(html)
    assert html.startswith('<!doctype html>\n<html lang="en">')
    assert '<meta charset="utf-8">' in html
    assert checker.headings == [1, 2, 2, 3]
    assert checker.words == "tab top one first two how so"
    assert checker.ids.keys() == {"here"}


def test_part_is_rendered_by_what_it_is() -> None:
    assert render("a < b") == "<p>a &lt; b</p>"
    assert "<caption>" in render(Table.of("what", ("a",), [["1"]]))
    assert "<figcaption>" in render(Picture("name", drawing(), "what it shows"))


# ---- Tables ----


def test_table_tells_rows_columns_and_what_it_is() -> None:
    html = table(Table.of("sizes", ("model", "size"), [["small", "1,024"], ["large", "2,048"]]))
    assert "<caption><span>sizes</span></caption>" in html
    assert re.findall(r'<th scope="col".*?>(.*?)</th>', html) == ["model", "size"]
    assert re.findall(r'<th scope="row".*?>(.*?)</th>', html) == ["small", "large"]
    assert 'aria-label="sizes"' in html


def test_tone_is_told_by_more_than_colour() -> None:
    cells = [Cell("0.1", "higher"), Cell("0.2", "lower"), Cell("0.3", "faint"), Cell("0.4", note="5 seeds")]
    html = table(Table.of("", ("", "", "", "", ""), [["row", *cells]]))
    assert 'class="number higher"><span aria-hidden="true">▲</span><span class="unseen">higher:</span> 0.1<' in html
    assert 'class="number lower"><span aria-hidden="true">▼</span><span class="unseen">lower:</span> 0.2<' in html
    assert 'class="number faint">0.3<' in html
    assert 'class="number" title="5 seeds">0.4<' in html


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        pytest.param(["0.59 ± 0.06 [0.52, 0.64]", "1", ""], True, id="with spread"),
        pytest.param(["[-0.33, +0.25]", "−0.1", "+1.04", "2.1e-05"], True, id="with sign"),
        pytest.param(["623,744 (the paper: 623,745)", "228 of 240", "43%"], True, id="with words after"),
        pytest.param(["0.5", Cell("not run", "faint")], True, id="not run"),
        pytest.param(["1", "d_model"], False, id="mixed"),
        pytest.param(["2.13.0", "3.7.1"], False, id="versions"),
        pytest.param(["0123456789ab"], False, id="a commit"),
        pytest.param(["", Cell("none", "faint")], False, id="nothing"),
    ],
)
def test_numbers_stand_in_line(cells: list[Cell | str], expected: bool) -> None:
    html = table(Table.of("", ("row", "what"), [["row", cell] for cell in cells]))
    assert ('<th scope="col" class="number">what' in html) is expected


def test_rows_lead_to_their_anchors() -> None:
    html = table(Table.of("", ("a", "b"), [["first", "1"], ["second", "2"]]), anchors=["here", "there"])
    assert '<th scope="row"><a href="#here">first</a></th>' in html
    assert '<th scope="row"><a href="#there">second</a></th>' in html


def test_table_without_rows() -> None:
    assert "<tbody>\n\n</tbody>" in table(Table.of("empty", ("a", "b"), []))


# ---- Pictures ----


def test_picture_is_in_the_page_and_to_be_taken_away() -> None:
    html = picture(Picture("figure3", drawing(), "what it shows"))
    assert '<svg width="360pt" height="216pt" viewBox="0 0 360 216"' in html
    assert 'role="img" aria-label="what it shows"' in html
    assert "x &lt; y &amp; z" in html
    found = re.search(r'<a download="figure3.png" href="data:image/png;base64,(.+?)"', html)
    assert found
    assert base64.b64decode(found[1]).startswith(b"\x89PNG")
    assert "<figcaption>what it shows · " in html


def test_pictures_do_not_share_ids() -> None:
    """Regression test: matplotlib calls a part patch_1 in every picture."""
    pictures = [picture(Picture(name, drawing(), name)) for name in ("one", "two")]
    checker = PageChecker(page("", "", pictures))
    checker.assert_needs_no_other_file()
    assert len(checker.ids) >= 4
    assert checker.ids.keys() == checker.referred


def test_picture_has_no_address_and_no_style_for_others() -> None:
    html = picture(Picture("name", drawing(), "caption"))
    assert "://" not in html
    assert "<style" not in html
    assert "<?xml" not in html


def test_same_picture_gives_the_same_text() -> None:
    first, second = (picture(Picture("name", drawing(), "caption")) for _ in range(2))
    assert first == second


# ---- Safe to put any text into ----


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: section(EVIL, [], anchor=EVIL), id="section"),
        pytest.param(lambda: folded(EVIL, []), id="folded"),
        pytest.param(lambda: paragraph(EVIL, note=True), id="paragraph"),
        pytest.param(lambda: command(EVIL), id="command"),
        pytest.param(lambda: bullets([EVIL]), id="bullets"),
        pytest.param(lambda: definitions({EVIL: EVIL}), id="definitions"),
        pytest.param(
            lambda: table(Table.of(EVIL, (EVIL,), [[Cell(EVIL, "higher", note=EVIL)]]), anchors=[EVIL]), id="table"
        ),
        pytest.param(lambda: image(b"", EVIL, EVIL), id="image"),
        pytest.param(lambda: picture(Picture("evil", drawing(EVIL), EVIL)), id="picture"),
    ],
)
def test_text_is_escaped(make: Callable[[], Html]) -> None:
    html = make()
    checker = PageChecker(html)
    assert "<script" not in html
    assert not re.search(r'"[^<>]*" onclick="', html.replace("&quot;", ""))
    assert EVIL in checker.text


def test_claims_stand_beside_what_is_said_of_them() -> None:
    given = Claim("It is <best>.", "It is not & was not.", "in part")
    html = claims([("Table 1", "table1", given)])
    assert '<span class="verdict in-part">in part</span>' in html
    assert 'It is &lt;best&gt;. <a href="#table1">Table 1</a>' in html
    assert "<p>It is not &amp; was not.</p>" in html
    assert PageChecker(html).words == "in part It is <best>. Table 1 It is not & was not."


def test_a_claim_has_a_verdict_that_is_known() -> None:
    with pytest.raises(ValueError, match="verdict='true' is unknown; it may be 'agrees'"):
        Claim("It is.", "It is.", "true")
