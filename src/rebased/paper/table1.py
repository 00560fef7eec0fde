"""Table 1 and Figure 3: which part of ReBased does what, at two lengths and four widths."""

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rebased.analysis.pages import Cell, Picture, Section, Table
from rebased.analysis.welch import welch_p
from rebased.paper.ablation import GRIDS, KERNELS, STUCK, measure
from rebased.paper.ablation_claims import ablation_claims
from rebased.paper.code_versions import versions_text
from rebased.paper.experiment import Data, Experiment
from rebased.paper.figures import COLOURS, new_figure, tidy
from rebased.paper.kernel_pairs import ABOUT_PAIRS, can_show, pairs_parts
from rebased.paper.published import TABLE_1, TABLE_1_MEANS, TABLE_1_SEEDS
from rebased.paper.published_gaps import gaps_table
from rebased.paper.recall_cells import seeds_text, spread_text
from rebased.paper.recipes import ALPHA, PAPER

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["TABLE1"]

ROUNDED = 0.005
"""The paper has two digits: what it prints may be off by this."""


def present(data: Data) -> Section:
    lengths = sorted({cell["seq_len"] for cell in data["cells"]})
    parts: list[Any] = [
        "Accuracy at the best learning rate of each cell, mean ± standard deviation over seeds and, of five seeds or "
        "more, a bootstrap interval of the mean in brackets." + _beside_the_paper(data["cells"])
    ]
    parts += filter(None, (_in_all_cells(data["cells"]), versions_text(data["cells"], KERNELS)))
    if any(can_show(tests) for outcomes in data["comparisons"].values() for tests in outcomes.values()):
        parts.append(ABOUT_PAIRS)
    for length in lengths:
        cells = {(cell["stack"], cell["d_model"]): cell for cell in data["cells"] if cell["seq_len"] == length}
        parts.append(_accuracy_table(length, cells))
        parts += pairs_parts(length, data["comparisons"][str(length)])
        parts += gaps_table(length, data["cells"])
        parts.append(_stuck_table(length, cells))
    parts.append(
        Picture(
            "figure3",
            _draw(data["cells"], lengths),
            "Figure 3: accuracy over width, for each kernel; bands are one standard deviation",
        )
    )
    return Section("Table 1 and Figure 3: ablation", tuple(parts), ablation_claims(data))


def _beside_the_paper(cells: Sequence[Data]) -> str:
    """What is to be said of the paper's numbers, and that it had more learning rates to choose from if it had."""
    if not any(cell["d_model"] in TABLE_1[cell["stack"]].get(cell["seq_len"], {}) for cell in cells):
        return " The paper has no such sizes."
    said = (
        f" Below it the paper's. A cell is marked where Welch's test tells the two means apart (p < {ALPHA}, not "
        "corrected)."
    )
    rates = {float(rate) for cell in cells for rate in cell["by_rate"]}
    missing = sorted(set(PAPER["learning_rate"]) - rates)
    if not missing:
        return said
    return said + (
        f" The paper's best is of {len(PAPER['learning_rate'])} learning rates, ours of {len(rates)}: without "
        f"{', '.join(f'{rate:g}' for rate in missing)}. Where one of these would have been best, ours is lower for "
        "that reason alone."
    )


def _in_all_cells(cells: Sequence[Data]) -> str:
    """Single cells have little power; what they have in common says more."""
    gaps: dict[str, list[float]] = {}
    num_marked = 0
    for cell in cells:
        known = TABLE_1[cell["stack"]].get(cell["seq_len"], {}).get(cell["d_model"])
        if known is not None:
            gaps.setdefault(cell["stack"], []).append(cell["mean"] - known[0])
            num_marked += cell["sd"] is not None and _differs(cell, known) < ALPHA
    found = [gap for mine in gaps.values() for gap in mine]
    if not found:
        return ""
    num_below = sum(gap < 0 for gap in found)
    by_kernel = ", ".join(
        f"{KERNELS[stack]} {statistics.fmean(gaps[stack]):+.2f}" for stack in KERNELS if stack in gaps
    )
    marked, below = (f"{count} {'is' if count == 1 else 'are'}" for count in (num_marked, num_below))
    return (
        f"Of {len(found)} cells {marked} marked; of so many about {ALPHA * len(found):.1f} at most would be if none "
        f"differed. {below} below the paper's; the mean difference is {statistics.fmean(found):+.2f}: {by_kernel}."
    )


def _accuracy_table(length: int, cells: dict[tuple[str, int], Data]) -> Table:
    """With means over widths where all of the paper's are there: others would not compare."""
    widths = sorted({width for _, width in cells})
    has_means = all(set(widths) >= TABLE_1[stack].get(length, {}).keys() for stack, _ in cells)
    rows: list[list[Cell | str]] = []
    for stack, name in KERNELS.items():
        mine = [cells.get((stack, width)) for width in widths]
        if not any(mine):
            continue
        theirs = [TABLE_1[stack].get(length, {}).get(width) for width in widths]
        means = [_mean_of(mine)] if has_means else []
        rows.append([name, *(_ours(cell, known) for cell, known in zip(mine, theirs, strict=True)), *means])
        if any(theirs):
            quoted = ["" if known is None else f"{known[0]:.2f} ± {known[1]:.2f}" for known in theirs]
            quoted += [f"{TABLE_1_MEANS[stack][length]:.2f}"] if has_means else []
            rows.append([Cell(each, "faint") for each in ["the paper's", *quoted]])
    header = ["kernel", *(f"d = {width}" for width in widths), *(["mean"] if has_means else [])]
    return Table.of(f"{length} tokens, {seeds_text(len(cell['seeds']) for cell in cells.values())}", header, rows)


def _ours(cell: Data | None, known: tuple[float, float] | None) -> Cell:
    if cell is None:
        return Cell("not run", "faint")
    note = f"learning rate {cell['learning_rate']:g}, {seeds_text([len(cell['seeds'])])}"
    if cell["ended"].get("diverged"):
        note += f", {cell['ended']['diverged']} diverged"
    tone = ""
    if known is not None and cell["sd"] is not None:
        p = _differs(cell, known)
        note += f"; the paper's {known[0]:.2f} ± {known[1]:.2f}, p = {p:.2g}"
        if p < ALPHA:
            tone = "higher" if cell["mean"] > known[0] else "lower"
    return Cell(spread_text(cell), tone, note)


def _mean_of(cells: Sequence[Data | None]) -> str:
    return f"{statistics.fmean(cell['mean'] for cell in cells if cell):.2f}" if all(cells) else ""


def _differs(cell: Data, known: tuple[float, float]) -> float:
    """Welch's p of our mean and the paper's, which is given as much room as its rounding takes."""
    gap = max(0.0, abs(cell["mean"] - known[0]) - ROUNDED)
    return welch_p(gap, cell["sd"], len(cell["seeds"]), 0.0, known[1] + ROUNDED, TABLE_1_SEEDS)


def _stuck_table(length: int, cells: dict[tuple[str, int], Data]) -> Table:
    """Means hide that many runs of a cell are either good or have learned nothing."""
    widths = sorted({width for _, width in cells})
    rows: list[list[Cell | str]] = []
    for stack, name in KERNELS.items():
        mine = [cells.get((stack, width)) for width in widths]
        if any(mine):
            rows.append([name, *map(_stuck, mine)])
    caption = (
        f"{length} tokens: runs that learned next to nothing (accuracy below {STUCK:g}), of all learning rates and "
        "seeds; in brackets the mean accuracy of the others"
    )
    return Table.of(caption, ["kernel", *(f"d = {width}" for width in widths)], rows)


def _stuck(cell: Data | None) -> Cell:
    if cell is None:
        return Cell("not run", "faint")
    tried = [accuracy for by_seed in cell["by_rate"].values() for accuracy in by_seed.values()]
    others = [accuracy for accuracy in tried if accuracy >= STUCK]
    text = f"{len(tried) - len(others)} of {len(tried)}"
    return Cell(f"{text} ({statistics.fmean(others):.2f})" if others else text)


Curve = Mapping[int, tuple[float, float]]
"""Mean and standard deviation by width."""


def _draw(cells: Sequence[Data], lengths: Sequence[int]) -> "Figure":
    """Of each length ours and, at the same widths, the paper's."""
    by_panel: dict[str, Mapping[str, Curve]] = {}
    for length in lengths:
        here = [cell for cell in cells if cell["seq_len"] == length]
        ours: dict[str, dict[int, tuple[float, float]]] = {}
        for cell in sorted(here, key=lambda cell: int(cell["d_model"])):
            ours.setdefault(cell["stack"], {})[cell["d_model"]] = cell["mean"], cell["sd"] or 0.0
        by_panel[f"{length} tokens"] = ours
        theirs = {
            stack: {width: TABLE_1[stack][length][width] for width in mine if width in TABLE_1[stack].get(length, {})}
            for stack, mine in ours.items()
        }
        if any(theirs.values()):
            by_panel[f"{length} tokens, the paper's"] = {stack: curve for stack, curve in theirs.items() if curve}
    figure, panels = new_figure(len(by_panel), "accuracy")
    for panel, (title, curves) in zip(panels, by_panel.items(), strict=True):
        _draw_curves(panel, curves)
        panel.set(title=title, xlabel="d_model", ylim=(-0.02, 1.02))
        panel.set_xticks(sorted({cell["d_model"] for cell in cells}))
    tidy(figure, panels)
    return figure


def _draw_curves(panel: Any, curves: Mapping[str, Curve]) -> None:
    for stack, name in KERNELS.items():
        if stack not in curves:
            continue
        x, (y, spread) = list(curves[stack]), np.array(list(curves[stack].values())).T
        panel.plot(x, y, "o-", color=COLOURS[stack], label=name, linewidth=2, markersize=4)
        if len(x) > 1:
            panel.fill_between(x, y - spread, y + spread, color=COLOURS[stack], alpha=0.12, linewidth=0)
        else:
            panel.errorbar(x, y, spread, color=COLOURS[stack], alpha=0.5, capsize=3)


TABLE1 = Experiment(name="table1", title="Ablation (with Figure 3)", grids=GRIDS, measure=measure, present=present)
