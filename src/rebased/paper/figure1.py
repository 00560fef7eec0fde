"""Figure 1: every mixer on recall, over length and width."""

from collections.abc import Sequence
from itertools import product
from typing import Any

from rebased.analysis.pages import Claim, Section
from rebased.paper.by_length import (
    LENGTHS,
    WIDTHS,
    accuracy_tables,
    claim_in_cells,
    grids,
    measure,
    picture,
    what_is_missing,
)
from rebased.paper.code_versions import versions_text
from rebased.paper.experiment import Data, Experiment
from rebased.paper.recall_cells import listed
from rebased.paper.recipes import PAPER

__all__ = ["FIGURE1", "MIXERS"]

MIXERS = {
    "conv_attention": "Attention",
    "based": "Based",
    "rebased": "ReBased",
    "conv_hyena": "Hyena",
    "rwkv": "RWKV",
    "mamba": "Mamba",
    "mamba_published": "Mamba, published init",
}
"""Stacks, and what the paper calls them."""
NOT_THE_PAPERS = "mamba"
"""As its authors initialise it. What it reaches is said, and decides nothing of what the paper says of its own."""
WORKS, FAILS = 0.9, 0.5
"""Accuracies from which a model is said to have learned it, and below which it is said not to; between them nothing is
said. The paper's figure has no such lines."""


def present(data: Data) -> Section:
    cells = data["cells"]
    parts: list[Any] = [
        "The best learning rate's accuracy, a mean over seeds where there are several. All but RWKV and Mamba are the "
        "paper's hybrid: a convolution in the first layer, the mixer in the second. The published code overwrites "
        "Mamba's own initialisation: both are here, and the paper's claims are held against the published one. RWKV is "
        "as published. The paper has this figure without numbers: what it says of it is what ours can be held against.",
        *filter(None, (what_is_missing(cells), versions_text(cells, MIXERS))),
        *accuracy_tables(cells, MIXERS),
        picture("figure1", cells, MIXERS, "Figure 1: accuracy over width, for each length"),
    ]
    return Section("Figure 1: mixers over length and width", tuple(parts), _claims(cells))


def _claims(cells: Sequence[Data]) -> tuple[Claim, ...]:
    return (
        claim_in_cells("ReBased outperforms Based.", cells, MIXERS, "rebased", "based"),
        _fails("RWKV", cells, "rwkv"),
        _fails("Mamba", cells, "mamba_published", beside=NOT_THE_PAPERS),
        _long_and_narrow(cells),
    )


def _fails(name: str, cells: Sequence[Data], stack: str, *, beside: str | None = None) -> Claim:
    """One run that learns it refutes that none does; that none of ours did says nothing of what was not run.

    Of the stack ``beside`` it, it is said what it reaches, and no more.
    """
    theirs = f"{name} fails at every size."
    mine, others = ([cell for cell in cells if cell["stack"] == each] for each in (stack, beside))
    further = f" Beside it, {_reached(MIXERS[beside], others)}" if beside is not None and others else ""
    if not mine:
        return Claim(theirs, f"No cell of it is finished.{further}", "not run")
    asked = set(product(LENGTHS, WIDTHS, PAPER["learning_rate"]))
    tried = {(c["seq_len"], c["d_model"], float(rate)) for c in mine for rate in c["by_rate"]} & asked
    said = (
        f"{_reached(MIXERS[stack], mine)} Tried were {len(tried)} of the {len(asked)} combinations of size and "
        f"learning rate, of up to {max(cell['seq_len'] for cell in mine)} tokens.{further}"
    )
    best = max(map(_best_run, mine))
    if best >= WORKS:
        verdict = "differs"
    elif best >= FAILS:
        verdict = "not shown"
    else:
        verdict = "agrees" if tried == asked else "in part"
    return Claim(theirs, said, verdict)


def _best_run(cell: Data) -> float:
    """Of all learning rates and seeds."""
    return max(float(accuracy) for by_seed in cell["by_rate"].values() for accuracy in by_seed.values())


def _reached(name: str, cells: Sequence[Data]) -> str:
    best = max(cells, key=_best_run)
    learned = sum(_best_run(cell) >= WORKS for cell in cells)
    failed = sum(_best_run(cell) < FAILS for cell in cells)
    return (
        f"{name} has runs that reach {WORKS:g} in {learned} of {len(cells)} cells, and in {failed} none that reaches "
        f"{FAILS:g}; its best run has {_best_run(best):.2f}, at {best['seq_len']} tokens and d = {best['d_model']}."
    )


def _long_and_narrow(cells: Sequence[Data]) -> Claim:
    """A claim of levels, not of differences: no test is made of it."""
    theirs = "At 2048 tokens and d = 64 all but Attention struggle."
    here = {cell["stack"]: cell for cell in cells if (cell["seq_len"], cell["d_model"]) == (2048, 64)}
    attention = here.get("conv_attention")
    others = {stack: cell for stack, cell in here.items() if stack not in ("conv_attention", NOT_THE_PAPERS)}
    if attention is None or not others:
        return Claim(theirs, "Models of that size are not finished.", "not run")
    means = listed(f"{MIXERS[stack]} {cell['mean']:.2f}" for stack, cell in here.items() if stack != "conv_attention")
    rates = min(len(cell["by_rate"]) for cell in (attention, *others.values()))
    missing = [name for stack, name in MIXERS.items() if stack not in (*here, NOT_THE_PAPERS)]
    said = f"Attention has {attention['mean']:.2f} there, {means}, with {rates} learning rates or more."
    if missing:
        said += f" Not finished: {listed(missing)}."
    if attention["mean"] < FAILS or any(cell["mean"] >= WORKS for cell in others.values()):
        verdict = "differs"
    elif attention["mean"] >= WORKS and all(_best_run(cell) < FAILS for cell in others.values()):
        verdict = "in part" if missing or rates < len(PAPER["learning_rate"]) else "agrees"
    else:
        verdict = "not shown"
    return Claim(theirs, said, verdict)


FIGURE1 = Experiment(
    name="figure1",
    title="Mixers over length and width",
    grids=grids(MIXERS),
    measure=measure,
    present=present,
)
