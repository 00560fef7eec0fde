"""Bootstrap confidence intervals of a mean."""

from dataclasses import dataclass
from itertools import product
from statistics import NormalDist

import numpy as np
from jaxtyping import Float

from rebased.analysis.checks import check_fraction, check_seed, finite_vector
from rebased.checks import check_integer

__all__ = ["Interval", "mean_interval"]

_NORMAL = NormalDist()
_TIE = 1e-12  # Relative to the largest value: few values have many resamples of equal mean, which rounding parts.
_DRAWS = 2**22  # Values resampled at a time, to bound memory.


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A confidence interval."""

    estimate: float
    """From the values as they are."""
    low: float
    high: float
    confidence: float
    """Such as 0.95."""
    method: str
    """"bca", or "flips" if a test was asked instead (`rebased.analysis.rate_flip.flip_interval`)."""


def mean_interval(
    values: Float[np.ndarray, "n"], *, confidence: float = 0.95, num_resamples: int = 10_000, seed: int = 0
) -> Interval:
    """Interval of the mean of ``values``, at least two; of paired differences, that is the interval of their mean.

    It goes between quantiles of the resampled means, corrected for bias and skewness (BCa: Efron 1987, jackknife
    acceleration). All resamples are taken if there are no more than ``num_resamples``, as of five values; otherwise so
    many are drawn.

    With few values the interval is too narrow, as resampling n values makes their variance (n - 1)/n of what it is:
    asked for 95 %, it covered 79 to 85 % in simulation with 5 values, if these are like draws from a normal
    distribution. If one in ten fails altogether, five values mostly do not show it, and it covered 40 to 70 %.
    """
    values = finite_vector("values", values, at_least=2)
    check_fraction("confidence", confidence)
    check_integer("num_resamples", num_resamples)
    check_seed(seed)
    estimate = float(values.mean())
    low = high = estimate
    if np.ptp(values) > 0:  # otherwise resampling changes nothing
        resampled = _resampled_means(values, num_resamples, seed)
        levels = _corrected(((1 - confidence) / 2, (1 + confidence) / 2), values, resampled)
        low, high = (float(value) for value in np.quantile(resampled, levels))
    return Interval(estimate=estimate, low=low, high=high, confidence=confidence, method="bca")


def _resampled_means(values: Float[np.ndarray, "n"], num_resamples: int, seed: int) -> Float[np.ndarray, "resamples"]:
    n = len(values)
    if n**n <= num_resamples:
        return np.array([sum(each) for each in product(values.tolist(), repeat=n)]) / n
    generator, rows = np.random.default_rng(seed), max(1, _DRAWS // n)
    return np.concatenate(
        [
            values[generator.integers(0, n, size=(min(rows, num_resamples - start), n))].mean(1)
            for start in range(0, num_resamples, rows)
        ]
    )


def _corrected(
    levels: tuple[float, float], values: Float[np.ndarray, "n"], resampled: Float[np.ndarray, "resamples"]
) -> tuple[float, float]:
    """The levels of BCa: ``Φ(z0 + (z0 + z)/(1 - a(z0 + z)))`` for each z = Φ⁻¹(level).

    z0 = Φ⁻¹ of the share of resampled means below ours, those equal (but for rounding) counting half. The acceleration
    a needs the influence of each value, for a mean in closed form: (value - mean) / n.
    """
    mean = values.mean()
    influence = (values - mean) / len(values)
    acceleration = float((influence**3).sum() / (6 * (influence**2).sum() ** 1.5))
    tie = _TIE * np.abs(values).max()
    share = float(np.mean(resampled < mean - tie) + np.mean(resampled <= mean + tie)) / 2
    edge = 0.5 / len(resampled)  # with few resamples all may lie on one side, where Φ⁻¹ is infinite
    bias = _NORMAL.inv_cdf(min(max(share, edge), 1 - edge))
    low, high = (bias + _NORMAL.inv_cdf(level) for level in levels)
    return (
        _NORMAL.cdf(bias + low / (1 - acceleration * low)),
        _NORMAL.cdf(bias + high / (1 - acceleration * high)),
    )
