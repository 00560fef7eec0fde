"""What a sweep's runs say about its cells: the best learning rate, then mean and spread over seeds, as in the paper."""

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rebased.runs import Run

__all__ = ["CellSummary", "summarize"]


@dataclass(frozen=True)
class CellSummary:
    """A cell at its best learning rate."""

    cell: dict[str, Any]
    """The runs' config, but for learning rate and seed."""
    learning_rate: float
    """The one of the highest mean; of equals, the lowest."""
    runs: tuple[Run, ...]
    """Those with that learning rate, by seed."""
    tried: tuple[Run, ...]
    """Those with any learning rate, by that and seed."""

    @property
    def learning_rates(self) -> tuple[float, ...]:
        """All that were tried."""
        return tuple(dict.fromkeys(run.config["learning_rate"] for run in self.tried))

    @property
    def accuracies(self) -> tuple[float, ...]:
        return tuple(run.result["accuracy"] for run in self.runs)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.accuracies)

    @property
    def sd(self) -> float | None:
        """With n - 1 below the root; None for one run."""
        return statistics.stdev(self.accuracies) if len(self.runs) > 1 else None

    @property
    def epochs(self) -> tuple[int, ...]:
        return tuple(run.result["epochs"] for run in self.runs)

    @property
    def reasons(self) -> Counter[str]:
        """Why the runs ended."""
        return Counter(run.result["finished"] for run in self.runs)


def summarize(runs: Iterable[Run]) -> list[CellSummary]:
    """A summary for each cell, in the order in which cells first appear."""
    cells: dict[str, list[Run]] = {}
    for run in runs:
        cells.setdefault(json.dumps(_cell(run), sort_keys=True), []).append(run)
    return [_summary(alike) for alike in cells.values()]


def _summary(runs: Sequence[Run]) -> CellSummary:
    by_rate: dict[float, list[Run]] = {}
    tried = sorted(runs, key=lambda run: (run.config["learning_rate"], run.config["seed"]))
    for run in tried:
        by_rate.setdefault(run.config["learning_rate"], []).append(run)
    most = max(map(len, by_rate.values()))  # a rate that lacks seeds, whose group failed, might be lucky
    candidates = [
        CellSummary(_cell(runs[0]), rate, tuple(alike), tuple(tried))
        for rate, alike in by_rate.items()
        if len(alike) == most
    ]
    return max(candidates, key=lambda summary: summary.mean)


def _cell(run: Run) -> dict[str, Any]:
    return {name: value for name, value in run.config.items() if name not in ("learning_rate", "seed")}
