"""Sentences about recall runs follow from their numbers."""

from pathlib import Path

import pytest
from recall_runs import make_row

from rebased.analysis.recall_words import compare, describe_learning, describe_setting


def test_who_learned(tmp_path: Path) -> None:
    rows = [make_row(tmp_path, "Attention", [0.99], [0.95]), make_row(tmp_path, "x²", [0.95], [0.9])]
    assert describe_learning(rows) == (
        "Accuracy above 0.9 at the best learning rate: Attention in 2 of 2 runs, x² in 1 of 2 runs; "
        "at all that were tried: Attention in 2 of 3 runs, x² in 1 of 3 runs."
    )


@pytest.mark.parametrize(
    ("ours", "others", "says"),
    [
        ((0.8, 0.9), (0.4, 0.5), "the mean of ReBased is higher by 0.400, more than the larger standard deviation"),
        ((0.4, 0.5), (0.8, 0.9), "the mean of x² is higher by 0.400, more than the larger standard deviation"),
        ((0.8, 0.9), (0.2, 0.9), "the mean of ReBased is higher by 0.300, no more than the larger standard deviation"),
        ((0.5, 0.6), (0.6, 0.5), "the means are equal"),
        ((0.8,), (0.5,), "ReBased 0.800, x² 0.500: the mean of ReBased is higher by 0.300."),
    ],
    ids=["ahead", "behind", "within the spread", "equal", "one run each"],
)
def test_comparison(tmp_path: Path, ours: tuple[float, ...], others: tuple[float, ...], says: str) -> None:
    rows = [make_row(tmp_path, name, *([x] for x in xs)) for name, xs in (("ReBased", ours), ("x²", others))]
    sentences = compare(*rows)
    assert says in sentences[0]
    assert ("do not tell the two apart" in sentences[0]) == ("no more than" in says)
    assert "too few to call a difference significant" in sentences[-1]


def test_who_got_there_sooner(tmp_path: Path) -> None:
    ours, others = make_row(tmp_path, "ReBased", [0.1, 0.95], [0.1, 0.2, 0.95]), make_row(tmp_path, "x²", [0.5], [0.8])
    expected = "0.9 was reached by 2 of 2 runs of ReBased (after 2–3 epochs) and by 0 of 2 runs of x²."
    assert compare(ours, others)[1] == expected


def test_setting_is_the_configs(tmp_path: Path) -> None:
    setting = describe_setting([make_row(tmp_path, "ReBased", [0.5], [0.6])])
    assert setting["task"] == "mqar: num_pairs 4, 32 tokens, vocabulary 64"
    assert setting["training"].startswith("at most 20 epochs of 99 examples (new ones every epoch), batch 10")
    assert setting["learning rates"].startswith("0.003, 0.01; ")
    assert setting["seeds"].startswith("0, 1 ")
