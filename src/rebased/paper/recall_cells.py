"""What recall runs come to, cell by cell: the numbers that tables and figures about accuracy are made of."""

import statistics
from collections.abc import Sequence

import numpy as np

from rebased.analysis.bootstrap import mean_interval
from rebased.analysis.summary import CellSummary, summarize
from rebased.paper.experiment import Data
from rebased.runs import Run

__all__ = ["describe_cells", "over_seeds", "spread_text"]


def describe_cells(runs: Sequence[Run]) -> list[Data]:
    """Each stack, length and width: accuracies of all learning rates and seeds, and what the best rate comes to."""
    by_cell: dict[tuple[str, int, int], dict[str, dict[str, float]]] = {}
    for run in runs:
        c = run.config
        rates = by_cell.setdefault((c["stack"], c["seq_len"], c["d_model"]), {})
        rates.setdefault(f"{c['learning_rate']:g}", {})[str(c["seed"])] = run.result["accuracy"]
    return [_describe(summary, by_cell) for summary in summarize(runs)]


def _describe(summary: CellSummary, by_cell: dict[tuple[str, int, int], dict[str, dict[str, float]]]) -> Data:
    key = summary.cell["stack"], summary.cell["seq_len"], summary.cell["d_model"]
    return {
        "stack": key[0],
        "seq_len": key[1],
        "d_model": key[2],
        "learning_rate": summary.learning_rate,
        "seeds": [run.config["seed"] for run in summary.runs],
        "accuracies": list(summary.accuracies),
        **over_seeds(summary.accuracies),
        "held_out": _held_out(summary.tried),
        "epochs": list(summary.epochs),
        "ended": dict(summary.reasons),
        "by_rate": by_cell[key],
    }


def _held_out(runs: Sequence[Run]) -> dict[str, float]:
    """Each seed's accuracy at the learning rate that is best for the other seeds.

    To choose a rate by the accuracies that are then compared favours what varies most. With one seed there is no other.
    """
    rates: dict[float, dict[int, float]] = {}
    for run in runs:
        rates.setdefault(run.config["learning_rate"], {})[run.config["seed"]] = run.result["accuracy"]
    most = max(map(len, rates.values()))
    complete = [by_seed for by_seed in rates.values() if len(by_seed) == most]

    def chosen(seed: int) -> float:
        able = [by_seed for by_seed in complete if seed in by_seed]
        others = [{s: x for s, x in by_seed.items() if s != seed} or by_seed for by_seed in able]
        means = [sum(each.values()) / len(each) for each in others]
        return able[means.index(max(means))][seed]

    return {str(seed): chosen(seed) for seed in sorted({seed for by_seed in complete for seed in by_seed})}


def over_seeds(values: Sequence[float]) -> Data:
    """Mean, standard deviation (n - 1) and a bootstrap interval of the mean; of one value the mean alone."""
    if len(values) < 2:
        return {"mean": statistics.fmean(values), "sd": None, "interval": None}
    found = mean_interval(np.array(values))
    return {"mean": statistics.fmean(values), "sd": statistics.stdev(values), "interval": [found.low, found.high]}


def spread_text(found: Data, *, digits: int = 2, sign: str = "") -> str:
    """``0.59 ± 0.06 [0.52, 0.64]`` of what `over_seeds` gives; of one seed, the number alone."""
    shown = f"{sign}.{digits}f"
    if found["sd"] is None:
        return f"{found['mean']:{shown}}"
    low, high = found["interval"]
    return f"{found['mean']:{shown}} ± {found['sd']:.{digits}f} [{low:{shown}}, {high:{shown}}]"
