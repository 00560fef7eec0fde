"""The similarity that a ReBased layer has learned, in one dimension (the paper's section 4, Figure 2)."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from rebased.analysis.checks import finite_array

__all__ = ["AffineSummary", "LearnedKernel", "learned_kernel"]


@dataclass(frozen=True, kw_only=True)
class AffineSummary:
    """γ and β of one layer's queries or keys, over all features."""

    gamma_mean: float
    gamma_sd: float
    beta_mean: float
    beta_sd: float
    """With n below the root, as the features are all there are."""


@dataclass(frozen=True, kw_only=True)
class LearnedKernel:
    """One layer's γ and β and the parabola of their means, ``(slope·x + shift)²``: what Figure 2 draws."""

    queries: AffineSummary
    keys: AffineSummary
    slope: float
    shift: float

    @property
    def coefficients(self) -> tuple[float, float, float]:
        """c0, c1, c2 of ``c0 + c1·x + c2·x²``, as in `rebased.kernels.Polynomial`."""
        return self.shift**2, 2 * self.slope * self.shift, self.slope**2

    @property
    def root(self) -> float | None:
        """Where the similarity is zero; None if it is constant."""
        return -self.shift / self.slope if self.slope else None

    def similarity(self, x: Float[np.ndarray, "*points"]) -> Float[np.ndarray, "*points"]:
        """The curve's values at ``x``."""
        return (self.slope * x + self.shift) ** 2


def learned_kernel(
    gamma_q: Float[np.ndarray, "*Q"],
    beta_q: Float[np.ndarray, "*Q"],
    gamma_k: Float[np.ndarray, "*K"],
    beta_k: Float[np.ndarray, "*K"],
    *,
    query: float = 1.0,
) -> LearnedKernel:
    """The parabola ``((γ_q·query + β_q)(γ_k·x + β_k))²`` in x, with γ and β the means over a layer's features.

    The paper simplifies to one dimension; there the scalar product is x itself for ``query`` = 1. The parabola of the
    means touches zero, like every feature's own; the mean of the features' parabolas need not. It is a picture: in F
    dimensions similarity is the square of a sum over features, and no function of the product alone.
    """
    queries, keys = _summary("q", gamma_q, beta_q), _summary("k", gamma_k, beta_k)
    height = queries.gamma_mean * query + queries.beta_mean
    return LearnedKernel(queries=queries, keys=keys, slope=height * keys.gamma_mean, shift=height * keys.beta_mean)


def _summary(side: str, gamma: Float[np.ndarray, "*F"], beta: Float[np.ndarray, "*F"]) -> AffineSummary:
    gamma, beta = finite_array(f"gamma_{side}", gamma), finite_array(f"beta_{side}", beta)
    if gamma.shape != beta.shape or gamma.size == 0:
        raise ValueError(
            f"gamma_{side} {gamma.shape} and beta_{side} {beta.shape} must have one shape, with at least one feature"
        )
    return AffineSummary(
        gamma_mean=float(gamma.mean()),
        gamma_sd=float(gamma.std()),
        beta_mean=float(beta.mean()),
        beta_sd=float(beta.std()),
    )
