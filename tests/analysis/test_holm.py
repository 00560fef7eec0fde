"""Holm's adjusted p values against the closed testing procedure they abbreviate."""

from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebased.analysis.holm import holm

P_VALUES = st.lists(st.integers(0, 100), min_size=1, max_size=7).map(lambda values: np.array(values) / 100)


def test_by_hand() -> None:
    adjusted = holm(np.array([0.01, 0.04, 0.03, 0.005]))
    np.testing.assert_allclose(adjusted, [0.03, 0.06, 0.06, 0.02])  # 3·0.01, max(2·0.03, 0.04), 2·0.03, 4·0.005
    assert holm(np.array([0.2])).tolist() == [0.2]
    assert holm(np.array([0.6, 0.7])).tolist() == [1.0, 1.0]


@given(p_values=P_VALUES)
def test_is_closed_testing_with_bonferroni(p_values: np.ndarray) -> None:
    """A hypothesis is rejected if Bonferroni rejects every intersection that contains it."""
    indices = range(len(p_values))
    subsets = list(chain.from_iterable(combinations(indices, size) for size in range(1, len(p_values) + 1)))
    expected = [
        max(min(1.0, len(subset) * p_values[list(subset)].min()) for subset in subsets if index in subset)
        for index in indices
    ]
    np.testing.assert_allclose(holm(p_values), expected)


@given(p_values=P_VALUES, seed=st.integers(0, 100))
def test_order_does_not_matter_and_ranks_stay(p_values: np.ndarray, seed: int) -> None:
    shuffle = np.random.default_rng(seed).permutation(len(p_values))
    adjusted = holm(p_values)
    np.testing.assert_array_equal(holm(p_values[shuffle]), adjusted[shuffle])
    assert (adjusted >= p_values).all()
    assert (np.diff(adjusted[np.argsort(p_values)]) >= 0).all()


def test_any_false_rejection_is_rare() -> None:
    generator = np.random.default_rng(5)
    common = 0.5  # tests of pairs of kernels share kernels
    z = np.sqrt(common) * generator.normal(size=(4000, 1)) + np.sqrt(1 - common) * generator.normal(size=(4000, 15))
    p_values = 2 * np.exp(-(np.abs(z) ** 2) / 2).clip(max=0.5)  # above the exact p, so still valid
    assert np.mean([holm(row).min() < 0.05 for row in p_values]) < 0.05


@pytest.mark.parametrize("p_values", [[0.5, 1.5], [-0.1], [np.nan], [], [[0.1]]])
def test_bad_input(p_values: list) -> None:
    with pytest.raises(ValueError, match="p_values"):
        holm(np.array(p_values))
