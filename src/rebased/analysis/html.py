"""Pages: one HTML file that needs no other, nor a network, nor a script. All text is escaped."""

import base64
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, NewType
from xml.etree import ElementTree

from rebased.analysis.pages import Cell, Claim, Part, Picture, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "Html",
    "bullets",
    "claims",
    "command",
    "definitions",
    "folded",
    "image",
    "page",
    "paragraph",
    "picture",
    "render",
    "section",
    "table",
]

Html = NewType("Html", str)
"""What is HTML already. Any other text is escaped on its way here."""

_MARKS = {"higher": "▲", "lower": "▼"}
"""Beside the colour, for those who do not see it."""

_NUMBER = re.compile(r"[<≤≥[]? ?[-+−]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?%?(?![\w.])")
"""What a cell of numbers begins with: 0.59 ± 0.06, [−0.1, 0.2], 228 of 240; but no version and no commit."""

_SMALLEST = 0.6
"""Of a picture's own width: below that its letters could not be read, so it scrolls."""

_STYLE = """
:root { color-scheme: light dark; --ground: #f3f4f5; --paper: #fff; --ink: #22262b; --faint: #5d646c; --line: #dde1e5;
  --accent: #00687a; --higher: #0a58a8; --lower: #9c3d06; --mark: 8%; }
@media (prefers-color-scheme: dark) { :root { --ground: #101214; --paper: #191c1f; --ink: #e2e5e8; --faint: #9aa2ab;
  --line: #34393f; --accent: #5cc3d3; --higher: #86bdfb; --lower: #f0a56f; --mark: 13%; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 74rem; margin: 2rem auto; padding: 2rem 2.5rem 2.5rem; background: var(--paper); border-radius: 8px;
  box-shadow: 0 1px 4px #0002; overflow-wrap: break-word; }
h1 { margin: 0 0 .6rem; font-size: 1.75rem; line-height: 1.25; text-wrap: balance; }
h2 { margin: 0 0 .6rem; font-size: 1.25rem; line-height: 1.3; color: var(--accent); }
h3 { margin: 0; font-size: 1rem; }
section { margin-top: 2.2rem; }
section + section { padding-top: 1.6rem; border-top: 1px solid var(--line); }
h1, h2, p, li, dl, figcaption { max-width: 46rem; }
p { margin: .7rem 0; }
a { color: var(--accent); text-underline-offset: .15em; }
dl { display: grid; grid-template-columns: minmax(6rem, max-content) 1fr; gap: .3rem 1.2rem; margin: .8rem 0; }
dt { color: var(--faint); }
dd { margin: 0; min-width: 0; }
pre { margin: .7rem 0; padding: .5rem .8rem; max-width: 46rem; overflow-x: auto; background: var(--ground);
  border-radius: 5px; font-size: .88rem; }
.scroll { position: relative; container-type: inline-size; overflow-x: auto; margin: 1.2rem 0; }
table { border-collapse: separate; border-spacing: 0; font-variant-numeric: tabular-nums;
  font-size: .9375rem; line-height: 1.4375rem; }
caption { text-align: left; padding-bottom: .35rem; }
caption span { display: inline-block; position: sticky; left: 0; width: max-content; max-width: min(46rem, 100cqi);
  margin-right: -46rem; font-weight: 600; } /* it may be wider than its table, and does not widen it */
th, td { padding: .375rem .75rem; text-align: left; border-bottom: 1px solid var(--line); white-space: nowrap; }
thead th { color: var(--faint); font-weight: 600; font-size: .86em; vertical-align: bottom; }
tr > :first-child { position: sticky; left: 0; background: var(--paper); padding-left: 0; white-space: normal;
  min-width: 6.5rem; }
tr > .number:first-child { min-width: 0; }
tbody th { font-weight: 600; }
.number { text-align: right; }
.higher { color: var(--higher); background: color-mix(in srgb, var(--higher) var(--mark), transparent); }
.lower { color: var(--lower); background: color-mix(in srgb, var(--lower) var(--mark), transparent); }
.faint, .note, figcaption { color: var(--faint); }
th.faint { font-weight: 400; }
.note, figcaption { font-size: .9rem; }
[title] { cursor: help; }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
figure { margin: 1.4rem 0; }
.drawing { overflow-x: auto; width: fit-content; max-width: 100%; padding: .5rem; background: #fff;
  border: 1px solid var(--line); border-radius: 6px; }
.drawing > * { display: block; max-width: 100%; height: auto; stroke-linejoin: round; stroke-linecap: butt; }
.drawing > img { width: 46rem; min-width: 26rem; }
figcaption { margin-top: .4rem; }
.claims { margin: 1rem 0; padding: 0; max-width: 60rem; list-style: none; }
.claims > li { display: grid; grid-template-columns: 6rem 1fr; gap: 0 1.2rem; max-width: none; padding: .6rem 0;
  border-bottom: 1px solid var(--line); }
.claims p { margin: 0; max-width: none; }
.claims .theirs { font-weight: 600; }
.verdict { align-self: start; justify-self: start; padding: 0 .5rem; border-radius: 5px; font-size: .875rem;
  color: var(--faint); background: color-mix(in srgb, var(--faint) var(--mark), transparent); }
.verdict.agrees { color: var(--higher); background: color-mix(in srgb, var(--higher) var(--mark), transparent); }
.verdict.differs { color: var(--lower); background: color-mix(in srgb, var(--lower) var(--mark), transparent); }
details { margin: 1.4rem 0 0; }
summary { cursor: pointer; color: var(--faint); }
summary h3 { display: inline; font-weight: 600; }
@media (max-width: 40rem) { main { margin: 0; padding: 1.2rem 1rem 2rem; border-radius: 0; box-shadow: none; }
  h1 { font-size: 1.45rem; } th, td { padding-inline: .5rem; }
  dl, .claims > li { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; } }
@media print { body, main { background: none; box-shadow: none; } main { margin: 0; padding: 0; } }
"""


def page(title: str, heading: str, parts: Iterable[Html]) -> str:
    """The whole file; ``title`` is what a browser's tab says, ``heading`` what the page begins with."""
    head = (
        '<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>"
    )
    body = "\n".join((f"<main>\n<h1>{escape(heading)}</h1>", *parts, "</main>"))
    return f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{body}\n</body>\n</html>\n'


def section(title: str, parts: Iterable[Html], *, anchor: str = "") -> Html:
    """``anchor``: by what others link to it."""
    place = f' id="{escape(anchor)}"' if anchor else ""
    return Html("\n".join((f"<section{place}>\n<h2>{escape(title)}</h2>", *parts, "</section>")))


def folded(title: str, parts: Iterable[Html]) -> Html:
    """Part of a section, shown when asked for."""
    return Html("\n".join((f"<details>\n<summary><h3>{escape(title)}</h3></summary>", *parts, "</details>")))


def render(part: Part) -> Html:
    if isinstance(part, str):
        return paragraph(part)
    return table(part) if isinstance(part, Table) else picture(part)


def paragraph(text: str, *, note: bool = False) -> Html:
    kind = ' class="note"' if note else ""
    return Html(f"<p{kind}>{escape(text)}</p>")


def command(text: str) -> Html:
    """To be copied into a terminal."""
    return Html(f"<pre><code>{escape(text)}</code></pre>")


def bullets(items: Iterable[str]) -> Html:
    lines = "\n".join(f"<li>{escape(item)}</li>" for item in items)
    return Html(f"<ul>\n{lines}\n</ul>")


def claims(found: Iterable[tuple[str, str, Claim]]) -> Html:
    """Each with the name and the anchor of the section that it is taken from."""
    lines = "\n".join(
        f'<li><span class="verdict {_class_name(claim.verdict)}">{escape(claim.verdict)}</span>\n<div>'
        f'<p class="theirs">{escape(claim.theirs)} <a href="#{escape(anchor)}">{escape(name)}</a></p>\n'
        f"<p>{escape(claim.ours)}</p></div></li>"
        for name, anchor, claim in found
    )
    return Html(f'<ul class="claims">\n{lines}\n</ul>')


def _class_name(verdict: str) -> str:
    return verdict.replace(" ", "-")


def definitions(values: Mapping[str, str]) -> Html:
    lines = "\n".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in values.items())
    return Html(f"<dl>\n{lines}\n</dl>")


def table(content: Table, *, anchors: Sequence[str] = ()) -> Html:
    """In a container of its own, which scrolls where the table is too wide. ``anchors``: where its rows lead."""
    columns = [[row[place] for row in content.rows] for place in range(len(content.header))]
    kinds = ["number" if _are_numbers(column) else "" for column in columns]
    head = "".join(
        f'<th scope="col"{_class(kind)}>{escape(name)}</th>' for name, kind in zip(content.header, kinds, strict=True)
    )
    links = anchors or [""] * len(content.rows)
    rows = "\n".join(_row(cells, kinds, link) for cells, link in zip(content.rows, links, strict=True))
    caption = escape(content.caption)
    return Html(
        f'<div class="scroll" role="group" aria-label="{caption}" tabindex="0">\n<table>\n'
        f"<caption><span>{caption}</span></caption>\n<thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{rows}\n</tbody>\n</table>\n</div>"
    )


def _row(cells: Sequence[Cell], kinds: Sequence[str], anchor: str) -> str:
    """The first cell says what the row is about."""
    texts = [_marked(cell) for cell in cells]
    if anchor:
        texts[0] = f'<a href="#{escape(anchor)}">{texts[0]}</a>'
    parts = []
    for place, (cell, kind, text) in enumerate(zip(cells, kinds, texts, strict=True)):
        tag, scope = ("td", "") if place else ("th", ' scope="row"')
        note = f' title="{escape(cell.note)}"' if cell.note else ""
        parts.append(f"<{tag}{scope}{_class(kind, cell.tone)}{note}>{text}</{tag}>")
    return f"<tr>{''.join(parts)}</tr>"


def _marked(cell: Cell) -> str:
    text = escape(cell.text)
    if cell.tone not in _MARKS:
        return text
    # Before the number, so that the numbers of a column stay in line.
    return f'<span aria-hidden="true">{_MARKS[cell.tone]}</span><span class="unseen">{cell.tone}:</span> {text}'


def _are_numbers(column: Sequence[Cell]) -> bool:
    """Whether they are to be in line at the right; what matters less, or is absent, does not count."""
    are_numbers = [bool(_NUMBER.match(cell.text)) for cell in column]
    matter = [cell.text != "" and cell.tone != "faint" for cell in column]
    return any(are_numbers) and all(is_number for is_number, counts in zip(are_numbers, matter, strict=True) if counts)


def _class(*names: str) -> str:
    given = " ".join(filter(None, names))
    return f' class="{given}"' if given else ""


def picture(content: Picture) -> Html:
    """Drawn in the page itself, and as a PNG to take away. The same picture gives the same text."""
    png = io.BytesIO()
    content.figure.savefig(png, dpi=200, format="png")
    file = escape(f"{content.name}.png")
    link = f'<a download="{file}" href="{_data(png.getvalue())}" aria-label="{file}">PNG</a>'
    return _figure(_inline_svg(content), f"{escape(content.caption)} · {link}")


def image(png: bytes, alternative: str, caption: str) -> Html:
    return _figure(f'<img src="{_data(png)}" alt="{escape(alternative)}">', escape(caption))


def _figure(drawing: str, caption: str) -> Html:
    return Html(f'<figure>\n<div class="drawing">{drawing}</div>\n<figcaption>{caption}</figcaption>\n</figure>')


def _data(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _inline_svg(content: Picture) -> str:
    """As an element of a page, in which all pictures share their ids: only those that are referred to stay.

    matplotlib hashes these with the picture's name; others, like ``patch_2``, are the same in every picture.
    """
    root = ElementTree.fromstring(_svg(content.figure, content.name))
    elements = list(root.iter())
    for element in elements:
        element.tag = _without_namespace(element.tag)
        element.attrib = {_without_namespace(name): value for name, value in element.attrib.items()}
    values = [value for element in elements for value in element.attrib.values()]
    used = {found[1] for found in (re.search(r"(?:^|url\()#([^)]+)", value) for value in values) if found}
    for element in elements:
        if element.get("id") not in used:
            element.attrib.pop("id", None)
        for style in element.findall("style"):  # would be the whole page's; `_STYLE` says the same of drawings
            element.remove(style)
    root.attrib |= {
        "role": "img",
        "aria-label": content.caption,
        "style": f"min-width: {_SMALLEST * content.figure.get_figwidth():.2f}in",
    }
    return ElementTree.tostring(root, encoding="unicode")


def _svg(figure: "Figure", name: str) -> str:
    import matplotlib

    file = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return file.getvalue()


def _without_namespace(name: str) -> str:
    return name.rpartition("}")[2]
