"""Entropy of attention rows against scipy and by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from rebased.analysis.entropy import row_entropy

ROWS = arrays(np.float64, (3, 4), elements=st.integers(0, 6).map(lambda value: value / 3))


@given(attention=ROWS.filter(lambda array: (array.sum(-1) > 0).all()), normalize=st.booleans())
def test_is_scipys(attention: np.ndarray, normalize: bool) -> None:
    expected = stats.entropy(attention, axis=-1)
    if normalize:
        expected = expected / math.log(4)
    entropy = row_entropy(attention, normalize=normalize)
    np.testing.assert_allclose(entropy, expected, atol=1e-12)
    np.testing.assert_allclose(row_entropy(7 * attention[:, ::-1], normalize=normalize), entropy, atol=1e-12)
    assert (entropy >= 0).all()


def test_by_hand() -> None:
    attention = np.array([[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0.25] * 4, [0] * 4])
    np.testing.assert_allclose(row_entropy(attention), [0, math.log(2), math.log(4), np.nan])
    np.testing.assert_allclose(row_entropy(attention, normalize=True), [0, 0.5, 1, np.nan])


def test_causal_rows_see_fewer_keys() -> None:
    uniform = np.tril(np.ones((2, 5, 5)))
    entropy = row_entropy(uniform, normalize=True, num_keys=np.arange(1, 6))
    np.testing.assert_allclose(entropy, [[0, 1, 1, 1, 1]] * 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attention": np.array([-0.1, 1.1])}, "attention has the negative value -0.1"),
        ({"attention": np.array([np.nan, 1.1])}, "attention has 1 values that are not finite"),
        ({"attention": np.zeros((2, 0))}, r"attention has shape \(2, 0\)"),
        ({"num_keys": np.array([2, 2])}, "num_keys is for normalize=True"),
        ({"num_keys": np.array([0, 2]), "normalize": True}, "num_keys is from 0 to 2; it must be from 1 to 3"),
        ({"num_keys": np.array([2, 2, 2]), "normalize": True}, r"num_keys has shape \(3,\)"),
    ],
)
def test_bad_input(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        row_entropy(**{"attention": np.ones((2, 3)), **arguments})
