"""Sign-flip test: whether the two sides of pairs are exchangeable, judged by the mean of their differences."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from rebased.analysis.checks import check_seed, finite_vector, group_codes
from rebased.checks import check_integer

__all__ = ["MAX_EXACT_BLOCKS", "SignFlip", "count_as_far", "least_p", "sign_flip_test"]

MAX_EXACT_BLOCKS = 32
"""Up to so many blocks all flips are counted: 2^32, as pairs of two halves of 2^16 each."""
_TIE = 1e-12  # Relative to the sum of sizes: far above rounding, far below any difference of accuracies.
_ROWS = 4096  # Flips drawn at a time.


@dataclass(frozen=True, kw_only=True)
class SignFlip:
    """Outcome of the test."""

    p_value: float
    """Two-sided."""
    mean_difference: float
    """Of all differences, each with the same weight."""
    num_blocks: int
    """Blocks whose sign matters: those that do not sum to zero."""
    num_flips: int
    """Ways of giving each such block a sign that were looked at: all (2^num_blocks) or the number drawn."""
    exact: bool
    """Whether all were."""

    @property
    def smallest_p(self) -> float:
        """The least p that so many flips can give: above alpha, no data could have shown a difference."""
        return least_p(self.num_blocks) if self.exact else 1 / (1 + self.num_flips)


def least_p(num_blocks: int) -> float:
    """Of a test that counts all flips of so many blocks, if none of them sums to zero."""
    return min(1.0, 2 / 2**num_blocks)


def sign_flip_test(
    differences: Float[np.ndarray, "n"],
    blocks: Sequence[Hashable] | None = None,
    *,
    max_exact_blocks: int = MAX_EXACT_BLOCKS,
    num_flips: int = 65_536,
    seed: int = 0,
) -> SignFlip:
    """Test that differences are as likely as their negatives: p is the share of flips whose mean is as far from zero.

    That is so if the two sides of a pair are exchangeable, whatever their distribution. It is more than a mean of zero:
    nine differences of +0.1 for each of -0.9 have that, and may well be refused.
    ``blocks`` has a label for each difference; those of one label get one sign, in common. Without it every difference
    is a block of its own, which takes differences to be independent. With the seed as label, all sizes of a seed flip
    together, which allows any dependence between sizes but leaves far fewer flips: n blocks give p ≥ 2/2^n, so five
    cannot go below 0.0625.

    Up to ``max_exact_blocks`` blocks all flips are counted and nothing is random. Beyond, ``num_flips`` are drawn from
    ``seed`` and p = (1 + as far) / (1 + drawn), which keeps the test valid. Flips that tie with the data but for
    rounding count as far. Blocks that sum to zero change no mean: they are left out of the flips (and of none, p is 1).
    """
    differences = finite_vector("differences", differences)
    check_integer("num_flips", num_flips)
    check_seed(seed)
    if not 0 <= max_exact_blocks <= MAX_EXACT_BLOCKS:
        raise ValueError(f"max_exact_blocks={max_exact_blocks} must be from 0 to {MAX_EXACT_BLOCKS}")
    sums, magnitudes = differences, np.abs(differences)
    if blocks is not None:
        codes = group_codes("blocks", blocks, len(differences))
        sums, magnitudes = (np.bincount(codes, weights=x) for x in (sums, magnitudes))
    sums = sums[np.abs(sums) > _TIE * magnitudes]  # (B,), without what rounding leaves of zero
    threshold = abs(sums.sum()) - _TIE * np.abs(sums).sum()
    exact = len(sums) <= max_exact_blocks
    if exact:
        num_flips = 2 ** len(sums)
        half = len(sums) // 2
        p_value = count_as_far(_signed_sums(sums[:half]), _signed_sums(sums[half:]), threshold) / num_flips
    else:
        p_value = (1 + _draw_as_far(sums, threshold, num_flips, seed)) / (1 + num_flips)
    return SignFlip(
        p_value=p_value,
        mean_difference=float(differences.mean()),
        num_blocks=len(sums),
        num_flips=num_flips,
        exact=exact,
    )


def count_as_far(first: Float[np.ndarray, "N"], second: Float[np.ndarray, "M"], threshold: float) -> int:
    """How many of the N · M sums of one of each are at least ``threshold`` from zero.

    With the second sorted, a search for each of the first counts them without forming them.
    """
    if threshold <= 0:
        return len(first) * len(second)
    second = np.sort(second)
    above = len(second) - np.searchsorted(second, threshold - first, side="left")
    below = np.searchsorted(second, -threshold - first, side="right")
    return int(above.sum() + below.sum())


def _signed_sums(sums: Float[np.ndarray, "B"]) -> Float[np.ndarray, "flips"]:
    totals = np.zeros(1)
    for value in sums:
        totals = np.concatenate([totals + value, totals - value])
    return totals


def _draw_as_far(sums: Float[np.ndarray, "B"], threshold: float, num_flips: int, seed: int) -> int:
    generator = np.random.default_rng(seed)
    as_far = 0
    for start in range(0, num_flips, _ROWS):
        positive = generator.integers(0, 2, size=(min(_ROWS, num_flips - start), len(sums)))
        as_far += int(np.count_nonzero(np.abs((2 * positive - 1) @ sums) >= threshold))
    return as_far
