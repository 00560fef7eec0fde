"""What every table and figure of the paper has: runs it is made of, numbers found in them, a way to show these."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rebased.analysis.pages import Section
from rebased.runs import Run
from rebased.training.devices import current
from rebased.training.grid import expand_grid
from rebased.training.recall import RecallConfig

__all__ = ["NO_GRIDS", "SCALES", "Data", "Experiment", "Material"]

SCALES = {
    "smoke": "a minute on a CPU: whether it works, not what is true",
    "small": "one GPU, minutes to an hour: the paper's task and models, fewer learning rates, seeds or sizes",
    "paper": "everything, as the paper has it",
}
"""A scale changes seeds, epochs, learning rates and sizes, never the task or the model; smoke also the vocabulary, the
batch, the numbers of examples and the dtype."""

NO_GRIDS: Mapping[str, Mapping[str, Any]] = {scale: {} for scale in SCALES}
"""Of an experiment that trains nothing."""

Data = dict[str, Any]
"""Of plain types, as JSON has them."""


@dataclass(frozen=True, kw_only=True)
class Material:
    """What numbers are found in."""

    scale: str
    runs: tuple[Run, ...]
    """Those of the grid whose cells are finished, all learning rates and seeds of them, in its order."""
    out: Path
    """The folder of all results."""
    device: str
    """Where to compute what is yet to compute."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure of the paper."""

    name: str
    """As in the paper: table1, figure4."""
    title: str
    grids: Mapping[str, Mapping[str, Any]]
    """By scale, as `rebased.training.grid` has them; empty where nothing is to be trained."""
    measure: Callable[[Material], Data]
    """From runs to numbers."""
    present: Callable[[Data], Section]
    """From numbers to tables and pictures. Needs nothing else: runs may be elsewhere."""
    needs: Literal["results", "watched", "weights"] = "results"
    """What of its runs it is measured from: what they came to, what they recorded of the parameters they watch, or
    their weights, which only their folders have."""

    def __post_init__(self) -> None:
        if set(self.grids) != set(SCALES):
            raise ValueError(f"{self.name} has grids for {', '.join(self.grids)}; it needs {', '.join(SCALES)}")

    def data_from(self, material: Material) -> Data:
        """What `measure` finds, with the material's device as torch's current one."""
        with current(material.device):
            return self.measure(material)

    def section(self, data: Mapping[str, Any]) -> Section:
        """What `present` makes of findings. ValueError for those of a version that had them in another form."""
        try:
            return self.present(dict(data))
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(
                f"the findings of {self.name} are in another version's form ({error!r}); where its runs are, "
                f"`rebased paper run {self.name} --no-train` makes them anew"
            ) from error

    def configs(self, scale: str) -> list[RecallConfig]:
        """The runs of a scale; ValueError, listing what there is, for an unknown one."""
        if scale not in SCALES:
            raise ValueError(f"scale={scale!r} is unknown; there are {', '.join(SCALES)}")
        grid = self.grids[scale]
        return expand_grid(dict(grid)) if grid else []
