"""Welch's test from means and standard deviations: whether two means differ, the variances being what they are."""

import math
from functools import cache

import numpy as np

from rebased.checks import check_integer

__all__ = ["welch_p"]


def welch_p(mean_a: float, sd_a: float, num_a: int, mean_b: float, sd_b: float, num_b: int) -> float:
    """Two-sided p of equal means, given what a paper prints: means, standard deviations (n - 1) and numbers of runs.

    1 where neither has a spread: how far means go apart by chance is then unknown.
    """
    for name, number in (("num_a", num_a), ("num_b", num_b)):
        check_integer(name, number)
        if number < 2:
            raise ValueError(f"{name}={number} must be at least 2")
    if not all(map(math.isfinite, (mean_a, mean_b))) or not all(0 <= sd < math.inf for sd in (sd_a, sd_b)):
        raise ValueError(
            f"means {mean_a}, {mean_b} and standard deviations {sd_a}, {sd_b} must be finite, the latter ≥ 0"
        )
    error_a, error_b = sd_a**2 / num_a, sd_b**2 / num_b
    if error_a + error_b == 0:
        return 1.0
    degrees = (error_a + error_b) ** 2 / (error_a**2 / (num_a - 1) + error_b**2 / (num_b - 1))
    return _two_sided((mean_a - mean_b) / math.sqrt(error_a + error_b), degrees)


def _two_sided(t: float, degrees: float) -> float:
    """How likely Student's T is at least so far from 0: with t = √ν tan θ, its density goes as cos^(ν - 1) θ."""
    start = math.atan(abs(t) / math.sqrt(degrees))
    return _integral(start, degrees) / _integral(0.0, degrees)


def _integral(start: float, degrees: float) -> float:
    """∫ cos^(ν - 1) from ``start`` to π/2, for ν ≥ 1."""
    nodes, weights = _quadrature()
    half = (math.pi / 2 - start) / 2
    angles = start + half * (nodes + 1)
    return float(half * (weights * np.cos(angles) ** (degrees - 1)).sum())


@cache
def _quadrature() -> tuple[np.ndarray, np.ndarray]:
    """Not on import: the nodes are eigenvalues, which take seconds while other processes keep all processors busy."""
    return np.polynomial.legendre.leggauss(400)
