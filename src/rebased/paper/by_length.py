"""Accuracy of several mixers over length and width: what Figures 1 and 7 are."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rebased.analysis.pages import Cell, Picture, Table
from rebased.paper.experiment import Data, Material
from rebased.paper.figures import COLOURS, new_figure, tidy
from rebased.paper.recall_cells import describe_cells, seeds_text, spread_text
from rebased.paper.recipes import PAPER, SMOKE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["LENGTHS", "accuracy_tables", "compare_in_cells", "grids", "measure", "picture"]

LENGTHS = {128: 16, 256: 64, 512: 128, 1024: 256, 2048: 512}
"""Table 5: pairs of key and value by length."""

WIDTHS = [64, 128, 256, 512]

_SCALES: dict[str, dict[str, Any]] = {
    "smoke": SMOKE | {"lengths": {16: 2, 32: 4}, "d_model": [16, 24], "learning_rate": 1e-2, "seed": 42},
    "small": PAPER
    | {
        "lengths": {length: LENGTHS[length] for length in (128, 256, 512)},
        "d_model": [64, 128],
        "learning_rate": [1e-3, 3e-3],
        "seed": 42,
    },
    "paper": PAPER | {"lengths": LENGTHS, "d_model": WIDTHS},
}


def grids(stacks: Iterable[str], *, only_largest: bool = False) -> dict[str, dict[str, Any]]:
    """By scale, all stacks at all lengths and widths, or at the largest of them only."""
    return {name: _grid(scale, list(stacks), only_largest) for name, scale in _SCALES.items()}


def _grid(scale: Mapping[str, Any], stacks: Sequence[str], only_largest: bool) -> dict[str, Any]:
    """Each length has its own number of pairs, so they are bound together as cells."""
    run = {name: value for name, value in scale.items() if name != "lengths"}
    lengths = list(scale["lengths"].items())
    if only_largest:
        run["d_model"], lengths = max(run["d_model"]), lengths[-1:]
    cells = [
        {"stack": stack, "seq_len": length, "task_options": {"num_pairs": pairs}} | _watch(stack)
        for stack in stacks
        for length, pairs in lengths
    ]
    return {"run": run, "cells": cells}


def _watch(stack: str) -> dict[str, str]:
    """Figure 10 follows γ and β of these very runs."""
    return {"watch": r"\.(gammas|betas)\."} if stack == "rebased" else {}


def measure(material: Material) -> Data:
    return {"cells": describe_cells(material.runs)}


def accuracy_tables(cells: Sequence[Data], names: Mapping[str, str]) -> list[Table]:
    """One for each length, rows by stack, columns by width."""
    tables = []
    for length in sorted({cell["seq_len"] for cell in cells}):
        here = {(cell["stack"], cell["d_model"]): cell for cell in cells if cell["seq_len"] == length}
        sizes = sorted({size for _, size in here})
        rows: list[list[Cell | str]] = [
            [name, *(_entry(here.get((stack, size))) for size in sizes)]
            for stack, name in names.items()
            if any((stack, size) in here for size in sizes)
        ]
        caption = f"{length} tokens, {seeds_text(len(cell['seeds']) for cell in here.values())}"
        tables.append(Table.of(caption, ["model", *(f"d = {size}" for size in sizes)], rows))
    return tables


def _entry(cell: Data | None) -> Cell:
    if cell is None:
        return Cell("not run", "faint")
    tried = ", ".join(cell["by_rate"])
    return Cell(spread_text(cell), note=f"learning rate {cell['learning_rate']:g} of {tried}")


def compare_in_cells(cells: Sequence[Data], one: str, other: str) -> str:
    """In how many cells that both stacks have the mean of one is higher; nothing if they share none.

    Runs end where they are good enough: what is beyond that says nothing of which is better.
    """
    means = {
        (cell["stack"], cell["seq_len"], cell["d_model"]): (
            statistics.fmean(min(accuracy, cell["stop_above"]) for accuracy in cell["accuracies"])
        )
        for cell in cells
    }
    gains = [
        mean - means[other, *where]
        for (stack, *where), mean in means.items()
        if stack == one and (other, *where) in means
    ]
    if not gains:
        return ""
    higher, lower = (sum(sign * gain > 0 for gain in gains) for sign in (1, -1))
    return (
        f"higher in {higher}, lower in {lower} and level in {len(gains) - higher - lower} of {len(gains)} cells, by "
        f"{statistics.fmean(gains):+.3f} on average, where accuracies beyond the one that runs stop at count as that. "
        "These are counts, not a test."
    )


def picture(name: str, cells: Sequence[Data], names: Mapping[str, str], caption: str) -> Picture:
    return Picture(name, _draw(cells, names), caption)


def _draw(cells: Sequence[Data], names: Mapping[str, str]) -> "Figure":
    lengths = sorted({cell["seq_len"] for cell in cells})
    figure, panels = new_figure(len(lengths), "accuracy", width=2.7)
    for panel, length in zip(panels, lengths, strict=True):
        for stack, label in names.items():
            mine = sorted(
                (cell["d_model"], cell["mean"]) for cell in cells if (cell["stack"], cell["seq_len"]) == (stack, length)
            )
            if mine:
                x, y = zip(*mine, strict=True)
                dashes = "o--" if "published" in stack or stack in ("attention", "rwkv") else "o-"
                panel.plot(x, y, dashes, color=COLOURS[stack], label=label, linewidth=1.8, markersize=4)
        sizes = sorted({cell["d_model"] for cell in cells})
        panel.set_xscale("log", base=2)
        panel.set_xticks(sizes, labels=map(str, sizes))
        panel.minorticks_off()
        panel.set(title=f"{length} tokens", xlabel="d_model", ylim=(-0.02, 1.02))
    tidy(figure, panels)
    return figure
