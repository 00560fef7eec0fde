"""Numbers of the paper that no other test reads: some rows of Table 1, as they are printed."""

import statistics

import pytest

from rebased.paper.published import TABLE_1, TABLE_1_MEANS


def test_table_1_at_2048_tokens() -> None:
    assert TABLE_1["based"][2048] == {16: (0.02, 0.02), 24: (0.40, 0.18), 32: (0.66, 0.08), 48: (0.99, 0.01)}
    assert TABLE_1["rebased"][2048] == {16: (0.04, 0.03), 24: (0.58, 0.01), 32: (0.83, 0.04), 48: (0.99, 0.00)}


def test_the_papers_means_are_those_of_its_cells() -> None:
    """But for rounding: of four numbers of two digits, and of the mean itself."""
    for stack, by_length in TABLE_1.items():
        for length, cells in by_length.items():
            mean = statistics.fmean(mean for mean, _ in cells.values())
            assert TABLE_1_MEANS[stack][length] == pytest.approx(mean, abs=0.0101)
