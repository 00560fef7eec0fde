"""Cells summed up: the best learning rate by the mean over seeds, and its spread."""

from pathlib import Path

import pytest

from rebased.analysis.summary import summarize
from rebased.runs import Run


def run(accuracy: float, finished: str = "epochs", epochs: int = 4, **changes: object) -> Run:
    result = {"accuracy": accuracy, "finished": finished, "epochs": epochs}
    config = {"stack": "rebased", "d_model": 12, "seq_len": 16, "learning_rate": 1e-3, "seed": 1}
    return Run(Path(), config | changes, (), result)


def test_best_learning_rate_is_chosen_by_the_mean() -> None:
    runs = [
        run(1.0, learning_rate=0.1, seed=1),
        run(0.0, "diverged", learning_rate=0.1, seed=2),
        run(0.7, learning_rate=0.01, seed=2),
        run(0.5, "reached", epochs=3, learning_rate=0.01, seed=1),
    ]
    (summary,) = summarize(runs)
    assert summary.learning_rate == 0.01
    assert summary.learning_rates == (0.01, 0.1)
    assert summary.accuracies == (0.5, 0.7)
    assert summary.mean == pytest.approx(0.6)
    assert summary.sd == pytest.approx(0.02**0.5)  # (0.1² + 0.1²) / (2 - 1)
    assert summary.epochs == (3, 4)
    assert summary.reasons == {"reached": 1, "epochs": 1}


def test_equals_go_to_the_lowest_learning_rate() -> None:
    (summary,) = summarize([run(0.5, learning_rate=0.1), run(0.5, learning_rate=0.01)])
    assert summary.learning_rate == 0.01
    assert summary.sd is None


def test_cells_stay_apart_and_in_order() -> None:
    runs = [run(0.1, d_model=24), run(0.2, d_model=12), run(0.3, d_model=24, seed=2)]
    assert [(summary.cell["d_model"], summary.mean) for summary in summarize(runs)] == [
        (24, pytest.approx(0.2)),
        (12, 0.2),
    ]
