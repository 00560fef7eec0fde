"""Errors of a bench's candidates against float64, beside those of SDPA in the same precision."""

from rich.console import Console

from rebased.bench.accuracy import Accuracy
from rebased.bench.results import OpsBenchResult
from rebased.cli.console import print_text
from rebased.cli.fitting import new_table, print_fitting
from rebased.cli.numbers import ABSENT

__all__ = ["print_accuracy"]


def print_accuracy(result: OpsBenchResult, console: Console) -> None:
    """Print nothing if no errors were measured."""
    if not result.accuracy:
        return
    found = {(each.candidate, each.length): each for each in result.accuracy}
    table = new_table()
    for name in ("error", "of"):
        table.add_column(name)
    for length in result.config.lengths:
        table.add_column(str(length), justify="right")
    for candidate in result.config.candidates:
        mine = [found.get((candidate, length)) for length in result.config.lengths]
        if not any(mine):
            continue
        theirs = [found.get(("sdpa", length)) for length in result.config.lengths]
        for index, name in enumerate(_names(result)):
            cells = [_cell(a, b, name) for a, b in zip(mine, theirs, strict=True)]
            table.add_row("" if index else candidate, name, *cells)
    console.print()
    print_fitting(table, console, keys=2)
    caption = "relative RMS error against float64, and its ratio to SDPA's; on two heads of the inputs that were timed"
    print_text(caption, console)


def _names(result: OpsBenchResult) -> tuple[str, ...]:
    return ("output", "dq", "dk", "dv") if "both" in result.config.passes else ("output",)


def _cell(mine: Accuracy | None, sdpa: Accuracy | None, name: str) -> str:
    if mine is None or name not in mine.errors:
        return ABSENT
    error = mine.errors[name]
    if mine.candidate == "sdpa" or sdpa is None or not sdpa.errors.get(name):
        return f"{error:.1e}"
    return f"{error:.1e} {error / sdpa.errors[name]:.2f}×"
