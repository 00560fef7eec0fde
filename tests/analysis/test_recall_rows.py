"""Rows of recall runs: their numbers by hand."""

from pathlib import Path

import pytest
from recall_runs import make_row

from rebased.analysis.recall_rows import accuracy, span


def test_numbers_by_hand(tmp_path: Path) -> None:
    row = make_row(tmp_path, "ReBased", [0.1, 0.5, 0.4], [0.2, 0.9], [0.7, 0.3])
    assert row.accuracies == (0.5, 0.9, 0.7)  # the best epoch's
    assert row.mean == pytest.approx(0.7)
    assert row.sd == pytest.approx(0.2)  # the root of (0.04 + 0.04 + 0) / 2
    assert row.epochs == (3, 2, 2)
    assert row.steps == (30, 20, 20)  # the last batch of an epoch is smaller
    assert row.num_parameters() == 7
    assert row.learning_rate == 0.003


def test_one_run_has_no_spread(tmp_path: Path) -> None:
    row = make_row(tmp_path, "ReBased", [0.5])
    assert row.sd is None
    assert accuracy(row.mean, row.sd) == "0.500"


def test_as_text() -> None:
    assert accuracy(0.99349, 0.0) == "0.993 ± 0.000"
    assert span([3, 2, 2]) == "2–3"
    assert span([1250, 1250]) == "1,250"
