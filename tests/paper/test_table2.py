"""Table 2 of files as `rebased lm eval` writes them, also where little is known of a model."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

from rebased.analysis.pages import Claim, Table
from rebased.paper.experiment import Material
from rebased.paper.published import TABLE_2_TOKENS
from rebased.paper.table2 import TABLE2

RUN: dict[str, Any] = {
    "model": "rebased",
    "seed": 1,
    "parameters": 156_992_256,
    "tokens": 2_600_000_000,
    "corpus": "prose",
    "num_tokens": {"all": 100, "ar": 36, "non_ar": 64},
    "training": {"config": {"model": "rebased", "changes": {}, "seed": 1, "learning_rate": 1e-3}},
    "config": {"split": "validation", "length": 4096, "recurrence": "bigram"},
    "ar_fraction": 0.36,
    "perplexity": {"all": 20.0, "ar": 5.0, "non_ar": 60.0},
}


def tables_of(folder: Path, *runs: dict[str, Any]) -> list[dict[str, list[str]]]:
    """By the text of the first column; the last one says how they were made."""
    (folder / "lm").mkdir()
    for index, run in enumerate(runs):
        (folder / "lm" / f"{index}.json").write_text(json.dumps(run))
    data = TABLE2.measure(Material(scale="smoke", runs=(), out=folder, device="cpu"))
    tables = [part for part in TABLE2.present(json.loads(json.dumps(data))).parts if isinstance(part, Table)]
    return [{row[0].text: [cell.text for cell in row[1:]] for row in table.rows} for table in tables]


def test_means_and_spreads_over_seeds(tmp_path: Path) -> None:
    other = RUN | {"seed": 2, "perplexity": {"all": 22.0, "ar": 5.0, "non_ar": 62.0}}
    smaller = RUN | {"model": "attention-medium", "parameters": 52_000_000}
    rows, _ = tables_of(tmp_path, RUN, other, RUN | {"model": "based"}, smaller, RUN | {"model": "other"})
    sizes = ["156,992,256", "2,600,000,000"]
    assert list(rows) == [
        "Attention",
        "Attention, the paper's",
        "Based",
        "Based, the paper's",
        "ReBased",
        "ReBased, the paper's",
        "other",
    ]
    assert rows["ReBased"] == [*sizes, "2", "21.00 ± 1.41", "5.00 ± 0.00", "61.00 ± 1.41"]
    assert rows["Based"] == rows["other"] == [*sizes, "1", "20.00", "5.00", "60.00"]
    assert rows["Attention"] == ["52,000,000", "2,600,000,000", "1", "20.00", "5.00", "60.00"]
    assert rows["ReBased, the paper's"] == ["156,992,256", "83,886,080,000", "", "16.45", "3.67", "56.31"]


def test_better_is_said_where_the_test_says_so(tmp_path: Path) -> None:
    """Welch's test of logarithms, by scipy, corrected by hand: the least p thrice, the next at least that, twice."""
    values = {"attention": ([20.0, 20.1, 20.2], 5.0), "rebased": ([19.0, 19.1, 19.2], 5.1)}
    runs = [
        RUN | {"model": model, "seed": seed, "perplexity": {"all": x, "ar": ar + seed / 5, "non_ar": 60.0 + seed}}
        for model, (perplexities, ar) in values.items()
        for seed, x in enumerate(perplexities)
    ]
    other_corpus = [RUN | {"seed": seed, "corpus": "elsewhere"} for seed in range(3)]
    other_recipe = [RUN | {"model": "based", "seed": seed, "training": None} for seed in range(3)]
    _, pairs, _ = tables_of(tmp_path, *runs, *other_corpus, *other_recipe)
    logs = {model: np.log(perplexities) for model, (perplexities, _) in values.items()}
    p = scipy.stats.ttest_ind(logs["attention"], logs["rebased"], equal_var=False).pvalue
    assert list(pairs) == ["Attention over ReBased"]
    (last,) = pairs.values()  # of three rows with one name
    assert last == ["non-AR", "+0.00 %", "1", "1", "no difference shown"]
    rows = TABLE2.present(TABLE2.measure(Material(scale="smoke", runs=(), out=tmp_path, device="cpu"))).parts[-2].rows
    first = [cell.text for cell in rows[0]]
    ratio = np.exp(logs["attention"].mean() - logs["rebased"].mean()) - 1
    assert first[1:] == ["all", f"{100 * ratio:+.2f} %", f"{p:.2g}", f"{3 * p:.2g}", "ReBased better"]
    assert 3 * p < 0.05


def test_what_nobody_knows(tmp_path: Path) -> None:
    unknown = {"model": None, "seed": None, "tokens": None, "perplexity": {"all": 20.0, "ar": None, "non_ar": 20.0}}
    rows, _ = tables_of(tmp_path, RUN | unknown)
    assert rows["unknown"] == ["156,992,256", "unknown", "1", "20.00", "—", "20.00"]


def test_only_what_compares_is_averaged(tmp_path: Path) -> None:
    """Other tokens, corpora, recipes and ways to evaluate are other rows; unnamed models are one each."""
    config = RUN["config"] | {"recurrence": "token"}
    unnamed = RUN | {"model": None, "seed": None, "perplexity": {"all": 1.0, "ar": 1.0, "non_ar": 1.0}}
    hotter = {"training": {"config": RUN["training"]["config"] | {"learning_rate": 3e-3}}}
    wider = {"training": {"config": RUN["training"]["config"] | {"changes": {"hidden_size": 8}}}}
    others = [RUN | {"tokens": 1}, RUN | {"corpus": "code"}, RUN | {"config": config}, RUN | hotter, RUN | wider]
    others += [RUN | {"num_tokens": {"all": 1, "ar": 1, "non_ar": 0}}, unnamed, unnamed]
    (tmp_path / "lm").mkdir()
    for index, run in enumerate([RUN, *others]):
        (tmp_path / "lm" / f"{index}.json").write_text(json.dumps(run))
    data = TABLE2.measure(Material(scale="smoke", runs=(), out=tmp_path, device="cpu"))
    table, _ = (part for part in TABLE2.present(data).parts if isinstance(part, Table))
    assert [row[0].text for row in table.rows].count("ReBased") == 7
    assert [row[0].text for row in table.rows].count("unknown") == 2
    assert {row[3].text for row in table.rows} == {"1", ""}


def test_models_of_whose_training_nothing_is_known_are_not_compared(tmp_path: Path) -> None:
    """Nor is anything said of the paper's claims."""
    nothing = {"tokens": None, "training": None}
    values = {"attention": HIGH, "based": MIDDLE, "rebased": LOW}
    runs = [run_of(model, seed, x, **nothing) for model, xs in values.items() for seed, x in enumerate(xs)]
    claims = claims_of(tmp_path, {}, TABLE_2_TOKENS, runs)
    assert [claim.verdict for claim in claims] == ["not run"] * 3
    data = TABLE2.measure(Material(scale="smoke", runs=(), out=tmp_path, device="cpu"))
    assert not [part for part in TABLE2.present(data).parts if isinstance(part, Table) and "pair" in part.header]


@pytest.mark.parametrize(
    ("models", "verdict"),
    [
        (("attention", "based", "rebased-small"), "not run"),
        (("attention", "based", "rebased", "mamba"), "agrees"),
        (("mamba", "attention-small", "based-small", "rebased-small"), "agrees"),
    ],
    ids=["one of another size", "a family that the paper lacks", "all of another size"],
)
def test_the_three_of_one_size_are_compared(models: Sequence[str], verdict: str, tmp_path: Path) -> None:
    values = {"attention": HIGH, "based": MIDDLE, "rebased": LOW, "mamba": LOW}
    _, claim, _ = claims_of(tmp_path, {model: values[model.split("-")[0]] for model in models}, TABLE_2_TOKENS)
    assert claim.verdict == verdict


def test_models_that_were_trained_the_longest_are_compared(tmp_path: Path) -> None:
    """Whichever comes first: the order of files is that of their names."""
    for place, (first, second) in enumerate(((1, 4), (4, 1))):
        folder = tmp_path / str(place)
        folder.mkdir()
        values = {"attention": HIGH, "based": MIDDLE, "rebased": LOW}
        others = [
            run_of(model, seed, x + 50, tokens=TABLE_2_TOKENS // second)
            for model, xs in values.items()
            for seed, x in enumerate(xs)
        ]
        claim, *_ = claims_of(folder, values, TABLE_2_TOKENS // first, others)
        shift = 50 if second < first else 0
        assert claim.ours.startswith(f"Perplexities are Attention {20.1 + shift:.2f} ± 0.10, Based {15.1 + shift:.2f} ")


def test_one_run_twice_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"0\.json and .*1\.json are of the same model, seed and evaluation"):
        tables_of(tmp_path, RUN, RUN)


def test_files_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"0\.json is no result of a language model: KeyError\('perplexity'\)"):
        tables_of(tmp_path, {name: value for name, value in RUN.items() if name != "perplexity"})


def test_how_they_were_made_is_said(tmp_path: Path) -> None:
    environment = {"device_name": "NVIDIA H200", "commit": "0123456789abcdef", "python": "3.12", "triton": None}
    other = RUN | {"seed": 2, "training": RUN["training"] | {"environment": environment | {"commit": "fedcba9876543"}}}
    *_, made = tables_of(tmp_path, RUN | {"training": RUN["training"] | {"environment": environment}}, other)
    assert made == {
        "device_name": ["NVIDIA H200"],
        "commit": ["0123456789ab (1 of 2), fedcba987654 (1 of 2)"],
        "triton": ["None"],
        "training learning_rate": ["0.001"],
        "evaluation split": ["validation"],
        "evaluation length": ["4096"],
        "evaluation recurrence": ["bigram"],
    }


def claims_of(
    folder: Path, values: dict[str, Sequence[float]], tokens: int, others: Sequence[dict[str, Any]] = ()
) -> list[Claim]:
    """On AR, all and non-AR tokens, of models that are alike in all three."""
    (folder / "lm").mkdir()
    runs = [run_of(model, seed, x, tokens=tokens) for model, xs in values.items() for seed, x in enumerate(xs)]
    for index, run in enumerate([*runs, *others]):
        (folder / "lm" / f"{index:02}.json").write_text(json.dumps(run))
    data = TABLE2.measure(Material(scale="smoke", runs=(), out=folder, device="cpu"))
    return list(TABLE2.present(data).claims)


def run_of(model: str, seed: int, perplexity: float, **changes: Any) -> dict[str, Any]:
    by_kind = dict.fromkeys(("all", "ar", "non_ar"), perplexity)
    return RUN | {"model": model, "seed": seed, "perplexity": by_kind} | changes


LOW, MIDDLE, HIGH = (10.0, 10.1, 10.2), (15.0, 15.1, 15.2), (20.0, 20.1, 20.2)


@pytest.mark.parametrize(
    ("values", "verdicts"),
    [
        ({"attention": LOW, "based": HIGH, "rebased": MIDDLE}, ["agrees", "differs", "differs"]),
        ({"attention": HIGH, "based": MIDDLE, "rebased": LOW}, ["differs", "agrees", "agrees"]),
        ({"attention": HIGH, "based": LOW, "rebased": LOW}, ["differs", "in part", "in part"]),
        ({"attention": LOW, "based": LOW, "rebased": LOW}, ["not shown"] * 3),
        ({"attention": LOW, "rebased": LOW}, ["not run"] * 3),
        ({}, ["not run"] * 3),
    ],
    ids=["attention best", "rebased best", "rebased as based", "alike", "one missing", "none"],
)
def test_claims_of_models_trained_as_long(
    values: dict[str, Sequence[float]], verdicts: list[str], tmp_path: Path
) -> None:
    assert [claim.verdict for claim in claims_of(tmp_path, values, tokens=TABLE_2_TOKENS // 4)] == verdicts


@pytest.mark.parametrize(
    ("times", "verdicts"),
    [(9.9, ["differs", "agrees", "agrees"]), (10.1, ["not shown"] * 3)],
    ids=["enough", "too few"],
)
def test_models_that_saw_far_less_do_not_test_them(times: float, verdicts: list[str], tmp_path: Path) -> None:
    """A tenth of the paper's tokens is the least."""
    values = {"attention": HIGH, "based": MIDDLE, "rebased": LOW}
    found = claims_of(tmp_path, values, tokens=int(TABLE_2_TOKENS / times))
    assert [claim.verdict for claim in found] == verdicts


@pytest.mark.parametrize(("num_seeds", "verdict"), [(2, "agrees"), (1, "not shown")])
def test_two_seeds_are_compared(num_seeds: int, verdict: str, tmp_path: Path) -> None:
    values = {"attention": HIGH, "based": MIDDLE, "rebased": LOW}
    some = {model: perplexities[:num_seeds] for model, perplexities in values.items()}
    _, claim, _ = claims_of(tmp_path, some, TABLE_2_TOKENS)
    assert claim.verdict == verdict


@pytest.mark.parametrize(
    "others",
    [
        [run_of("attention", seed, 30.0 + seed, tokens=7) for seed in range(2)],
        [run_of("attention-small", seed, 30.0 + seed / 10, tokens=TABLE_2_TOKENS) for seed in range(3)],
        [run_of("rebased-small", seed, 90.0 + seed / 10, tokens=TABLE_2_TOKENS) for seed in range(3)],
    ],
    ids=["fewer tokens", "a smaller model", "a smaller one of itself"],
)
def test_other_models_of_a_family_do_not_count(others: list[dict[str, Any]], tmp_path: Path) -> None:
    """ReBased is as good as Based, and better than one model of Attention's."""
    values = {"attention": HIGH, "based": LOW, "rebased": LOW}
    _, claim, _ = claims_of(tmp_path, values, TABLE_2_TOKENS, others)
    assert claim.ours.startswith("Perplexities are Attention 20.10 ± 0.10, Based 10.10 ± 0.10, ReBased 10.10 ± 0.10;")
    assert claim.verdict == "in part"


def test_claims_are_corrected_for_all_ratios_of_the_table(tmp_path: Path) -> None:
    """Smaller models of the three families make it 45 ratios instead of 9: what one says shown, the other says too."""
    values = {"attention": HIGH, "based": (19.5, 19.6, 19.7), "rebased": (19.4, 19.5, 19.6)}
    smaller = [
        run_of(f"{family}-small", seed, 25.0 + seed + place, tokens=TABLE_2_TOKENS)
        for place, family in enumerate(values)
        for seed in range(3)
    ]
    verdicts = {}
    for others in ([], smaller):
        folder = tmp_path / str(len(others))
        folder.mkdir()
        _, claim, _ = claims_of(folder, values, TABLE_2_TOKENS, others)
        data = TABLE2.measure(Material(scale="smoke", runs=(), out=folder, device="cpu"))
        _, pairs, _ = (part for part in TABLE2.present(data).parts if isinstance(part, Table))
        said = {(row[0].text.lower(), row[1].text): row[-1].text for row in pairs.rows}
        rebased_and = [said[f"{other} over rebased", "all"] for other in ("attention", "based")]
        assert ("is shown to be" in claim.ours) == (set(rebased_and) != {"no difference shown"})
        verdicts[len(pairs.rows)] = claim.verdict
    assert verdicts == {9: "in part", 45: "not shown"}
