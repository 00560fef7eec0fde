"""How the paper's figures look here."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "SHADES", "new_figure", "save", "tidy"]

COLOURS = {
    "conv_attention": "#3b3b3b",
    "attention": "#8a8a8a",
    "based": "#d1495b",
    "rebased": "#00798c",
    "x2": "#e3a008",
    "norm_x2": "#66785f",
    "gamma_x2": "#7b5ea7",
    "gamma_beta_x2": "#3d7dca",
    "conv_hyena": "#7b5ea7",
    "rwkv": "#3d7dca",
    "conv_rwkv": "#1c4f8f",
    "mamba": "#c2691c",
    "mamba_published": "#e0a878",
}
"""Of stacks: a model has one colour in all figures."""
SHADES = ("#9ed8d2", "#5fb8b5", "#2b9a9d", "#00798c", "#004b57")
"""Of lengths, short to long."""


def new_figure(
    num_panels: int, ylabel: str, *, num_rows: int = 1, width: float = 3.6, height: float = 3.4
) -> "tuple[Figure, list[Any]]":
    """Panels side by side with one scale, row by row. ImportError, saying what to install, without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("drawing needs matplotlib: pip install matplotlib") from error

    figure = Figure(figsize=(max(4.6, width * num_panels), height * num_rows), layout="constrained")
    rows = figure.subplots(num_rows, num_panels, sharey=True, squeeze=False)
    for row in rows:
        row[0].set_ylabel(ylabel)
    return figure, list(rows.flat)


def tidy(figure: "Figure", panels: Sequence[Any], *, columns: int | None = None) -> None:
    """Light grid, no frame, one legend below for all panels."""
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(color="#e6e6e6", linewidth=0.8)
        panel.set_axisbelow(True)
    found = [panel.get_legend_handles_labels() for panel in panels]
    legend = {label: handle for handles, labels in found for handle, label in zip(handles, labels, strict=True)}
    if legend:
        columns = columns or min(len(legend), 4 if len(panels) > 1 else 3)
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
