"""All tables and figures, by name."""

from rebased.paper.counts import TABLE4, TABLE9
from rebased.paper.experiment import Experiment
from rebased.paper.figure1 import FIGURE1
from rebased.paper.figure2 import FIGURE2
from rebased.paper.figure4 import FIGURE4
from rebased.paper.figure7 import FIGURE7
from rebased.paper.figure9 import FIGURE9
from rebased.paper.figure10 import FIGURE10
from rebased.paper.table1 import TABLE1
from rebased.paper.table2 import TABLE2
from rebased.paper.table3 import TABLE3

__all__ = ["EXPERIMENTS", "KNOWN", "find_experiments"]

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        FIGURE1,
        FIGURE2,
        TABLE1,
        FIGURE4,
        TABLE2,
        TABLE3,
        FIGURE7,
        FIGURE9,
        FIGURE10,
        TABLE4,
        TABLE9,
    )
}
"""In the order of the report."""
ALSO_NAMED = {"figure3": "table1", "figure5": "table3", "figure8": "table3"}
"""What another one shows."""
KNOWN = (*EXPERIMENTS, *ALSO_NAMED)


def find_experiments(names: list[str]) -> list[Experiment]:
    """Those named, or all of them for "all"; ValueError, listing what there is, for an unknown name."""
    chosen: list[Experiment] = list(EXPERIMENTS.values()) if "all" in names else []
    for name in (name for name in names if name != "all"):
        experiment = EXPERIMENTS.get(ALSO_NAMED.get(name, name))
        if experiment is None:
            raise ValueError(f"there is no {name!r}; there are {', '.join(KNOWN)}, and all")
        if experiment not in chosen:
            chosen.append(experiment)
    return chosen
