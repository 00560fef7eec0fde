"""Holm's step-down correction: p values of several tests, such that any false rejection at all is unlikely."""

import numpy as np
from jaxtyping import Float

from rebased.analysis.checks import finite_vector

__all__ = ["holm"]


def holm(p_values: Float[np.ndarray, "tests"]) -> Float[np.ndarray, "tests"]:
    """Adjusted p values, in the order given (Holm 1979).

    With p₁ ≤ … ≤ p_m the i-th becomes ``max over j ≤ i of (m - j + 1) · p_j``, at most 1. Rejecting what is below α
    then makes a false rejection with probability at most α, whatever the dependence between the tests.
    """
    p_values = finite_vector("p_values", p_values)
    outside = p_values[(p_values < 0) | (p_values > 1)]
    if outside.size:
        raise ValueError(f"p_values has {outside[0]}; all must be from 0 to 1")
    order = np.argsort(p_values, kind="stable")
    steps = p_values[order] * np.arange(len(p_values), 0, -1)
    adjusted = np.empty_like(p_values)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return adjusted
