"""What the paper says of its language models, and what ours say of it."""

from collections.abc import Sequence

from rebased.analysis.pages import Claim
from rebased.paper.experiment import Data
from rebased.paper.language_runs import NAMES, family_of, group_runs, mean_text, ratios
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
    groups = {family_of(group): group for group in group_runs(runs) if family_of(group) in NAMES}
    trained = [group[0]["tokens"] for group in groups.values() if group[0]["tokens"] is not None]
    if len(groups) < len(NAMES) or not trained:
        return Claim(theirs, "Not all three models are trained.", "not run")
    said = ", ".join(f"{name} {mean_text(groups[family], kind)}" for family, name in NAMES.items())
    won, lost = _won_and_lost(str(groups[best][0]["model"]), kind, runs)
    outcomes = (won, "better than"), (lost, "worse than")
    found = [f"{NAMES[best]} is shown to be {what} {listed(names)}" for names, what in outcomes if names]
    said = f"Perplexities are {said}; {' and '.join(found) if found else 'no difference is shown'}."
    times = TABLE_2_TOKENS / max(trained)
    if times > FAR_LESS:
        few = f"That is after 1/{times:,.0f} of the paper's tokens, on another corpus: no test of what it says."
        return Claim(theirs, f"{said} {few}", "not shown")
    verdict = "differs" if lost else "agrees" if len(won) == len(NAMES) - 1 else "in part" if won else "not shown"
    return Claim(theirs, said, verdict)


def _won_and_lost(model: str, kind: str, runs: Sequence[Data]) -> tuple[list[str], list[str]]:
    """Models than which this one is shown to be better, and worse, on one kind of tokens."""
    won, lost = list[str](), list[str]()
    for ratio in ratios(runs):
        if ratio.kind == kind and ratio.better is not None and model in (ratio.a, ratio.b):
            (other,) = {ratio.a, ratio.b} - {model}
            (won if ratio.better == model else lost).append(NAMES.get(other.split("-")[0], other))
    return won, lost
