"""A section on a terminal: its paragraphs and tables; pictures are files."""

from rich.console import Console
from rich.text import Text

from rebased.analysis.pages import Cell, Picture, Section, Table
from rebased.cli.console import print_text
from rebased.cli.fitting import new_table, print_fitting

__all__ = ["print_section", "print_table"]

_STYLES = {"": "", "higher": "green", "lower": "red", "faint": "dim"}
_MARKS = {"higher": " ▲", "lower": " ▼"}


def print_section(section: Section, console: Console) -> None:
    console.print(Text(section.title, style="bold underline"))
    for index, part in enumerate(part for part in section.parts if not isinstance(part, Picture)):
        if index:
            console.print()
        if isinstance(part, Table):
            print_table(part, console)
        else:
            print_text(part, console)
    for claim in section.claims:
        console.print()
        print_text(f"The paper: {claim.theirs}", console)
        print_text(f"Here ({claim.verdict}): {claim.ours}", console)
    console.print()


def print_table(table: Table, console: Console) -> None:
    """Under its caption, as wide as the console has room for."""
    shown = new_table()
    for index, name in enumerate(table.header):
        shown.add_column(name, justify="left" if index < table.num_keys else "right")
    for row in table.rows:
        shown.add_row(*map(_cell, row))
    print_text(table.caption, console, style="italic")
    print_fitting(shown, console, keys=table.num_keys)


def _cell(cell: Cell) -> Text:
    """An interval is below its mean: twice as many columns fit so."""
    return Text(cell.text.replace(" [", "\n[") + _MARKS.get(cell.tone, ""), style=_STYLES[cell.tone])
