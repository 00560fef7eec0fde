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
from rebased.paper.experiment import Data, Experiment
from rebased.paper.recall_cells import listed, versions_text
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
WORKS, FAILS = 0.9, 0.5
"""Accuracies from which a model is said to have learned it, and below which it is said not to; between them nothing is
said. The paper's figure has no such lines."""


def present(data: Data) -> Section:
    cells = data["cells"]
    parts: list[Any] = [
        "The best learning rate's accuracy, a mean over seeds where there are several. All but RWKV and Mamba are the "
        "paper's hybrid: a convolution in the first layer, the mixer in the second. The published code overwrites "
        "Mamba's own initialisation, so both are here; RWKV is as published. The paper has this figure without "
        "numbers: what it says of it is what ours can be held against.",
        *filter(None, (what_is_missing(cells), versions_text(cells, MIXERS))),
        *accuracy_tables(cells, MIXERS),
        picture("figure1", cells, MIXERS, "Figure 1: accuracy over width, for each length"),
    ]
    return Section("Figure 1: mixers over length and width", tuple(parts), _claims(cells))


def _claims(cells: Sequence[Data]) -> tuple[Claim, ...]:
    return (
        claim_in_cells("ReBased outperforms Based.", cells, MIXERS, "rebased", "based"),
        _fails("RWKV", cells, "rwkv"),
        _fails("Mamba", cells, "mamba", "mamba_published"),
        _long_and_narrow(cells),
    )


def _fails(name: str, cells: Sequence[Data], *stacks: str) -> Claim:
    """One run that learns it refutes that none does; that none of ours did says nothing of what was not run."""
    theirs = f"{name} fails at every size."
    by_stack = {stack: [cell for cell in cells if cell["stack"] == stack] for stack in stacks}
    found = {stack: mine for stack, mine in by_stack.items() if mine}
    if not found:
        return Claim(theirs, "No cell of it is finished.", "not run")
    asked = set(product(stacks, LENGTHS, WIDTHS, PAPER["learning_rate"]))
    every = [cell for mine in found.values() for cell in mine]
    tried = {(c["stack"], c["seq_len"], c["d_model"], float(rate)) for c in every for rate in c["by_rate"]} & asked
    what = "size, learning rate and initialisation" if len(stacks) > 1 else "size and learning rate"
    said = [_reached(MIXERS[stack], mine) for stack, mine in found.items()]
    said.append(
        f"Tried were {len(tried)} of the {len(asked)} combinations of {what}, of up to "
        f"{max(cell['seq_len'] for cell in every)} tokens."
    )
    best = max(map(_best_run, every))
    if best >= WORKS:
        verdict = "differs"
    elif best >= FAILS:
        verdict = "not shown"
    else:
        verdict = "agrees" if tried == asked else "in part"
    return Claim(theirs, " ".join(said), verdict)


def _best_run(cell: Data) -> float:
    """Of all learning rates and seeds."""
    return max(float(accuracy) for by_seed in cell["by_rate"].values() for accuracy in by_seed.values())


def _reached(name: str, cells: Sequence[Data]) -> str:
    best = max(cells, key=_best_run)
    learned = sum(_best_run(cell) >= WORKS for cell in cells)
    return (
        f"{name} has runs that reach {WORKS:g} in {learned} of {len(cells)} cells; its best run has "
        f"{_best_run(best):.2f}, at {best['seq_len']} tokens and d = {best['d_model']}."
    )


def _long_and_narrow(cells: Sequence[Data]) -> Claim:
    """A claim of levels, not of differences: no test is made of it."""
    theirs = "At 2048 tokens and d = 64 all but Attention struggle."
    here = {cell["stack"]: cell for cell in cells if (cell["seq_len"], cell["d_model"]) == (2048, 64)}
    attention = here.get("conv_attention")
    others = {stack: cell for stack, cell in here.items() if stack != "conv_attention"}
    if attention is None or not others:
        return Claim(theirs, "Models of that size are not finished.", "not run")
    means = listed(f"{MIXERS[stack]} {cell['mean']:.2f}" for stack, cell in others.items())
    rates = min(len(cell["by_rate"]) for cell in here.values())
    missing = [name for stack, name in MIXERS.items() if stack not in here]
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
