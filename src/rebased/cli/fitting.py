"""Tables that fit the terminal: what has no room beside the rest comes below it, under the same first columns."""

from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Column, Table

__all__ = ["new_table", "print_fitting"]

_LONG = 30
"""Characters of a cell beyond which it is prose, and goes on in the next line: what has numbers alone is shorter."""
_BETWEEN = 2
"""Spaces from column to column."""
_ANY = 10_000
"""A width that everything fits."""


def new_table() -> Table:
    return Table(box=None, pad_edge=False, header_style="bold")


def print_fitting(table: Table, console: Console, *, keys: int = 1) -> None:
    """In several parts where ``table`` is wider than the console, each with the first ``keys`` columns before others.

    Headers and long texts go on in the next line, between words; what is shorter stays in one piece.
    """
    columns = [_Fitted.of(column, console) for column in table.columns]
    for index, part in enumerate(_parts(columns, keys, console.width)):
        if index:
            console.print()
        console.print(_only(table, part, _widths(part, console.width)))


@dataclass(frozen=True)
class _Fitted:
    """A column, and the room that it takes."""

    column: Column
    least: int
    most: int

    @classmethod
    def of(cls, column: Column, console: Console) -> "_Fitted":
        header = _measure(column.header, console)
        cells = [_measure(cell, console) for cell in column.cells]
        least = [max(cell.minimum, min(cell.maximum, _LONG)) for cell in cells]
        return cls(
            column,
            least=max([header.minimum, *least]),
            most=max([header.maximum, *(cell.maximum for cell in cells)]),
        )


def _measure(text: RenderableType, console: Console) -> Measurement:
    return Measurement.get(console, console.options.update(width=_ANY), text)


def _parts(columns: list[_Fitted], keys: int, room: int) -> list[list[_Fitted]]:
    """As many columns in each as there is room for. Keys that would leave no more than half of it are not repeated."""
    while keys > 1 and _taken([each.least for each in columns[:keys]]) > room // 2:
        keys -= 1
    first, parts = columns[:keys], [columns[:keys]]
    for column in columns[keys:]:
        if len(parts[-1]) > len(first) and _taken([each.least for each in [*parts[-1], column]]) > room:
            parts.append(list(first))
        parts[-1].append(column)
    return parts


def _widths(part: list[_Fitted], room: int) -> list[int]:
    """What each column would like, taken from the widest until there is room for all."""
    widths = [each.most for each in part]
    while _taken(widths) > room:
        can_give = [index for index, each in enumerate(part) if widths[index] > each.least]
        if not can_give:
            break
        widths[max(can_give, key=lambda index: widths[index])] -= 1
    return widths


def _taken(widths: list[int]) -> int:
    return sum(widths) + _BETWEEN * (len(widths) - 1)


def _only(table: Table, part: list[_Fitted], widths: list[int]) -> Table:
    """``overflow="fold"``: where even one column is wider than the console, nothing is cut off."""
    shown = new_table()
    for each, width in zip(part, widths, strict=True):
        column = each.column
        shown.add_column(column.header, justify=column.justify, style=column.style, width=width, overflow="fold")
    cells = [list(each.column.cells) for each in part]
    for index, row in enumerate(table.rows):
        shown.add_row(*(column[index] for column in cells), style=row.style)
    return shown
