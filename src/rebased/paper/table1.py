"""Table 1 and Figure 3: which part of ReBased does what, at two lengths and four widths."""

import statistics
from collections.abc import Sequence
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np

from rebased.analysis.pages import Cell, Picture, Section, Table
from rebased.analysis.welch import welch_p
from rebased.paper.ablation import GRIDS, KERNELS, STUCK, measure
from rebased.paper.experiment import Data, Experiment
from rebased.paper.figures import COLOURS, new_figure, tidy
from rebased.paper.published import TABLE_1, TABLE_1_MEANS, TABLE_1_SEEDS
from rebased.paper.recall_cells import seeds_text, spread_text
from rebased.paper.recipes import PAPER

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["TABLE1"]

ALPHA = 0.05
ROUNDED = 0.005
"""The paper has two digits: what it prints may be off by this."""

_ABOUT_PAIRS = (
    "Kernels are compared in pairs, over the widths and seeds that both have, by a sign-flip test of all flips with "
    "Holm's correction for the number of pairs. A seed's accuracy is that of the learning rate which is best for the "
    "other seeds, chosen anew in every flip: the difference is one of such accuracies, not of the means above. What is "
    "beyond the accuracy that runs stop at does not count. The interval has the differences that the test alone does "
    "not refuse at 5 %. Where many runs learn nothing and the others much, the test finds little: that no difference "
    "is shown does not mean that there is none."
)


def present(data: Data) -> Section:
    lengths = sorted({cell["seq_len"] for cell in data["cells"]})
    parts: list[Any] = [
        "Accuracy at the best learning rate of each cell, mean ± standard deviation over seeds and, of five seeds or "
        "more, a bootstrap interval of the mean in brackets." + _beside_the_paper(data["cells"])
    ]
    if any(map(_can_show, data["comparisons"].values())):
        parts.append(_ABOUT_PAIRS)
    for length in lengths:
        cells = {(cell["stack"], cell["d_model"]): cell for cell in data["cells"] if cell["seq_len"] == length}
        parts.append(_accuracy_table(length, cells))
        parts += _compared(length, data["comparisons"][str(length)])
        parts += _separated(length, cells)
        parts.append(_stuck_table(length, cells))
    parts.append(Picture("figure3", _draw(data["cells"], lengths), "Figure 3: accuracy over width, for each kernel"))
    return Section("Table 1 and Figure 3: ablation", tuple(parts))


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


def _can_show(comparisons: Data) -> bool:
    """Whether there are runs enough for any difference to be shown, however large."""
    return any(each["smallest_p"] < ALPHA for outcome in comparisons.values() for each in outcome)


def _compared(length: int, comparisons: Data) -> list[Table | str]:
    if not comparisons["tuned"]:
        return []
    if not _can_show(comparisons):
        least = min(each["smallest_p"] for outcome in comparisons.values() for each in outcome)
        most = max(each["num_runs"] for each in comparisons["tuned"])
        return [
            f"Kernels of {length} tokens are not compared: they share no more than {most} of widths × seeds, of which "
            f"the least p that the test can give is {least:.2g}. No difference can be shown at {ALPHA}, however large."
        ]
    return [_pairs_table(length, comparisons["tuned"]), _other_pairs_table(length, comparisons)]


def _accuracy_table(length: int, cells: dict[tuple[str, int], Data]) -> Table:
    """With means over widths where all of the paper's are there: others would not compare."""
    sizes = sorted({size for _, size in cells})
    has_means = all(set(sizes) >= TABLE_1[stack].get(length, {}).keys() for stack, _ in cells)
    rows: list[list[Cell | str]] = []
    for stack, name in KERNELS.items():
        mine = [cells.get((stack, size)) for size in sizes]
        if not any(mine):
            continue
        theirs = [TABLE_1[stack].get(length, {}).get(size) for size in sizes]
        means = [_mean_of(mine)] if has_means else []
        rows.append([name, *(_ours(cell, known) for cell, known in zip(mine, theirs, strict=True)), *means])
        if any(theirs):
            quoted = ["" if known is None else f"{known[0]:.2f} ± {known[1]:.2f}" for known in theirs]
            quoted += [f"{TABLE_1_MEANS[stack][length]:.2f}"] if has_means else []
            rows.append([Cell(each, "faint") for each in ["the paper's", *quoted]])
    header = ["kernel", *(f"d = {size}" for size in sizes), *(["mean"] if has_means else [])]
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


def _pairs_table(length: int, comparisons: Sequence[Data]) -> Table:
    rows: list[list[Cell | str]] = []
    for each in sorted(comparisons, key=lambda each: each["adjusted_p"]):
        interval = "" if each["interval"] is None else f"[{each['interval'][0]:+.3f}, {each['interval'][1]:+.3f}]"
        effect = "" if each["effect"] is None else f"{each['effect']:+.2f}"
        rows.append(
            [
                _pair(each),
                Cell(str(each["num_runs"]), note=f"{each['num_left_out']} that only one has are left out"),
                f"{each['difference']:+.3f}",
                interval,
                effect,
                f"{each['cliffs_delta']:+.2f}",
                f"{each['p_value']:.2g}",
                f"{each['adjusted_p']:.2g}",
                _verdict(each),
            ]
        )
    caption = f"{length} tokens, every pair of kernels"
    header = ("pair", "runs", "difference", "95 % interval", "g", "Cliff's δ", "p", "p (Holm)", "verdict")
    return Table.of(caption, header, rows)


def _other_pairs_table(length: int, comparisons: Data) -> Table:
    rows: list[list[Cell | str]] = []
    learned = {_pair(each): each for each in comparisons["learned"]}
    for each in sorted(comparisons["untuned"], key=lambda each: each["adjusted_p"]):
        row: list[Cell | str] = [_pair(each)]
        for one in (each, learned[_pair(each)]):
            row += [f"{one['difference']:+.3f}", f"{one['adjusted_p']:.2g}", _verdict(one)]
        rows.append(row)
    caption = (
        f"{length} tokens, the same test of two other outcomes: the mean accuracy over all learning rates, and the "
        f"share of runs that learn more than next to nothing (accuracy from {STUCK:g})"
    )
    header = ("pair", "all rates", "p (Holm)", "verdict", "learning", "p (Holm)", "verdict")
    return Table.of(caption, header, rows)


def _pair(comparison: Data) -> str:
    return f"{KERNELS[comparison['a']]} − {KERNELS[comparison['b']]}"


def _verdict(comparison: Data) -> str:
    better = {f"{side} better": f"{KERNELS[comparison[side]]} better" for side in "ab"}
    return better.get(comparison["verdict"], str(comparison["verdict"]))


def _differs(cell: Data, known: tuple[float, float]) -> float:
    """Welch's p of our mean and the paper's, which is given as much room as its rounding takes."""
    gap = max(0.0, abs(cell["mean"] - known[0]) - ROUNDED)
    return welch_p(gap, cell["sd"], len(cell["seeds"]), 0.0, known[1] + ROUNDED, TABLE_1_SEEDS)


def _separated(length: int, cells: dict[tuple[str, int], Data]) -> list[Table]:
    """Where mean ± sd of one row of the paper lies above that of another: whether ours does."""
    rows: list[list[Cell | str]] = []
    for higher, lower in permutations(KERNELS, 2):
        for size, theirs in TABLE_1[higher].get(length, {}).items():
            others = TABLE_1[lower][length][size]
            a, b = cells.get((higher, size)), cells.get((lower, size))
            if theirs[0] - theirs[1] <= others[0] + others[1] or not a or not b:
                continue
            if a["sd"] is None or b["sd"] is None:
                continue
            apart = a["mean"] - a["sd"] > b["mean"] + b["sd"]
            p = welch_p(a["mean"], a["sd"], len(a["seeds"]), b["mean"], b["sd"], len(b["seeds"]))
            paper, ours = (
                f"{x[0]:.2f} ± {x[1]:.2f}, {y[0]:.2f} ± {y[1]:.2f}"
                for x, y in ((theirs, others), ((a["mean"], a["sd"]), (b["mean"], b["sd"])))
            )
            said = "ours too" if apart else "ours not"
            rows.append([f"{KERNELS[higher]} above {KERNELS[lower]}", f"d = {size}", paper, ours, said, f"{p:.2g}"])
    if not rows:
        return []
    caption = (
        f"{length} tokens: where the paper's mean ± sd of two kernels are apart, and whether ours are; p is Welch's of "
        "our two means, each at its best learning rate, as if seeds were unrelated, not corrected"
    )
    return [Table.of(caption, ("kernels", "width", "the paper's", "ours", "apart", "p"), rows, num_keys=2)]


def _stuck_table(length: int, cells: dict[tuple[str, int], Data]) -> Table:
    """Means hide that many runs of a cell are either good or have learned nothing."""
    sizes = sorted({size for _, size in cells})
    rows: list[list[Cell | str]] = []
    for stack, name in KERNELS.items():
        mine = [cells.get((stack, size)) for size in sizes]
        if any(mine):
            rows.append([name, *map(_stuck, mine)])
    caption = (
        f"{length} tokens: runs that learned next to nothing (accuracy below {STUCK:g}), of all learning rates and "
        "seeds; in brackets the mean accuracy of the others"
    )
    return Table.of(caption, ["kernel", *(f"d = {size}" for size in sizes)], rows)


def _stuck(cell: Data | None) -> Cell:
    if cell is None:
        return Cell("not run", "faint")
    tried = [accuracy for by_seed in cell["by_rate"].values() for accuracy in by_seed.values()]
    others = [accuracy for accuracy in tried if accuracy >= STUCK]
    text = f"{len(tried) - len(others)} of {len(tried)}"
    return Cell(f"{text} ({statistics.fmean(others):.2f})" if others else text)


def _draw(cells: Sequence[Data], lengths: Sequence[int]) -> "Figure":
    figure, axes = new_figure(len(lengths), "accuracy")
    for panel, length in zip(axes, lengths, strict=True):
        for stack, name in KERNELS.items():
            mine = sorted(
                (cell for cell in cells if (cell["stack"], cell["seq_len"]) == (stack, length)),
                key=lambda cell: int(cell["d_model"]),
            )
            if not mine:
                continue
            x, y = [cell["d_model"] for cell in mine], np.array([cell["mean"] for cell in mine])
            spread = np.array([cell["sd"] or 0.0 for cell in mine])
            panel.plot(x, y, "o-", color=COLOURS[stack], label=name, linewidth=2, markersize=4)
            if len(x) > 1:
                panel.fill_between(x, y - spread, y + spread, color=COLOURS[stack], alpha=0.12, linewidth=0)
            else:
                panel.errorbar(x, y, spread, color=COLOURS[stack], alpha=0.5, capsize=3)
        panel.set(title=f"{length} tokens", xlabel="d_model", ylim=(-0.02, 1.02))
        panel.set_xticks(sorted({cell["d_model"] for cell in cells}))
    tidy(figure, axes)
    return figure


TABLE1 = Experiment(name="table1", title="Ablation (with Figure 3)", grids=GRIDS, measure=measure, present=present)
