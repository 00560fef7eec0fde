"""A sweep's plan: which runs train together, and in how many micro-batches.

Both change results in their last bits. So they are decided when a run first enters the sweep, written to ``plan.json``
and kept, whatever machine goes on with it.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self

from rebased.files import write_json
from rebased.locks import locked
from rebased.training.folders import SweepFolder, model_of, name_of
from rebased.training.recall import RecallConfig

__all__ = ["Fitting", "Group", "extend_plan", "read_plan"]

Fitting = Callable[[RecallConfig, int], tuple[int, int]]
"""How many runs like this one may train together, if so many are wanted, and in how many micro-batches."""


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
        return f"{model_of(cell)}-d{cell.d_model}-L{cell.seq_len}-{len(self.configs)}x-{digest[:8]}"

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
    # A run may have come finished from elsewhere, without a plan.
    unfinished = {name: config for name, config in wanted.items() if not folder.has_finished(config)}
    # Not under the lock: this may take minutes, for which others would have no patience.
    new = _by_cell(_unplanned(unfinished, read_plan(folder)))
    at_most = _share(sum(map(len, new.values())), num_workers)
    found = {cell: fitting(alike[0], min(len(alike), at_most)) for cell, alike in new.items()}
    with locked(folder.lock, f"the plan of {folder.path}"):
        groups = read_plan(folder)
        left = _unplanned(unfinished, groups)  # others may have planned some meanwhile
        if left:
            groups += _grouped(left, found, at_most=_share(len(left), num_workers))
            write_json(folder.plan, {"groups": [group.to_dict() for group in groups]})
    return [group for group in groups if not wanted.keys().isdisjoint(group.run_names)]


def _share(num_runs: int, num_workers: int) -> int:
    """A worker's, rounded up."""
    return -(-num_runs // num_workers)


def _unplanned(configs: dict[str, RecallConfig], groups: Iterable[Group]) -> list[RecallConfig]:
    planned = {name for group in groups for name in group.run_names}
    return [config for name, config in configs.items() if name not in planned]


def _by_cell(configs: Iterable[RecallConfig]) -> dict[str, list[RecallConfig]]:
    cells: dict[str, list[RecallConfig]] = {}
    for config in configs:
        cells.setdefault(json.dumps(config.cell(), sort_keys=True), []).append(config)
    return cells


def _grouped(configs: Iterable[RecallConfig], found: dict[str, tuple[int, int]], *, at_most: int) -> list[Group]:
    """``found``: for each cell, what `Fitting` returned."""
    groups = []
    for cell, alike in _by_cell(configs).items():
        fits, micro_batches = found[cell]
        groups += [Group(tuple(part), micro_batches) for part in _split(alike, min(fits, at_most))]
    return groups


def _split(configs: list[RecallConfig], at_most: int) -> list[list[RecallConfig]]:
    """As few parts as can be, as even as can be."""
    num_parts = -(-len(configs) // at_most)
    return [configs[part::num_parts] for part in range(num_parts)]
