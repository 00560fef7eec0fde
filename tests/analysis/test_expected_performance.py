"""Expected validation performance against brute force over every subset."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebased.analysis.expected_performance import expected_performance

VALUES = st.lists(st.integers(0, 20), min_size=1, max_size=6).map(lambda values: np.array(values) / 20)


def every_best(values: np.ndarray, budget: int) -> np.ndarray:
    return np.array([max(subset) for subset in combinations(values, budget)])


@settings(max_examples=50)
@given(values=VALUES)
def test_is_brute_force(values: np.ndarray) -> None:
    curve = expected_performance(values)
    assert curve.budgets.tolist() == list(range(1, len(values) + 1))
    for budget, mean in zip(curve.budgets.tolist(), curve.mean, strict=True):
        assert mean == pytest.approx(every_best(values, budget).mean(), abs=1e-12)


@settings(max_examples=50)
@given(values=VALUES.filter(lambda values: len(values) > 1))
def test_standard_error_is_the_jackknife(values: np.ndarray) -> None:
    n = len(values)
    curve = expected_performance(values)
    for budget in range(1, n):
        without = [every_best(np.delete(values, left_out), budget).mean() for left_out in range(n)]
        expected = np.sqrt((n - 1) / n * np.sum((without - np.mean(without)) ** 2))
        assert curve.standard_error[budget - 1] == pytest.approx(expected, abs=1e-12)
    assert np.isnan(curve.standard_error[-1])


@given(values=VALUES.filter(lambda values: len(values) > 1), seed=st.integers(0, 99))
def test_what_must_hold(values: np.ndarray, seed: int) -> None:
    curve = expected_performance(values)
    assert curve.mean[0] == pytest.approx(values.mean())
    assert curve.standard_error[0] == pytest.approx(values.std(ddof=1) / np.sqrt(len(values)))
    assert curve.mean[-1] == values.max()
    assert (np.diff(curve.mean) >= -1e-12).all()
    shuffled = expected_performance(np.random.default_rng(seed).permutation(values))
    np.testing.assert_array_equal(shuffled.mean, curve.mean)
    scaled = expected_performance(10 * values - 3)
    np.testing.assert_allclose(scaled.mean, 10 * curve.mean - 3, atol=1e-9)
    np.testing.assert_allclose(scaled.standard_error, 10 * curve.standard_error, atol=1e-9)


def test_by_hand() -> None:
    """The best two of 0, 0.5, 1: 0.5, 1, 1."""
    assert expected_performance(np.array([0.5, 0.0, 1.0]), [2]).mean[0] == pytest.approx(2.5 / 3)


def test_is_unbiased_and_its_error_is_about_right() -> None:
    """Uniform runs: the best of b is b/(b + 1) on average."""
    samples = np.random.default_rng(0).uniform(size=(600, 12))
    curves = [expected_performance(sample, [4]) for sample in samples]
    means = np.array([curve.mean[0] for curve in curves])
    assert means.mean() == pytest.approx(0.8, abs=0.015)
    assert np.mean([curve.standard_error[0] for curve in curves]) == pytest.approx(means.std(), rel=0.2)


def test_many_runs_stay_exact() -> None:
    """Binomials of 400 exceed floats; their ratios do not."""
    curve = expected_performance(np.arange(1.0, 401.0), [1, 200, 400])
    np.testing.assert_allclose(curve.mean, [200.5, 200 * 401 / 201, 400])  # b(n + 1)/(b + 1)


def test_budgets_of_numpy() -> None:
    values = np.array([0.1, 0.5, 0.2, 0.9])
    curve, expected = expected_performance(values, np.arange(1, 4)), expected_performance(values, [1, 2, 3])
    assert curve.mean.tolist() == expected.mean.tolist()
    with pytest.raises(TypeError, match=r"budgets is .*2\.0.*; it must be an integer"):
        expected_performance(values, np.array([1.0, 2.0])[1:])


def test_one_run() -> None:
    curve = expected_performance(np.array([0.7]))
    assert curve.mean.tolist() == [0.7]
    assert np.isnan(curve.standard_error).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"values": np.array([])}, "values has shape"),
        ({"values": np.array([np.nan, 1.0])}, "values has 1 values that are not finite"),
        ({"budgets": [1, 4]}, "budgets has 4, but there are 3 runs"),
        ({"budgets": [0]}, "budgets=0 must be at least 1"),
    ],
)
def test_bad_input(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        expected_performance(**{"values": np.array([0.1, 0.2, 0.4]), **arguments})
