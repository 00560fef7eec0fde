"""Table 1's kernels compared in pairs, to be read: which is better, by three outcomes, and how sure that is."""

from collections.abc import Sequence

import numpy as np

from rebased.analysis.holm import holm
from rebased.analysis.pages import Cell, Table
from rebased.paper.ablation import KERNELS, STUCK
from rebased.paper.experiment import Data
from rebased.paper.recall_cells import listed
from rebased.paper.recipes import ALPHA

__all__ = ["ABOUT_PAIRS", "can_show", "pairs_parts", "winner"]

ABOUT_PAIRS = (
    "Kernels are compared in pairs, over the widths and seeds that both have, by a sign-flip test of all flips with "
    "Holm's correction for the number of pairs. A seed's accuracy is that of the learning rate which is best for the "
    "other seeds, chosen anew in every flip: the difference is one of such accuracies, not of the means above. What is "
    "beyond the accuracy that runs stop at does not count. The interval has the differences that the test alone does "
    f"not refuse at {ALPHA:.0%}. A difference is marked where the corrected test shows it. Where many runs learn "
    "nothing and the others much, the test finds little: that no difference is shown does not mean that there is none."
)


def can_show(comparisons: Data) -> bool:
    """Whether any pair could be shown to differ: Holm multiplies the least p by the number of pairs."""
    return any(each["smallest_p"] * len(outcome) < ALPHA for outcome in comparisons.values() for each in outcome)


def winner(comparison: Data) -> str | None:
    """The stack that the corrected test shows to be better."""
    return {"a better": comparison["a"], "b better": comparison["b"]}.get(comparison["verdict"])


def pairs_parts(length: int, comparisons: Data) -> list[Table | str]:
    if not comparisons["tuned"]:
        return []
    if not can_show(comparisons):
        least = min(each["smallest_p"] for outcome in comparisons.values() for each in outcome)
        most = max(each["num_runs"] for each in comparisons["tuned"])
        pairs = len(comparisons["tuned"])
        corrected = f", to be corrected for {pairs} pairs" if pairs > 1 else ""
        return [
            f"Kernels of {length} tokens are not compared: they share no more than {most} of widths × seeds, of which "
            f"the least p that the test can give is {least:.2g}{corrected}. No difference can be shown at {ALPHA}, "
            "however large."
        ]
    return [_pairs_table(length, comparisons["tuned"]), _other_pairs_table(length, comparisons), _in_all(comparisons)]


def _pairs_table(length: int, comparisons: Sequence[Data]) -> Table:
    rows: list[list[Cell | str]] = []
    for each in sorted(comparisons, key=lambda each: each["adjusted_p"]):
        interval = "" if each["interval"] is None else f"[{each['interval'][0]:+.3f}, {each['interval'][1]:+.3f}]"
        effect = "" if each["effect"] is None else f"{each['effect']:+.2f}"
        rows.append(
            [
                _pair(each),
                Cell(str(each["num_runs"]), note=f"{each['num_left_out']} that only one has are left out"),
                _difference(each),
                interval,
                effect,
                f"{each['cliffs_delta']:+.2f}",
                f"{each['p_value']:.2g}",
                f"{each['adjusted_p']:.2g}",
                _verdict(each),
            ]
        )
    caption = f"{length} tokens, every pair of kernels"
    header = ("pair", "runs", "difference", "95 % interval", "g", "Cliff's δ", "p", "p (Holm)", "verdict")
    return Table.of(caption, header, rows)


def _other_pairs_table(length: int, comparisons: Data) -> Table:
    rows: list[list[Cell | str]] = []
    learned = {_pair(each): each for each in comparisons["learned"]}
    for each in sorted(comparisons["untuned"], key=lambda each: each["adjusted_p"]):
        row: list[Cell | str] = [_pair(each)]
        for one in (each, learned[_pair(each)]):
            row += [_difference(one), f"{one['adjusted_p']:.2g}", _verdict(one)]
        rows.append(row)
    caption = (
        f"{length} tokens, the same test of two other outcomes: the mean accuracy over all learning rates, and the "
        f"share of runs that learn more than next to nothing (accuracy from {STUCK:g})"
    )
    header = ("pair", "all rates", "p (Holm)", "verdict", "learning", "p (Holm)", "verdict")
    return Table.of(caption, header, rows)


def _in_all(comparisons: Data) -> str:
    """Three outcomes are three chances: what is left of the first where all of their tests count."""
    tests = [(name, each) for name, outcome in comparisons.items() for each in outcome]
    adjusted = holm(np.array([each["p_value"] for _, each in tests]))
    left = [
        f"{_pair(each)} ({p:.2g})"
        for (name, each), p in zip(tests, adjusted, strict=True)
        if name == "tuned" and p < ALPHA
    ]
    return (
        "The two other outcomes depend on which learning rates were tried, and were chosen when most of this project's "
        f"own runs had been seen. Corrected for all {len(tests)} tests of the three outcomes, differences at chosen "
        f"rates are shown of {listed(left) if left else 'no pair'}."
    )


def _pair(comparison: Data) -> str:
    return f"{KERNELS[comparison['a']]} − {KERNELS[comparison['b']]}"


def _difference(comparison: Data) -> Cell:
    """Of the first from the second, marked where it is shown."""
    tone = {comparison["a"]: "higher", comparison["b"]: "lower"}.get(winner(comparison), "")
    return Cell(f"{comparison['difference']:+.3f}", tone)


def _verdict(comparison: Data) -> str:
    best = winner(comparison)
    return str(comparison["verdict"]) if best is None else f"{KERNELS[best]} better"
