"""A drift measurement as a table: a row per stream and way of feeding it."""

from rich.console import Console

from rebased.bench.drift import DriftResult
from rebased.cli.fitting import new_table, print_fitting

__all__ = ["print_drift_result"]


def print_drift_result(result: DriftResult, console: Console) -> None:
    table = new_table()
    for name in ("stream", "fed", "tokens", "error of values", "of normalizer"):
        table.add_column(name, justify="left" if name in ("stream", "fed") else "right")
    for each in result.drifts:
        errors = (f"{each.values_error:.1e}", f"{each.normalizer_error:.1e}")
        table.add_row(each.stream, each.feed, str(each.tokens), *errors)
    print_fitting(table, console, keys=2)
