"""Table 1 and Figure 4 of runs made up by hand."""

import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest
import scipy.stats
from paper_cases import make_run

from rebased.analysis.pages import Cell, Claim, Section, Table
from rebased.paper.ablation import KERNELS
from rebased.paper.experiment import Data, Experiment, Material
from rebased.paper.figure4 import FIGURE4
from rebased.paper.table1 import TABLE1
from rebased.runs import Run


def measured(experiment: Experiment, runs: Sequence[Run]) -> Data:
    return experiment.measure(Material(scale="small", runs=tuple(runs), out=Path("nowhere"), device="cpu"))


def tables(section: Section) -> list[Table]:
    return [part for part in section.parts if isinstance(part, Table)]


def runs_of(stack: str, by_size: dict[int, Sequence[float]], learning_rate: float = 1e-3) -> list[Run]:
    return [
        make_run(stack, accuracy, d_model=size, seed=seed, learning_rate=learning_rate)
        for size, accuracies in by_size.items()
        for seed, accuracy in enumerate(accuracies)
    ]


CLEAR = {size: [0.9, 0.92, 0.94, 0.91, 0.93] for size in (16, 24, 32, 48)}
LOW = {size: [0.1, 0.12, 0.15, 0.11, 0.16] for size in (16, 24, 32, 48)}


def test_the_best_learning_rate_counts() -> None:
    runs = runs_of("based", LOW) + runs_of("based", {16: [0.3] * 5}, learning_rate=3e-3)
    first = measured(TABLE1, runs)["cells"][0]
    assert (first["learning_rate"], first["mean"], first["sd"]) == (
        3e-3,
        pytest.approx(0.3),
        pytest.approx(0, abs=1e-9),
    )
    assert first["by_rate"]["0.001"] == {str(seed): x for seed, x in enumerate(LOW[16])}


def test_better_only_where_the_test_says_so() -> None:
    alike = {size: [x + 0.001 * (-1) ** i for i, x in enumerate(values)] for size, values in CLEAR.items()}
    data = measured(TABLE1, runs_of("rebased", CLEAR) + runs_of("x2", LOW) + runs_of("based", alike))
    verdicts = {(each["a"], each["b"]): each["verdict"] for each in data["comparisons"]["256"]["tuned"]}
    assert verdicts == {
        ("rebased", "x2"): "a better",
        ("rebased", "based"): "no difference shown",
        ("x2", "based"): "b better",
    }
    pairs = tables(TABLE1.present(data))[1]
    assert {row[0].text: row[-1].text for row in pairs.rows} == {
        "ReBased − x²": "ReBased better",
        "ReBased − Based": "no difference shown",
        "x² − Based": "Based better",
    }


def test_the_papers_numbers_stand_below_ours() -> None:
    data = measured(TABLE1, runs_of("x2", LOW))
    table, _ = tables(TABLE1.present(data))
    assert [cell.text for cell in table.rows[1]] == [
        "the paper's",
        "0.05 ± 0.05",
        "0.47 ± 0.08",
        "0.64 ± 0.42",
        "0.99 ± 0.00",
        "0.54",
    ]
    ours = table.rows[0]
    assert ours[1].text.startswith("0.13 ± 0.03 [0.1")
    # 0.13 against 0.05 ± 0.05, 0.47 ± 0.08, 0.64 ± 0.42 and 0.99: Welch's test.
    assert [cell.tone for cell in ours[1:5]] == ["higher", "lower", "", "lower"]
    assert "p = " in ours[1].note


def test_what_rounding_may_hide_is_not_marked() -> None:
    """The paper's 0.99 ± 0.00 may be 0.985 ± 0.005: of 0.986 that is level, and of 0.983 its own spread counts."""
    for mean, tone in ((0.986, ""), (0.983, ""), (0.97, "lower")):
        runs = runs_of("x2", {48: [mean + shift for shift in (-0.0005, 0.0, 0.0, 0.0, 0.0005)]})
        assert tables(TABLE1.present(measured(TABLE1, runs)))[0].rows[0][1].tone == tone


@pytest.mark.parametrize(("num_seeds", "has_interval"), [(4, False), (5, True)])
def test_of_fewer_than_five_seeds_there_is_no_interval(num_seeds: int, has_interval: bool) -> None:
    (cell,) = measured(TABLE1, runs_of("x2", {16: LOW[16][:num_seeds]}))["cells"]
    assert (cell["interval"] is not None) == has_interval


def test_whether_ours_are_apart_where_the_papers_are() -> None:
    """At 256 tokens these two are apart at widths 16 and 32."""
    for higher, lower, expected in ((CLEAR, LOW, "ours too"), (LOW, CLEAR, "ours not")):
        data = measured(TABLE1, runs_of("gamma_beta_x2", higher) + runs_of("gamma_x2", lower))
        *_, table, _ = tables(TABLE1.present(data))
        assert [row[0].text for row in table.rows] == ["(γx+β)² above (γx)²"] * 2
        assert [row[1].text for row in table.rows] == ["d = 16", "d = 32"]
        assert [row[4].text for row in table.rows] == [expected] * 2


def test_kernels_whose_seeds_agree_are_apart_but_not_tested() -> None:
    data = measured(TABLE1, runs_of("gamma_beta_x2", {16: [0.5] * 3}) + runs_of("gamma_x2", {16: [0.0] * 3}))
    *_, table, _ = tables(TABLE1.present(data))
    assert [cell.text for cell in table.rows[0]][4:] == ["ours too", "1", "1"]


def test_what_is_beyond_where_runs_stop_sets_nothing_apart() -> None:
    data = measured(TABLE1, runs_of("gamma_beta_x2", {16: [0.995, 0.996]}) + runs_of("gamma_x2", {16: [0.991, 0.992]}))
    *_, table, _ = tables(TABLE1.present(data))
    assert [cell.text for cell in table.rows[0]][3:] == ["0.99 ± 0.00, 0.99 ± 0.00", "ours not", "1", "1"]


def test_gaps_are_corrected_for_their_number() -> None:
    """Of two that we have, the least p counts twice."""
    high, low = {16: [0.9, 0.95, 0.97], 32: [0.9, 0.91, 0.95]}, {16: [0.1, 0.3, 0.2], 32: [0.1, 0.4, 0.5]}
    *_, table, _ = tables(TABLE1.present(measured(TABLE1, runs_of("gamma_beta_x2", high) + runs_of("gamma_x2", low))))
    p_values = [[float(cell.text) for cell in row[-2:]] for row in table.rows]
    assert [corrected for _, corrected in p_values] == pytest.approx([2 * p_values[0][0], p_values[1][0]], rel=0.1)


def test_runs_that_learned_nothing_are_counted_over_all_learning_rates() -> None:
    runs = runs_of("x2", {16: [0.001, 0.0099, 0.01], 24: [0.5, 0.7, 0.9]}) + runs_of("x2", {16: [0.002, 0.15]}, 3e-3)
    *_, table = tables(TABLE1.present(measured(TABLE1, runs + runs_of("based", {24: [0.001, 0.002]}))))
    assert {row[0].text: [cell.text for cell in row[1:]] for row in table.rows} == {
        "Based": ["not run", "2 of 2"],
        "x²": ["3 of 5 (0.08)", "0 of 3 (0.70)"],
    }


def test_outcomes_that_need_no_choice_of_a_rate() -> None:
    """x² learns nothing at one of two rates, otherwise it is as good."""
    runs = runs_of("based", CLEAR) + runs_of("based", CLEAR, 3e-3) + runs_of("x2", CLEAR)
    runs += runs_of("x2", {size: [0.001] * 5 for size in CLEAR}, 3e-3)
    data = measured(TABLE1, runs)
    found = {name: each[0] for name, each in data["comparisons"]["256"].items()}
    assert {name: each["difference"] for name, each in found.items()} == {
        "tuned": 0,
        "untuned": pytest.approx((0.92 - 0.001) / 2),
        "learned": pytest.approx(0.5),
    }
    assert {name: each["p_value"] for name, each in found.items()} == {
        "tuned": 1,
        "untuned": 2 / 2**20,
        "learned": 2 / 2**20,
    }
    others = tables(TABLE1.present(data))[2]
    assert [cell.text for cell in others.rows[0]] == [
        "Based − x²",
        "+0.459",
        "1.9e-06",
        "Based better",
        "+0.500",
        "1.9e-06",
        "Based better",
    ]


def test_pairs_have_their_rates_chosen_by_other_seeds() -> None:
    """Rate 1 has 0.9, 0.1, 0.1 and rate 2 has 0.5, 0.5, 0.4: seeds 0, 1 and 2 have 0.5, 0.1 and 0.1."""
    rates = {1.0: (0.9, 0.1, 0.1), 2.0: (0.5, 0.5, 0.4)}
    runs = [
        make_run(stack, x, learning_rate=rate, seed=seed)
        for stack, shift in (("x2", 0.0), ("based", 0.25))
        for rate, accuracies in rates.items()
        for seed, x in enumerate(accuracy - shift for accuracy in accuracies)
    ]
    (found,) = measured(TABLE1, runs)["comparisons"]["256"]["tuned"]
    assert (found["num_runs"], found["difference"]) == (3, pytest.approx(0.25))


def test_beyond_where_runs_stop_none_is_better() -> None:
    data = measured(TABLE1, runs_of("based", {16: [0.992] * 8}) + runs_of("x2", {16: [0.999] * 8}))
    (found,) = data["comparisons"]["256"]["tuned"]
    assert (found["difference"], found["cliffs_delta"], found["p_value"]) == (0, 0, 1)


def test_which_learning_rates_ours_lacked_is_said() -> None:
    few, all_of_them = (
        TABLE1.present(measured(TABLE1, [make_run("based", 0.5, learning_rate=rate) for rate in rates])).parts[0]
        for rates in ([1e-3, 3e-3], [5e-4, 1e-3, 3e-3, 1e-2])
    )
    assert "of 4 learning rates, ours of 2: without 0.0005, 0.01." in few
    assert "learning rates, ours" not in all_of_them


def test_kernels_that_share_no_run_are_not_compared() -> None:
    data = measured(TABLE1, runs_of("based", {16: [0.1, 0.2]}) + runs_of("rebased", {48: [0.9, 0.8]}))
    assert data["comparisons"] == {"256": {"tuned": [], "untuned": [], "learned": []}}
    assert not [table for table in tables(TABLE1.present(data)) if "pair" in table.header]


def test_a_constant_difference_has_no_effect_size() -> None:
    data = measured(TABLE1, runs_of("based", {16: [0.5] * 4}) + runs_of("x2", {16: [0.25] * 4}))
    assert data["comparisons"]["256"]["tuned"][0]["effect"] is None


def test_one_seed_has_no_spread() -> None:
    data = measured(TABLE1, [make_run("based", 0.5), make_run("x2", 0.4)])
    table, _ = tables(TABLE1.present(data))
    assert table.caption == "256 tokens, 1 seed"
    assert table.rows[0][1] == Cell("0.50", "", "learning rate 0.001, 1 seed")


@pytest.mark.parametrize(("num_seeds", "least"), [(1, "1"), (2, "0.5"), (5, "0.062")])
def test_what_no_data_could_show_is_not_compared(num_seeds: int, least: str) -> None:
    section = TABLE1.present(
        measured(TABLE1, runs_of("based", {32: CLEAR[32][:num_seeds]}) + runs_of("x2", {32: LOW[32][:num_seeds]}))
    )
    assert not [table for table in tables(section) if "pair" in table.header]
    (said,) = (part for part in section.parts if isinstance(part, str) and "not compared" in part)
    assert (
        f"no more than {num_seeds} of widths × seeds, of which the least p that the test can give is {least}." in said
    )


def test_what_no_correction_leaves_is_not_compared() -> None:
    """Six runs can give p = 2/2⁶, which is below 0.05 for one pair and not for three."""
    few = {size: values[:3] for size, values in CLEAR.items() if size < 32}
    low = {size: values[:3] for size, values in LOW.items() if size < 32}
    pair = runs_of("rebased", few) + runs_of("x2", low)
    three = measured(TABLE1, pair + runs_of("based", low))
    (said,) = (part for part in TABLE1.present(three).parts if isinstance(part, str) and "not compared" in part)
    assert "is 0.031, to be corrected for 3 pairs. No difference can be shown" in said
    assert [table.header[0] for table in tables(TABLE1.present(measured(TABLE1, pair)))].count("pair") == 2


def test_means_over_widths_only_where_the_papers_are_of_the_same() -> None:
    whole, *_ = tables(TABLE1.present(measured(TABLE1, runs_of("based", CLEAR))))
    part, *_ = tables(TABLE1.present(measured(TABLE1, runs_of("based", {32: CLEAR[32]}))))
    assert (whole.header[-1], part.header[-1]) == ("mean", "d = 32")
    assert [row[-1].text for row in whole.rows] == ["0.92", "0.58"]
    assert [row[-1].text for row in part.rows] == ["0.92 ± 0.02 [0.91, 0.93]", "0.82 ± 0.06"]


def test_the_number_of_seeds_is_said() -> None:
    runs = runs_of("based", {16: [0.1, 0.2]}) + runs_of("x2", {16: [0.1, 0.3, 0.2]})
    for experiment in (TABLE1, FIGURE4):
        table, *_ = tables(experiment.present(measured(experiment, runs)))
        assert table.caption == "256 tokens, 2 to 3 seeds"


def test_expected_performance_by_hand() -> None:
    """Rates with means 0.1, 0.2 and 0.6: the best of two is 0.2 once and 0.6 twice."""
    runs = [
        make_run("x2", mean + shift, learning_rate=rate, seed=seed)
        for rate, mean in ((1e-3, 0.1), (3e-3, 0.6), (1e-2, 0.2))
        for seed, shift in enumerate((-0.05, 0.05))
    ]
    (curve,) = measured(FIGURE4, runs)["curves"]
    assert curve["accuracies"] == pytest.approx([0.1, 0.6, 0.2])
    assert curve["mean"] == pytest.approx([0.3, (0.2 + 0.6 + 0.6) / 3, 0.6])
    # Without a seed all means are 0.05 higher or lower.
    assert curve["standard_error"] == pytest.approx([0.05] * 3)
    table = tables(FIGURE4.present({"curves": [curve]}))[0]
    assert table.header == ("width", "kernel", "best of 1", "best of 2", "best of 3")
    assert table.rows[0][1].text == KERNELS["x2"]
    assert table.rows[0][-1].text == "0.600 ± 0.050"


def test_the_error_of_a_budget_is_the_jackknifes_over_seeds() -> None:
    """Of the mean over rates, and of a best rate that is the best without any one seed too, that is s/√n."""
    low, high = [0.1, 0.2, 0.6], [0.7, 0.9, 0.8]
    (curve,) = measured(FIGURE4, runs_of("x2", {16: low}) + runs_of("x2", {16: high}, 3e-3))["curves"]
    means = [(x + y) / 2 for x, y in zip(low, high, strict=True)]
    assert (curve["budgets"], curve["num_seeds"]) == ([1, 2], 3)
    assert curve["standard_error"] == pytest.approx([statistics.stdev(each) / 3**0.5 for each in (means, high)])


def test_what_is_beyond_where_runs_stop_does_not_count_for_budgets() -> None:
    (curve,) = measured(FIGURE4, runs_of("x2", {16: [0.995, 0.98]}))["curves"]
    assert curve["mean"] == pytest.approx([(0.99 + 0.98) / 2])


def claims(runs: Sequence[Run]) -> dict[str, str]:
    """Verdicts by what the paper says."""
    return {theirs: claim.verdict for theirs, claim in whole_claims(runs).items()}


def whole_claims(runs: Sequence[Run]) -> dict[str, Claim]:
    """By the first sentence of what the paper says."""
    return {
        f"{claim.theirs.split('. ')[0].rstrip('.')}.": claim for claim in TABLE1.present(measured(TABLE1, runs)).claims
    }


BEST = "At 256 tokens ReBased is the best of the six kernels."


def test_the_best_of_six_is_better_than_five() -> None:
    others = [stack for stack in KERNELS if stack != "rebased"]
    low = [run for stack in others for run in runs_of(stack, LOW)]
    high = [run for stack in others for run in runs_of(stack, CLEAR)]
    assert claims(runs_of("rebased", CLEAR) + low)[BEST] == "agrees"
    assert claims(runs_of("rebased", CLEAR) + runs_of("based", LOW))[BEST] == "in part"
    assert claims(runs_of("rebased", LOW) + high)[BEST] == "differs"
    assert claims(runs_of("rebased", LOW) + runs_of("based", LOW))[BEST] == "not shown"
    assert claims(low)[BEST] == "not run"
    assert claims(runs_of("rebased", {16: [0.9]}) + runs_of("based", {16: [0.1]}))[BEST] == "not shown"


def test_affine_maps_are_held_against_their_lack() -> None:
    """The paper finds both better than x²; a difference the other way is said too."""
    theirs = {name: f"{name} is better than x² (256 tokens)." for name in ("(γx)²", "(γx+β)²")}
    better = claims(runs_of("gamma_x2", CLEAR) + runs_of("gamma_beta_x2", LOW) + runs_of("x2", LOW))
    assert [better[claim] for claim in theirs.values()] == ["agrees", "not shown"]
    assert claims(runs_of("gamma_x2", LOW) + runs_of("x2", CLEAR))[theirs["(γx)²"]] == "differs"


def test_where_the_paper_itself_has_it_stands_beside_a_claim_of_no_length() -> None:
    """By the means that it prints."""
    said = {first: claim.theirs for first, claim in whole_claims(runs_of("x2", LOW)).items()}
    about = "The text names no length; by the means of Table 1 it is "
    assert said["(γx)² is better than x² (256 tokens)."].endswith(
        f"{about}not so at 256 (0.51 and 0.54) and so at 2048 (0.48 and 0.44)."
    )
    assert said["norm(x)² is better than Based (2048 tokens)."].endswith(
        f"{about}not so at 256 (0.57 and 0.58) and so at 2048 (0.58 and 0.51)."
    )


def test_its_place_is_among_means_of_the_same_widths() -> None:
    """At the width that Based alone has it is as good as ReBased at its best."""
    wider = {24: LOW[24], 32: [0.05] * 5, 48: CLEAR[48]}
    runs = runs_of("rebased", {24: CLEAR[24], 32: LOW[32]}) + runs_of("based", wider)
    ours = {claim.theirs: claim.ours for claim in TABLE1.present(measured(TABLE1, runs)).claims}[BEST]
    assert ours.startswith("Its mean accuracy over d = 24 and 32 is 0.52, at place 1 of 2. ")
    assert ours.endswith("With x², norm(x)², (γx)² and (γx+β)² there is nothing to compare.")
    apart = measured(TABLE1, [*runs, *runs_of("x2", {16: LOW[16]})])
    assert "at place" not in {claim.theirs: claim.ours for claim in TABLE1.present(apart).claims}[BEST]


OTHER = {"based": "x2", "x2": "based"}


def test_where_rates_decide_a_claim_holds_in_part() -> None:
    """x² learns nothing at one of two rates, otherwise it is as good as Based."""
    runs = runs_of("based", CLEAR) + runs_of("based", CLEAR, 3e-3) + runs_of("x2", CLEAR)
    runs += runs_of("x2", {size: [0.001] * 5 for size in CLEAR}, 3e-3)
    theirs = "Based is better than x² (256 tokens)."
    assert claims(runs)[theirs] == "in part"
    exchanged = [dataclasses.replace(run, config=run.config | {"stack": OTHER[run.config["stack"]]}) for run in runs]
    assert claims(exchanged)[theirs] == "differs"
    assert "; averaged over all rates the difference is -0.459 (p = " in whole_claims(exchanged)[theirs].ours
    # At a chosen rate Based is better, over both it is worse.
    half, nothing = ({size: [x] * 5 for size in CLEAR} for x in (0.6, 0.001))
    steady = runs_of("x2", half) + runs_of("x2", half, 3e-3)
    assert claims(runs_of("based", CLEAR) + runs_of("based", nothing, 3e-3) + steady)[theirs] == "in part"
    assert claims(runs_of("based", CLEAR) + runs_of("x2", LOW))[theirs] == "agrees"
    assert claims(runs_of("based", LOW) + runs_of("x2", CLEAR))[theirs] == "differs"
    assert claims(runs_of("rebased", LOW) + runs_of("x2", CLEAR))[theirs] == "not run"


@pytest.mark.parametrize(
    ("higher", "lower", "verdict"),
    [
        (CLEAR, LOW, "agrees"),
        (LOW, CLEAR, "differs"),
        (LOW, LOW, "not shown"),
        ({16: CLEAR[16], 32: LOW[32]}, LOW, "in part"),
        ({24: LOW[24]}, LOW, "not run"),
    ],
    ids=["apart", "the other way round", "alike", "at one width", "other widths"],
)
def test_claims_where_the_papers_are_apart(
    higher: dict[int, list[float]], lower: dict[int, list[float]], verdict: str
) -> None:
    theirs = "(γx+β)² is above (γx)² at d = 16 and 32, 256 tokens: mean ± sd are apart."
    assert claims(runs_of("gamma_beta_x2", higher) + runs_of("gamma_x2", lower))[theirs] == verdict


@pytest.mark.parametrize(("low", "p", "verdict"), [(0.1, "0.0019", "in part"), (0.8, "0.11", "not shown")])
def test_two_seeds_that_are_apart_need_a_test(low: float, p: str, verdict: str) -> None:
    theirs = "(γx+β)² is above (γx)² at d = 16 and 32, 256 tokens: mean ± sd are apart."
    runs = runs_of("gamma_beta_x2", {16: [0.9, 0.95]}) + runs_of("gamma_x2", {16: [low, low + 0.05]})
    (claim,) = (each for each in TABLE1.present(measured(TABLE1, runs)).claims if each.theirs == theirs)
    assert claim.ours.endswith(f"apart too, of only 2 seeds (p = {p}, corrected).")
    assert claim.verdict == verdict
    theirs_reversed = runs_of("gamma_x2", {16: [0.9, 0.95]}) + runs_of("gamma_beta_x2", {16: [low, low + 0.05]})
    assert claims(theirs_reversed)[theirs] == {"in part": "differs"}.get(verdict, verdict)


def test_shown_differences_are_marked() -> None:
    pairs = tables(TABLE1.present(measured(TABLE1, runs_of("x2", LOW) + runs_of("rebased", CLEAR))))[1]
    assert [cell.tone for cell in pairs.rows[0]] == ["", "", "lower", "", "", "", "", "", ""]
    alike = tables(TABLE1.present(measured(TABLE1, runs_of("x2", LOW) + runs_of("rebased", LOW))))[1]
    assert {cell.tone for cell in alike.rows[0]} == {""}


def test_three_outcomes_are_corrected_together() -> None:
    """Of one pair: p of chosen rates is 2/2⁷, thrice that is below 0.05; with one seed fewer it is not."""
    wide = {16: [0.9, 0.8, 0.7], 24: [0.9, 0.8, 0.7, 0.6]}
    for by_size, expected in ((wide, "Based − x² (0.047)"), (wide | {24: wide[24][:3]}, "no pair")):
        low = {size: [0.1 * x for x in values] for size, values in by_size.items()}
        section = TABLE1.present(measured(TABLE1, runs_of("based", by_size) + runs_of("x2", low)))
        (said,) = [part for part in section.parts if isinstance(part, str) and "tests of the three outcomes" in part]
        assert said.endswith(
            f"Corrected for all 3 tests of the three outcomes, differences at chosen rates are shown of {expected}."
        )


def test_what_all_cells_have_in_common_is_said() -> None:
    """The paper has 0.05 ± 0.05 and 0.47 ± 0.08 for x², and 0.06 ± 0.02 for Based."""
    runs = runs_of("x2", {16: [0.05] * 3, 24: [0.07] * 3}) + runs_of("based", {16: [0.16] * 3})
    parts = TABLE1.present(measured(TABLE1, runs)).parts
    assert (
        "Of 3 cells 2 are marked; of so many about 0.2 at most would be if none differed. 1 is below the paper's; the "
        "mean difference is -0.10: Based +0.10, x² -0.20."
    ) in parts


def test_how_often_rebased_is_the_best_of_a_budget() -> None:
    """At width 16 at one budget of two, at width 24 at none; at width 48 both are level; of 32 there is no other."""
    runs = [
        *(make_run("rebased", x, learning_rate=rate, d_model=size) for rate, size, x in RATES_OF_REBASED),
        *(make_run("based", x, learning_rate=rate, d_model=size) for rate, size, x in RATES_OF_BASED),
    ]
    claim, *_ = FIGURE4.present(measured(FIGURE4, runs)).claims
    assert claim.ours.startswith(
        "With up to 2 of the paper's 4 learning rates its expected best is the highest, or level with it, at 3 of 6 "
    )
    assert claim.verdict == "not shown"
    claim, *_ = FIGURE4.present(measured(FIGURE4, runs[:1])).claims
    assert claim.verdict == "not run"


RATES_OF_REBASED = (
    *((1e-3, 16, 0.1), (3e-3, 16, 0.9), (1e-3, 24, 0.1), (3e-3, 24, 0.2), (1e-3, 32, 0.5)),
    *((1e-3, 48, 0.991), (3e-3, 48, 0.992)),
)
RATES_OF_BASED = (
    *((1e-3, 16, 0.6), (3e-3, 16, 0.6), (1e-3, 24, 0.3), (3e-3, 24, 0.4)),
    *((1e-3, 48, 0.999), (3e-3, 48, 0.998)),
)
"""Learning rate, width and accuracy."""


def test_figure_3_has_the_papers_beside_ours() -> None:
    """At the widths that ours have; nothing where the paper has no such sizes."""
    runs = runs_of("x2", {16: [0.1, 0.2], 24: [0.3, 0.5]})
    (picture,) = TABLE1.present(measured(TABLE1, runs)).pictures
    ours, theirs = picture.figure.axes
    assert (ours.get_title(), theirs.get_title()) == ("256 tokens", "256 tokens, the paper's")
    assert list(ours.lines[0].get_ydata()) == pytest.approx([0.15, 0.4])
    assert list(theirs.lines[0].get_ydata()) == [0.05, 0.47]
    (picture,) = TABLE1.present(measured(TABLE1, [make_run("x2", 0.1, seq_len=32)])).pictures
    assert [panel.get_title() for panel in picture.figure.axes] == ["32 tokens"]


# ---- Ties, lengths, corrections ----

CAPPED = {size: [0.995] * 5 for size in (16, 24, 32, 48)}


@pytest.mark.parametrize("num_apart", [0, 3])
def test_runs_that_are_level_are_not_too_few(num_apart: int) -> None:
    """Twenty pairs, all at the accuracy that runs stop at, but for some of Based at one width."""
    based = CAPPED | {16: [0.05] * num_apart + [0.995] * (5 - num_apart)}
    runs = runs_of("rebased", CAPPED) + runs_of("based", based)
    section = TABLE1.present(measured(TABLE1, runs))
    texts = [part for part in section.parts if isinstance(part, str)]
    assert not [text for text in texts if "not compared" in text]
    assert [text for text in texts if text.startswith(f"At chosen rates so many runs are level that {NONE_OF_THIS}")]
    best = whole_claims(runs)[BEST]
    assert best.verdict == "not shown"
    assert (
        "From Based no difference is shown, corrected for the 3 tests of all outcomes. Beside Based so many"
        in best.ours
    )
    above = whole_claims(runs_of("x2", based) + runs_of("based", CAPPED))["Based is better than x² (256 tokens)."]
    assert above.verdict == "not shown"
    assert above.ours.count("; so many runs are level that it could not be shown)") == 2


NONE_OF_THIS = "no difference can be shown of ReBased − Based."


def test_where_runs_are_not_level_nothing_is_said_of_it() -> None:
    runs = runs_of("rebased", CLEAR) + runs_of("based", LOW)
    assert "level" not in whole_claims(runs)[BEST].ours
    assert not [part for part in TABLE1.present(measured(TABLE1, runs)).parts if "so many runs are level" in str(part)]


def test_few_runs_are_not_level() -> None:
    """Of x² there are five, of Based twenty."""
    runs = runs_of("rebased", CLEAR) + runs_of("based", LOW) + runs_of("x2", {16: LOW[16]})
    ours = whole_claims(runs)[BEST].ours
    assert "From x² no difference is shown" in ours
    assert "level" not in ours


def test_claims_need_runs_for_all_outcomes() -> None:
    """Six can give p = 2/2⁶, which is below 0.05 for one test and not for three."""
    few, low = ({size: values[:3] for size, values in each.items() if size < 32} for each in (CLEAR, LOW))
    claim = whole_claims(runs_of("rebased", few) + runs_of("based", low))[BEST]
    assert claim.ours == "So few runs can show no difference, however large, where the tests of all outcomes count."
    assert claim.verdict == "not shown"


def at_length(runs: Sequence[Run], length: int) -> list[Run]:
    return [dataclasses.replace(run, config=run.config | {"seq_len": length}) for run in runs]


def test_lengths_are_not_mixed() -> None:
    """At 256 tokens one is better, at 2048 the other, by as much: over both there is no difference."""
    runs = runs_of("rebased", CLEAR) + runs_of("based", LOW)
    runs += at_length(runs_of("rebased", LOW) + runs_of("based", CLEAR), 2048)
    found = measured(TABLE1, runs)["comparisons"]
    for length, verdict in (("256", "a better"), ("2048", "b better")):
        assert {each["verdict"] for each in found[length]["tuned"] + found[length]["untuned"]} == {verdict}
        assert {each["num_runs"] for outcome in found[length].values() for each in outcome} == {20}
    said = claims(runs)
    assert (said[BEST], said[BEST.replace("256", "2048")]) == ("in part", "differs")


def test_claims_are_of_the_lengths_they_name() -> None:
    """norm(x)² above Based at 2048 tokens, Based above x² at 256."""
    short = runs_of("norm_x2", LOW) + runs_of("based", CLEAR) + runs_of("x2", CLEAR)
    long = at_length(runs_of("norm_x2", CLEAR) + runs_of("based", LOW) + runs_of("x2", LOW), 2048)
    said = claims(short + long)
    assert said["norm(x)² is better than Based (2048 tokens)."] == "agrees"
    assert said["Based is better than x² (256 tokens)."] == "not shown"


def test_gaps_are_of_both_lengths() -> None:
    """At 2048 tokens (γx+β)² and ReBased are above Based at d = 32, and ReBased above x² at d = 24."""
    theirs = "ReBased is above x² at d = 24, 2048 tokens: mean ± sd are apart."
    long = at_length(runs_of("rebased", CLEAR) + runs_of("x2", LOW), 2048)
    assert claims(long)[theirs] == "agrees"
    assert claims(runs_of("rebased", CLEAR))[theirs] == "not run"
    above = [each for each in claims(runs_of("x2", LOW)) if each.endswith("mean ± sd are apart.")]
    assert above == [
        "norm(x)² is above (γx)² at d = 16, 256 tokens: mean ± sd are apart.",
        "(γx+β)² is above (γx)² at d = 16 and 32, 256 tokens: mean ± sd are apart.",
        "(γx+β)² is above Based at d = 32, 2048 tokens: mean ± sd are apart.",
        "ReBased is above Based at d = 32, 2048 tokens: mean ± sd are apart.",
        theirs,
    ]


def test_differences_are_said_of_the_one_that_the_paper_has_above() -> None:
    """Whichever of the two was trained first."""
    for runs in (runs_of("based", CLEAR) + runs_of("x2", LOW), runs_of("x2", LOW) + runs_of("based", CLEAR)):
        ours = whole_claims(runs)["Based is better than x² (256 tokens)."].ours
        assert ours.startswith("At rates chosen by other seeds the difference is +0.792 (p = ")


def test_what_one_outcome_alone_shows_is_not_enough() -> None:
    """Nine runs, the least difference the other way round: p = 4/2⁹, below 0.05 as one of three tests, not of nine."""
    high, low = {16: [0.9] * 5, 24: [0.9] * 3 + [0.4]}, {16: [0.1, 0.2, 0.3, 0.4, 0.5], 24: [0.1, 0.2, 0.3, 0.5]}
    runs = runs_of("rebased", high) + runs_of("based", low) + runs_of("x2", high)
    worse = whole_claims(runs_of("rebased", low) + runs_of("based", high) + runs_of("x2", low))[BEST]
    assert "Corrected for the tests at chosen rates alone, it is also worse than Based." in worse.ours
    claim = whole_claims(runs)[BEST]
    assert claim.ours.endswith(
        "From Based and x² no difference is shown, corrected for the 9 tests of all outcomes. Corrected for the tests "
        "at chosen rates alone, it is also better than Based. Beside x² so many runs are level that none could be "
        "shown. With norm(x)², (γx)² and (γx+β)² there is nothing to compare."
    )
    assert claim.verdict == "not shown"


SPREAD = (-0.1, -0.05, 0.0, 0.05, 0.1)


def test_what_a_test_shows_and_is_not_apart_holds_in_part() -> None:
    """Means 0.15 apart with standard deviations of 0.08: p < 0.05, though mean ± sd overlap."""
    theirs = "(γx+β)² is above (γx)² at d = 16 and 32, 256 tokens: mean ± sd are apart."
    high, low = ({size: [mean + x for x in SPREAD] for size in (16, 32)} for mean in (0.5, 0.35))
    claim = whole_claims(runs_of("gamma_beta_x2", high) + runs_of("gamma_x2", low))[theirs]
    assert claim.ours.count("not apart (p = 0.034, corrected)") == 2
    assert claim.verdict == "in part"
    claim = whole_claims(runs_of("gamma_beta_x2", low) + runs_of("gamma_x2", high))[theirs]
    assert claim.verdict == "differs"
    claim = whole_claims(runs_of("gamma_beta_x2", LOW) + runs_of("gamma_x2", CLEAR))[theirs]
    assert claim.ours.count("apart the other way round (p = ") == 2


@pytest.mark.parametrize(("higher", "lower"), [("gamma_beta_x2", "gamma_x2"), ("gamma_x2", "gamma_beta_x2")])
def test_gaps_that_only_an_uncorrected_test_shows(higher: str, lower: str) -> None:
    """The p of each is below 0.05, and twice that is not: neither for nor against what the paper has."""
    high, low = ({size: [mean + x for x in SPREAD] for size in (16, 32)} for mean in (0.5, 0.38))
    runs = runs_of(higher, high) + runs_of(lower, low)
    *_, table, _ = tables(TABLE1.present(measured(TABLE1, runs)))
    assert all(float(row[-2].text) < 0.05 < float(row[-1].text) for row in table.rows)
    theirs = "(γx+β)² is above (γx)² at d = 16 and 32, 256 tokens: mean ± sd are apart."
    assert claims(runs)[theirs] == "not shown"


def test_gaps_of_which_one_is_the_other_way_round() -> None:
    """The other is not shown: so neither is that the paper's are not."""
    theirs = "(γx+β)² is above (γx)² at d = 16 and 32, 256 tokens: mean ± sd are apart."
    runs = runs_of("gamma_beta_x2", {16: LOW[16], 32: LOW[32]}) + runs_of("gamma_x2", {16: CLEAR[16], 32: LOW[32]})
    assert claims(runs)[theirs] == "not shown"


def test_gaps_of_unlike_numbers_of_seeds() -> None:
    """Welch's test by scipy; said are the fewer."""
    high, low = [0.5, 0.7, 0.9, 0.6, 0.8], [0.1, 0.3]
    runs = runs_of("gamma_beta_x2", {16: high}) + runs_of("gamma_x2", {16: low})
    *_, table, _ = tables(TABLE1.present(measured(TABLE1, runs)))
    expected = scipy.stats.ttest_ind(high, low, equal_var=False).pvalue
    assert table.rows[0][-2].text == f"{expected:.2g}"
    theirs = "(γx+β)² is above (γx)² at d = 16 and 32, 256 tokens: mean ± sd are apart."
    assert f", of only 2 seeds (p = {expected:.2g}, corrected)" in whole_claims(runs)[theirs].ours
