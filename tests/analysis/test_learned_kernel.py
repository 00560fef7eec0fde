"""The learned parabola against its formula and the kernel itself."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rebased.analysis.learned_kernel import learned_kernel
from rebased.kernels import REBASED, Polynomial

PARAMETERS = arrays(np.float64, (4, 3, 2), elements=st.floats(-3, 3, width=16))
"""γ and β of queries, then of keys; 3 heads of 2 features."""
X = np.linspace(-4, 2, 13)


@given(parameters=PARAMETERS, query=st.sampled_from([1.0, -0.5]))
def test_curve_is_the_formula(parameters: np.ndarray, query: float) -> None:
    gamma_q, beta_q, gamma_k, beta_k = parameters.mean(axis=(1, 2))
    expected = ((gamma_q * query + beta_q) * (gamma_k * X + beta_k)) ** 2
    np.testing.assert_allclose(learned_kernel(*parameters, query=query).similarity(X), expected, atol=1e-9)


@given(parameters=PARAMETERS)
def test_curve_is_the_kernel_of_the_means(parameters: np.ndarray) -> None:
    learned = learned_kernel(*parameters)
    gamma_q, beta_q, gamma_k, beta_k = parameters.mean(axis=(1, 2))
    q = torch.full((1, 1, 1, 1), gamma_q + beta_q, dtype=torch.float64)
    k = torch.tensor(gamma_k * X + beta_k).reshape(1, -1, 1, 1)
    expected = REBASED.similarity(q, k, scale=1.0).flatten().numpy()
    curve = learned.similarity(X)
    np.testing.assert_allclose(curve, expected, atol=1e-9)
    assume(any(learned.coefficients))
    x = torch.tensor(X).reshape(1, -1, 1, 1)
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    polynomial = Polynomial(*learned.coefficients).similarity(one, x, scale=1.0).flatten().numpy()
    np.testing.assert_allclose(curve, polynomial, atol=1e-9)


def test_by_hand() -> None:
    learned = learned_kernel(np.array([1.0, 3.0]), np.zeros(2), np.array([0.5, 0.5]), np.array([0.0, 2.0]))
    assert (learned.queries.gamma_mean, learned.queries.gamma_sd) == (2, 1)
    assert (learned.keys.beta_mean, learned.keys.beta_sd) == (1, 1)
    assert learned.coefficients == (4, 4, 1)  # (2(0.5x + 1))² = (x + 2)²
    assert learned.root == -2
    np.testing.assert_allclose(learned.similarity(np.array([-2.0, 0.0, 1.0])), [0, 4, 9])


def test_untrained_is_a_plain_square_and_flat_has_no_root() -> None:
    ones, zeros = np.ones(6), np.zeros(6)
    untrained = learned_kernel(ones, zeros, ones, zeros)
    assert untrained.coefficients == (0, 0, 1)
    assert untrained.root == 0
    assert learned_kernel(ones, zeros, zeros, ones).root is None


def test_queries_may_have_more_heads_than_keys() -> None:
    learned = learned_kernel(np.ones((4, 2)), np.zeros((4, 2)), np.ones((2, 2)), np.zeros((2, 2)))
    assert learned.coefficients == (0, 0, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"beta_q": np.zeros(3)}, r"gamma_q \(2,\) and beta_q \(3,\)"),
        ({"gamma_k": np.array([]), "beta_k": np.array([])}, "with at least one feature"),
        ({"gamma_k": np.array([np.nan, 1])}, "gamma_k has 1 values that are not finite"),
    ],
)
def test_bad_input(arguments: dict, message: str) -> None:
    parameters = {name: np.ones(2) for name in ("gamma_q", "beta_q", "gamma_k", "beta_k")}
    with pytest.raises(ValueError, match=message):
        learned_kernel(**{**parameters, **arguments})
