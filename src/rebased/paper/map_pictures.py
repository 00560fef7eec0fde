"""Attention maps as pictures: the truth and each model's map of the same examples."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from rebased.paper.experiment import Data
from rebased.paper.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_maps"]

COLOUR_MAP = "CMRmap_r"
STEEPNESS = 0.5
"""The colour is that of the root: what is spread over many positions would otherwise be lost beside a peak of 1."""


def draw_maps(examples: Mapping[str, Sequence[Data]]) -> "Figure":
    """A row for each example, and in it the truth and the map of each model, by name; all have the same examples."""
    from matplotlib.colors import PowerNorm

    models = list(examples)
    per_model = examples[models[0]]
    figure, panels = new_figure(1 + len(models), "query", num_rows=len(per_model), width=2.9, height=1.8)
    norm = PowerNorm(STEEPNESS, vmin=0, vmax=1)
    for row, example in enumerate(per_model):
        maps = {"truth": _truth(example)} | {model: np.array(examples[model][row]["map"]) for model in models}
        own = panels[row * len(maps) : (row + 1) * len(maps)]
        for panel, (name, attention) in zip(own, maps.items(), strict=True):
            image = panel.imshow(attention, norm=norm, cmap=COLOUR_MAP, aspect="equal", interpolation="nearest")
            panel.spines[:].set_color("#bbbbbb")
            panel.set(xticks=[], yticks=[])
            if row == 0:
                panel.set_title(name)
            if row == len(per_model) - 1:
                panel.set_xlabel("position among the pairs")
    bar = figure.colorbar(image, ax=panels, ticks=[0, 0.05, 0.25, 0.5, 1], format="%g", shrink=0.8, pad=0.01)
    bar.set_label("attention")
    bar.outline.set_visible(False)
    return figure


def _truth(example: Data) -> Float[np.ndarray, "P S"]:
    truth = np.zeros((len(example["truth"]), len(example["map"][0])))
    truth[np.arange(len(truth)), example["truth"]] = 1
    return truth
