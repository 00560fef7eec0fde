"""Figure 1: every mixer on recall, over length and width."""

from collections.abc import Sequence
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
WORKS = 0.9
"""Accuracy from which a model is said to have learned it; the paper's figure has no such line."""


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
    said = [_reached(MIXERS[stack], mine) for stack, mine in found.items()]
    every = [cell for mine in found.values() for cell in mine]
    sizes = {(length, width) for length in LENGTHS for width in WIDTHS}
    tried = sizes & {(cell["seq_len"], cell["d_model"]) for cell in every}
    rates = {float(rate) for cell in every for rate in cell["by_rate"]} & set(PAPER["learning_rate"])
    said.append(
        f"Tried were {len(tried)} of the paper's {len(sizes)} sizes, of up to {max(cell['seq_len'] for cell in every)} "
        f"tokens, with {len(rates)} of its {len(PAPER['learning_rate'])} learning rates."
    )
    if any(cell["mean"] >= WORKS for cell in every):
        return Claim(theirs, " ".join(said), "differs")
    is_whole = tried == sizes and len(rates) == len(PAPER["learning_rate"])
    return Claim(theirs, " ".join(said), "agrees" if is_whole else "in part")


def _reached(name: str, cells: Sequence[Data]) -> str:
    best = max(cells, key=lambda cell: float(cell["mean"]))
    learned = sum(cell["mean"] >= WORKS for cell in cells)
    return (
        f"{name} reaches {WORKS:g} in {learned} of {len(cells)} cells; its best is {best['mean']:.2f}, at "
        f"{best['seq_len']} tokens and d = {best['d_model']}, its worst {min(cell['mean'] for cell in cells):.2f}."
    )


def _long_and_narrow(cells: Sequence[Data]) -> Claim:
    theirs = "At 2048 tokens and d = 64 all but Attention struggle."
    here = {cell["stack"]: cell["mean"] for cell in cells if (cell["seq_len"], cell["d_model"]) == (2048, 64)}
    attention = here.pop("conv_attention", None)
    if attention is None or not here:
        return Claim(theirs, "Models of that size are not finished.", "not run")
    others = listed(f"{MIXERS[stack]} {mean:.2f}" for stack, mean in here.items())
    missing = [name for stack, name in MIXERS.items() if stack not in {"conv_attention", *here}]
    said = f"Attention has {attention:.2f} there, {others}."
    if missing:
        said += f" Not finished: {listed(missing)}."
    is_so = max(here.values()) < WORKS <= attention
    return Claim(theirs, said, "differs" if not is_so else "in part" if missing else "agrees")


FIGURE1 = Experiment(
    name="figure1",
    title="Mixers over length and width",
    grids=grids(MIXERS),
    measure=measure,
    present=present,
)
