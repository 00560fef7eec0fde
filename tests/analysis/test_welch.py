"""Welch's test beside scipy's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_ind_from_stats

from rebased.analysis.welch import welch_p

MEANS = st.floats(-2, 2)
SDS = st.floats(1e-3, 3)
COUNTS = st.integers(2, 200)


@given(mean_a=MEANS, sd_a=SDS, num_a=COUNTS, mean_b=MEANS, sd_b=SDS, num_b=COUNTS)
def test_equals_scipy(mean_a: float, sd_a: float, num_a: int, mean_b: float, sd_b: float, num_b: int) -> None:
    expected = ttest_ind_from_stats(mean_a, sd_a, num_a, mean_b, sd_b, num_b, equal_var=False).pvalue
    assert welch_p(mean_a, sd_a, num_a, mean_b, sd_b, num_b) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_without_spread() -> None:
    assert welch_p(0.5, 0, 5, 0.5, 0, 5) == 1
    assert welch_p(0.5, 0, 5, 0.6, 0, 5) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, 1, 0, 1, 5), "num_a=1 must be at least 2"),
        ((0, 1, 5, 0, 1, 0), "num_b=0"),
        ((0, -1, 5, 0, 1, 5), "standard deviations -1, 1 must be finite"),
        ((float("nan"), 1, 5, 0, 1, 5), "means nan"),
    ],
)
def test_bad_values(arguments: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        welch_p(*arguments)  # type: ignore[arg-type]
