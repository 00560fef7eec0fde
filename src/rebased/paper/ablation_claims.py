"""What the paper says of its Table 1, and what our runs say of it."""

import statistics
from collections.abc import Sequence
from itertools import chain

from rebased.analysis.pages import Claim
from rebased.paper.ablation import KERNELS
from rebased.paper.experiment import Data
from rebased.paper.kernel_pairs import can_show, corrected_together, is_level, winner
from rebased.paper.published import TABLE_1, TABLE_1_MEANS, TABLE_1_SEEDS
from rebased.paper.published_gaps import Gap, published_gaps
from rebased.paper.recall_cells import listed

__all__ = ["ablation_claims"]

LENGTHS = tuple(TABLE_1["rebased"])
_OUTCOMES = {"tuned": "At rates chosen by other seeds", "untuned": "averaged over all rates"}
_LEVEL = "; so many runs are level that it could not be shown"


def ablation_claims(data: Data) -> tuple[Claim, ...]:
    """Better is what the test of pairs says is better, corrected for the tests of all outcomes."""
    short, long = LENGTHS
    return (
        *(_best(length, data) for length in LENGTHS),
        _above("based", "x2", short, data),
        _above("norm_x2", "based", long, data),
        *(_above(kernel, "x2", short, data) for kernel in ("gamma_x2", "gamma_beta_x2")),
        *(claim for length in LENGTHS for claim in _gaps(length, data["cells"])),
    )


def _comparisons(length: int, data: Data) -> Data:
    """By outcome; of a length without any there is none."""
    return corrected_together(data["comparisons"].get(str(length), {}))


def _can_show(comparisons: Data) -> bool:
    return can_show(list(chain.from_iterable(comparisons.values())))


def _too_few(theirs: str, *, is_run: bool) -> Claim:
    if not is_run:
        return Claim(theirs, "These kernels are not finished at this length.", "not run")
    return Claim(
        theirs, "So few runs can show no difference, however large, where the tests of all outcomes count.", "not shown"
    )


def _best(length: int, data: Data) -> Claim:
    theirs = f"At {length} tokens ReBased is the best of the six kernels."
    comparisons = _comparisons(length, data)
    mine = _with_rebased(comparisons)
    if not mine or not _can_show(comparisons):
        return _too_few(theirs, is_run=bool(mine))
    won, lost, open_ = _by_winner(mine)
    # What this outcome alone shows, as the table of its pairs has it.
    won_alone, lost_alone, _ = _by_winner(_with_rebased(data["comparisons"][str(length)]))
    num_tests = sum(map(len, comparisons.values()))
    said = list(filter(None, [_place(length, data["cells"])]))
    for stacks, what in (
        (won, "It is better than {}."),
        (lost, "It is worse than {}."),
        (open_, f"From {{}} no difference is shown, corrected for the {num_tests} tests of all outcomes."),
        (won_alone - won, "Corrected for the tests at chosen rates alone, it is also better than {}."),
        (lost_alone - lost, "Corrected for the tests at chosen rates alone, it is also worse than {}."),
        (
            {_other(each) for each in mine if is_level(each)},
            "Beside {} so many runs are level that none could be shown.",
        ),
        (KERNELS.keys() - {"rebased", *won, *lost, *open_}, "With {} there is nothing to compare."),
    ):
        if stacks:
            said.append(what.format(listed(name for stack, name in KERNELS.items() if stack in stacks)))
    if lost:
        verdict = "differs"
    elif won:
        verdict = "agrees" if len(won) == len(KERNELS) - 1 else "in part"
    else:
        verdict = "not shown"
    return Claim(theirs, " ".join(said), verdict)


def _with_rebased(comparisons: Data) -> list[Data]:
    """At chosen rates."""
    return [each for each in comparisons.get("tuned", ()) if "rebased" in (each["a"], each["b"])]


def _other(comparison: Data) -> str:
    (other,) = {comparison["a"], comparison["b"]} - {"rebased"}
    return str(other)


def _by_winner(mine: Sequence[Data]) -> tuple[set[str], set[str], set[str]]:
    """Stacks than which ReBased is shown to be better, and worse, and those of which nothing is shown."""
    won = {_other(each) for each in mine if winner(each) == "rebased"}
    open_ = {_other(each) for each in mine if winner(each) is None}
    return won, {_other(each) for each in mine} - won - open_, open_


def _place(length: int, cells: Sequence[Data]) -> str:
    """By means over the widths that all have: others would not compare."""
    by_stack: dict[str, dict[int, float]] = {}
    for cell in cells:
        if cell["seq_len"] == length:
            by_stack.setdefault(cell["stack"], {})[cell["d_model"]] = cell["mean"]
    widths = sorted(set.intersection(*map(set, by_stack.values())))
    if not widths:
        return ""
    means = {stack: statistics.fmean(mine[width] for width in widths) for stack, mine in by_stack.items()}
    place = 1 + sum(mean > means["rebased"] for mean in means.values())
    return f"Its mean accuracy over d = {listed(widths)} is {means['rebased']:.2f}, at place {place} of {len(means)}."


def _above(better: str, worse: str, length: int, data: Data) -> Claim:
    theirs = f"{KERNELS[better]} is better than {KERNELS[worse]} ({length} tokens). {_where_in_table_1(better, worse)}"
    comparisons = _comparisons(length, data)
    found = {
        outcome: each
        for outcome in _OUTCOMES
        for each in comparisons.get(outcome, ())
        if {each["a"], each["b"]} == {better, worse}
    }
    if not found or not _can_show(comparisons):
        return _too_few(theirs, is_run=bool(found))
    said = [
        f"{what} the difference is {each['difference'] * (1 if each['a'] == better else -1):+.3f} "
        f"(p = {each['adjusted_p']:.2g}{_LEVEL if is_level(each) else ''})"
        for what, each in zip(_OUTCOMES.values(), found.values(), strict=True)
    ]
    winners = {outcome: winner(each) for outcome, each in found.items()}
    shown = set(winners.values()) - {None}
    if not shown:
        verdict = "not shown"
    elif shown == {worse}:
        verdict = "differs"
    else:
        verdict = "agrees" if shown == {better} and winners["tuned"] == better else "in part"
    num_tests = sum(map(len, comparisons.values()))
    return Claim(theirs, f"{'; '.join(said)}; corrected for the {num_tests} tests of all outcomes.", verdict)


def _where_in_table_1(better: str, worse: str) -> str:
    """The paper says it of no length (its section 5.3)."""
    said = []
    for length in LENGTHS:
        mine, other = (TABLE_1_MEANS[stack][length] for stack in (better, worse))
        said.append(f"{'so' if mine > other else 'not so'} at {length} ({mine:.2f} and {other:.2f})")
    return f"The text names no length; by the means of Table 1 it is {listed(said)}."


def _gaps(length: int, cells: Sequence[Data]) -> list[Claim]:
    """One for each pair of kernels that the paper has apart."""
    by_pair: dict[tuple[str, str], list[Gap]] = {}
    for gap in published_gaps(length, cells):
        by_pair.setdefault((gap.higher, gap.lower), []).append(gap)
    return [_apart(length, *pair, gaps) for pair, gaps in by_pair.items()]


def _apart(length: int, higher: str, lower: str, gaps: Sequence[Gap]) -> Claim:
    widths = listed(gap.d_model for gap in gaps)
    theirs = f"{KERNELS[higher]} is above {KERNELS[lower]} at d = {widths}, {length} tokens: mean ± sd are apart."
    tried = [gap for gap in gaps if gap.ours is not None]
    if not tried:
        return Claim(theirs, "Cells of these sizes are not finished.", "not run")
    num_shown = sum(gap.is_shown for gap in tried)
    if num_shown:
        is_whole = num_shown == len(gaps) and all(gap.is_ours for gap in gaps)
        verdict = "agrees" if is_whole else "in part"
    else:
        verdict = "differs" if all(gap.is_opposite for gap in tried) else "not shown"
    return Claim(theirs, f"{'; '.join(map(_spelled, tried))}.", verdict)


def _spelled(gap: Gap) -> str:
    assert gap.ours is not None
    first, second = (f"{mean:.2f} ± {sd:.2f}" for mean, sd in gap.ours)
    few = "" if gap.num_seeds >= TABLE_1_SEEDS else f", of only {gap.num_seeds} seeds"
    said = "apart too" if gap.is_ours else "apart the other way round" if gap.is_reversed else "not apart"
    said += f"{few} (p = {gap.adjusted_p:.2g}, corrected)"
    return f"d = {gap.d_model}: {first} and {second}, {said}"
