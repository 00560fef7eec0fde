"""Figure 10: γ and β of ReBased over training, at several lengths; and once more without weight decay."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rebased.analysis.pages import Cell, Claim, Picture, Section, Table
from rebased.paper.by_length import LENGTHS, grids
from rebased.paper.experiment import Data, Experiment, Material
from rebased.paper.figures import SHADES, new_figure, tidy
from rebased.paper.published import FIGURE_10
from rebased.paper.recall_cells import listed
from rebased.paper.watched import watched_moments
from rebased.runs import Run
from rebased.training.recall import RecallConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FIGURE10"]

PARAMETERS = {
    "blocks.1.mixer.gammas.0": "γ of queries",
    "blocks.1.mixer.gammas.1": "γ of keys",
    "blocks.1.mixer.betas.0": "β of queries",
    "blocks.1.mixer.betas.1": "β of keys",
}
GAMMAS = [name for name, title in PARAMETERS.items() if "γ" in title]
BETAS = [name for name in PARAMETERS if name not in GAMMAS]
NEAR = 0.05
"""Of the paper's value: a mean within this is said to have settled near it."""

WITHOUT_DECAY = "#c2691c"
_DECAY_ALONE: dict[str, Any] = {"linestyle": "--", "linewidth": 1}
_THE_PAPERS: dict[str, Any] = {"color": "#3b3b3b", "linestyle": ":", "linewidth": 1}

_CONTROL = {"seq_len": 256, "d_model": 64, "learning_rate": 3e-3, "seed": 42}
CONTROLS: dict[str, dict[str, Any]] = {
    "smoke": {"seq_len": 32, "d_model": 16, "learning_rate": 1e-2, "seed": 42},
    "small": _CONTROL,
    "paper": _CONTROL,
}
"""By scale, the run that is trained once more without weight decay, to show what decay does to γ. The paper has none.
With decay, that of `small` went through all epochs and ended near the paper's γ."""


def _with_control(grid: Mapping[str, Any], control: Mapping[str, Any]) -> dict[str, Any]:
    (cell,) = (cell for cell in grid["cells"] if cell["seq_len"] == control["seq_len"])
    return {**grid, "cells": [*grid["cells"], {**cell, **control, "weight_decay": 0.0}]}


def measure(material: Material) -> Data:
    """Runs without weight decay are apart: all that is said of the paper's recipe is said of the others alone."""
    by_recipe = [run for run in material.runs if run.config["weight_decay"] > 0]
    without_decay = [run for run in material.runs if run.config["weight_decay"] == 0]
    return {"runs": [_describe(run) for run in by_recipe], "without_decay": [_describe(run) for run in without_decay]}


def _describe(run: Run) -> Data:
    c, watched = run.config, watched_moments(run)
    return {
        "seq_len": c["seq_len"],
        "d_model": c["d_model"],
        "learning_rate": c["learning_rate"],
        "seed": c["seed"],
        "accuracy": run.result["accuracy"],
        "max_epochs": c["epochs"],
        "epochs": [entry["epoch"] for entry in run.metrics],
        "decay_alone": _decay_alone(run),
        "watched": {name: watched[name] for name in PARAMETERS},
    }


def _decay_alone(run: Run) -> list[float]:
    """What each epoch's end would have left of an initial 1, had every gradient been zero: AdamW decays γ too."""
    config = RecallConfig.from_dict(run.config)
    rates = [config.learning_rate_in(entry["epoch"]) for entry in run.metrics]
    kept = [(1 - rate * config.weight_decay) ** config.steps_per_epoch for rate in rates]
    return [round(float(left), 5) for left in np.cumprod(kept)]


def present(data: Data) -> Section:
    runs, without_decay = data["runs"], data.get("without_decay", [])  # which earlier findings do not have
    parts = [*(_by_recipe(runs, without_decay) if runs else []), *_without_decay(without_decay, runs)]
    return Section("Figure 10: what norm and affine learn", tuple(parts), _claims(runs, without_decay))


def _claims(runs: Sequence[Data], controls: Sequence[Data]) -> tuple[Claim, ...]:
    """Of runs that had all of their epochs: others may have stopped on the way."""
    settled = [run for run in runs if run["epochs"][-1] >= run["max_epochs"]]
    gamma, beta = FIGURE_10["gamma"], FIGURE_10["beta"]
    return (
        _settles(
            f"γ's mean settles near {gamma} at every length.", GAMMAS, gamma, settled, _decay_says(settled, controls)
        ),
        _settles(f"β's mean settles near {beta:g} at every length.", BETAS, beta, settled),
    )


def _settles(theirs: str, names: Sequence[str], value: float, settled: Sequence[Data], further: str = "") -> Claim:
    """It agrees where runs of all the paper's lengths do; runs of one length say nothing of every length."""
    by_rate: dict[float, list[float]] = {}
    finite = [run for run in settled if all(run["watched"][name][-1][0] is not None for name in names)]
    for run in finite:
        by_rate.setdefault(run["learning_rate"], []).extend(run["watched"][name][-1][0] for name in names)
    lengths = {run["seq_len"] for run in finite}
    found = dict(sorted(by_rate.items()))
    if not found:
        return Claim(theirs, "No run had all of its epochs.", "not run")
    said = listed(f"from {min(means):.3f} to {max(means):.3f} at {rate:g}" for rate, means in found.items())
    near = [abs(mean - value) <= NEAR for means in found.values() for mean in means]
    is_whole = lengths >= LENGTHS.keys()
    verdict = "differs" if not any(near) else "agrees" if all(near) and is_whole else "in part"
    if len(lengths) < 2:
        verdict = "not shown"
    count = f"{len(finite)} runs" if len(finite) > 1 else "one run"
    ends = f"At the ends of {count} of {listed(sorted(lengths))} tokens with all epochs"
    return Claim(theirs, f"{ends}, by learning rate: {said}. {further}".strip(), verdict)


def _decay_says(settled: Sequence[Data], controls: Sequence[Data]) -> str:
    """What decay alone would leave of γ in these runs, and where the run without decay ends, if there is one."""
    said = [f"{gap}." for gap in (_gap_to_decay(settled),) if gap]
    said += [f"Trained without weight decay, one run ends at {_gammas(run)}." for run in controls]
    return " ".join(said)


def _gap_to_decay(runs: Sequence[Data]) -> str:
    """Nothing where no mean is finite."""
    pairs = [(run["watched"][name][-1][0], run["decay_alone"][-1]) for run in runs for name in GAMMAS]
    gaps = [abs(mean - alone) for mean, alone in pairs if mean is not None]
    return f"They are within {max(gaps):.3f} of what weight decay alone would leave of γ" if gaps else ""


def _by_recipe(runs: Sequence[Data], controls: Sequence[Data]) -> list[Any]:
    widest = max(run["d_model"] for run in runs)
    chosen = [run for run in runs if run["d_model"] == widest]
    where = f"d = {widest}{' where nothing else is said' if controls else ''}"
    return [
        "Mean and standard deviation over a layer's features, after every epoch; γ starts at 1 and β at 0. The paper "
        f"finds that γ settles near {FIGURE_10['gamma']} and β near {FIGURE_10['beta']:g} at every length (dotted). "
        f"{_stopped(runs)} Drawn are means, with a band of one standard deviation, of each length's most accurate run"
        f"{', and of the run without weight decay' if controls else ''}.",
        _decay(runs),
        _table(_CAPTION, runs),
        Picture(
            "figure10", _draw(chosen, controls), f"Figure 10: γ and β over epochs, {where}; dots are where runs ended"
        ),
    ]


def _stopped(runs: Sequence[Data]) -> str:
    early = sum(run["epochs"][-1] < run["max_epochs"] for run in runs)
    if not early:
        return f"All {len(runs)} runs had all of their epochs."
    return f"{early} of {len(runs)} runs ended before their last epoch: these values need not be settled ones."


def _decay(runs: Sequence[Data]) -> str:
    gap = _gap_to_decay(runs)
    return (
        "Weight decay acts on γ as on every weight. With no gradient at all it would take γ from 1 to what a column "
        "of the table has (dashed): a function of the learning rate and the number of steps alone."
        f"{f' The means of γ at the ends of these runs: {gap[0].lower()}{gap[1:]}.' if gap else ''}"
    )


def _without_decay(controls: Sequence[Data], runs: Sequence[Data]) -> list[Any]:
    if not controls:
        return ["A run without weight decay, which would show directly what decay does to γ, is not finished."]
    return [*(_beside(control, runs) for control in controls), _table(f"without weight decay, {_CAPTION}", controls)]


def _beside(control: Data, runs: Sequence[Data]) -> str:
    """Numbers, and no verdict: there is one run of each."""
    same = [run for run in runs if all(run[name] == control[name] for name in _CONTROL)]
    with_decay = f"with decay, the same run ends at {_gammas(same[0])}" if same else "with decay it is not finished"
    return (
        f"Without weight decay only gradients move γ. Trained so, the run with {control['seq_len']} tokens, d = "
        f"{control['d_model']}, learning rate {control['learning_rate']:g} and seed {control['seed']} ends with means "
        f"of γ at {_gammas(control)}; {with_decay}. These are single runs, and need not have the same number of epochs."
    )


def _gammas(run: Data) -> str:
    means = [run["watched"][name][-1][0] for name in GAMMAS]
    queries, keys = ("a value that is not finite" if mean is None else f"{mean:.3f}" for mean in means)
    return f"{queries} (queries) and {keys} (keys) after {run['epochs'][-1]} epochs"


_CAPTION = "after the last epoch, mean ± standard deviation over features"


def _table(caption: str, runs: Sequence[Data]) -> Table:
    rows: list[list[Cell | str]] = []
    for run in sorted(runs, key=lambda run: (run["seq_len"], run["d_model"], run["learning_rate"], run["seed"])):
        last = [run["watched"][name][-1] for name in PARAMETERS]
        sizes = [str(run["seq_len"]), str(run["d_model"]), f"{run['learning_rate']:g}", str(run["seed"])]
        rows.append(
            [
                *sizes,
                f"{run['accuracy']:.2f}",
                str(run["epochs"][-1]),
                *map(_moments, last),
                f"{run['decay_alone'][-1]:.3f}",
            ]
        )
    header = ("tokens", "d", "rate", "seed", "accuracy", "epochs", *PARAMETERS.values(), "γ, decay alone")
    return Table.of(caption, header, rows, num_keys=4)


def _moments(values: Sequence[float | None]) -> str:
    mean, sd = values
    return "not finite" if mean is None or sd is None else f"{mean:.3f} ± {sd:.3f}"


def _draw(runs: Sequence[Data], controls: Sequence[Data]) -> "Figure":
    figure, panels = new_figure(len(PARAMETERS), "mean over features", width=2.7)
    lengths = sorted({run["seq_len"] for run in runs})
    for panel, (name, title) in zip(panels, PARAMETERS.items(), strict=True):
        for length, colour in zip(lengths, _shades(len(lengths)), strict=True):
            run = max((run for run in runs if run["seq_len"] == length), key=lambda run: float(run["accuracy"]))
            _draw_run(panel, run, name, colour, f"{length} tokens")
            if "γ" in title:
                panel.plot([0, *run["epochs"]], [1.0, *run["decay_alone"]], color=colour, **_DECAY_ALONE)
        for run in controls:
            label = f"{run['seq_len']} tokens, d = {run['d_model']}, no decay"
            _draw_run(panel, run, name, WITHOUT_DECAY, label)
        panel.axhline(FIGURE_10["gamma" if "γ" in title else "beta"], **_THE_PAPERS)
        panel.set(title=title, xlabel="epoch")
        panel.xaxis.get_major_locator().set_params(integer=True)
    # Keys of the legend alone, of no length's colour.
    panels[0].plot([], [], color="#3b3b3b", label="decay alone", **_DECAY_ALONE)
    panels[0].plot([], [], label="the paper's", **_THE_PAPERS)
    tidy(figure, panels)
    return figure


def _shades(count: int) -> list[str]:
    """As far from each other as there are shades."""
    last = len(SHADES) - 1
    return [SHADES[last - (last * index) // max(count - 1, 1)] for index in reversed(range(count))]


def _draw_run(panel: Any, run: Data, name: str, colour: str, label: str) -> None:
    moments = [[np.nan if x is None else x for x in pair] for pair in run["watched"][name]]
    mean, sd = np.array([[float(name in GAMMAS), 0.0], *moments]).T
    epochs = [0, *run["epochs"]]
    above = 3 - len(epochs) / 1000  # short runs would vanish under long ones
    panel.plot(epochs, mean, color=colour, label=label, marker=".", markevery=[-1], zorder=above)
    panel.fill_between(epochs, mean - sd, mean + sd, color=colour, alpha=0.12, linewidth=0)


FIGURE10 = Experiment(
    name="figure10",
    title="γ and β over training",
    grids={scale: _with_control(grid, CONTROLS[scale]) for scale, grid in grids(["rebased"]).items()},
    measure=measure,
    present=present,
    needs="watched",
)
