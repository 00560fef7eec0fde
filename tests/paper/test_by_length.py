"""Figures 1 and 7: what is said of stacks cell by cell."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from paper_cases import make_run

from rebased.analysis.pages import Claim, Section, Table
from rebased.paper.by_length import LENGTHS, WIDTHS, compare_in_cells
from rebased.paper.experiment import Experiment, Material
from rebased.paper.figure1 import FIGURE1, MIXERS
from rebased.paper.figure7 import FIGURE7
from rebased.runs import Run


def presented(experiment: Experiment, *runs: Run) -> tuple[Section, list[Table]]:
    material = Material(scale="small", runs=runs, out=Path("nowhere"), device="cpu")
    section = experiment.present(experiment.measure(material))
    return section, [part for part in section.parts if isinstance(part, Table)]


def claims_of(experiment: Experiment, *runs: Run) -> dict[str, Claim]:
    """By the beginning of what the paper says."""
    return {" ".join(claim.theirs.split()[:2]): claim for claim in presented(experiment, *runs)[0].claims}


def test_beyond_where_runs_stop_none_is_higher() -> None:
    """Of three widths one is level, though both have more than 0.99; a fourth only one of them has."""
    based = {16: 0.2, 24: 0.5, 32: 0.995, 48: 0.9}
    rebased = {16: 0.1, 24: 0.8, 32: 0.992}
    claims = claims_of(
        FIGURE1,
        *(make_run("based", accuracy, d_model=size) for size, accuracy in based.items()),
        *(make_run("rebased", accuracy, d_model=size) for size, accuracy in rebased.items()),
    )
    said = claims["ReBased outperforms"]
    assert said.ours.startswith(
        "ReBased beside Based: higher in 1, lower in 1 and level in 1 of 3 cells, by +0.067 on average"
    )
    assert said.ours.endswith(
        "p = 1; so few that are not level cannot give less than 0.5). Of the paper's 20 lengths and widths 0 are "
        "compared."
    )
    assert said.verdict == "not shown"


def test_stacks_that_share_no_cell_are_not_compared() -> None:
    runs = make_run("attention", 0.5, d_model=16), make_run("conv_attention", 0.5, d_model=24)
    section, (table,) = presented(FIGURE7, *runs)
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["Attention", "0.50", "not run"],
        ["ConvAttention", "not run", "0.50"],
        ["RWKV", "not run", "not run"],
        ["ConvRWKV", "not run", "not run"],
    ]
    assert [claim.verdict for claim in section.claims] == ["not run", "not run"]
    assert compare_in_cells([], "attention", "conv_attention") is None


def test_hybrids_stand_beside_what_they_are_made_of() -> None:
    runs = (make_run(stack, accuracy) for stack, accuracy in (("rwkv", 0.1), ("conv_rwkv", 0.4)))
    section, (table,) = presented(FIGURE7, *runs)
    ours = section.claims[1].ours
    assert ours.startswith("RWKV beside ConvRWKV: higher in 0, lower in 1 and level in 0 of 1 cells, by -0.300")
    assert table.caption == "256 tokens, 1 seed"


def at_all_sizes(gain: float) -> list[Run]:
    """ReBased above Based by so much, at the paper's lengths and widths."""
    return [
        make_run(stack, x, seq_len=length, d_model=width)
        for length in LENGTHS
        for width in WIDTHS
        for stack, x in (("based", 0.5), ("rebased", 0.5 + gain))
    ]


@pytest.mark.parametrize(("gain", "verdict"), [(0.1, "in part"), (-0.1, "differs")])
def test_six_cells_can_show_which_is_better(gain: float, verdict: str) -> None:
    """All six on one side: 2 of 2⁶ flips are as far. But that is not at every size, of which the paper speaks."""
    said = claims_of(FIGURE1, *at_all_sizes(gain)[:12])["ReBased outperforms"]
    assert said.verdict == verdict
    assert said.ours.endswith(
        "(sign-flip test over cells: p = 0.031). Of the paper's 20 lengths and widths 6 are compared."
    )


@pytest.mark.parametrize(("gain", "verdict"), [(0.1, "agrees"), (-0.1, "differs")])
def test_better_at_every_size_takes_all_of_them(gain: float, verdict: str) -> None:
    runs = at_all_sizes(gain)
    assert claims_of(FIGURE1, *runs)["ReBased outperforms"].verdict == verdict
    less = {"agrees": "in part"}.get(verdict, verdict)
    others = [make_run(stack, x, d_model=48) for stack, x in (("based", 0.5), ("rebased", 0.5 + gain))]
    assert claims_of(FIGURE1, *runs[2:], *others)["ReBased outperforms"].verdict == less
    renamed = {"based": "attention", "rebased": "conv_attention"}
    hybrids = [dataclasses.replace(run, config=run.config | {"stack": renamed[run.config["stack"]]}) for run in runs]
    assert claims_of(FIGURE7, *hybrids)["A convolution"].verdict == verdict
    assert claims_of(FIGURE7, *hybrids[2:])["A convolution"].verdict == less


def test_five_cells_cannot() -> None:
    """2 of 2⁵ flips are as far: p = 0.0625."""
    assert claims_of(FIGURE1, *at_all_sizes(0.1)[:10])["ReBased outperforms"].verdict == "not shown"


@pytest.mark.parametrize(
    ("accuracy", "verdict"), [(0.49, "in part"), (0.5, "not shown"), (0.899, "not shown"), (0.9, "differs")]
)
def test_one_run_that_learns_refutes_that_all_fail(accuracy: float, verdict: str) -> None:
    """Also one of several seeds, and at a learning rate whose mean is not the best."""
    runs = [make_run("mamba_published", accuracy, d_model=64)]
    runs += [make_run("mamba_published", 0.0, d_model=64, seed=seed) for seed in (43, 44)]
    runs += [make_run("mamba_published", 0.45, d_model=64, seed=seed, learning_rate=3e-3) for seed in (42, 43, 44)]
    claims = claims_of(FIGURE1, *runs)
    assert (claims["Mamba fails"].verdict, claims["RWKV fails"].verdict) == (verdict, "not run")
    assert claims["Mamba fails"].ours.endswith(
        "Tried were 2 of the 80 combinations of size and learning rate, of up to 256 tokens."
    )


def test_cells_between_learned_and_failed_are_neither() -> None:
    runs = [make_run("rwkv", accuracy, d_model=width) for accuracy, width in ((0.49, 64), (0.5, 128), (0.9, 256))]
    assert claims_of(FIGURE1, *runs)["RWKV fails"].ours.startswith(
        "RWKV has runs that reach 0.9 in 1 of 3 cells, and in 1 none that reaches 0.5; its best run has 0.90, at 256 "
    )


def test_an_initialisation_that_the_paper_does_not_have_refutes_nothing_of_its_own() -> None:
    """What it reaches is said."""
    own = make_run("mamba", 0.95, d_model=64)
    beside = (
        "Beside it, Mamba has runs that reach 0.9 in 1 of 1 cells, and in 0 none that reaches 0.5; its best run has "
        "0.95, at 256 tokens and d = 64."
    )
    alone = claims_of(FIGURE1, own)["Mamba fails"]
    assert (alone.verdict, alone.ours) == ("not run", f"No cell of it is finished. {beside}")
    theirs = [
        make_run("mamba_published", 0.1, seq_len=length, d_model=width, learning_rate=rate)
        for length in LENGTHS
        for width in WIDTHS
        for rate in (5e-4, 1e-3, 3e-3, 1e-2)
    ]
    for runs, verdict in ((theirs, "agrees"), (theirs[1:], "in part")):
        found = claims_of(FIGURE1, *runs, own)["Mamba fails"]
        assert found.verdict == verdict
        assert found.ours.startswith(
            "Mamba, published init has runs that reach 0.9 in 0 of 20 cells, and in 20 none that reaches 0.5; "
        )
        assert found.ours.endswith(beside)


def test_that_all_fail_takes_all_sizes_and_rates() -> None:
    runs = [
        make_run("rwkv", 0.1, seq_len=length, d_model=width, learning_rate=rate)
        for length in LENGTHS
        for width in WIDTHS
        for rate in (5e-4, 1e-3, 3e-3, 1e-2)
    ]
    without_a_size, without_a_rate = runs[4:], [run for run in runs if run.config["learning_rate"] > 5e-4]
    given = (runs, without_a_size, without_a_rate)
    assert [claims_of(FIGURE1, *each)["RWKV fails"].verdict for each in given] == ["agrees", "in part", "in part"]


@pytest.mark.parametrize(
    ("attention", "based", "verdict"),
    [
        (1.0, 0.3, "agrees"),
        (1.0, 0.95, "differs"),
        (0.2, 0.1, "differs"),
        (0.905, 0.895, "not shown"),
        (0.89, 0.1, "not shown"),
    ],
)
def test_the_longest_and_narrowest(attention: float, based: float, verdict: str) -> None:
    """Levels that are far apart, at all of the paper's learning rates; nothing is said of those between."""
    accuracies = dict.fromkeys(MIXERS, 0.1) | {"conv_attention": attention, "based": based}
    runs = [
        make_run(stack, x, seq_len=2048, d_model=64, learning_rate=rate)
        for rate in (5e-4, 1e-3, 3e-3, 1e-2)
        for stack, x in accuracies.items()
    ]
    assert claims_of(FIGURE1, *runs)["At 2048"].verdict == verdict
    less = {"agrees": "in part"}.get(verdict, verdict)
    assert claims_of(FIGURE1, *runs[: len(MIXERS)])["At 2048"].verdict == less
    some = claims_of(FIGURE1, *(run for run in runs if run.config["stack"] != "mamba_published"))["At 2048"]
    assert some.verdict == less
    assert some.ours.endswith("Not finished: Mamba, published init.")
    own = [make_run("mamba", 0.95, seq_len=2048, d_model=64)]  # it is not the paper's
    other = [run for run in runs if run.config["stack"] != "mamba"]
    assert (
        claims_of(FIGURE1, *other, *own)["At 2048"].verdict == claims_of(FIGURE1, *other)["At 2048"].verdict == verdict
    )
    without = [run for run in runs if run.config["stack"] != "conv_attention"]
    assert claims_of(FIGURE1, *without)["At 2048"].verdict == "not run"


def test_one_run_of_the_longest_and_narrowest_that_learns() -> None:
    """At a rate whose mean is not the best: then it is not so that all but Attention struggle, nor that they do not."""
    accuracies = dict.fromkeys(MIXERS, 0.1) | {"conv_attention": 1.0}
    runs = [
        make_run(stack, x, seq_len=2048, d_model=64, learning_rate=rate, seed=seed)
        for rate in (5e-4, 1e-3, 3e-3, 1e-2)
        for seed in (42, 43)
        for stack, x in accuracies.items()
    ]
    assert claims_of(FIGURE1, *runs)["At 2048"].verdict == "agrees"
    based = [run for run in runs if run.config["stack"] == "based"]
    runs = [*(run for run in runs if run not in based), *based[:-1]]
    learns = dataclasses.replace(based[-1], result=based[-1].result | {"accuracy": 0.6})
    assert claims_of(FIGURE1, *runs, learns)["At 2048"].verdict == "not shown"


def test_cells_of_other_rates_or_seeds_are_not_compared() -> None:
    """The best of two rates is above the best of one where both models are the same."""
    both = [make_run(stack, 0.5, d_model=16) for stack in ("based", "rebased")]
    more_rates = [make_run("rebased", 0.9, d_model=24, learning_rate=rate) for rate in (1e-3, 3e-3)]
    more_seeds = [make_run("rebased", 0.9, d_model=32, seed=seed) for seed in (42, 43)]
    others = [make_run("based", 0.1, d_model=width) for width in (24, 32)]
    said = claims_of(FIGURE1, *both, *more_rates, *more_seeds, *others)["ReBased outperforms"].ours
    assert "without 2 cells of other learning rates or seeds, higher in 0, lower in 0 and level in 1 of 1 cells" in said


def test_rounding_is_no_difference() -> None:
    """Means of the same accuracies in another order differ in the last bits."""
    runs = []
    for width in (16, 24, 32, 48, 64, 128):
        for seed, accuracy in enumerate((0.1, 0.2, 0.3)):
            runs += [
                make_run("rebased", accuracy, d_model=width, seed=seed),
                make_run("based", 0.2, d_model=width, seed=seed),
            ]
    said = claims_of(FIGURE1, *runs)["ReBased outperforms"]
    assert said.verdict == "not shown"
    assert "level in 6 of 6 cells" in said.ours


def test_what_the_paper_has_besides_is_said() -> None:
    few = [make_run("based", 0.5, seq_len=256, d_model=64)]
    assert (
        "The paper also has the lengths 128, 512, 1024 and 2048, the widths 128, 256 and 512, the learning rates "
        "0.0005, 0.003 and 0.01 and 4 more seeds. Of these nothing is said here."
    ) in presented(FIGURE1, *few)[0].parts
    other_sizes, _ = presented(FIGURE1, make_run("based", 0.5, seq_len=32, d_model=16))
    assert not [part for part in other_sizes.parts if isinstance(part, str) and part.startswith("The paper also has")]


def made_by(versions: Mapping[tuple[str, int, int], str]) -> list[Run]:
    """By stack, length and width."""
    runs = {place: make_run(place[0], 0.5, seq_len=place[1], d_model=place[2]) for place in versions}
    return [
        dataclasses.replace(run, result=run.result | {"made_with": {"source": versions[place]}})
        for place, run in runs.items()
    ]


def versions_said(experiment: Experiment, runs: Sequence[Run]) -> list[str]:
    parts = presented(experiment, *runs)[0].parts
    return [part for part in parts if isinstance(part, str) and "versions of the code" in part]


def test_versions_of_the_code_are_told_apart() -> None:
    """By a digest of its files or, of older runs, by the commit."""

    def by(stack: str, **made_with: str) -> Run:
        run = make_run(stack, 0.5, d_model=64)
        return dataclasses.replace(run, result=run.result | {"made_with": made_with})

    alike = [by("based", source="a", commit="1"), by("rebased", source="a", commit="2")]
    assert not versions_said(FIGURE1, alike)
    differing = [by("rebased", source="a"), by("based", commit="b"), by("rwkv", source="a")]
    assert versions_said(FIGURE1, differing) == [
        "These runs were made by 2 versions of the code. Where two models have none in common, they may differ for "
        "that alone: in all cells of Based with ReBased and RWKV."
    ]


def test_versions_are_compared_cell_by_cell() -> None:
    """Over all widths both have the versions a and b, and at none of them the same."""
    crossed = {("based", 256, 64): "a", ("based", 256, 128): "b", ("rebased", 256, 64): "b", ("rebased", 256, 128): "a"}
    (said,) = versions_said(FIGURE1, made_by(crossed))
    assert said.endswith("in all cells of Based with ReBased.")
    (said,) = versions_said(FIGURE1, made_by(crossed | {("rebased", 256, 64): "a"}))
    assert said.endswith("in some cells of Based with ReBased (d = 128).")
    both = [make_run("based", 0.5, d_model=64, seed=43)]  # by a version of its own
    (said,) = versions_said(FIGURE1, [*made_by({("based", 256, 64): "a", ("rebased", 256, 64): "a"}), *both])
    assert said.endswith("In each cell all models have one in common.")
    (said,) = versions_said(FIGURE1, made_by({("based", 256, 64): "a", ("rebased", 256, 128): "b"}))
    assert said == "These runs were made by 2 versions of the code. In each cell all models have one in common."


def test_where_versions_differ_is_said_by_length() -> None:
    same = {(stack, length, width): "a" for stack in MIXERS for length in (128, 256) for width in (64, 128)}
    changes = {("rebased", 128, 64): "b", ("rebased", 128, 128): "b", ("conv_hyena", 256, 128): "c"}
    chosen = {place: version for place, version in (same | changes).items() if place[0] in STACKS}
    (said,) = versions_said(FIGURE1, made_by(chosen))
    assert said.endswith(
        "in some cells of Attention and Based with ReBased (128 tokens); Attention and Based with Hyena (256 tokens "
        "with d = 128); ReBased with Hyena (128 tokens and 256 tokens with d = 128)."
    )


STACKS = ("conv_attention", "based", "rebased", "conv_hyena")
