"""Tables on a terminal: what is in a cell stays together, and nothing is lost."""

import io

import pytest
from rich.console import Console
from rich.table import Table as RichTable

from rebased.analysis.pages import Claim, Section, Table
from rebased.cli.fitting import new_table, print_fitting
from rebased.cli.section import print_section

HEADER = ("tokens", "d", "learning rate", "accuracy", "γ of queries", "γ of keys", "verdict")
ROWS = [
    (str(tokens), str(d), f"0.00{rate}", "0.99", f"-0.{rate}87 ± 0.084", "0.876 ± 0.084", "no difference shown")
    for tokens, d, rate in ((128, 64, 1), (128, 64, 3), (256, 128, 1))
]
SENTENCE = "Mean and standard deviation over a layer's features, after every epoch; γ starts at 1 and β at 0."


def console(width: int, *, terminal: bool = True) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None, highlight=False)


def said_by(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def table_of(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> RichTable:
    table = new_table()
    for name in header:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


@pytest.mark.parametrize(
    ("width", "num_parts", "repeated"), [(40, 4, 2), (60, 2, 3), (80, 2, 3), (120, 1, 3), (160, 1, 3)]
)
def test_no_cell_is_broken_and_each_part_tells_its_rows(width: int, num_parts: int, repeated: int) -> None:
    """``accura/cy``, and ``0.887 ±`` a line above ``0.084``. Keys that take half the room are fewer."""
    terminal = console(width)
    print_fitting(table_of(HEADER, ROWS), terminal, keys=3)
    said = said_by(terminal)
    assert max(map(len, said.splitlines())) <= width
    for text in [*(cell for row in ROWS for cell in row), *" ".join(HEADER).split()]:
        assert text in said
    parts = [part.splitlines() for part in said.split("\n\n")]
    assert len(parts) == num_parts
    for part in parts:
        for row, line in zip(ROWS, part[-len(ROWS) :], strict=True):
            assert line.split()[:repeated] == list(row[:repeated])


def test_prose_goes_on_in_the_next_line_between_words() -> None:
    terminal = console(60)
    print_fitting(table_of(("name", "title", "runs"), [("figure2", SENTENCE, "0/20")]), terminal)
    said = said_by(terminal)
    assert "\n\n" not in said
    assert " ".join(said.replace("0/20", "").replace("figure2", "").split()) == f"name title runs {SENTENCE}"


def test_what_is_wider_than_the_terminal_is_not_cut_off() -> None:
    terminal = console(20)
    print_fitting(table_of(("name", "file"), [("a", "x" * 30)]), terminal)
    assert said_by(terminal).count("x") == 30


def test_section_on_a_terminal_and_in_a_file() -> None:
    """Paragraphs ended in the midst of words, intervals in the midst of numbers; a file has a paragraph in a line."""
    header = ("kernel", *(f"d = {size}" for size in (16, 24, 32, 48)))
    table = Table.of("256 tokens", header, [("ReBased", *["0.59 ± 0.06 [0.52, 0.64]"] * 4)])
    section = Section("Table 1", (SENTENCE, table))
    terminal, file = console(80), console(60, terminal=False)
    for each in (terminal, file):
        print_section(section, each)
    lines = said_by(terminal).splitlines()
    assert lines[1].split() + lines[2].split() == SENTENCE.split()
    assert said_by(terminal).count("0.59 ± 0.06  ") == 3
    assert said_by(terminal).count("[0.52, 0.64]") == 4
    assert all(len(line) <= 80 for line in lines)
    assert SENTENCE in said_by(file).splitlines()


def test_claims_end_a_section() -> None:
    file = console(60, terminal=False)
    print_section(Section("Table 1", (), (Claim("It is best.", SENTENCE, "in part"),)), file)
    assert said_by(file).splitlines()[-3:] == ["The paper: It is best.", f"Here (in part): {SENTENCE}", ""]
