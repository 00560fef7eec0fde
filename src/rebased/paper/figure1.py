"""Figure 1: every mixer on recall, over length and width."""

from typing import Any

from rebased.analysis.pages import Section
from rebased.paper.by_length import accuracy_tables, compare_in_cells, grids, measure, picture
from rebased.paper.experiment import Data, Experiment

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
        "Mamba's own initialisation, so both are here; RWKV is as published.",
        *accuracy_tables(cells, MIXERS),
        *_claims(cells),
        picture("figure1", cells, MIXERS, "Figure 1: accuracy over width, for each length"),
    ]
    return Section("Figure 1: mixers over length and width", tuple(parts))


def _claims(cells: list[Data]) -> list[str]:
    """What the paper says of its figure, beside what these runs say. One seed in a cell is no test."""
    said = []
    for stack in ("rwkv", "mamba_published", "mamba"):
        name = MIXERS[stack] if stack != "mamba" else "Mamba with its own initialisation"
        mine = [cell for cell in cells if cell["stack"] == stack]
        if mine:
            best = max(mine, key=lambda cell: float(cell["mean"]))
            learned = sum(cell["mean"] >= WORKS for cell in mine)
            said.append(
                f"The paper: RWKV and Mamba fail at every size. Here, {name} reaches {WORKS:g} in {learned} of "
                f"{len(mine)} cells; its best is {best['mean']:.2f}, at {best['seq_len']} tokens and d = "
                f"{best['d_model']}."
            )
    compared = compare_in_cells(cells, "rebased", "based")
    return [*said, f"ReBased beside Based: {compared}"] if compared else said


FIGURE1 = Experiment(
    name="figure1",
    title="Mixers over length and width",
    grids=grids(MIXERS),
    measure=measure,
    present=present,
)
