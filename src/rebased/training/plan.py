"""A sweep's plan: which runs train together, and in how many micro-batches.

Both change results in their last bits. So they are decided when a run first enters the sweep, written to ``plan.json``
and kept, whatever machine goes on with it.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from rebased.runs import write_text
from rebased.training.folders import SweepFolder, name_of
from rebased.training.locks import locked
from rebased.training.recall import RecallConfig

__all__ = ["Fitting", "Group", "extend_plan", "read_plan"]

Fitting = Callable[[RecallConfig], tuple[int, int]]
"""How many runs like this one may train together, and in how many micro-batches."""


@dataclass(frozen=True)
class Group:
    """Runs of one cell that train together."""

    configs: tuple[RecallConfig, ...]
    micro_batches: int

    @property
    def run_names(self) -> tuple[str, ...]:
        return tuple(map(name_of, self.configs))

    @property
    def name(self) -> str:
        """Readable first; a hash of the runs and how they are cut decides."""
        parts = [*self.run_names, str(self.micro_batches)]
        cell, digest = self.configs[0], hashlib.sha256("\n".join(parts).encode()).hexdigest()
        return f"{cell.stack}-d{cell.d_model}-L{cell.seq_len}-{len(self.configs)}x-{digest[:8]}"

    def to_dict(self) -> dict[str, Any]:
        runs = [{"learning_rate": config.learning_rate, "seed": config.seed} for config in self.configs]
        return {
            "name": self.name,
            "micro_batches": self.micro_batches,
            "cell": self.configs[0].cell(),
            "runs": runs,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """What `to_dict` gave; its name is for people."""
        configs = tuple(RecallConfig.from_dict(values["cell"] | run) for run in values["runs"])
        return cls(configs, values["micro_batches"])


def read_plan(folder: SweepFolder) -> list[Group]:
    """Empty if there is none yet; ValueError, naming the file, for what is no plan."""
    if not folder.plan.exists():
        return []
    try:
        return [Group.from_dict(values) for values in json.loads(folder.plan.read_text())["groups"]]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{folder.plan} is not a plan that this version made: {error!r}") from error


def extend_plan(
    folder: SweepFolder, configs: Iterable[RecallConfig], fitting: Fitting, *, num_workers: int = 1
) -> list[Group]:
    """The groups these runs are in; runs without one are given one. What is planned already stays as it is.

    New groups are no larger than a worker's share of the new runs, so that few are idle.
    """
    wanted = {name_of(config): config for config in configs}
    with locked(folder.lock, f"the plan of {folder.path}"):
        groups = read_plan(folder)
        planned = {name for group in groups for name in group.run_names}
        # A run may have come finished from elsewhere, without a plan.
        new = [c for name, c in wanted.items() if name not in planned and not folder.has_finished(c)]
        if new:
            groups += _grouped(new, fitting, at_most=-(-len(new) // num_workers))
            plan = {"groups": [group.to_dict() for group in groups]}
            write_text(folder.plan, json.dumps(plan, indent=2, allow_nan=False) + "\n")
    return [group for group in groups if not wanted.keys().isdisjoint(group.run_names)]


def _grouped(configs: Sequence[RecallConfig], fitting: Fitting, *, at_most: int) -> list[Group]:
    cells: dict[str, list[RecallConfig]] = {}
    for config in configs:
        cells.setdefault(json.dumps(config.cell(), sort_keys=True), []).append(config)
    groups = []
    for alike in cells.values():
        fits, micro_batches = fitting(alike[0])
        groups += [Group(tuple(part), micro_batches) for part in _split(alike, min(fits, at_most))]
    return groups


def _split(configs: list[RecallConfig], at_most: int) -> list[list[RecallConfig]]:
    """As few parts as can be, as even as can be."""
    num_parts = -(-len(configs) // at_most)
    return [configs[part::num_parts] for part in range(num_parts)]
