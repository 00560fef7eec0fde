"""Tables 4 and 9: what is said of counts, and of the lengths of position tables that they are met with."""

from typing import Any

import pytest
from findings_by_hand import almost_the_counts

from rebased.analysis.pages import Claim, Table
from rebased.paper.counts import TABLE4, TABLE9
from rebased.paper.experiment import Experiment
from rebased.paper.published import TABLE_4, TABLE_9

COUNTS = {stack: {str(width): count for width, (count, _) in row.items()} for stack, row in TABLE_4.items()}
NONE = {stack: {width: count + 1 for width, count in row.items()} for stack, row in COUNTS.items()}


def presented(experiment: Experiment, data: dict[str, Any]) -> tuple[str, Table, Claim]:
    section = experiment.present(data)
    (text, table), (claim,) = section.parts, section.claims
    assert isinstance(text, str)
    assert isinstance(table, Table)
    return text, table, claim


@pytest.mark.parametrize(
    ("data", "num_equal", "verdict"),
    [(COUNTS, 28, "agrees"), (almost_the_counts(), 26, "in part"), (NONE, 0, "differs")],
    ids=["all", "some", "none"],
)
def test_counts_of_recall_models(data: dict[str, Any], num_equal: int, verdict: str) -> None:
    """That the lengths were chosen so that they fit stands beside it."""
    text, _, claim = presented(TABLE4, data)
    assert claim.verdict == verdict
    assert claim.ours == text
    assert text == (
        f"{num_equal} of 28 counts are the paper's to the unit. The paper does not say for which length of the "
        "position table: those here, 128 to 2048, were chosen cell by cell so that the count fits."
    )


def test_the_length_of_each_table_is_printed() -> None:
    _, table, _ = presented(TABLE4, almost_the_counts())
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
    assert rows["ConvRWKV"] == ["677,120 [2048]", "1,395,200 [2048]", "2,561,024 [512]", "5,777,408 [512]"]
    assert rows["Mamba"][0] == "655,260 [1024] (the paper: 655,360)"
    assert table.rows[0][1].note == "as in the paper"


@pytest.mark.parametrize(("more", "verdict"), [(0, "agrees"), (1, "differs")])
def test_counts_of_language_models(more: int, verdict: str) -> None:
    """With the paper's length."""
    text, table, claim = presented(TABLE9, {name: count + more for name, count in TABLE_9.items()})
    assert (claim.verdict, claim.ours) == (verdict, text)
    assert text == f"{0 if more else 3} of 3 counts are the paper's to the unit."
    assert "[" not in "".join(cell.text for row in table.rows for cell in row)
