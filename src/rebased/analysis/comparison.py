"""Which of several kernels is better: every pair compared over sizes and seeds, corrected for the number of pairs."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from jaxtyping import Float, Int

from rebased.analysis.bootstrap import Interval, mean_interval
from rebased.analysis.checks import check_fraction, finite_vector
from rebased.analysis.effect import cliffs_delta, hedges_gz
from rebased.analysis.holm import holm
from rebased.analysis.sign_flip import SignFlip, sign_flip_test

__all__ = ["FLIPPED_TOGETHER", "Comparison", "compare_kernels"]

FLIPPED_TOGETHER = ("run", "seed", "size")
"""What a block of the sign-flip test holds: one run of each kernel, all sizes of a seed, or all seeds of a size."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two kernels over the runs (size and seed) that both have."""

    a: str
    b: str
    mean_a: float
    mean_b: float
    difference: float
    """mean_a - mean_b."""
    interval: Interval | None
    """Of the difference, at confidence 1 - alpha, seeds resampled within each size; not corrected for the number of
    pairs. None where a size has a single seed."""
    effect: float | None
    """Hedges' g_z of the paired differences; None of fewer than 3."""
    cliffs_delta: float
    """The mean over sizes of Cliff's delta within each: how often a is above b less how often below."""
    num_runs: int
    """Size and seed pairs that both have."""
    num_left_out: int
    """Those that one has and the other has not."""
    test: SignFlip
    adjusted_p: float
    """Holm's, over all pairs compared together."""
    alpha: float

    @property
    def p_value(self) -> float:
        """Of the test, before correction."""
        return self.test.p_value

    @property
    def verdict(self) -> str:
        """Says "a better" or "b better" only where the corrected test does, otherwise "no difference shown"."""
        if self.adjusted_p >= self.alpha:
            return "no difference shown"
        return "a better" if self.difference > 0 else "b better"


def compare_kernels(
    accuracies: Mapping[tuple[str, int, int], float],
    *,
    alpha: float = 0.05,
    flip_together: str = "run",
    method: str = "bca",
    num_resamples: int = 10_000,
    seed: int = 0,
) -> tuple[Comparison, ...]:
    """Compare all pairs of kernels, in order of appearance, given the accuracy of each (kernel, size, seed).

    A pair is compared by the mean difference over the (size, seed) that both kernels have, by `sign_flip_test`; one
    that shares none is left out.
    ``flip_together`` says which differences share a sign. ``method`` and ``num_resamples`` are of `mean_interval`;
    ``seed`` is of everything drawn. For one size, pass its accuracies alone, and mind that five seeds cannot show
    a difference there: 2/2^5 > 0.05.
    """
    check_fraction("alpha", alpha)
    if flip_together not in FLIPPED_TOGETHER:
        known = ", ".join(map(repr, FLIPPED_TOGETHER))
        raise ValueError(f"flip_together={flip_together!r} is unknown; it may be one of {known}")
    runs: dict[str, dict[tuple[int, int], float]] = {}
    for (kernel, size, run_seed), accuracy in accuracies.items():
        runs.setdefault(kernel, {})[size, run_seed] = accuracy
    if len(runs) < 2:
        raise ValueError(f"accuracies has the kernels {list(runs)}; a comparison needs at least 2")
    pairs = [_pair(a, runs[a], b, runs[b]) for a, b in combinations(runs, 2) if runs[a].keys() & runs[b].keys()]
    if not pairs:
        return ()
    tests = [sign_flip_test(pair.differences, pair.blocks(flip_together), seed=seed) for pair in pairs]
    adjusted = holm(np.array([test.p_value for test in tests]))

    def interval(pair: _Pair) -> Interval | None:
        if min(np.unique(pair.sizes, return_counts=True)[1]) < 2:
            return None
        return mean_interval(
            pair.differences,
            pair.sizes.tolist(),
            confidence=1 - alpha,
            method=method,
            num_resamples=num_resamples,
            seed=seed,
        )

    return tuple(
        Comparison(
            a=pair.a,
            b=pair.b,
            mean_a=float(pair.values_a.mean()),
            mean_b=float(pair.values_b.mean()),
            difference=test.mean_difference,
            interval=interval(pair),
            effect=hedges_gz(pair.differences) if len(pair.differences) > 2 else None,
            cliffs_delta=pair.cliffs_delta,
            num_runs=len(pair.differences),
            num_left_out=pair.num_left_out,
            test=test,
            adjusted_p=float(adjusted_p),
            alpha=alpha,
        )
        for pair, test, adjusted_p in zip(pairs, tests, adjusted, strict=True)
    )


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """Two kernels' accuracies side by side."""

    a: str
    b: str
    sizes: Int[np.ndarray, "n"]
    seeds: Int[np.ndarray, "n"]
    values_a: Float[np.ndarray, "n"]
    values_b: Float[np.ndarray, "n"]
    num_left_out: int

    @property
    def differences(self) -> Float[np.ndarray, "n"]:
        return self.values_a - self.values_b

    def blocks(self, flip_together: str) -> list[int] | None:
        """Labels as `sign_flip_test` wants them."""
        return {"run": None, "seed": self.seeds.tolist(), "size": self.sizes.tolist()}[flip_together]

    @property
    def cliffs_delta(self) -> float:
        within = [self.sizes == size for size in np.unique(self.sizes)]
        return float(np.mean([cliffs_delta(self.values_a[size], self.values_b[size]) for size in within]))


def _pair(a: str, runs_a: Mapping[tuple[int, int], float], b: str, runs_b: Mapping[tuple[int, int], float]) -> _Pair:
    shared = sorted(runs_a.keys() & runs_b.keys())
    sizes, seeds = np.array(shared).T
    return _Pair(
        a=a,
        b=b,
        sizes=sizes,
        seeds=seeds,
        values_a=finite_vector(f"accuracies of {a!r}", np.array([runs_a[run] for run in shared])),
        values_b=finite_vector(f"accuracies of {b!r}", np.array([runs_b[run] for run in shared])),
        num_left_out=len(runs_a.keys() ^ runs_b.keys()),
    )
