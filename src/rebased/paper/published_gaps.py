"""Where mean ± standard deviation of two of Table 1's kernels are apart in the paper, and whether ours are."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from rebased.analysis.holm import holm
from rebased.analysis.pages import Cell, Table
from rebased.analysis.welch import welch_p
from rebased.paper.ablation import KERNELS
from rebased.paper.experiment import Data
from rebased.paper.published import TABLE_1
from rebased.paper.recipes import ALPHA

__all__ = ["Gap", "gaps_table", "published_gaps"]

Moments = tuple[float, float]
"""Mean and standard deviation."""


@dataclass(frozen=True)
class Gap:
    higher: str
    lower: str
    d_model: int
    theirs: tuple[Moments, Moments]
    ours: tuple[Moments, Moments] | None
    """None where either has not so many seeds that it has a standard deviation."""
    p_value: float = 1.0
    """Welch's, of our two means."""
    adjusted_p: float = 1.0
    """Holm's, over all gaps of this length that we have."""
    num_seeds: int = 0
    """The fewer of ours."""

    @property
    def is_ours(self) -> bool:
        """As the paper has it: mean ± standard deviation are apart."""
        return self.ours is not None and _are_apart(*self.ours)

    @property
    def is_reversed(self) -> bool:
        """They are apart, and the paper's higher one is the lower."""
        return self.ours is not None and _are_apart(*reversed(self.ours))

    @property
    def is_shown(self) -> bool:
        """Whether the test tells our means apart, the higher one being the paper's higher one."""
        return self.ours is not None and self.adjusted_p < ALPHA and self.ours[0][0] > self.ours[1][0]

    @property
    def is_opposite(self) -> bool:
        """The test tells them apart the other way round."""
        return self.ours is not None and self.adjusted_p < ALPHA and self.ours[0][0] < self.ours[1][0]


def published_gaps(length: int, cells: Sequence[Data]) -> list[Gap]:
    """All that the paper's Table 1 has at this length. Of ours, what is beyond where runs stop does not count."""
    ours = {(cell["stack"], cell["d_model"]): cell for cell in cells if cell["seq_len"] == length}
    found = list[Gap]()
    for higher, lower in permutations(KERNELS, 2):
        for width, moments in TABLE_1[higher].get(length, {}).items():
            theirs = moments, TABLE_1[lower][length][width]
            if _are_apart(*theirs):
                pair = [ours.get((stack, width)) for stack in (higher, lower)]
                found.append(_gap(higher, lower, width, theirs, pair))
    tried = [place for place, gap in enumerate(found) if gap.ours is not None]
    if tried:
        adjusted = holm(np.array([found[place].p_value for place in tried]))
        for place, p in zip(tried, adjusted, strict=True):
            found[place] = replace(found[place], adjusted_p=float(p))
    return found


def _gap(higher: str, lower: str, width: int, theirs: tuple[Moments, Moments], pair: Sequence[Data | None]) -> Gap:
    values = [[min(x, cell["stop_above"]) for x in cell["accuracies"]] for cell in pair if cell is not None]
    if len(values) < 2 or min(map(len, values)) < 2:
        return Gap(higher, lower, width, theirs, None)
    above, below = ((statistics.fmean(each), statistics.stdev(each)) for each in values)
    counts = [len(each) for each in values]
    p_value = welch_p(*above, counts[0], *below, counts[1])
    return Gap(higher, lower, width, theirs, (above, below), p_value, num_seeds=min(counts))


def _are_apart(above: Moments, below: Moments) -> bool:
    return above[0] - above[1] > below[0] + below[1]


def gaps_table(length: int, cells: Sequence[Data]) -> list[Table]:
    """Of those that we have; none if there are none."""
    rows: list[list[Cell | str]] = []
    for gap in published_gaps(length, cells):
        if gap.ours is not None:
            paper, mine = (", ".join(f"{mean:.2f} ± {sd:.2f}" for mean, sd in each) for each in (gap.theirs, gap.ours))
            kernels = f"{KERNELS[gap.higher]} above {KERNELS[gap.lower]}"
            said = "ours too" if gap.is_ours else "ours not"
            p_values = (f"{gap.p_value:.2g}", f"{gap.adjusted_p:.2g}")
            rows.append([kernels, f"d = {gap.d_model}", paper, mine, said, *p_values])
    if not rows:
        return []
    caption = (
        f"{length} tokens: where the paper's mean ± sd of two kernels are apart, and whether ours are; p is Welch's of "
        "our two means, each at its best learning rate, as if seeds were unrelated"
    )
    return [Table.of(caption, ("kernels", "width", "the paper's", "ours", "apart", "p", "p (Holm)"), rows, num_keys=2)]
