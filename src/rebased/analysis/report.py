"""The page about recall runs: one HTML file that needs no other."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from rebased.analysis.recall_rows import RecallRow, accuracy, span

__all__ = ["TASK", "render_report"]

TASK = (
    "Multi-query associative recall: a sequence lists pairs of key and value, k₁ v₁ k₂ v₂ …, and then has the keys "
    "once more, in any order. At each of these the model is to say the value. Keys and values are drawn anew for every "
    "example, so nothing but looking back in the context helps."
)

_STYLE = """
:root { color-scheme: light; --ink: #222; --faint: #5f6368; --line: #dcdfe3; --accent: #00798c; }
body { margin: 0; background: #f4f5f6; color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 52rem; margin: 2rem auto; padding: 2rem 2.5rem 2.5rem;
  background: #fff; border-radius: 8px; box-shadow: 0 1px 4px #0002; }
h1 { margin: 0 0 .5rem; font-size: 1.7rem; line-height: 1.25; }
h2 { margin: 2.2rem 0 .6rem; font-size: 1.15rem; color: var(--accent); }
p, li { max-width: 44rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
th { color: var(--faint); font-weight: 600; font-size: .85rem; vertical-align: bottom; }
td:first-child { font-weight: 600; }
.plain td { text-align: left; white-space: normal; border: 0; padding: .15rem .7rem; vertical-align: top; }
.plain td:first-child { color: var(--faint); font-weight: 400; white-space: nowrap; width: 9rem; padding-left: 0; }
.scroll { overflow-x: auto; }
figure { margin: 1rem 0 0; }
img { max-width: 100%; height: auto; }
figcaption, .note { color: var(--faint); font-size: .88rem; max-width: 44rem; }
"""


def render_report(
    rows: Sequence[RecallRow],
    *,
    findings: Sequence[str],
    setting: Mapping[str, str],
    environment: Mapping[str, str],
    figure: bytes,
    similarities: bytes,
) -> str:
    """The page. ``figure`` and ``similarities`` are PNGs: accuracy over epochs, and Figure 2 of the paper.

    All text is escaped.
    """
    names = ", ".join(row.name for row in rows)
    return _page(
        f"Recall: {names}",
        [
            f"<h1>Who can look things up? {escape(names)}</h1>",
            _paragraph(TASK),
            "<h2>Result</h2>",
            _table(rows),
            _paragraph(
                "Accuracy on the test set: the best epoch of each run, mean ± standard deviation (n − 1) over seeds.",
                note=True,
            ),
            _image(
                figure,
                "accuracy over epochs",
                "Bold: the mean over seeds; thin: each seed. A run that has reached its goal stops, and keeps its last "
                "accuracy in the mean.",
            ),
            "<h2>What it shows</h2>",
            _list(findings),
            "<h2>Setting</h2>",
            _definitions(setting),
            "<h2>What the models compare queries and keys with</h2>",
            _image(
                similarities,
                "similarity over scalar product",
                "Figure 2 of the paper. Softmax attention has exp, whose sums need all keys again for every query; the "
                "parabolas split into features, so a state of constant size replaces the keys. Based is the Taylor "
                "polynomial of exp and never falls below 0.5; ReBased normalises, scales and shifts queries and keys "
                "before squaring, by what it learns, and can reach zero; x² squares without that.",
            ),
            "<h2>Environment</h2>",
            _definitions(environment),
        ],
    )


def _page(title: str, parts: Iterable[str]) -> str:
    head = (
        '<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>"
    )
    body = "<main>\n" + "\n".join(parts) + "\n</main>"
    return f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{body}\n</body>\n</html>\n'


def _table(rows: Sequence[RecallRow]) -> str:
    head = ("model", "accuracy", "each seed", "epochs", "steps", "learning rate", "parameters")
    body = [
        (
            row.name,
            accuracy(row.mean, row.sd),
            "  ".join(f"{x:.3f}" for x in row.accuracies),
            span(row.epochs),
            span(row.steps),
            f"{row.learning_rate:g}",
            f"{row.num_parameters():,}",
        )
        for row in rows
    ]
    lines = "\n".join([_cells("th", head), *(_cells("td", cells) for cells in body)])
    return f'<div class="scroll"><table>\n{lines}\n</table></div>'


def _cells(tag: str, cells: Iterable[str]) -> str:
    inner = "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells)
    return f"<tr>{inner}</tr>"


def _definitions(values: Mapping[str, str]) -> str:
    lines = "\n".join(_cells("td", item) for item in values.items())
    return f'<table class="plain">\n{lines}\n</table>'


def _list(items: Iterable[str]) -> str:
    lines = "\n".join(f"<li>{escape(item)}</li>" for item in items)
    return f"<ul>\n{lines}\n</ul>"


def _paragraph(text: str, *, note: bool = False) -> str:
    kind = ' class="note"' if note else ""
    return f"<p{kind}>{escape(text)}</p>"


def _image(png: bytes, alternative: str, caption: str) -> str:
    data = base64.b64encode(png).decode()
    return (
        f'<figure><img src="data:image/png;base64,{data}" alt="{escape(alternative)}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )
