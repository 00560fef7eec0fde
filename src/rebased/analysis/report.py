"""The page about recall runs."""

from collections.abc import Mapping, Sequence

from rebased.analysis.html import bullets, definitions, image, page, paragraph, section, table
from rebased.analysis.recall_rows import RecallRow, accuracy_table

__all__ = ["TASK", "render_report"]

TASK = (
    "Multi-query associative recall: a sequence lists pairs of key and value, k₁ v₁ k₂ v₂ …, and then has the keys "
    "once more, in any order. At each of these the model is to say the value. Keys and values are drawn anew for every "
    "example, so nothing but looking back in the context helps."
)


def render_report(
    rows: Sequence[RecallRow],
    *,
    findings: Sequence[str],
    setting: Mapping[str, str],
    environment: Mapping[str, str],
    figure: bytes,
    similarities: bytes,
) -> str:
    """The page. ``figure`` and ``similarities`` are PNGs: accuracy over epochs, and Figure 2 of the paper."""
    names = ", ".join(row.name for row in rows)
    accuracies = image(
        figure,
        "accuracy over epochs",
        "Bold: the mean over seeds; thin: each seed. A run that has reached its goal stops, and keeps its last "
        "accuracy in the mean.",
    )
    kernels = image(
        similarities,
        "similarity over scalar product",
        "Figure 2 of the paper. Softmax attention has exp, whose sums need all keys again for every query; the "
        "parabolas split into features, so a state of constant size replaces the keys. Based is the Taylor polynomial "
        "of exp and never falls below 0.5; ReBased normalises, scales and shifts queries and keys before "
        "squaring, by what it learns, and can reach zero; x² squares without that.",
    )
    return page(
        f"Recall: {names}",
        f"Who can look things up? {names}",
        [
            paragraph(TASK),
            section("Result", [table(accuracy_table(rows)), accuracies]),
            section("What it shows", [bullets(findings)]),
            section("Setting", [definitions(setting)]),
            section("What the models compare queries and keys with", [kernels]),
            section("Environment", [definitions(environment)]),
        ],
    )
