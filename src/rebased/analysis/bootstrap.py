"""Bootstrap confidence intervals of a mean and of a difference of means, optionally stratified."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import NormalDist

import numpy as np
from jaxtyping import Float

from rebased.analysis.checks import check_fraction, check_seed, finite_vector, group_codes
from rebased.checks import check_integer

__all__ = ["METHODS", "Interval", "mean_difference_interval", "mean_interval"]

METHODS = ("bca", "percentile")
_NORMAL = NormalDist()
_TIE = 1e-12  # Relative to the largest value: few values have many resamples of equal mean, which rounding parts.
_DRAWS = 2**22  # Values resampled at a time, to bound memory.

Parts = list[tuple[float, Float[np.ndarray, "_"]]]
"""An estimate that is a weighted sum of means: weight and values of each, resampled apart."""


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
    """One of `METHODS`; "flips" if a test was asked instead (`rebased.analysis.rate_flip.flip_interval`)."""


def mean_interval(
    values: Float[np.ndarray, "n"],
    strata: Sequence[Hashable] | None = None,
    *,
    confidence: float = 0.95,
    method: str = "bca",
    num_resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """Interval of the mean of ``values``; of paired differences, that is the interval of their mean.

    ``strata`` has a label for each value; values are then resampled only among those of their label, so how strata
    differ (sizes, whose choice is ours) adds nothing to the width and how values in one differ (seeds) does. Every
    value has the same weight. "percentile" takes quantiles of the resampled means; "bca" corrects these quantiles for
    bias and skewness (Efron 1987, jackknife acceleration). A stratum needs at least 2 values. Without strata, all
    resamples are taken if there are no more than ``num_resamples``, as of five values; otherwise so many are drawn.

    With few values the interval is too narrow, as resampling n values makes their variance (n - 1)/n of what it is:
    asked for 95 %, it covered 88 to 90 % in simulation with 4 strata of 5 values, and 79 to 85 % with 5 values in all,
    if these are like draws from a normal distribution. If one in ten fails altogether, five values mostly do not show
    it, and it covered 40 to 70 %.
    """
    return _interval(_parts("values", values, "strata", strata, 1.0), confidence, method, num_resamples, seed)


def mean_difference_interval(
    a: Float[np.ndarray, "n"],
    b: Float[np.ndarray, "m"],
    strata_a: Sequence[Hashable] | None = None,
    strata_b: Sequence[Hashable] | None = None,
    *,
    confidence: float = 0.95,
    method: str = "bca",
    num_resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """Interval of mean(a) - mean(b), the two resampled independently: for values that are not paired.

    Strata and methods are as for `mean_interval`.
    """
    parts = _parts("a", a, "strata_a", strata_a, 1.0) + _parts("b", b, "strata_b", strata_b, -1.0)
    return _interval(parts, confidence, method, num_resamples, seed)


def _parts(
    name: str,
    values: Float[np.ndarray, "n"],
    strata_name: str,
    strata: Sequence[Hashable] | None,
    sign: float,
) -> Parts:
    values = finite_vector(name, values, at_least=2)
    if strata is None:
        return [(sign, values)]
    codes = group_codes(strata_name, strata, len(values))
    groups = [values[codes == code] for code in range(codes.max() + 1)]
    alone = [strata[int(np.flatnonzero(codes == code)[0])] for code, group in enumerate(groups) if len(group) < 2]
    if alone:
        raise ValueError(f"{strata_name} has {alone[0]!r} once; a stratum must have at least 2 values to resample")
    return [(sign * len(group) / len(values), group) for group in groups]


def _interval(parts: Parts, confidence: float, method: str, num_resamples: int, seed: int) -> Interval:
    check_fraction("confidence", confidence)
    check_integer("num_resamples", num_resamples)
    check_seed(seed)
    if method not in METHODS:
        raise ValueError(f"method={method!r} is unknown; it may be {' or '.join(map(repr, METHODS))}")
    estimate = float(sum(weight * values.mean() for weight, values in parts))
    low = high = estimate
    if any(np.ptp(values) > 0 for _, values in parts):  # otherwise resampling changes nothing
        resampled = _resampled(parts, num_resamples, seed)
        levels = ((1 - confidence) / 2, (1 + confidence) / 2)
        if method == "bca":
            levels = _corrected(levels, parts, estimate, resampled)
        low, high = (float(value) for value in np.quantile(resampled, levels))
    return Interval(estimate=estimate, low=low, high=high, confidence=confidence, method=method)


def _resampled(parts: Parts, num_resamples: int, seed: int) -> Float[np.ndarray, "resamples"]:
    if len(parts) == 1 and (num_values := len(parts[0][1])) ** num_values <= num_resamples:
        ((weight, values),) = parts
        return weight * np.array([sum(each) for each in product(values.tolist(), repeat=num_values)]) / num_values
    generator = np.random.default_rng(seed)
    drawn = (weight * _resampled_means(values, num_resamples, generator) for weight, values in parts)
    return sum(drawn, start=np.zeros(num_resamples))


def _resampled_means(
    values: Float[np.ndarray, "n"], num_resamples: int, generator: np.random.Generator
) -> Float[np.ndarray, "resamples"]:
    rows = max(1, _DRAWS // len(values))
    return np.concatenate(
        [
            values[generator.integers(0, len(values), size=(min(rows, num_resamples - start), len(values)))].mean(1)
            for start in range(0, num_resamples, rows)
        ]
    )


def _corrected(
    levels: tuple[float, float], parts: Parts, estimate: float, resampled: Float[np.ndarray, "resamples"]
) -> tuple[float, float]:
    """The levels of BCa: ``Φ(z0 + (z0 + z)/(1 - a(z0 + z)))`` for each z = Φ⁻¹(level).

    z0 = Φ⁻¹ of the share of resampled estimates below ours, those equal (but for rounding) counting half. The
    acceleration a needs the influence of each value, for means in closed form: weight · (value - mean) / n.
    """
    influence = np.concatenate([weight * (values - values.mean()) / len(values) for weight, values in parts])
    acceleration = float((influence**3).sum() / (6 * (influence**2).sum() ** 1.5))
    tie = _TIE * max(np.abs(values).max() for _, values in parts)
    share = float(np.mean(resampled < estimate - tie) + np.mean(resampled <= estimate + tie)) / 2
    edge = 0.5 / len(resampled)  # with few resamples all may lie on one side, where Φ⁻¹ is infinite
    bias = _NORMAL.inv_cdf(min(max(share, edge), 1 - edge))
    low, high = (bias + _NORMAL.inv_cdf(level) for level in levels)
    return (
        _NORMAL.cdf(bias + low / (1 - acceleration * low)),
        _NORMAL.cdf(bias + high / (1 - acceleration * high)),
    )
