"""One model's recall runs as a row of a table: what was learned over the seeds, and at what price."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from rebased.analysis.pages import Table
from rebased.analysis.summary import CellSummary

__all__ = ["RecallRow", "accuracy", "accuracy_table", "span"]


@dataclass(frozen=True)
class RecallRow(CellSummary):
    """A model at its best learning rate, with a name."""

    name: str
    """What people call the model."""

    @classmethod
    def of(cls, name: str, summary: CellSummary) -> Self:
        return cls(summary.cell, summary.learning_rate, summary.runs, summary.tried, name)

    @property
    def steps(self) -> tuple[int, ...]:
        config = self.runs[0].config
        per_epoch = -(-config["num_train"] // config["batch_size"])
        return tuple(epochs * per_epoch for epochs in self.epochs)

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


def accuracy_table(rows: Sequence[RecallRow]) -> Table:
    """A row for each model."""
    caption = (
        "Accuracy on the test set: the best epoch of each run, mean ± standard deviation (n - 1) over seeds, at the "
        "learning rate with the highest mean"
    )
    return Table.of(
        caption,
        ("model", "accuracy", "each seed", "epochs", "steps", "learning rate", "parameters"),
        [
            (
                row.name,
                accuracy(row.mean, row.sd),
                " ".join(f"{x:.3f}" for x in row.accuracies),
                span(row.epochs),
                span(row.steps),
                f"{row.learning_rate:g} of {len(row.learning_rates)}",
                f"{row.num_parameters():,}",
            )
            for row in rows
        ],
    )
