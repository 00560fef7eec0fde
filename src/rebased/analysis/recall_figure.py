"""The picture of recall runs: accuracy over epochs, a bold line for each model's mean and a thin one for each seed."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rebased.analysis.recall_rows import RecallRow
from rebased.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["accuracy_curve", "draw", "mean_curve", "save"]

_STYLES: tuple[dict[str, Any], ...] = (
    {"color": "#3b3b3b", "marker": "s"},
    {"color": "#d1495b", "marker": "^"},
    {"color": "#00798c", "marker": "o"},
    {"color": "#e69f00", "marker": "D"},
)
"""Told apart by lightness and marker too, so also in print and by those who see red and green alike."""


def accuracy_curve(run: Run) -> list[float]:
    """On the test set after each epoch."""
    return [entry["accuracy"] for entry in run.metrics]


def mean_curve(runs: Sequence[Run]) -> list[float]:
    """Over the runs, as long as the longest; one that has ended keeps its last accuracy."""
    curves = [accuracy_curve(run) for run in runs]
    longest = max(map(len, curves))
    return [statistics.fmean(curve[min(epoch, len(curve) - 1)] for curve in curves) for epoch in range(longest)]


def draw(rows: Sequence[RecallRow]) -> "Figure":
    """The figure, not yet saved. Needs matplotlib."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise ImportError("drawing needs matplotlib: pip install matplotlib") from error

    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(rows):
        style = _STYLES[place % len(_STYLES)]
        for run in row.runs:
            curve = accuracy_curve(run)
            axes.plot(range(1, len(curve) + 1), curve, color=style["color"], linewidth=0.9, alpha=0.45)
        mean = mean_curve(row.runs)
        axes.plot(
            range(1, len(mean) + 1),
            mean,
            label=row.name,
            linewidth=2.4,
            markersize=6,
            markeredgecolor="white",
            markeredgewidth=0.8,
            markevery=max(1, math.ceil(len(mean) / 8)),
            zorder=4,
            **style,
        )
    axes.set(xlabel="epoch", ylabel="accuracy on the test set", ylim=(-0.02, 1.04))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower center", ncols=len(rows), frameon=False)
    return figure


def save(figure: "Figure", path: Path) -> None:
    """Write a PNG; the same figure gives the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=200, format="png")
