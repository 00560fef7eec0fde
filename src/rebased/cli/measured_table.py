"""How every table of a bench's measurements ends: what was measured, and what to know of it."""

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from rebased.bench.files import BenchResult
from rebased.cli.console import print_text
from rebased.cli.contention import warn_of_contention
from rebased.cli.fitting import print_fitting

__all__ = ["print_measured"]


def print_measured(
    table: Table, caption: str, result: BenchResult[Any, Any], describe: Callable[[Any], str], console: Console
) -> None:
    """Print the table, its caption, a warning if the machine was busy, and why cells are empty.

    The first two columns of ``table`` say what a row is of. ``describe`` begins the line of a measurement that was
    skipped, as ``rebased skipped at 512``; the reason follows.
    """
    print_fitting(table, console, keys=2)
    print_text(caption, console)
    warn_of_contention(result.other_cpus, console)
    for each in result.measurements:
        if each.skipped:
            print_text(f"{describe(each)}: {each.skipped}", console)
