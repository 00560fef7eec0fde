"""What Figure 4 says of the paper's claims, of curves made by hand."""

import pytest
from findings_by_hand import ablation_findings, ablation_runs

from rebased.paper.experiment import Data
from rebased.paper.figure4 import FIGURE4


def curve(
    stack: str, lowest: float, *, num_rates: int = 4, num_seeds: int = 5, d_model: int = 48, seq_len: int = 256
) -> Data:
    values = [0.99] * num_rates
    sizes = {"stack": stack, "seq_len": seq_len, "d_model": d_model, "num_seeds": num_seeds}
    found = {"accuracies": values, "mean": values, "standard_error": [0.0] * num_rates, "lowest": lowest}
    return sizes | found | {"budgets": list(range(1, num_rates + 1))}


def verdicts(*curves: Data) -> list[str]:
    """Of the claim on all learning rates, at each of the paper's lengths."""
    _, *others = FIGURE4.present({"curves": list(curves)}).claims
    return [claim.verdict for claim in others]


@pytest.mark.parametrize(
    ("rebased", "based", "num_rates", "verdict"),
    [
        (0.989, 0.2, 4, "agrees"),
        (0.989, 0.2, 2, "in part"),
        (0.989, 0.99, 4, "in part"),
        (0.985, 0.984, 4, "agrees"),
        (0.985, 0.985, 4, "in part"),
        (0.984, 0.2, 4, "differs"),
    ],
)
def test_the_worst_run_decides(rebased: float, based: float, num_rates: int, verdict: str) -> None:
    curves = curve("rebased", rebased, num_rates=num_rates), curve("based", based, num_rates=num_rates)
    assert verdicts(*curves) == [verdict, "not run"]


@pytest.mark.parametrize("few", [{"num_rates": 1}, {"num_seeds": 1}])
def test_all_rates_and_seeds_of_both_are_asked_for(few: dict[str, int]) -> None:
    whole = {"rebased": 0.989, "based": 0.2}
    for lacking in whole:
        curves = [curve(stack, lowest, **(few if stack == lacking else {})) for stack, lowest in whole.items()]
        assert verdicts(*curves) == ["in part", "not run"]


def test_only_the_widest_models_count() -> None:
    narrow = [curve(stack, 0.99, d_model=32, seq_len=2048) for stack in ("rebased", "based")]
    assert verdicts(curve("rebased", 0.99), *narrow) == ["not run", "not run"]


def test_lowest_is_of_single_runs() -> None:
    """Its rates' means would hide a seed that failed."""
    runs = [run for run in ablation_runs() if (run.config["stack"], run.config["d_model"]) == ("based", 24)]
    (found,) = (
        each
        for each in ablation_findings(FIGURE4).data["curves"]
        if (each["stack"], each["seq_len"], each["d_model"]) == ("based", 256, 24)
    )
    assert found["lowest"] == min(run.result["accuracy"] for run in runs if run.config["seq_len"] == 256)
