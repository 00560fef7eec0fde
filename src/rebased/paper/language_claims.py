"""What the paper says of its language models, and what ours say of it."""

import json
from collections.abc import Mapping, Sequence

from rebased.analysis.pages import Claim
from rebased.paper.experiment import Data
from rebased.paper.language_runs import NAMES, TRAINED_ALIKE, Ratio, family_of, mean_text
from rebased.paper.published import TABLE_2_TOKENS
from rebased.paper.recall_cells import listed

__all__ = ["language_claims"]

FAR_LESS = 10
"""Times fewer tokens than the paper's: such models do not test what it says of its own."""


def language_claims(groups: Sequence[Sequence[Data]], compared: Sequence[Ratio]) -> tuple[Claim, ...]:
    """``compared``: the ratios of these groups, which are corrected for their number once and for all."""
    return (
        _best("Attention is best on tokens that can be recalled (AR).", "attention", "ar", groups, compared),
        _best("ReBased is best on all tokens together.", "rebased", "all", groups, compared),
        _best("ReBased is best on tokens that cannot be recalled (non-AR).", "rebased", "non_ar", groups, compared),
    )


def _best(theirs: str, best: str, kind: str, groups: Sequence[Sequence[Data]], compared: Sequence[Ratio]) -> Claim:
    chosen = _comparable(groups)
    if chosen is None:
        return Claim(theirs, "Not all three models are trained, and alike.", "not run")
    said = ", ".join(f"{name} {mean_text(groups[chosen[family]], kind)}" for family, name in NAMES.items())
    won, lost = _won_and_lost(best, kind, chosen, compared)
    outcomes = (won, "better than"), (lost, "worse than")
    found = [f"{NAMES[best]} is shown to be {what} {listed(names)}" for names, what in outcomes if names]
    said = f"Perplexities are {said}; {' and '.join(found) if found else 'no difference is shown'}."
    times = TABLE_2_TOKENS / groups[chosen[best]][0]["tokens"]
    if times > FAR_LESS:
        few = f"That is after 1/{times:,.0f} of the paper's tokens, on another corpus: no test of what it says."
        return Claim(theirs, f"{said} {few}", "not shown")
    verdict = "differs" if lost else "agrees" if len(won) == len(NAMES) - 1 else "in part" if won else "not shown"
    return Claim(theirs, said, verdict)


def _comparable(groups: Sequence[Sequence[Data]]) -> dict[str, int] | None:
    """Each family's group, by its place: of one size, trained and evaluated alike.

    Of several such threes the one with the most tokens.
    """
    alike: dict[str, dict[str, int]] = {}
    for place, group in enumerate(groups):
        if family_of(group) in NAMES and group[0]["tokens"] is not None:
            size = str(group[0]["model"]).partition("-")[2]
            key = json.dumps([size, *(group[0][field] for field in TRAINED_ALIKE)], sort_keys=True)
            alike.setdefault(key, {}).setdefault(family_of(group), place)
    whole = [places for places in alike.values() if places.keys() == NAMES.keys()]
    return max(whole, key=lambda places: int(groups[places["rebased"]][0]["tokens"]), default=None)


def _won_and_lost(
    best: str, kind: str, chosen: Mapping[str, int], compared: Sequence[Ratio]
) -> tuple[list[str], list[str]]:
    """Names of models than which this one is shown to be better, and worse, on one kind of tokens."""
    families = {place: family for family, place in chosen.items()}
    won, lost = list[str](), list[str]()
    for ratio in compared:
        if ratio.kind == kind and ratio.better_group is not None and families.keys() >= set(ratio.groups):
            pair = {families[place] for place in ratio.groups}
            if best in pair:
                (other,) = pair - {best}
                (won if families[ratio.better_group] == best else lost).append(NAMES[other])
    return won, lost
