"""How a cost grows with length: the exponent of a fitted power law."""

import math
from collections.abc import Sequence

__all__ = ["growth_exponent"]


def growth_exponent(lengths: Sequence[int], costs: Sequence[float]) -> float | None:
    """The exponent p of ``cost = c · length^p``, fitted: the least-squares slope of log cost over log length.

    1 is linear, 2 quadratic. ``None`` if fewer than two different lengths are given. All numbers must be positive.
    """
    if len(lengths) != len(costs):
        raise ValueError(f"lengths and costs must match, got {len(lengths)} and {len(costs)} entries")
    if any(number <= 0 for number in (*lengths, *costs)):
        raise ValueError(f"lengths and costs must be positive, got {list(lengths)} and {list(costs)}")
    if len(set(lengths)) < 2:
        return None
    x = [math.log(length) for length in lengths]
    y = [math.log(cost) for cost in costs]
    x_mean, y_mean = math.fsum(x) / len(x), math.fsum(y) / len(y)
    covariance = math.fsum((a - x_mean) * (b - y_mean) for a, b in zip(x, y, strict=True))
    return covariance / math.fsum((a - x_mean) ** 2 for a in x)
