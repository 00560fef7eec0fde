"""What weight decay alone does to γ, beside what AdamW does to a weight whose gradient is zero."""

from pathlib import Path

import pytest
import torch

from rebased.analysis.pages import Table
from rebased.paper.experiment import Material
from rebased.paper.figure10 import FIGURE10, PARAMETERS
from rebased.runs import Run
from rebased.training.recall import RecallConfig

RATES = (0.03, 0.0225, 0.0075)
"""Of three epochs: the cosine of 0°, 60° and 120°, and 1, halved, of 0.03."""


def run_of(gammas: list[float | None], max_epochs: int = 3) -> Run:
    config = RecallConfig(
        stack="rebased",
        seq_len=16,
        d_model=8,
        learning_rate=RATES[0],
        seed=1,
        task_options={"num_pairs": 2},
        vocab_size=40,
        num_train=10,
        batch_size=4,
        weight_decay=0.5,
        epochs=max_epochs,
    )
    metrics = tuple(
        {"epoch": epoch, "watched": {name: [gamma, 0.0] for name in PARAMETERS}}
        for epoch, gamma in enumerate(gammas, start=1)
    )
    return Run(Path("run"), config.to_dict(), metrics, {"accuracy": 0.5})


def after_zero_gradients() -> list[float]:
    """Three steps an epoch: ten examples in batches of four."""
    weight = torch.nn.Parameter(torch.ones((), dtype=torch.float64))
    optimizer = torch.optim.AdamW([weight], weight_decay=0.5)
    left = []
    for rate in RATES:
        optimizer.param_groups[0]["lr"] = rate
        for _ in range(3):
            weight.grad = torch.zeros_like(weight)
            optimizer.step()
        left.append(weight.item())
    return left


def present(run: Run) -> tuple[str, Table]:
    data = FIGURE10.measure(Material(scale="smoke", runs=(run,), out=Path("nowhere"), device="cpu"))
    assert data["runs"][0]["decay_alone"] == pytest.approx(after_zero_gradients(), abs=1e-5)
    _, sentence, table, _ = FIGURE10.present(data).parts
    assert isinstance(sentence, str)
    assert isinstance(table, Table)
    return sentence, table


def test_decay_alone_is_adamw_without_gradients() -> None:
    _, table = present(run_of([0.9, 0.8, 0.7]))
    assert table.rows[0][-1].text == f"{after_zero_gradients()[-1]:.3f}"


def test_how_far_gamma_is_from_it() -> None:
    sentence, _ = present(run_of([0.9, 0.8, 0.7]))
    assert f"within {after_zero_gradients()[-1] - 0.7:.3f} of that" in sentence


def test_of_a_gamma_that_is_not_finite_nothing_is_said() -> None:
    sentence, _ = present(run_of([0.9, None, None]))
    assert "within" not in sentence


@pytest.mark.parametrize(("max_epochs", "expected"), [(3, "All 1 runs had all"), (64, "1 of 1 runs ended before")])
def test_runs_that_ended_early_are_counted(max_epochs: int, expected: str) -> None:
    run = run_of([0.9, 0.8, 0.7], max_epochs)
    data = FIGURE10.measure(Material(scale="smoke", runs=(run,), out=Path("nowhere"), device="cpu"))
    assert expected in str(FIGURE10.present(data).parts[0])
