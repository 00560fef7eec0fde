"""What weight decay alone does to γ, beside what AdamW does to a weight whose gradient is zero; and runs without it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rebased.analysis.pages import Picture, Table
from rebased.paper.by_length import LENGTHS
from rebased.paper.experiment import SCALES, Data, Material
from rebased.paper.figure10 import FIGURE10, PARAMETERS
from rebased.paper.registry import EXPERIMENTS
from rebased.runs import Run
from rebased.training.recall import RecallConfig

RATES = (0.03, 0.0225, 0.0075)
"""Of three epochs: the cosine of 0°, 60° and 120°, and 1, halved, of 0.03."""


def run_of(gammas: list[float | None], max_epochs: int = 3, **changes: Any) -> Run:
    accuracy = changes.pop("accuracy", 0.5)
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
    ).but(**changes)
    metrics = tuple(
        {"epoch": epoch, "watched": {name: [gamma, 0.0] for name in PARAMETERS}}
        for epoch, gamma in enumerate(gammas, start=1)
    )
    return Run(Path("run"), config.to_dict(), metrics, {"accuracy": accuracy})


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


def measure(*runs: Run) -> Data:
    return FIGURE10.measure(Material(scale="smoke", runs=runs, out=Path("nowhere"), device="cpu"))


def present(run: Run) -> tuple[str, Table]:
    data = measure(run)
    assert data["runs"][0]["decay_alone"] == pytest.approx(after_zero_gradients(), abs=1e-5)
    _, sentence, table, *_ = FIGURE10.present(data).parts
    assert isinstance(sentence, str)
    assert isinstance(table, Table)
    return sentence, table


def test_decay_alone_is_adamw_without_gradients() -> None:
    _, table = present(run_of([0.9, 0.8, 0.7]))
    assert table.rows[0][-1].text == f"{after_zero_gradients()[-1]:.3f}"


def test_how_far_gamma_is_from_it() -> None:
    sentence, _ = present(run_of([0.9, 0.8, 0.7]))
    assert f"within {after_zero_gradients()[-1] - 0.7:.3f} of what weight decay alone would leave" in sentence


def test_the_run_that_is_farthest_from_it_counts() -> None:
    runs = [run_of([0.9, 0.8, gamma], seed=seed) for seed, gamma in enumerate((0.7, 0.6, 0.65))]
    sentence = FIGURE10.present(measure(*runs)).parts[1]
    assert f"within {after_zero_gradients()[-1] - 0.6:.3f} of what weight decay alone would leave" in str(sentence)


def test_of_a_gamma_that_is_not_finite_nothing_is_said() -> None:
    sentence, _ = present(run_of([0.9, None, None]))
    assert "within" not in sentence


@pytest.mark.parametrize(("max_epochs", "expected"), [(3, "All 1 runs had all"), (64, "1 of 1 runs ended before")])
def test_runs_that_ended_early_are_counted(max_epochs: int, expected: str) -> None:
    data = measure(run_of([0.9, 0.8, 0.7], max_epochs))
    assert expected in str(FIGURE10.present(data).parts[0])


# ---- Without weight decay ----

RECIPE = run_of([0.9, 0.8, 0.7])
CONTROL = run_of([1.0, 1.1, 1.25], weight_decay=0.0, accuracy=0.9)


@pytest.mark.parametrize("scale", SCALES)
def test_the_control_is_one_run_without_decay(scale: str) -> None:
    """The same as a run of the recipe in everything else, and in no other experiment."""
    configs = FIGURE10.configs(scale)
    (control,) = (config for config in configs if config.weight_decay != 0.1)
    assert control.weight_decay == 0
    assert control.but(weight_decay=0.1) in configs
    others = [
        each for experiment in EXPERIMENTS.values() if experiment != FIGURE10 for each in experiment.configs(scale)
    ]
    assert {config.weight_decay for config in others} == {0.1}


def test_what_is_said_of_the_recipe_does_not_count_it() -> None:
    """Though it is more accurate, and far from what decay alone would leave."""
    with_it, without = (FIGURE10.present(measure(*runs)).parts for runs in ((RECIPE, CONTROL), (RECIPE,)))
    assert str(with_it[0]).replace(", and of the run without weight decay", "") == without[0]
    assert with_it[1:3] == without[1:3]
    drawn, expected = with_it[3], without[3]
    assert isinstance(drawn, Picture)
    assert isinstance(expected, Picture)
    for panel, same in zip(drawn.figure.axes, expected.figure.axes, strict=True):
        own, others = ([list(line.get_ydata()) for line in each.lines] for each in (panel, same))
        assert [values for values in own if values in others] == others
        (control,) = (values for values in own if values not in others)
        assert control[1:] == [1.0, 1.1, 1.25]


def test_gamma_without_decay_is_shown_beside_gamma_with_it() -> None:
    *_, sentence, table = FIGURE10.present(measure(RECIPE, CONTROL)).parts
    assert "at 1.250 (queries) and 1.250 (keys) after 3 epochs; with decay, the same run ends at 0.700" in str(sentence)
    assert isinstance(table, Table)
    (row,) = table.rows
    assert [cell.text for cell in row[-5:]] == ["1.250 ± 0.000"] * 4 + ["1.000"]


def test_a_control_that_diverged() -> None:
    control = run_of([1.0, 1.1, None], weight_decay=0.0)
    assert "at a value that is not finite (queries)" in str(FIGURE10.present(measure(RECIPE, control)).parts[-2])


def test_the_control_may_be_finished_first() -> None:
    sentence, table = FIGURE10.present(measure(CONTROL, run_of([0.9, 0.8, 0.7], seed=2))).parts[-2:]
    assert "with decay it is not finished" in str(sentence)
    assert FIGURE10.present(measure(CONTROL)).parts == (sentence, table)


def test_findings_without_a_control_say_so() -> None:
    """Also those of versions that had none."""
    data = measure(RECIPE)
    earlier = {name: value for name, value in data.items() if name != "without_decay"}
    for findings in (data, earlier):
        *_, last = FIGURE10.section(findings).parts
        assert str(last).startswith("A run without weight decay")
        assert str(last).endswith("is not finished.")


def verdicts(*runs: Run) -> list[str]:
    """Of γ, and of β, whose means are the same here."""
    return [claim.verdict for claim in FIGURE10.present(measure(*runs)).claims]


def test_where_gamma_settles() -> None:
    """Near 0.13 at all, some or none of the learning rates; runs that ended early, or broke, have not settled."""
    near, far = (
        [run_of([0.9, 0.5, gamma], learning_rate=rate, seq_len=length, vocab_size=4096) for length in LENGTHS]
        for gamma, rate in ((0.175, 0.03), (0.01, 0.01))
    )
    early, broken = run_of([0.9, 0.5]), run_of([0.9, 0.5, None])
    assert verdicts(*near) == verdicts(*near, early) == verdicts(*near, broken) == ["agrees", "differs"]
    assert verdicts(*near, *far) == ["in part", "in part"]
    assert verdicts(*far) == ["differs", "agrees"]
    assert verdicts(*(run_of([0.9, 0.5, 0.185], seq_len=length, vocab_size=4096) for length in LENGTHS)) == [
        "differs",
        "differs",
    ]
    assert verdicts(*near[1:]) == verdicts(*near[:2]) == ["in part", "differs"]  # at every length, the paper says
    assert verdicts(near[0]) == verdicts(far[0]) == ["not shown", "not shown"]
    assert "At the ends of 5 runs" in FIGURE10.present(measure(*near, broken)).claims[0].ours
    assert verdicts(early) == verdicts(broken) == verdicts(CONTROL) == ["not run", "not run"]


def test_what_decay_does_stands_beside_it() -> None:
    gamma, beta = FIGURE10.present(measure(RECIPE, CONTROL)).claims
    assert gamma.ours.startswith("At the ends of one run of 16 tokens with all epochs, by learning rate: from 0.700 to")
    gap = after_zero_gradients()[-1] - 0.7
    assert f"at 0.03. They are within {gap:.3f} of what weight decay alone would leave of γ." in gamma.ours
    assert (
        "Trained without weight decay, one run ends at 1.250 (queries) and 1.250 (keys) after 3 epochs." in gamma.ours
    )
    assert "decay" not in beta.ours
