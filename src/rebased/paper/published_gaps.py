"""Where mean ± standard deviation of two of Table 1's kernels are apart in the paper, and whether ours are."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

from rebased.analysis.pages import Cell, Table
from rebased.analysis.welch import welch_p
from rebased.paper.ablation import KERNELS
from rebased.paper.experiment import Data
from rebased.paper.published import TABLE_1

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
    num_seeds: int = 0
    """The fewer of ours."""

    @property
    def is_ours(self) -> bool:
        return self.ours is not None and _are_apart(*self.ours)


def published_gaps(length: int, cells: Sequence[Data]) -> list[Gap]:
    """All that the paper's Table 1 has at this length."""
    ours = {(cell["stack"], cell["d_model"]): cell for cell in cells if cell["seq_len"] == length}
    found = []
    for higher, lower in permutations(KERNELS, 2):
        for width, moments in TABLE_1[higher].get(length, {}).items():
            theirs = moments, TABLE_1[lower][length][width]
            if _are_apart(*theirs):
                pair = [ours.get((stack, width)) for stack in (higher, lower)]
                found.append(_gap(higher, lower, width, theirs, pair))
    return found


def _gap(higher: str, lower: str, width: int, theirs: tuple[Moments, Moments], pair: Sequence[Data | None]) -> Gap:
    a, b = pair
    if a is None or b is None or a["sd"] is None or b["sd"] is None:
        return Gap(higher, lower, width, theirs, None)
    counts = len(a["seeds"]), len(b["seeds"])
    p_value = welch_p(a["mean"], a["sd"], counts[0], b["mean"], b["sd"], counts[1])
    return Gap(higher, lower, width, theirs, ((a["mean"], a["sd"]), (b["mean"], b["sd"])), p_value, min(counts))


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
            rows.append([kernels, f"d = {gap.d_model}", paper, mine, said, f"{gap.p_value:.2g}"])
    if not rows:
        return []
    caption = (
        f"{length} tokens: where the paper's mean ± sd of two kernels are apart, and whether ours are; p is Welch's of "
        "our two means, each at its best learning rate, as if seeds were unrelated, not corrected"
    )
    return [Table.of(caption, ("kernels", "width", "the paper's", "ours", "apart", "p"), rows, num_keys=2)]
