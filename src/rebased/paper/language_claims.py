"""What the paper says of its language models, and what ours say of it."""

import json
from collections.abc import Mapping, Sequence

from rebased.analysis.pages import Claim
from rebased.paper.experiment import Data
from rebased.paper.language_runs import NAMES, TRAINED_ALIKE, family_of, group_runs, mean_text, ratios
from rebased.paper.published import TABLE_2_TOKENS
from rebased.paper.recall_cells import listed

__all__ = ["language_claims"]

FAR_LESS = 10
"""Times fewer tokens than the paper's: such models do not test what it says of its own."""


def language_claims(runs: Sequence[Data]) -> tuple[Claim, ...]:
    return (
        _best("Attention is best on tokens that can be recalled (AR).", "attention", "ar", runs),
        _best("ReBased is best on all tokens together.", "rebased", "all", runs),
        _best("ReBased is best on tokens that cannot be recalled (non-AR).", "rebased", "non_ar", runs),
    )


def _best(theirs: str, best: str, kind: str, runs: Sequence[Data]) -> Claim:
    groups = _comparable(runs)
    if groups is None:
        return Claim(theirs, "Not all three models are trained, and alike.", "not run")
    said = ", ".join(f"{name} {mean_text(groups[family], kind)}" for family, name in NAMES.items())
    won, lost = _won_and_lost(best, kind, groups)
    outcomes = (won, "better than"), (lost, "worse than")
    found = [f"{NAMES[best]} is shown to be {what} {listed(names)}" for names, what in outcomes if names]
    said = f"Perplexities are {said}; {' and '.join(found) if found else 'no difference is shown'}."
    times = TABLE_2_TOKENS / groups[best][0]["tokens"]
    if times > FAR_LESS:
        few = f"That is after 1/{times:,.0f} of the paper's tokens, on another corpus: no test of what it says."
        return Claim(theirs, f"{said} {few}", "not shown")
    verdict = "differs" if lost else "agrees" if len(won) == len(NAMES) - 1 else "in part" if won else "not shown"
    return Claim(theirs, said, verdict)


def _comparable(runs: Sequence[Data]) -> dict[str, list[Data]] | None:
    """By family: of one size, trained and evaluated alike; of several such threes the one with the most tokens."""
    alike: dict[str, dict[str, list[Data]]] = {}
    for group in group_runs(runs):
        if family_of(group) in NAMES and group[0]["tokens"] is not None:
            size = str(group[0]["model"]).partition("-")[2]
            key = json.dumps([size, *(group[0][field] for field in TRAINED_ALIKE)], sort_keys=True)
            alike.setdefault(key, {}).setdefault(family_of(group), group)
    whole = [groups for groups in alike.values() if groups.keys() == NAMES.keys()]
    return max(whole, key=lambda groups: int(groups["rebased"][0]["tokens"]), default=None)


def _won_and_lost(best: str, kind: str, groups: Mapping[str, Sequence[Data]]) -> tuple[list[str], list[str]]:
    """Names of models than which this one is shown to be better, and worse, on one kind of tokens."""
    families = {str(group[0]["model"]): family for family, group in groups.items()}
    won, lost = list[str](), list[str]()
    for ratio in ratios([run for group in groups.values() for run in group]):
        pair = {families[ratio.a], families[ratio.b]}
        if ratio.kind == kind and ratio.better is not None and best in pair:
            (other,) = pair - {best}
            (won if families[ratio.better] == best else lost).append(NAMES[other])
    return won, lost
