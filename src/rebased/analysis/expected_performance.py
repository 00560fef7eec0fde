"""Expected validation performance: how good the best of a budget of runs is on average (Dodge et al. 2021)."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from rebased.analysis.checks import finite_vector
from rebased.checks import check_integer

__all__ = ["ExpectedPerformance", "expected_performance"]


@dataclass(frozen=True, kw_only=True)
class ExpectedPerformance:
    """The curve over budgets. Compares by identity, as its arrays do."""

    budgets: Int[np.ndarray, "budgets"]
    """Numbers of runs of which the best is taken."""
    mean: Float[np.ndarray, "budgets"]
    """Expected best."""
    standard_error: Float[np.ndarray, "budgets"]
    """Of ``mean``, by the jackknife over observed runs: how well they determine it. NaN where leaving one out leaves
    too few; rough where the budget is near the number of runs, as the best is then often the same run."""


def expected_performance(values: Float[np.ndarray, "n"], budgets: Iterable[int] | None = None) -> ExpectedPerformance:
    """Mean of the maximum of ``budget`` runs drawn from ``values``, for each of ``budgets`` (default 1 to n).

    With the values sorted, the i-th of n is the best of b with probability ``C(i - 1, b - 1) / C(n, b)``: draws are
    without replacement, so every subset of b ≤ n runs is a real search and the mean is unbiased. That of Dodge et al.
    2019 draws with replacement, which is biased downwards, as a run drawn twice is not a new one.
    """
    values = np.sort(finite_vector("values", values))
    budgets = range(1, len(values) + 1) if budgets is None else budgets
    budgets = [budget.item() if isinstance(budget, np.integer) else budget for budget in budgets]
    for budget in budgets:
        check_integer("budgets", budget)
        if budget > len(values):
            raise ValueError(f"budgets has {budget}, but there are {len(values)} runs to draw without replacement")
    return ExpectedPerformance(
        budgets=np.array(budgets, dtype=np.int64),
        mean=_best_probabilities(len(values), budgets) @ values,
        standard_error=_jackknife_error(values, budgets),
    )


def _best_probabilities(num_values: int, budgets: Sequence[int]) -> Float[np.ndarray, "budgets n"]:
    """For each budget, the probability of each rank to be the best; NaN where there are too few to draw."""

    def probability(rank: int, budget: int) -> float:
        subsets = math.comb(num_values, budget)
        return math.comb(rank, budget - 1) / subsets if subsets else math.nan

    ranks = range(num_values)
    return np.array([[probability(rank, budget) for rank in ranks] for budget in budgets]).reshape(-1, num_values)


def _jackknife_error(values: Float[np.ndarray, "n"], budgets: Sequence[int]) -> Float[np.ndarray, "budgets"]:
    """``√((n - 1)/n Σ (θ₋ᵢ - mean θ₋)²)``, with θ₋ᵢ the estimate without the i-th run; for budget 1 it is s/√n."""
    n = len(values)
    if n < 2:
        return np.full(len(budgets), np.nan)
    weights = _best_probabilities(n - 1, budgets)
    rest = np.array([np.delete(values, left_out) for left_out in range(n)])  # (n, n - 1), each still sorted
    return np.sqrt((n - 1) * (rest @ weights.T).var(0))
