"""The picture of a bench: time against length on logarithmic axes, a panel for each choice of passes."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rebased.bench.results import OpsBenchResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw", "save"]

_STYLES: dict[str, dict[str, Any]] = {
    "triton": {"label": "rebased, triton", "color": "#00798c", "marker": "o", "linewidth": 2.6, "zorder": 5},
    "chunked": {"label": "rebased, chunked", "color": "#66b2b2", "marker": "o"},
    "reference": {"label": "rebased, reference", "color": "#a9d3d3", "marker": "o"},
    "sdpa": {"label": "softmax attention (SDPA)", "color": "#3b3b3b", "marker": "s", "linewidth": 2.2, "zorder": 4},
    "parallel_rebased": {"label": "fla parallel_rebased", "color": "#d1495b", "marker": "^", "zorder": 3},
    # Nearly the same program as the one above: broad and below it, so that both are seen where they coincide.
    "parallel_based": {"label": "fla parallel_based", "color": "#f2c879", "marker": "", "linewidth": 6},
    "fused_chunk_based": {"label": "fla fused_chunk_based", "color": "#9c6644", "marker": "D"},
}
"""Ours in one hue, the peers in warm ones; markers tell them apart in print."""
_PLAIN: dict[str, Any] = {"linewidth": 1.8, "markersize": 5, "markeredgecolor": "white", "markeredgewidth": 0.7}
_TITLES = {"forward": "forward", "both": "forward + backward"}


def draw(result: OpsBenchResult) -> "Figure":
    """The figure, not yet saved. Needs matplotlib."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import LogLocator
    except ImportError as error:
        raise ImportError("drawing needs matplotlib: pip install matplotlib") from error

    passes = result.config.passes
    figure = Figure(figsize=(1.0 + 4.7 * len(passes), 4.9), layout="constrained")
    panels = figure.subplots(1, len(passes), squeeze=False, sharex=True, sharey=True)[0]
    for axes, each in zip(panels, passes, strict=True):
        _draw_panel(axes, result, each)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.minorticks_off()
    panels[0].set_ylabel("milliseconds per call")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.suptitle(_caption(result), fontsize="small", color="#5a5a5a")
    figure.legend(
        handles, labels, loc="outside lower center", ncols=2 if len(passes) == 1 else 4, frameon=False, fontsize="small"
    )
    return figure


def save(figure: "Figure", path: Path) -> None:
    """Write the figure as what the name ends in (png, svg, pdf); the same figure gives the same bytes."""
    import matplotlib

    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none"}):
        dated = {".svg": "Date", ".pdf": "CreationDate"}.get(path.suffix)
        figure.savefig(path, dpi=200, metadata={dated: None} if dated else None)


def _draw_panel(axes: "Axes", result: OpsBenchResult, passes: str) -> None:
    lengths = result.config.lengths
    for candidate in result.config.candidates:
        cells = [result.at(candidate, length, passes) for length in lengths]
        times = [each.timing.median_seconds * 1e3 if each.timing else float("nan") for each in cells]
        # A candidate that never ran is drawn too, as a line without points: the legend then is the same for all panels.
        axes.plot(lengths, times, **(_PLAIN | _STYLES[candidate]))
    limits = [limit for limit in result.limits if limit.passes == passes]
    if limits:
        axes.plot(
            [limit.length for limit in limits],
            [limit.seconds * 1e3 for limit in limits],
            "--",
            color="#00798c",
            linewidth=1.4,
            label="limit of the linear form",
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [_short(length) for length in lengths])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_title(_TITLES[passes], fontsize="medium")
    axes.set_xlabel("tokens per sequence")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)


def _short(length: int) -> str:
    """In units of 1024, where that is a whole number: 512, 1k, 64k."""
    return f"{length // 1024}k" if length % 1024 == 0 else str(length)


def _caption(result: OpsBenchResult) -> str:
    config = result.config
    heads, size = config.sdpa_shape
    total = f"{config.tokens} tokens per call" if config.tokens else f"batch of {config.batch_size or 1}"
    return (
        f"{result.environment.device_name}, {config.dtype}, {total}\n"
        f"{config.num_heads} heads, F = {config.feature_dim}, D = {config.head_dim}; SDPA {heads} heads of {size}"
    )
