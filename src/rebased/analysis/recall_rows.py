"""One model's recall runs as a row of a table: what was learned over the seeds, and at what price."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rebased.runs import Run

__all__ = ["RecallRow", "accuracy", "span"]


@dataclass(frozen=True, kw_only=True)
class RecallRow:
    """Runs that differ in their seed alone."""

    name: str
    """What people call the model."""
    runs: tuple[Run, ...]
    learning_rates: tuple[float, ...]
    """All that were tried; the runs have the one of the highest mean."""

    @property
    def learning_rate(self) -> float:
        return float(self.runs[0].config["learning_rate"])

    @property
    def accuracies(self) -> tuple[float, ...]:
        """On the test set, of each run's best epoch."""
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
    def steps(self) -> tuple[int, ...]:
        config = self.runs[0].config
        per_epoch = -(-config["num_train"] // config["batch_size"])
        return tuple(epochs * per_epoch for epochs in self.epochs)

    @property
    def num_reached(self) -> int:
        """Runs that ended because they had reached their goal."""
        return sum(run.result["finished"] == "reached" for run in self.runs)

    def num_parameters(self) -> int:
        """Read from the first run's weights."""
        return sum(x.numel() for x in self.runs[0].weights().values())


def accuracy(mean: float, sd: float | None) -> str:
    """``0.993 ± 0.002``."""
    return f"{mean:.3f}" if sd is None else f"{mean:.3f} ± {sd:.3f}"


def span(values: Sequence[int]) -> str:
    """``8–12``; one number if all are equal."""
    least, most = min(values), max(values)
    return f"{least:,}" if least == most else f"{least:,}–{most:,}"
