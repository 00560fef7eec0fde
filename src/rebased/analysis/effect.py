"""Effect sizes: how large a difference is beside the spread, or how often one side is above the other."""

import math

import numpy as np
from jaxtyping import Float

from rebased.analysis.checks import finite_vector
from rebased.checks import check_integer

__all__ = ["cliffs_delta", "cohens_dz", "hedges_correction", "hedges_gz"]

_TIE = 1e-9  # Relative to the largest: differences have the rounding of what they are of, which may be far larger.


def cohens_dz(differences: Float[np.ndarray, "n"]) -> float:
    """Mean of paired differences over their standard deviation (n - 1 below the root).

    Differences that are equal but for rounding have no spread: 0 if they are zero, otherwise infinite, with their sign.
    """
    differences = finite_vector("differences", differences, at_least=2)
    if np.ptp(differences) <= _TIE * np.abs(differences).max():
        return math.copysign(math.inf, differences[0]) if differences[0] else 0.0
    return float(differences.mean() / differences.std(ddof=1))


def hedges_correction(degrees_of_freedom: int) -> float:
    """The factor that makes d unbiased for normal data: ``Γ(m/2) / (√(m/2) Γ((m - 1)/2))``, m ≥ 2 (Hedges 1981)."""
    check_integer("degrees_of_freedom", degrees_of_freedom)
    if degrees_of_freedom < 2:
        raise ValueError(f"degrees_of_freedom={degrees_of_freedom} must be at least 2: d of fewer has no mean")
    half = degrees_of_freedom / 2
    return math.exp(math.lgamma(half) - math.lgamma(half - 0.5)) / math.sqrt(half)


def hedges_gz(differences: Float[np.ndarray, "n"]) -> float:
    """`cohens_dz` times Hedges' correction for n - 1 degrees of freedom: at least 3 differences."""
    differences = finite_vector("differences", differences, at_least=3)
    return cohens_dz(differences) * hedges_correction(len(differences) - 1)


def cliffs_delta(a: Float[np.ndarray, "n"], b: Float[np.ndarray, "m"]) -> float:
    """P(a > b) - P(a < b) over all pairs of one value of each, from -1 to 1; pairing plays no part."""
    a, b = finite_vector("a", a), finite_vector("b", b)
    return float(np.sign(a[:, None] - b).mean())
