"""How the paper's figures look here."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "new_figure", "save", "tidy"]

COLOURS = ("#d1495b", "#e3a008", "#66785f", "#7b5ea7", "#3d7dca", "#00798c", "#3b3b3b", "#a0522d")
"""In the order of rows."""


def new_figure(num_panels: int, ylabel: str, *, width: float = 3.6, height: float = 3.4) -> "tuple[Figure, list[Any]]":
    """Panels side by side with one scale. ImportError, saying what to install, without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("drawing needs matplotlib: pip install 'rebased[figures]'") from error

    figure = Figure(figsize=(max(4.6, width * num_panels), height), layout="constrained")
    panels = list(figure.subplots(1, num_panels, sharey=True, squeeze=False)[0])
    panels[0].set_ylabel(ylabel)
    return figure, panels


def tidy(figure: "Figure", panels: Sequence[Any]) -> None:
    """Light grid, no frame, one legend below for all panels."""
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(color="#e6e6e6", linewidth=0.8)
        panel.set_axisbelow(True)
    found = [panel.get_legend_handles_labels() for panel in panels]
    legend = {label: handle for handles, labels in found for handle, label in zip(handles, labels, strict=True)}
    if legend:
        columns = min(len(legend), 4 if len(panels) > 1 else 3)
        figure.legend(
            legend.values(), legend.keys(), loc="outside lower center", ncols=columns, frameon=False, fontsize="small"
        )


def save(figure: "Figure", folder: Path, name: str) -> tuple[Path, Path]:
    """Write ``name``.png and ``name``.svg into ``folder``, made if absent; the same figure gives the same bytes."""
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    figure.savefig(png, dpi=200)
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(svg, metadata={"Date": None})
    return png, svg
