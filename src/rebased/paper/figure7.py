"""Figure 7: a convolution in the first layer, or the mixer twice."""

from typing import Any

from rebased.analysis.pages import Section
from rebased.paper.by_length import accuracy_tables, compare_in_cells, grids, measure, picture
from rebased.paper.experiment import Data, Experiment

__all__ = ["FIGURE7"]

MODELS = {"attention": "Attention", "conv_attention": "ConvAttention", "rwkv": "RWKV", "conv_rwkv": "ConvRWKV"}
_PAIRS = (("attention", "conv_attention"), ("rwkv", "conv_rwkv"))


def present(data: Data) -> Section:
    cells = data["cells"]
    parts: list[Any] = [
        "Two layers of a mixer, or a short convolution first. The paper finds the hybrid better for attention, and two "
        "layers better for RWKV.",
        *accuracy_tables(cells, MODELS),
        *_pairs(cells),
        picture("figure7", cells, MODELS, "Figure 7: hybrid (solid) and vanilla (dashed) models"),
    ]
    return Section("Figure 7: hybrid or vanilla", tuple(parts))


def _pairs(cells: list[Data]) -> list[str]:
    compared = {pair: compare_in_cells(cells, pair[1], pair[0]) for pair in _PAIRS}
    return [f"{MODELS[hybrid]} beside {MODELS[plain]}: {said}" for (plain, hybrid), said in compared.items() if said]


FIGURE7 = Experiment(
    name="figure7",
    title="Hybrid or vanilla",
    grids=grids(MODELS),
    measure=measure,
    present=present,
)
