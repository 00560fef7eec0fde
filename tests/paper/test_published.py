"""Numbers of the paper, once more as its tables print them: a slip in either is seen."""

import statistics

import pytest

from rebased.paper.published import TABLE_1, TABLE_1_MEANS, TABLE_2, TABLE_3

TABLE_1_AS_PRINTED = {
    "based": "0.06 ± 0.02 0.45 ± 0.15 0.82 ± 0.06 0.99 ± 0.00 0.58 "
    "0.02 ± 0.02 0.40 ± 0.18 0.66 ± 0.08 0.99 ± 0.01 0.51",
    "x2": "0.05 ± 0.05 0.47 ± 0.08 0.64 ± 0.42 0.99 ± 0.00 0.54 0.03 ± 0.03 0.33 ± 0.21 0.46 ± 0.42 0.93 ± 0.09 0.44",
    "norm_x2": "0.09 ± 0.04 0.39 ± 0.24 0.84 ± 0.09 0.97 ± 0.02 0.57 "
    "0.05 ± 0.05 0.56 ± 0.10 0.72 ± 0.17 0.99 ± 0.00 0.58",
    "gamma_x2": "0.02 ± 0.02 0.35 ± 0.22 0.71 ± 0.09 0.98 ± 0.03 0.51 "
    "0.02 ± 0.03 0.26 ± 0.45 0.65 ± 0.37 0.99 ± 0.01 0.48",
    "gamma_beta_x2": "0.06 ± 0.01 0.51 ± 0.08 0.89 ± 0.03 0.99 ± 0.00 0.61 "
    "0.06 ± 0.03 0.50 ± 0.08 0.85 ± 0.04 0.99 ± 0.01 0.60",
    "rebased": "0.09 ± 0.05 0.59 ± 0.06 0.86 ± 0.08 0.99 ± 0.00 0.63 "
    "0.04 ± 0.03 0.58 ± 0.01 0.83 ± 0.04 0.99 ± 0.00 0.61",
}
"""At 256 tokens widths 16, 24, 32 and 48 and their mean, then at 2048."""


def test_table_1() -> None:
    printed = {}
    for stack, by_length in TABLE_1.items():
        entries = []
        for length, cells in by_length.items():
            assert (length, list(cells)) in ((256, [16, 24, 32, 48]), (2048, [16, 24, 32, 48]))
            entries += [f"{mean:.2f} ± {sd:.2f}" for mean, sd in cells.values()]
            entries.append(f"{TABLE_1_MEANS[stack][length]:.2f}")
        printed[stack] = " ".join(entries)
    assert list(TABLE_1["rebased"]) == [256, 2048]
    assert printed == TABLE_1_AS_PRINTED


def test_table_2() -> None:
    """All tokens, AR and non-AR."""
    assert {model: " / ".join(f"{x:.2f}" for x in values) for model, values in TABLE_2.items()} == {
        "attention": "16.62 / 3.57 / 58.57",
        "based": "16.69 / 3.72 / 57.21",
        "rebased": "16.45 / 3.67 / 56.31",
    }


def test_table_3() -> None:
    """IoU and accuracy."""
    assert {model: f"{iou:.3f} / {accuracy:.3f}" for model, (iou, accuracy) in TABLE_3.items()} == {
        "attention": "0.999 / 1.000",
        "based": "0.157 / 0.956",
        "rebased": "0.173 / 0.957",
    }


def test_the_papers_means_are_those_of_its_cells() -> None:
    """But for rounding: of four numbers of two digits, and of the mean itself."""
    for stack, by_length in TABLE_1.items():
        for length, cells in by_length.items():
            mean = statistics.fmean(mean for mean, _ in cells.values())
            assert TABLE_1_MEANS[stack][length] == pytest.approx(mean, abs=0.0101)
