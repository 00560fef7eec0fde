"""Figure 10: γ and β of ReBased over training, at several lengths."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rebased.analysis.pages import Cell, Picture, Section, Table
from rebased.paper.by_length import grids
from rebased.paper.experiment import Data, Experiment, Material
from rebased.paper.figures import SHADES, new_figure, tidy
from rebased.paper.published import FIGURE_10
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


def measure(material: Material) -> Data:
    return {"runs": [_describe(run) for run in material.runs]}


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
    steps = -(-config.num_train // config.batch_size)
    kept = [(1 - config.learning_rate_in(entry["epoch"]) * config.weight_decay) ** steps for entry in run.metrics]
    return [round(float(left), 5) for left in np.cumprod(kept)]


def present(data: Data) -> Section:
    runs = data["runs"]
    widest = max(run["d_model"] for run in runs)
    chosen = [run for run in runs if run["d_model"] == widest]
    parts: list[Any] = [
        "Mean and standard deviation over a layer's features, after every epoch; γ starts at 1 and β at 0. The paper "
        f"finds that γ settles near {FIGURE_10['gamma']} and β near {FIGURE_10['beta']:g} at every length (dotted). "
        f"{_stopped(runs)} Drawn are means, with a band of one standard deviation, of each length's most accurate run.",
        _decay(runs),
        _table(runs),
        Picture("figure10", _draw(chosen), f"Figure 10: γ and β over epochs, d = {widest}"),
    ]
    return Section("Figure 10: what norm and affine learn", tuple(parts))


def _stopped(runs: Sequence[Data]) -> str:
    early = sum(run["epochs"][-1] < run["max_epochs"] for run in runs)
    if not early:
        return f"All {len(runs)} runs had all of their epochs."
    return f"{early} of {len(runs)} runs ended before their last epoch: these values need not be settled ones."


def _decay(runs: Sequence[Data]) -> str:
    pairs = [
        (run["watched"][name][-1][0], run["decay_alone"][-1])
        for run in runs
        for name in PARAMETERS
        if "γ" in PARAMETERS[name]
    ]
    gaps = [abs(mean - alone) for mean, alone in pairs if mean is not None]
    found = f" At the ends of these runs γ's means are within {max(gaps):.3f} of that." if gaps else ""
    return (
        "Weight decay acts on γ as on every weight. With no gradient at all it would take γ from 1 to what a column "
        f"of the table has (dashed): a function of the learning rate and the number of steps alone.{found}"
    )


def _table(runs: Sequence[Data]) -> Table:
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
    header = ("tokens", "d", "learning rate", "seed", "accuracy", "epochs", *PARAMETERS.values(), "γ by decay alone")
    return Table.of("after the last epoch, mean ± standard deviation over features", header, rows)


def _moments(values: Sequence[float | None]) -> str:
    mean, sd = values
    return "not finite" if mean is None or sd is None else f"{mean:.3f} ± {sd:.3f}"


def _draw(runs: Sequence[Data]) -> "Figure":
    figure, panels = new_figure(len(PARAMETERS), "mean over features", width=2.7)
    lengths = sorted({run["seq_len"] for run in runs})
    for panel, (name, title) in zip(panels, PARAMETERS.items(), strict=True):
        for length, colour in zip(lengths, SHADES, strict=False):
            run = max((run for run in runs if run["seq_len"] == length), key=lambda run: float(run["accuracy"]))
            moments = [[np.nan if x is None else x for x in pair] for pair in run["watched"][name]]
            mean, sd = np.array([[float("γ" in title), 0.0], *moments]).T
            epochs = [0, *run["epochs"]]
            panel.plot(epochs, mean, color=colour, label=f"{length} tokens")
            panel.fill_between(epochs, mean - sd, mean + sd, color=colour, alpha=0.12, linewidth=0)
            if "γ" in title:
                panel.plot(epochs, [1.0, *run["decay_alone"]], color=colour, linestyle="--", linewidth=1)
        panel.axhline(FIGURE_10["gamma" if "γ" in title else "beta"], color="#3b3b3b", linestyle=":", linewidth=1)
        panel.set(title=title, xlabel="epoch")
        panel.xaxis.get_major_locator().set_params(integer=True)
    tidy(figure, panels)
    return figure


FIGURE10 = Experiment(
    name="figure10",
    title="γ and β over training",
    grids=grids(["rebased"]),
    measure=measure,
    present=present,
    needs="watched",
)
