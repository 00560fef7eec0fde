"""Figures 1 and 7: what is said of stacks cell by cell."""

from pathlib import Path

from paper_cases import make_run

from rebased.analysis.pages import Table
from rebased.paper.by_length import compare_in_cells
from rebased.paper.experiment import Experiment, Material
from rebased.paper.figure1 import FIGURE1
from rebased.paper.figure7 import FIGURE7
from rebased.runs import Run


def presented(experiment: Experiment, *runs: Run) -> tuple[list[str], list[Table]]:
    material = Material(scale="small", runs=runs, out=Path("nowhere"), device="cpu")
    parts = experiment.present(experiment.measure(material)).parts
    return [part for part in parts if isinstance(part, str)], [part for part in parts if isinstance(part, Table)]


def test_beyond_where_runs_stop_none_is_higher() -> None:
    """Of three widths one is level, though both have more than 0.99; a fourth only one of them has."""
    based = {16: 0.2, 24: 0.5, 32: 0.995, 48: 0.9}
    rebased = {16: 0.1, 24: 0.8, 32: 0.992}
    texts, _ = presented(
        FIGURE1,
        *(make_run("based", accuracy, d_model=size) for size, accuracy in based.items()),
        *(make_run("rebased", accuracy, d_model=size) for size, accuracy in rebased.items()),
    )
    assert texts[-1].startswith(
        "ReBased beside Based: higher in 1, lower in 1 and level in 1 of 3 cells, by +0.067 on average"
    )


def test_stacks_that_share_no_cell_are_not_compared() -> None:
    runs = make_run("attention", 0.5, d_model=16), make_run("conv_attention", 0.5, d_model=24)
    texts, (table,) = presented(FIGURE7, *runs)
    assert len(texts) == 1
    assert [cell.text for cell in table.rows[0]] == ["Attention", "0.50", "not run"]
    assert compare_in_cells([], "attention", "conv_attention") == ""


def test_hybrids_stand_beside_what_they_are_made_of() -> None:
    runs = (make_run(stack, accuracy) for stack, accuracy in (("rwkv", 0.1), ("conv_rwkv", 0.4)))
    texts, (table,) = presented(FIGURE7, *runs)
    assert texts[-1].startswith("ConvRWKV beside RWKV: higher in 1, lower in 0 and level in 0 of 1 cells, by +0.300")
    assert table.caption == "256 tokens, 1 seed"
