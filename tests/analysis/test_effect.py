"""Effect sizes against scipy and by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rebased.analysis.effect import cliffs_delta, cohens_dz, hedges_correction, hedges_gz

SAMPLES = st.lists(st.integers(-20, 20), min_size=3, max_size=10).map(lambda values: np.array(values) / 10)


@given(differences=SAMPLES.filter(lambda values: np.ptp(values) > 0))
def test_dz_is_t_over_root_n(differences: np.ndarray) -> None:
    t = stats.ttest_1samp(differences, 0).statistic
    assert cohens_dz(differences) == pytest.approx(t / math.sqrt(len(differences)), abs=1e-12)


@given(differences=SAMPLES)
def test_dz_changes_sign_with_the_sides_and_not_with_the_scale(differences: np.ndarray) -> None:
    d = cohens_dz(differences)
    assert cohens_dz(-differences) == -d
    assert cohens_dz(4 * differences) == d  # a power of two: no rounding
    assert math.copysign(1, hedges_gz(differences)) == math.copysign(1, d)
    assert abs(hedges_gz(differences)) <= abs(d)


def test_dz_by_hand() -> None:
    assert cohens_dz(np.array([1.0, 2.0, 3.0])) == 2
    assert cohens_dz(np.zeros(4)) == 0
    assert cohens_dz(np.full(4, 0.1)) == math.inf
    assert cohens_dz(np.full(4, -0.1)) == -math.inf


@pytest.mark.parametrize("scale", [1, 1e-5])
def test_what_rounding_leaves_is_no_spread(scale: float) -> None:
    """Differences of 0.1 and of 0.1 that are not the same number gave 2.8e15."""
    differences = np.array([0.3, 0.4, 0.9, 0.7]) - np.array([0.2, 0.3, 0.8, 0.6])
    assert np.ptp(differences) > 0
    assert cohens_dz(scale * differences) == hedges_gz(scale * differences) == math.inf
    assert cohens_dz(-scale * differences) == -math.inf
    assert math.isfinite(cohens_dz(np.array([0.1, 0.1, 0.1 + 1e-6])))


@pytest.mark.parametrize("degrees_of_freedom", [2, 4, 19, 500])
def test_hedges_correction(degrees_of_freedom: int) -> None:
    """Cohen's d is too large by the mean of σ/s, which scipy's chi distribution gives."""
    mean_of_inverse = stats.chi(degrees_of_freedom).expect(lambda s: math.sqrt(degrees_of_freedom) / s)
    correction = hedges_correction(degrees_of_freedom)
    assert correction == pytest.approx(1 / mean_of_inverse, rel=1e-6)
    assert correction == pytest.approx(1 - 3 / (4 * degrees_of_freedom - 1), abs=0.02)  # the usual approximation


def test_hedges_gz_is_unbiased_and_dz_is_not() -> None:
    samples = np.random.default_rng(0).normal(0.8, 1, size=(5000, 6))
    assert np.mean([hedges_gz(sample) for sample in samples]) == pytest.approx(0.8, abs=0.03)
    assert np.mean([cohens_dz(sample) for sample in samples]) > 0.9


@given(a=SAMPLES, b=SAMPLES)
def test_cliffs_delta_is_mann_whitneys_u(a: np.ndarray, b: np.ndarray) -> None:
    u = stats.mannwhitneyu(a, b, method="asymptotic").statistic if np.ptp([*a, *b]) else len(a) * len(b) / 2
    delta = cliffs_delta(a, b)
    assert delta == pytest.approx(2 * u / (len(a) * len(b)) - 1, abs=1e-12)
    assert cliffs_delta(b, a) == -delta
    assert cliffs_delta(np.exp(a), np.exp(b)) == delta  # only order counts


def test_cliffs_delta_by_hand() -> None:
    assert cliffs_delta(np.array([2.0, 3.0]), np.array([1.0])) == 1
    assert cliffs_delta(np.array([1.0, 3.0]), np.array([1.0, 2.0])) == 0.25  # of four pairs two above, one below


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"differences has shape \(1,\); .* at least 2"):
        cohens_dz(np.array([0.1]))
    with pytest.raises(ValueError, match=r"differences has shape \(2,\); .* at least 3"):
        hedges_gz(np.array([0.1, 0.2]))
    with pytest.raises(ValueError, match="degrees_of_freedom=1 must be at least 2"):
        hedges_correction(1)
    with pytest.raises(ValueError, match="b has 1 values that are not finite"):
        cliffs_delta(np.array([0.1]), np.array([np.nan]))
