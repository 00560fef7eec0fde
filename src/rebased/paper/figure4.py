"""Figure 4: how good the best of a budget of learning rates is expected to be, from the runs of Table 1."""

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from rebased.analysis.expected_performance import expected_performance
from rebased.analysis.pages import Claim, Picture, Section, Table
from rebased.paper.ablation import GRIDS, KERNELS
from rebased.paper.experiment import Data, Experiment, Material
from rebased.paper.figures import COLOURS, new_figure, tidy
from rebased.paper.recall_cells import describe_cells, seeds_text
from rebased.paper.recipes import PAPER

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FIGURE4"]

WIDEST = max(GRIDS["paper"]["run"]["d_model"])
_LEVEL = 1e-12  # Means of the same numbers differ by rounding.
ALMOST_ALL = 0.985
"""What rounds to the 0.99 at which runs stop, and which the paper calls 100 %."""


def measure(material: Material) -> Data:
    return {"curves": [_curve(cell) for cell in describe_cells(material.runs)]}


def _curve(cell: Data) -> Data:
    """As in the paper, a learning rate's accuracy is the mean over seeds; every rate is one draw.

    A run ends where it is good enough, and by how much it is then better says nothing: that does not count.
    """
    rates = [
        {seed: min(accuracy, cell["stop_above"]) for seed, accuracy in by_seed.items()}
        for by_seed in cell["by_rate"].values()
    ]
    means = [statistics.fmean(by_seed.values()) for by_seed in rates]
    found = expected_performance(np.array(means))
    return {
        "stack": cell["stack"],
        "seq_len": cell["seq_len"],
        "d_model": cell["d_model"],
        "num_seeds": len(rates[0]),
        "accuracies": means,
        "lowest": min(accuracy for by_seed in rates for accuracy in by_seed.values()),
        "budgets": found.budgets.tolist(),
        "mean": found.mean.tolist(),
        "standard_error": _error_over_seeds(rates),
    }


def _error_over_seeds(rates: Sequence[Mapping[str, float]]) -> list[float | None]:
    """Of each budget's expected best, by the jackknife. Rates are a fixed grid; seeds would be others next time."""
    seeds = list(rates[0])  # all rates have the same: the runs of a cell that is not finished are not looked at
    if len(seeds) < 2:
        return [None] * len(rates)

    def without(left_out: str) -> Float[np.ndarray, "budgets"]:
        means = [statistics.fmean(by_seed[seed] for seed in seeds if seed != left_out) for by_seed in rates]
        return expected_performance(np.array(means)).mean

    curves = np.array([without(seed) for seed in seeds])
    return [float(error) for error in np.sqrt((len(seeds) - 1) * curves.var(axis=0))]


def present(data: Data) -> Section:
    curves = data["curves"]
    parts: list[Any] = [
        "Dodge et al.'s estimator without replacement: the expected best of so many learning rates, drawn from those "
        "tried, each with the mean accuracy over its seeds; ± is its standard error over seeds, by the jackknife. That "
        "other learning rates could have been tried is not in it. What is beyond the accuracy that runs stop at does "
        "not count."
    ]
    lengths = sorted({curve["seq_len"] for curve in curves})
    parts += [_table(length, [curve for curve in curves if curve["seq_len"] == length]) for length in lengths]
    for length in lengths:
        chosen = [curve for curve in curves if curve["seq_len"] == length]
        caption = (
            f"Figure 4: expected best accuracy over the number of learning rates tried, {length} tokens; bands are one "
            "standard error"
        )
        parts.append(Picture(f"figure4-{length}", _draw(chosen), caption))
    return Section("Figure 4: expected validation performance", tuple(parts), tuple(_claims(curves)))


def _claims(curves: Sequence[Data]) -> list[Claim]:
    return [_best(curves), *(_at_every_rate(length, curves) for length in GRIDS["paper"]["run"]["seq_len"])]


def _best(curves: Sequence[Data]) -> Claim:
    """Counts, for there is no test of them: budgets of one cell are made of the same runs."""
    theirs = "ReBased works best across all hyperparameters, budgets and widths."
    at: dict[tuple[int, int, int], dict[str, float]] = {}
    for curve in curves:
        for budget, mean in zip(curve["budgets"], curve["mean"], strict=True):
            at.setdefault((curve["seq_len"], curve["d_model"], budget), {})[curve["stack"]] = mean
    shared = [means for means in at.values() if len(means) > 1 and "rebased" in means]
    if not shared:
        return Claim(theirs, "ReBased and others have no finished cell in common.", "not run")
    num_best = sum(means["rebased"] >= max(means.values()) - _LEVEL for means in shared)
    rates = max(len(curve["accuracies"]) for curve in curves)
    said = (
        f"With up to {rates} of the paper's {len(PAPER['learning_rate'])} learning rates its expected best is the "
        f"highest, or level with it, at {num_best} of {len(shared)} lengths, widths and budgets. That is a count, not "
        "a test; for tests see Table 1."
    )
    return Claim(theirs, said, "not shown")


def _at_every_rate(length: int, curves: Sequence[Data]) -> Claim:
    """A claim of all runs: the worst decides."""
    theirs = (
        f"Where models are wide enough (d = {WIDEST}, {length} tokens), ReBased reaches 100 % with every learning rate "
        "and seed; Based does not."
    )
    at = {curve["stack"]: curve for curve in curves if (curve["seq_len"], curve["d_model"]) == (length, WIDEST)}
    if not {"rebased", "based"} <= at.keys():
        return Claim(theirs, "Models so wide are not finished at this length.", "not run")
    both, wanted = [at["rebased"], at["based"]], len(PAPER["learning_rate"])
    rates, seeds = (min(counts) for counts in ([len(x["accuracies"]) for x in both], [x["num_seeds"] for x in both]))
    mine, other = (x["lowest"] for x in both)
    said = (
        f"The worst run of ReBased has {mine:.3f}, that of Based {other:.3f}, over {rates} of the paper's {wanted} "
        f"learning rates and {seeds_text([seeds])}. No test is made of the worst."
    )
    if mine < ALMOST_ALL:
        return Claim(theirs, said, "differs")
    is_whole = rates == wanted and seeds >= len(PAPER["seed"])
    return Claim(theirs, said, "agrees" if is_whole and other < ALMOST_ALL else "in part")


def _table(length: int, curves: Sequence[Data]) -> Table:
    budgets = sorted({budget for curve in curves for budget in curve["budgets"]})
    rows = []
    for curve in sorted(curves, key=lambda curve: (curve["d_model"], list(KERNELS).index(curve["stack"]))):
        found = dict(zip(curve["budgets"], zip(curve["mean"], curve["standard_error"], strict=True), strict=True))
        cells = [_expected(*found[budget]) if budget in found else "" for budget in budgets]
        rows.append([f"d = {curve['d_model']}", KERNELS[curve["stack"]], *cells])
    caption = f"{length} tokens, {seeds_text(curve['num_seeds'] for curve in curves)}"
    return Table.of(caption, ["width", "kernel", *(f"best of {budget}" for budget in budgets)], rows, num_keys=2)


def _expected(mean: float, error: float | None) -> str:
    return f"{mean:.3f}" if error is None else f"{mean:.3f} ± {error:.3f}"


def _draw(curves: Sequence[Data]) -> "Figure":
    widths = sorted({curve["d_model"] for curve in curves})
    figure, panels = new_figure(len(widths), "expected best accuracy", width=2.8)
    for panel, width in zip(panels, widths, strict=True):
        for stack, name in KERNELS.items():
            for curve in curves:
                if (curve["stack"], curve["d_model"]) == (stack, width):
                    budgets, mean = curve["budgets"], np.array(curve["mean"])
                    error = np.array([each or 0.0 for each in curve["standard_error"]])
                    panel.plot(budgets, mean, "o-", color=COLOURS[stack], label=name, linewidth=2, markersize=4)
                    panel.fill_between(
                        budgets, mean - error, mean + error, color=COLOURS[stack], alpha=0.12, linewidth=0
                    )
        panel.set(title=f"d_model {width}", xlabel="learning rates tried", ylim=(-0.02, 1.02))
        panel.xaxis.get_major_locator().set_params(integer=True)
    tidy(figure, panels)
    return figure


FIGURE4 = Experiment(
    name="figure4", title="Expected validation performance", grids=GRIDS, measure=measure, present=present
)
