"""Sign-flip test of two kernels that each have their learning rates chosen: the choice is made anew in every flip."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from rebased.analysis.bootstrap import Interval
from rebased.analysis.checks import check_seed, finite_array, group_codes
from rebased.analysis.held_out import held_out
from rebased.analysis.sign_flip import MAX_EXACT_BLOCKS, SignFlip, count_as_far, sign_flip_test
from rebased.checks import check_integer

__all__ = ["Tables", "flip_interval", "rate_flip_test"]

Tables = Sequence[Float[np.ndarray, "S K"]]
"""Accuracies of one kernel, a table of seeds × learning rates for each size."""
MAX_PART_BLOCKS = 14
"""All flips of a size are looked at one by one, 2^14 at most; those of several sizes are then sums."""
_TIE = 1e-12  # Relative to the sum of sizes, as in `sign_flip_test`.
_ROWS = 2048  # Flips at a time.
_HALVINGS = 22  # Of what an end of an interval is searched in.


def rate_flip_test(
    a: Tables,
    b: Tables,
    blocks: Sequence[Hashable] | None = None,
    *,
    max_exact_blocks: int = MAX_EXACT_BLOCKS,
    num_flips: int = 65_536,
    seed: int = 0,
) -> SignFlip:
    """Test that a and b are exchangeable, by the mean difference of their accuracies at chosen rates (`held_out`).

    Under the null hypothesis a seed's accuracies, of all rates together, could as well be the other kernel's. So a flip
    exchanges them, and rates are chosen from what is there then. A test of the differences of chosen accuracies
    would take them to be independent, which they are not: of two kernels that are the same it calls one better in
    10 to 16 % of cases at 5 %, with four sizes of five seeds and two to four rates.

    ``blocks`` has a label for each seed of each size, in their order; those of one label are exchanged together. With
    one rate there is nothing to choose, and this is `sign_flip_test`. As there, up to ``max_exact_blocks`` all flips
    are counted and nothing is random; beyond, or where blocks tie more than `MAX_PART_BLOCKS` together, ``num_flips``
    are drawn from ``seed``.
    """
    tables = [_pair_of_tables(x, y) for x, y in zip(a, b, strict=True)]
    check_integer("num_flips", num_flips)
    check_seed(seed)
    if not tables:
        raise ValueError("a and b have no sizes; there must be at least one")
    if all(table.shape[2] == 1 for table in tables):
        differences = np.concatenate([x[:, 0] - y[:, 0] for x, y in tables])
        return sign_flip_test(differences, blocks, max_exact_blocks=max_exact_blocks, num_flips=num_flips, seed=seed)
    num_rows = sum(table.shape[1] for table in tables)
    codes = np.arange(num_rows) if blocks is None else group_codes("blocks", blocks, num_rows)
    parts = _parts(tables, codes)
    observed = sum(float(part.sums(part.unflipped)[0]) for part in parts)
    threshold = abs(observed) - _TIE * sum(float(np.abs(table).sum()) for table in tables)
    num_blocks = sum(part.num_blocks for part in parts)
    exact = num_blocks <= max_exact_blocks and all(part.num_blocks <= MAX_PART_BLOCKS for part in parts)
    if exact:
        num_flips = 2**num_blocks
        p_value = _count_all(parts, threshold) / num_flips
    else:
        p_value = (1 + _draw(parts, threshold, num_flips, seed)) / (1 + num_flips)
    return SignFlip(
        p_value=p_value, mean_difference=observed / num_rows, num_blocks=num_blocks, num_flips=num_flips, exact=exact
    )


def flip_interval(
    a: Tables,
    b: Tables,
    blocks: Sequence[Hashable] | None = None,
    *,
    confidence: float = 0.95,
    seed: int = 0,
) -> Interval | None:
    """Confidence interval of the mean difference a - b: the shifts of b that `rate_flip_test` does not refuse.

    They are taken to be one interval, which 0 is in where the test does not refuse that: many runs that tie at no
    shift, because they stop at one accuracy, tie at no other. That all of b's accuracies are shifted alike is an
    assumption, and a rough one where some runs fail. None where blocks are too few for the test to refuse any shift.
    """
    alpha = 1 - confidence

    def p_value(shift: float) -> float:
        return rate_flip_test(a, [y + shift for y in b], blocks, seed=seed).p_value

    middle = rate_flip_test(a, b, blocks, max_exact_blocks=0, num_flips=1).mean_difference
    everything = np.concatenate([np.ravel(x) for x in (*a, *b)])
    # A shift is the same at all rates and changes no choice of one. Flipping k of n runs makes the sum of differences
    # go with (n - 2k) · shift, and changes the rest of it by n ranges at most: beyond n ranges only the flips of all
    # runs or none are as far as what was observed.
    reach = (sum(map(len, a)) + 1) * float(np.ptp(everything)) + 1e-3
    if max(p_value(middle - reach), p_value(middle + reach)) >= alpha:
        return None

    def end(direction: int) -> float:
        inside, outside = 0.0, reach
        for _ in range(_HALVINGS):
            between = (inside + outside) / 2
            if p_value(middle + direction * between) < alpha:
                outside = between
            else:
                inside = between
        return middle + direction * inside

    low, high = end(-1), end(1)
    if p_value(0.0) >= alpha:
        low, high = min(low, 0.0), max(high, 0.0)
    return Interval(estimate=middle, low=low, high=high, confidence=confidence, method="flips")


def _pair_of_tables(x: Float[np.ndarray, "S K"], y: Float[np.ndarray, "S K"]) -> Float[np.ndarray, "2 S K"]:
    x, y = finite_array("a", x), finite_array("b", y)
    if x.shape != y.shape or x.ndim != 2 or 0 in x.shape:
        raise ValueError(f"tables of shapes {x.shape} and {y.shape}; both must have the same seeds and learning rates")
    return np.stack([x, y])


@dataclass(frozen=True)
class _Part:
    """Sizes whose blocks are flipped independently of all others'."""

    tables: list[Float[np.ndarray, "2 S K"]]
    codes: Int[np.ndarray, "rows"]
    """The block of each row of the tables, -1 where both kernels have the same: to exchange these changes nothing."""

    @property
    def num_blocks(self) -> int:
        return int(self.codes.max(initial=-1)) + 1

    @property
    def unflipped(self) -> Bool[np.ndarray, "1 blocks"]:
        return np.zeros((1, self.num_blocks), dtype=bool)

    def sums(self, is_flipped: Bool[np.ndarray, "N blocks"]) -> Float[np.ndarray, "N"]:
        """Of differences of chosen accuracies, in each flip."""
        of_rows = np.concatenate([is_flipped, np.zeros((len(is_flipped), 1), dtype=bool)], axis=1)[:, self.codes]
        total, start = np.zeros(len(is_flipped)), 0
        for x, y in self.tables:
            flipped = of_rows[:, start : start + len(x), None]
            total += (held_out(np.where(flipped, y, x)) - held_out(np.where(flipped, x, y))).sum(axis=1)
            start += len(x)
        return total

    def all_sums(self) -> Float[np.ndarray, "flips"]:
        flips = np.arange(2**self.num_blocks)
        found = [
            self.sums(((rows[:, None] >> np.arange(self.num_blocks)) & 1).astype(bool))
            for rows in np.split(flips, range(_ROWS, len(flips), _ROWS))
        ]
        return np.concatenate(found)


def _parts(tables: Sequence[Float[np.ndarray, "2 S K"]], codes: Int[np.ndarray, "rows"]) -> list[_Part]:
    """Sizes that share a block are of one part."""
    borders = np.cumsum([0, *(table.shape[1] for table in tables)])
    matters = np.concatenate([(x != y).any(axis=1) for x, y in tables])
    codes = np.where(matters, codes, -1)
    groups: list[tuple[list[int], set[int]]] = []
    for index in range(len(tables)):
        mine, used = [index], set(codes[borders[index] : borders[index + 1]].tolist()) - {-1}
        apart = []
        for group in groups:
            if group[1].isdisjoint(used):
                apart.append(group)
            else:
                mine, used = group[0] + mine, group[1] | used
        groups = [*apart, (mine, used)]
    parts = []
    for indices, used in groups:
        rows = np.concatenate([codes[borders[index] : borders[index + 1]] for index in indices])
        numbers = {code: number for number, code in enumerate(sorted(used))} | {-1: -1}
        parts.append(_Part([tables[index] for index in indices], np.array([numbers[code] for code in rows.tolist()])))
    return parts


def _count_all(parts: Sequence[_Part], threshold: float) -> int:
    """How many flips are as far, of all: their sums are those of one half of the parts plus those of the other."""
    shorter, longer = np.zeros(1), np.zeros(1)
    for part in sorted(parts, key=lambda part: -part.num_blocks):
        shorter, longer = sorted([np.add.outer(shorter, part.all_sums()).ravel(), longer], key=len)
    return count_as_far(shorter, longer, threshold)


def _draw(parts: Sequence[_Part], threshold: float, num_flips: int, seed: int) -> int:
    generator = np.random.default_rng(seed)
    as_far = 0
    for start in range(0, num_flips, _ROWS):
        rows = min(_ROWS, num_flips - start)
        drawn = [part.sums(generator.integers(0, 2, size=(rows, part.num_blocks)) == 1) for part in parts]
        as_far += int(np.count_nonzero(np.abs(sum(drawn, start=np.zeros(rows))) >= threshold))
    return as_far
