"""What the paper says of its Table 1, and what our runs say of it."""

import statistics
from collections.abc import Sequence

from rebased.analysis.pages import Claim
from rebased.paper.ablation import KERNELS
from rebased.paper.experiment import Data
from rebased.paper.kernel_pairs import can_show, winner
from rebased.paper.published import TABLE_1, TABLE_1_SEEDS
from rebased.paper.published_gaps import Gap, published_gaps
from rebased.paper.recall_cells import listed

__all__ = ["ablation_claims"]

LENGTHS = tuple(TABLE_1["rebased"])
_OUTCOMES = {"tuned": "At rates chosen by other seeds", "untuned": "averaged over all rates"}


def ablation_claims(data: Data) -> tuple[Claim, ...]:
    """Better is what the corrected test of pairs says is better."""
    short, long = LENGTHS
    return (
        *(_best(length, data) for length in LENGTHS),
        _above("Based", "x²", "based", "x2", short, data),
        _above("norm(x)²", "Based", "norm_x2", "based", long, data),
        *(_above(KERNELS[kernel], "x²", kernel, "x2", short, data) for kernel in ("gamma_x2", "gamma_beta_x2")),
        *(claim for length in LENGTHS for claim in _gaps(length, data["cells"])),
    )


def _comparisons(length: int, data: Data) -> Data | None:
    found: Data | None = data["comparisons"].get(str(length))
    return found if found and found["tuned"] else None


def _too_few(theirs: str, *, is_run: bool) -> Claim:
    if not is_run:
        return Claim(theirs, "These kernels are not finished at this length.", "not run")
    return Claim(theirs, "So few runs can show no difference, however large.", "not shown")


def _best(length: int, data: Data) -> Claim:
    theirs = f"At {length} tokens ReBased is the best of the six kernels."
    comparisons = _comparisons(length, data)
    mine = [each for each in (comparisons or {}).get("tuned", ()) if "rebased" in (each["a"], each["b"])]
    if not mine or not can_show(comparisons or {}):
        return _too_few(theirs, is_run=bool(mine))
    others: dict[str | None, list[str]] = {}
    for each in mine:
        (other,) = {each["a"], each["b"]} - {"rebased"}
        others.setdefault(winner(each), []).append(other)
    won, open_ = others.pop("rebased", []), others.pop(None, [])
    lost = [stack for stacks in others.values() for stack in stacks]
    said = list(filter(None, [_place(length, data["cells"])]))
    for stacks, what in (
        (won, "It is better than {}."),
        (lost, "It is worse than {}."),
        (open_, "From {} no difference is shown."),
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


def _above(name: str, other: str, better: str, worse: str, length: int, data: Data) -> Claim:
    theirs = f"{name} is better than {other} ({length} tokens)."
    comparisons = _comparisons(length, data)
    found = {
        outcome: each
        for outcome in _OUTCOMES
        for each in (comparisons or {}).get(outcome, ())
        if {each["a"], each["b"]} == {better, worse}
    }
    if not found or not can_show(comparisons or {}):
        return _too_few(theirs, is_run=bool(found))
    said = [
        f"{what} the difference is {each['difference'] * (1 if each['a'] == better else -1):+.3f} "
        f"(p = {each['adjusted_p']:.2g}, corrected)"
        for what, each in zip(_OUTCOMES.values(), found.values(), strict=True)
    ]
    winners = {outcome: winner(each) for outcome, each in found.items()}
    if winners["tuned"] is not None:
        verdict = "agrees" if winners["tuned"] == better else "differs"
    else:
        verdict = "in part" if winners["untuned"] == better else "not shown"
    return Claim(theirs, f"{'; '.join(said)}.", verdict)


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
        verdict = "agrees" if num_shown == len(gaps) else "in part"
    else:
        verdict = "differs" if all(gap.is_opposite for gap in tried) else "not shown"
    return Claim(theirs, f"{'; '.join(map(_spelled, tried))}.", verdict)


def _spelled(gap: Gap) -> str:
    assert gap.ours is not None
    first, second = (f"{mean:.2f} ± {sd:.2f}" for mean, sd in gap.ours)
    few = "" if gap.num_seeds >= TABLE_1_SEEDS else f", of only {gap.num_seeds} seeds"
    said = f"{'apart too' if gap.is_ours else 'not apart'}{few} (p = {gap.adjusted_p:.2g}, corrected)"
    return f"d = {gap.d_model}: {first} and {second}, {said}"
