"""Accuracy of several mixers over length and width: what Figures 1 and 7 are."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from rebased.analysis.pages import Cell, Claim, Picture, Table
from rebased.analysis.sign_flip import SignFlip, sign_flip_test
from rebased.paper.experiment import Data, Material
from rebased.paper.figures import COLOURS, new_figure, tidy
from rebased.paper.recall_cells import describe_cells, listed, seeds_text, spread_text
from rebased.paper.recipes import ALPHA, PAPER, SMOKE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "LENGTHS",
    "WIDTHS",
    "InCells",
    "accuracy_tables",
    "claim_in_cells",
    "compare_in_cells",
    "grids",
    "measure",
    "picture",
    "what_is_missing",
]

LENGTHS = {128: 16, 256: 64, 512: 128, 1024: 256, 2048: 512}
"""Table 5: pairs of key and value by length."""

WIDTHS = [64, 128, 256, 512]
_THE_PAPERS = set(product(LENGTHS, WIDTHS))

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
    """One for each length, rows by stack, columns by width: what was not run is seen to be absent."""
    tables = []
    widths = sorted({cell["d_model"] for cell in cells})
    for length in sorted({cell["seq_len"] for cell in cells}):
        here = {(cell["stack"], cell["d_model"]): cell for cell in cells if cell["seq_len"] == length}
        rows: list[list[Cell | str]] = [
            [name, *(_entry(here.get((stack, width))) for width in widths)] for stack, name in names.items()
        ]
        caption = f"{length} tokens, {seeds_text(len(cell['seeds']) for cell in here.values())}"
        tables.append(Table.of(caption, ["model", *(f"d = {width}" for width in widths)], rows))
    return tables


def _entry(cell: Data | None) -> Cell:
    if cell is None:
        return Cell("not run", "faint")
    tried = ", ".join(cell["by_rate"])
    return Cell(spread_text(cell), note=f"learning rate {cell['learning_rate']:g} of {tried}")


def what_is_missing(cells: Sequence[Data]) -> str:
    """What the paper has and these cells have not; nothing where they are of other sizes, or have it all."""
    here = {
        "length": {cell["seq_len"] for cell in cells},
        "width": {cell["d_model"] for cell in cells},
        "learning rate": {float(rate) for cell in cells for rate in cell["by_rate"]},
    }
    theirs: dict[str, list[Any]] = {"length": list(LENGTHS), "width": WIDTHS, "learning rate": PAPER["learning_rate"]}
    if here["length"].isdisjoint(theirs["length"]):
        return ""
    lacking = {name: [value for value in theirs[name] if value not in here[name]] for name in theirs}
    said = [
        f"the {name}{'s' if len(values) > 1 else ''} {listed(f'{value:g}' for value in values)}"
        for name, values in lacking.items()
        if values
    ]
    more_seeds = len(PAPER["seed"]) - max(len(cell["seeds"]) for cell in cells)
    if more_seeds > 0:
        said.append(f"{more_seeds} more {'seed' if more_seeds == 1 else 'seeds'}")
    return f"The paper also has {listed(said)}. Of these nothing is said here." if said else ""


@dataclass(frozen=True)
class InCells:
    """How one stack's mean accuracy is above another's, cell by cell of those that both have."""

    gains: tuple[float, ...]
    num_left_out: int = 0
    """Cells that both have, with other learning rates or seeds: the best of more is the higher for that alone."""
    num_of_the_papers: int = 0
    """Of its lengths and widths, so many are compared."""

    @property
    def verdict(self) -> str:
        """Of the claim that the one is better, which is one of all the paper's lengths and widths."""
        if self._test.p_value >= ALPHA:
            return "not shown"
        if self._test.mean_difference < 0:
            return "differs"
        return "agrees" if self.num_of_the_papers == len(_THE_PAPERS) else "in part"

    @property
    def text(self) -> str:
        higher, lower = (sum(sign * gain > 0 for gain in self.gains) for sign in (1, -1))
        test = self._test
        said = (
            f"higher in {higher}, lower in {lower} and level in {len(self.gains) - higher - lower} of "
            f"{len(self.gains)} cells, by {test.mean_difference:+.3f} on average, where accuracies beyond the one that "
            f"runs stop at count as that (sign-flip test over cells: p = {test.p_value:.2g}"
        )
        if self.num_left_out:
            said = f"without {self.num_left_out} cells of other learning rates or seeds, {said}"
        if test.smallest_p >= ALPHA:
            said += f"; so few that are not level cannot give less than {test.smallest_p:.2g}"
        return f"{said}). Of the paper's {len(_THE_PAPERS)} lengths and widths {self.num_of_the_papers} are compared."

    @cached_property
    def _test(self) -> SignFlip:
        """A cell's runs are exchanged all at once, with the choice of their rate: so the choice favours neither."""
        return sign_flip_test(np.array(self.gains))


def compare_in_cells(cells: Sequence[Data], one: str, other: str) -> InCells | None:
    """None if they share no cell. Runs end where they are good enough: beyond that none is better."""
    by_place = {(cell["stack"], cell["seq_len"], cell["d_model"]): cell for cell in cells}
    pairs = [
        (cell, by_place[other, *where])
        for (stack, *where), cell in by_place.items()
        if stack == one and (other, *where) in by_place
    ]
    alike = [(mine, theirs) for mine, theirs in pairs if _runs_of(mine) == _runs_of(theirs)]
    # Rounded: means of the same numbers in another order are level.
    gains = tuple(round(_capped_mean(mine) - _capped_mean(theirs), 9) for mine, theirs in alike)
    places = {(mine["seq_len"], mine["d_model"]) for mine, _ in alike}
    return InCells(gains, len(pairs) - len(alike), len(places & _THE_PAPERS)) if gains else None


def _runs_of(cell: Data) -> set[tuple[str, str]]:
    """Learning rates and seeds."""
    return {(rate, seed) for rate, by_seed in cell["by_rate"].items() for seed in by_seed}


def _capped_mean(cell: Data) -> float:
    return statistics.fmean(min(accuracy, cell["stop_above"]) for accuracy in cell["accuracies"])


def claim_in_cells(theirs: str, cells: Sequence[Data], names: Mapping[str, str], one: str, other: str) -> Claim:
    """That ``one`` is better than ``other``."""
    found = compare_in_cells(cells, one, other)
    if found is None:
        return Claim(theirs, f"{names[one]} and {names[other]} have no finished cell in common.", "not run")
    return Claim(theirs, f"{names[one]} beside {names[other]}: {found.text}", found.verdict)


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
        widths = sorted({cell["d_model"] for cell in cells})
        panel.set_xscale("log", base=2)
        panel.set_xticks(widths, labels=map(str, widths))
        panel.minorticks_off()
        panel.set(title=f"{length} tokens", xlabel="d_model", ylim=(-0.02, 1.02))
    tidy(figure, panels)
    return figure
