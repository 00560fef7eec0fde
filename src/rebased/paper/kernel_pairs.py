"""Table 1's kernels compared in pairs, to be read: which is better, by three outcomes, and how sure that is."""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from rebased.analysis.holm import holm
from rebased.analysis.pages import Cell, Table
from rebased.analysis.sign_flip import least_p
from rebased.paper.ablation import KERNELS, STUCK
from rebased.paper.experiment import Data
from rebased.paper.recall_cells import listed
from rebased.paper.recipes import ALPHA

__all__ = ["ABOUT_PAIRS", "can_show", "corrected_together", "is_level", "pairs_parts", "winner"]

ABOUT_PAIRS = (
    "Kernels are compared in pairs, over the widths and seeds that both have, by a sign-flip test of all flips with "
    "Holm's correction for the number of pairs. A seed's accuracy is that of the learning rate which is best for the "
    "other seeds, chosen anew in every flip: the difference is one of such accuracies, not of the means above. What is "
    "beyond the accuracy that runs stop at does not count. The interval has the differences that the test alone does "
    f"not refuse at {ALPHA:.0%}. A difference is marked where the corrected test shows it. Where many runs learn "
    "nothing and the others much, the test finds little: that no difference is shown does not mean that there is none."
)


def can_show(tests: Sequence[Data]) -> bool:
    """Whether any pair has so many runs that it could be shown to differ: Holm multiplies the least p by all tests."""
    return any(least_p(each["num_runs"]) * len(tests) < ALPHA for each in tests)


def is_level(comparison: Data) -> bool:
    """Whether there are runs enough, but so many of them level that the others cannot show a difference."""
    return bool(least_p(comparison["num_runs"]) < ALPHA <= comparison["smallest_p"])


def corrected_together(comparisons: Data) -> Data:
    """With Holm's correction for the tests of all outcomes: three outcomes are three chances."""
    tests = list(chain.from_iterable(comparisons.values()))
    adjusted = iter(holm(np.array([each["p_value"] for each in tests])).tolist() if tests else ())
    return {name: [_corrected(each, next(adjusted)) for each in outcome] for name, outcome in comparisons.items()}


def _corrected(comparison: Data, adjusted_p: float) -> Data:
    verdict = comparison["verdict"] if adjusted_p < ALPHA else "no difference shown"
    return comparison | {"adjusted_p": adjusted_p, "verdict": verdict}


def winner(comparison: Data) -> str | None:
    """The stack that the corrected test shows to be better."""
    return {"a better": comparison["a"], "b better": comparison["b"]}.get(comparison["verdict"])


def pairs_parts(length: int, comparisons: Data) -> list[Table | str]:
    if not comparisons["tuned"]:
        return []
    if not any(map(can_show, comparisons.values())):
        most = max(each["num_runs"] for each in comparisons["tuned"])
        pairs = len(comparisons["tuned"])
        corrected = f", to be corrected for {pairs} pairs" if pairs > 1 else ""
        return [
            f"Kernels of {length} tokens are not compared: they share no more than {most} of widths × seeds, of which "
            f"the least p that the test can give is {least_p(most):.2g}{corrected}. No difference can be shown at "
            f"{ALPHA}, however large."
        ]
    said = " ".join(filter(None, (_levels(comparisons["tuned"]), _in_all(comparisons))))
    return [_pairs_table(length, comparisons["tuned"]), _other_pairs_table(length, comparisons), said]


def _levels(comparisons: Sequence[Data]) -> str:
    pairs = [_pair(each) for each in comparisons if is_level(each)]
    if not pairs:
        return ""
    return f"At chosen rates so many runs are level that no difference can be shown of {listed(pairs)}."


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
    """What is left of the first outcome where the tests of all three count."""
    corrected = corrected_together(comparisons)
    left = [f"{_pair(each)} ({each['adjusted_p']:.2g})" for each in corrected["tuned"] if winner(each) is not None]
    num_tests = sum(map(len, corrected.values()))
    return (
        "The two other outcomes depend on which learning rates were tried, and were chosen when most of this project's "
        f"own runs had been seen. Corrected for all {num_tests} tests of the three outcomes, differences at chosen "
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
