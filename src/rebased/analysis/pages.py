"""What there is to say of an experiment, before it is printed or becomes HTML: text, tables and pictures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rebased.checks import check_choice

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["TONES", "VERDICTS", "Cell", "Claim", "Part", "Picture", "Section", "Table"]

TONES = ("", "higher", "lower", "faint")
"""How a cell differs from what it is compared with, if a test says so; faint is what matters less."""

VERDICTS = {
    "agrees": "These runs say the same, by the measure or the test that is named.",
    "in part": "Some of it is so here; what is not, or is not shown, stands beside it.",
    "not shown": "These runs neither show it nor refute it: too few, too small, or of no test. It may be true.",
    "differs": "These runs say otherwise.",
    "not run": "Nothing here speaks of it.",
}
"""What runs may say of a claim, and what is meant by it."""


@dataclass(frozen=True)
class Cell:
    """One entry of a table."""

    text: str
    tone: str = ""
    """One of `TONES`."""
    note: str = ""
    """What is said where there is room: a tooltip."""

    def __post_init__(self) -> None:
        check_choice("tone", self.tone, TONES)


@dataclass(frozen=True)
class Table:
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    num_keys: int = 1
    """Columns, from the first on, that tell which row it is."""

    @classmethod
    def of(
        cls, caption: str, header: Sequence[str], rows: Sequence[Sequence[Cell | str]], *, num_keys: int = 1
    ) -> "Table":
        """Plain texts become cells. ValueError for a row that is not as long as the header."""
        cells = tuple(tuple(Cell(each) if isinstance(each, str) else each for each in row) for row in rows)
        for row in cells:
            if len(row) != len(header):
                raise ValueError(f"a row of {caption!r} has {len(row)} cells, its header {len(header)}")
        return cls(caption, tuple(header), cells, num_keys)


@dataclass(frozen=True)
class Picture:
    name: str
    """Of its files, without extension."""
    figure: "Figure"
    caption: str
    """Also what is said to those who cannot see it."""


@dataclass(frozen=True)
class Claim:
    """What was said elsewhere, and what our runs say of it."""

    theirs: str
    ours: str
    verdict: str
    """One of `VERDICTS`."""

    def __post_init__(self) -> None:
        check_choice("verdict", self.verdict, VERDICTS)


Part = str | Table | Picture
"""A text is a paragraph."""


@dataclass(frozen=True)
class Section:
    """All about one table or figure of the paper."""

    title: str
    parts: tuple[Part, ...]
    claims: tuple[Claim, ...] = ()
    """Those of the paper that it bears on."""

    @property
    def pictures(self) -> tuple[Picture, ...]:
        return tuple(part for part in self.parts if isinstance(part, Picture))
