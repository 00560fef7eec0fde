"""Figure 9: where the last query of an example looks, from the runs of Table 3."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from rebased.analysis.pages import Claim, Picture, Section, Table
from rebased.paper.experiment import Data, Experiment, Material
from rebased.paper.figures import COLOURS, new_figure, tidy
from rebased.paper.map_measures import show_maps
from rebased.paper.map_runs import GRIDS_OF_WIDEST, MODELS, best_runs, fingerprint, kept_runs, load_model, of_widest
from rebased.paper.recall_cells import listed
from rebased.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FIGURE9"]

TICKS = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0)
MARK: dict[str, Any] = {"color": "#e3a008", "markeredgecolor": "#3b3b3b", "markersize": 7}


def measure(material: Material) -> Data:
    kept, by_table3 = kept_runs(material, "figure9"), kept_runs(material, "table3")
    runs: dict[str, Data] = {}
    for run, *_ in of_widest(best_runs(material.runs)).values():
        name = run.folder.name
        if "examples" in by_table3.get(name, {}):
            runs[name] = _scores(run, by_table3[name]["examples"][0])
        else:
            runs[name] = kept.get(name) or _look_at(run, material.device)
    return {"runs": runs}


def _look_at(run: Run, device: str) -> Data:
    model, config = load_model(run, device)
    (example,) = show_maps(model, config.test_set(device, 1), num_pairs=config.task_options["num_pairs"])
    return _scores(run, example)


def _scores(run: Run, example: Data) -> Data:
    return {
        "stack": run.config["stack"],
        "seed": run.config["seed"],
        "fingerprint": fingerprint(run),
        "num_pairs": len(example["truth"]),
        "truth": example["truth"][-1],
        "scores": example["last_query"],
    }


def present(data: Data) -> Section:
    title = "Figure 9: attention of one query"
    by_stack = {entry["stack"]: entry for entry in data["runs"].values()}
    found = {name: by_stack[stack] for stack, name in MODELS.items() if stack in by_stack}
    if not found:
        return Section(title, ("No run has finished.",))
    text = (
        "Of the first example that Table 3 measures, and the first seed: how the last query's attention is divided "
        "among the tokens up to it. One query of one example says little; for all of them see entropy in Table 3."
    )
    caption = "Figure 9: attention of the last query to each token up to it; the value asked for is marked"
    return Section(title, (text, _table(found), Picture("figure9", _draw(found), caption)), (_claim(found),))


def _claim(found: Mapping[str, Data]) -> Claim:
    """Of one query, so not shown either way."""
    theirs = "ReBased attends to fewer noisy tokens than Based, softmax attention to fewer still."
    counts = {name: _num_noisy(entry)[0] for name, entry in found.items()}
    said = listed(f"{name} {count}" for name, count in counts.items())
    if len(found) < len(MODELS):
        return Claim(theirs, f"Not all three are finished; tokens above an even share: {said}.", "not run")
    return Claim(theirs, f"Of one query of one example: tokens above an even share {said}.", "not shown")


def _num_noisy(entry: Data) -> tuple[int, Float[np.ndarray, "others"]]:
    """How many tokens but the one asked for have more than an even share, and what all of these have."""
    scores = np.array(entry["scores"])
    others = np.delete(scores, entry["truth"])
    return int((others > 1 / len(scores)).sum()), others


def _table(found: Mapping[str, Data]) -> Table:
    rows = []
    for name, entry in found.items():
        num_above, others = _num_noisy(entry)
        rows.append(
            [
                name,
                f"{entry['scores'][entry['truth']]:.3f}",
                f"{others.max():.3f}",
                f"{num_above} of {len(others)}",
            ]
        )
    header = ["second layer", "at the value", "largest elsewhere", "others above an even share"]
    return Table.of("Attention of the last query", header, rows)


def _draw(found: Mapping[str, Data]) -> "Figure":
    figure, panels = new_figure(len(found), "attention (root scale)", height=3.0)
    for panel, (name, entry) in zip(panels, found.items(), strict=True):
        scores, truth = np.array(entry["scores"]), entry["truth"]
        # The root, as in the maps: noise and a peak of 1 are both seen.
        panel.set_yscale("function", functions=(lambda y: np.sqrt(np.maximum(y, 0)), np.square))
        panel.axvspan(-0.5, 2 * entry["num_pairs"] - 0.5, color="#f1f1ee", label="the pairs", zorder=0)
        colour = COLOURS[entry["stack"].removeprefix("copy_")]
        panel.vlines(np.arange(len(scores)), 0, scores, color=colour, linewidth=1.5)
        panel.plot([truth], [scores[truth]], "o", **MARK, label="the value asked for")
        panel.set(title=name, xlabel="position", ylim=(0, 1.08), xlim=(-1, len(scores)))
        panel.set_yticks(TICKS, labels=[f"{tick:g}" for tick in TICKS])
        panel.xaxis.get_major_locator().set_params(integer=True)
    tidy(figure, panels)
    return figure


FIGURE9 = Experiment(
    name="figure9",
    title="Attention of one query",
    grids=GRIDS_OF_WIDEST,
    measure=measure,
    present=present,
    needs="weights",
)
