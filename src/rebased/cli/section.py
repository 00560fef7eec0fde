"""A section on a terminal: its paragraphs and tables; pictures are files."""

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from rebased.analysis.pages import Cell, Picture, Section, Table

__all__ = ["print_section", "print_table"]

_STYLES = {"": "", "higher": "green", "lower": "red", "faint": "dim"}
_MARKS = {"higher": " ▲", "lower": " ▼"}


def print_section(section: Section, console: Console) -> None:
    console.print(Text(section.title, style="bold underline"))
    for part in section.parts:
        if isinstance(part, Table):
            print_table(part, console)
        elif not isinstance(part, Picture):
            console.print(Text(part), soft_wrap=True)
    console.print()


def print_table(table: Table, console: Console) -> None:
    """Where columns do not fit, their entries go on in the next line: nothing is cut off."""
    shown = RichTable(
        box=None, pad_edge=False, header_style="bold", title=table.caption, title_justify="left", title_style="italic"
    )
    for index, name in enumerate(table.header):
        shown.add_column(name, justify="left" if index == 0 else "right", overflow="fold")
    for row in table.rows:
        shown.add_row(*map(_cell, row))
    console.print(shown)


def _cell(cell: Cell) -> Text:
    return Text(cell.text + _MARKS.get(cell.tone, ""), style=_STYLES[cell.tone])
