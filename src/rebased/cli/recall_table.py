"""Recall runs as a table: a row per model."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rebased.analysis.recall_rows import RecallRow, accuracy, span

__all__ = ["print_recall_rows"]

_CAPTION = "accuracy: the best epoch's, mean ± sd (n - 1) over seeds; learning rate: the one with the highest mean"


def print_recall_rows(rows: Sequence[RecallRow], console: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("model", no_wrap=True)
    for name in ("accuracy", "each seed", "epochs", "steps", "learning rate", "parameters"):
        table.add_column(name, justify="right", overflow="fold")
    for row in rows:
        table.add_row(
            row.name,
            accuracy(row.mean, row.sd),
            " ".join(f"{x:.3f}" for x in row.accuracies),
            span(row.epochs),
            span(row.steps),
            f"{row.learning_rate:g} of {len(row.learning_rates)}",
            f"{row.num_parameters():,}",
        )
    console.print(table)
    console.print(Text(_CAPTION), soft_wrap=True)
