"""What recall runs come to, cell by cell: the numbers that tables and figures about accuracy are made of."""

import statistics
from collections.abc import Iterable, Sequence

import numpy as np

from rebased.analysis.bootstrap import mean_interval
from rebased.analysis.summary import CellSummary, summarize
from rebased.paper.experiment import Data
from rebased.runs import Run

__all__ = ["describe_cells", "listed", "over_seeds", "seeds_text", "spread_text"]

MIN_FOR_INTERVAL = 5
"""Of fewer values an interval by bootstrap is little more than the least and the greatest: of two it covers half."""


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
        "epochs": list(summary.epochs),
        "ended": dict(summary.reasons),
        "by_rate": by_cell[key],
        "stop_above": summary.cell["stop_above"],
        "versions": sorted({_version(run) for run in summary.tried}),
    }


def _version(run: Run) -> str:
    """Of the code that made it: a digest of its files or, of older runs, the commit."""
    made_with = run.result.get("made_with", {})
    return str(made_with.get("source") or made_with.get("commit") or "not known")


def over_seeds(values: Sequence[float]) -> Data:
    """Mean, standard deviation (n - 1) and a bootstrap interval of the mean, where there are enough values for them."""
    interval = None
    if len(values) >= MIN_FOR_INTERVAL:
        found = mean_interval(np.array(values))
        interval = [found.low, found.high]
    sd = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "sd": sd, "interval": interval}


def seeds_text(counts: Iterable[int]) -> str:
    """``5 seeds``, ``2 to 5 seeds``, of so many in each cell."""
    least, most = min(numbers := list(counts)), max(numbers)
    spanned = f"{most}" if least == most else f"{least} to {most}"
    return f"{spanned} {'seed' if most == 1 else 'seeds'}"


def listed(values: Iterable[object]) -> str:
    """``1, 2 and 3``."""
    *others, last = map(str, values)
    return f"{', '.join(others)} and {last}" if others else last


def spread_text(found: Data, *, digits: int = 2, sign: str = "") -> str:
    """``0.59 ± 0.06 [0.52, 0.64]`` of what `over_seeds` gives, as far as it does."""
    shown = f"{sign}.{digits}f"
    text = f"{found['mean']:{shown}}"
    if found["sd"] is not None:
        text += f" ± {found['sd']:.{digits}f}"
    if found["interval"] is not None:
        low, high = found["interval"]
        text += f" [{low:{shown}}, {high:{shown}}]"
    return text
