"""Figure 7: a convolution in the first layer, or the mixer twice."""

from typing import Any

from rebased.analysis.pages import Section
from rebased.paper.by_length import accuracy_tables, claim_in_cells, grids, measure, picture, what_is_missing
from rebased.paper.code_versions import versions_text
from rebased.paper.experiment import Data, Experiment

__all__ = ["FIGURE7"]

MODELS = {"attention": "Attention", "conv_attention": "ConvAttention", "rwkv": "RWKV", "conv_rwkv": "ConvRWKV"}
_CLAIMS = (
    ("A convolution in the first layer is better for attention.", "conv_attention", "attention"),
    ("Two layers of RWKV are better than a convolution and one.", "rwkv", "conv_rwkv"),
)
"""Of the paper's appendix A: that the first stack named is better than the second."""


def present(data: Data) -> Section:
    cells = data["cells"]
    parts: list[Any] = [
        "Two layers of a mixer, or a short convolution first. The paper has this figure without numbers.",
        *filter(None, (what_is_missing(cells), versions_text(cells, MODELS))),
        *accuracy_tables(cells, MODELS),
        picture("figure7", cells, MODELS, "Figure 7: hybrid (solid) and vanilla (dashed) models"),
    ]
    claims = tuple(claim_in_cells(theirs, cells, MODELS, better, worse) for theirs, better, worse in _CLAIMS)
    return Section("Figure 7: hybrid or vanilla", tuple(parts), claims)


FIGURE7 = Experiment(
    name="figure7",
    title="Hybrid or vanilla",
    grids=grids(MODELS),
    measure=measure,
    present=present,
)
