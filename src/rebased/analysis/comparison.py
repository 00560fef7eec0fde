"""Which of several kernels is better: every pair compared over sizes and seeds, corrected for the number of pairs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from jaxtyping import Float

from rebased.analysis.bootstrap import Interval
from rebased.analysis.checks import check_fraction, finite_array
from rebased.analysis.effect import cliffs_delta, hedges_gz
from rebased.analysis.held_out import held_out
from rebased.analysis.holm import holm
from rebased.analysis.rate_flip import flip_interval, rate_flip_test
from rebased.analysis.sign_flip import SignFlip

__all__ = ["FLIPPED_TOGETHER", "ByRate", "Comparison", "compare_kernels"]

FLIPPED_TOGETHER = ("run", "seed", "size")
"""What a block of the test holds: one seed of one size, all sizes of a seed, or all seeds of a size."""

ByRate = float | Mapping[float, float]
"""An accuracy, or those of several learning rates."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two kernels over the runs (size and seed) that both have.

    Where there were several learning rates, a seed's accuracy is that of the rate which is best for the other seeds.
    """

    a: str
    b: str
    mean_a: float
    mean_b: float
    difference: float
    """mean_a - mean_b."""
    interval: Interval | None
    """Of the difference: what the test does not refuse at ``alpha``; not corrected for the number of pairs. None where
    there are too few runs for it to refuse anything, or if it was not asked for."""
    effect: float | None
    """Hedges' g_z of the paired differences; None of fewer than 3."""
    cliffs_delta: float
    """The mean over sizes of Cliff's delta within each: how often a is above b less how often below."""
    num_runs: int
    """Size and seed pairs that both have, at the same learning rates."""
    num_left_out: int
    """Those of either that are not compared: the other lacks them, or has them at other learning rates."""
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
    accuracies: Mapping[tuple[str, int, int], ByRate],
    *,
    alpha: float = 0.05,
    flip_together: str = "run",
    intervals: bool = True,
    seed: int = 0,
) -> tuple[Comparison, ...]:
    """Compare all pairs of kernels, in order of appearance, given the accuracy of each (kernel, size, seed).

    An accuracy is a number, or one for each learning rate. A pair is compared by the mean difference over the (size,
    seed) that both kernels have, by `rate_flip_test`; one that shares none is left out. What the test refuses is that
    the two are exchangeable: that they differ in nothing, their spread and their failures included. ``flip_together``
    says which runs are exchanged at once. ``intervals`` take most of the time. ``seed`` is of what is drawn.
    For one size, pass its accuracies alone, and mind that five seeds cannot show a difference there: 2/2^5 > 0.05.
    """
    check_fraction("alpha", alpha)
    if flip_together not in FLIPPED_TOGETHER:
        known = ", ".join(map(repr, FLIPPED_TOGETHER))
        raise ValueError(f"flip_together={flip_together!r} is unknown; it may be one of {known}")
    runs: dict[str, dict[tuple[int, int], Mapping[float, float]]] = {}
    for (kernel, size, run_seed), accuracy in accuracies.items():
        by_rate = accuracy if isinstance(accuracy, Mapping) else {0.0: accuracy}
        finite_array(f"accuracies of {kernel!r}", np.array(list(by_rate.values())))
        runs.setdefault(kernel, {})[size, run_seed] = by_rate
    if len(runs) < 2:
        raise ValueError(f"accuracies has the kernels {list(runs)}; a comparison needs at least 2")
    pairs = [_Pair(a, runs[a], b, runs[b]) for a, b in combinations(runs, 2)]
    pairs = [pair for pair in pairs if pair.rows]
    if not pairs:
        return ()
    blocks = [pair.blocks(flip_together) for pair in pairs]
    tests = [rate_flip_test(pair.a, pair.b, block, seed=seed) for pair, block in zip(pairs, blocks, strict=True)]
    adjusted = holm(np.array([test.p_value for test in tests]))

    def interval(pair: _Pair, block: list[int] | None) -> Interval | None:
        return flip_interval(pair.a, pair.b, block, confidence=1 - alpha, seed=seed) if intervals else None

    return tuple(
        Comparison(
            a=pair.names[0],
            b=pair.names[1],
            mean_a=float(np.concatenate(pair.chosen_a).mean()),
            mean_b=float(np.concatenate(pair.chosen_b).mean()),
            difference=test.mean_difference,
            interval=interval(pair, block),
            effect=hedges_gz(pair.differences) if len(pair.rows) > 2 else None,
            cliffs_delta=float(np.mean([cliffs_delta(x, y) for x, y in pair.chosen()])),
            num_runs=len(pair.rows),
            num_left_out=pair.num_left_out,
            test=test,
            adjusted_p=float(adjusted_p),
            alpha=alpha,
        )
        for pair, block, test, adjusted_p in zip(pairs, blocks, tests, adjusted, strict=True)
    )


class _Pair:
    """Two kernels' accuracies side by side: for each size a table of the seeds and learning rates that both have."""

    def __init__(
        self,
        name_a: str,
        runs_a: Mapping[tuple[int, int], Mapping[float, float]],
        name_b: str,
        runs_b: Mapping[tuple[int, int], Mapping[float, float]],
    ) -> None:
        self.names = name_a, name_b
        self.rows: list[tuple[int, int]] = []
        """Size and seed of each row of all tables."""
        self.a: list[Float[np.ndarray, "S K"]] = []
        self.b: list[Float[np.ndarray, "S K"]] = []
        shared = sorted(runs_a.keys() & runs_b.keys())
        for size in dict.fromkeys(size for size, _ in shared):
            seeds, rates = _complete(
                {s: runs_a[size, s].keys() & runs_b[size, s].keys() for z, s in shared if z == size}
            )
            if not seeds:
                continue
            self.rows += [(size, seed) for seed in seeds]
            for tables, runs in ((self.a, runs_a), (self.b, runs_b)):
                tables.append(
                    np.array([[runs[size, seed][rate] for rate in rates] for seed in seeds], dtype=np.float64)
                )
        self.num_left_out = len((runs_a.keys() | runs_b.keys()) - set(self.rows))
        self.chosen_a, self.chosen_b = [held_out(x) for x in self.a], [held_out(x) for x in self.b]

    def chosen(self) -> Iterator[tuple[Float[np.ndarray, "S"], Float[np.ndarray, "S"]]]:
        """Accuracies at chosen rates, size by size."""
        return zip(self.chosen_a, self.chosen_b, strict=True)

    @property
    def differences(self) -> Float[np.ndarray, "n"]:
        return np.concatenate([x - y for x, y in self.chosen()])

    def blocks(self, flip_together: str) -> list[int] | None:
        """Labels as `rate_flip_test` wants them."""
        of_size, of_seed = ([row[place] for row in self.rows] for place in (0, 1))
        return {"run": None, "seed": of_seed, "size": of_size}[flip_together]


def _complete(rates_of: Mapping[int, set[float]]) -> tuple[list[int], list[float]]:
    """Seeds and learning rates of which every combination is there: rates that lack seeds others have are left out."""
    counts = {rate: sum(rate in rates for rates in rates_of.values()) for rates in rates_of.values() for rate in rates}
    kept = sorted(rate for rate, count in counts.items() if count == max(counts.values()))
    return [seed for seed, rates in rates_of.items() if rates.issuperset(kept)] if kept else [], kept
