"""Sweeps: any number of runs, of which those are trained that are not finished."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rebased.runs import Run
from rebased.training.boards import check_packages
from rebased.training.building import check_models
from rebased.training.engines import Engine
from rebased.training.events import Event, Failed, Planned, Report
from rebased.training.execute import GroupTask
from rebased.training.folders import SweepFolder
from rebased.training.plan import Group, extend_plan
from rebased.training.recall import RecallConfig

__all__ = ["SweepOutcome", "run_sweep"]


@dataclass(frozen=True)
class SweepOutcome:
    """What there is after a sweep."""

    runs: tuple[Run, ...]
    """Those asked for that are finished, trained now or before, in the order they were asked for."""
    failures: tuple[Failed, ...]
    """Groups that were given up."""


def run_sweep(
    path: Path | str,
    configs: Sequence[RecallConfig],
    engine: Engine,
    *,
    report: Report,
    wandb_project: str | None = None,
) -> SweepOutcome:
    """Train what is not finished. Killed at any moment and called again, it goes on; several may share a folder.

    A group of the folder's plan that has one of these runs is trained whole; the others are left alone. ValueError,
    before anything is trained or written, for a folder with files of somebody else or a model that cannot be built.
    """
    check_packages(wandb=wandb_project is not None)
    sweep = SweepFolder(Path(path))
    sweep.check()
    check_models(config for config in configs if not sweep.has_finished(config))
    sweep.path.mkdir(parents=True, exist_ok=True)  # where that cannot be, it is found before models are tried
    groups = extend_plan(sweep, configs, engine.fitting, num_workers=engine.num_workers)
    # Paths are for other processes too, which may be elsewhere.
    tasks = [GroupTask(sweep.path.absolute(), group, wandb_project) for group in groups if _is_left(sweep, group)]
    report(Planned(len(tasks), len(configs), sum(map(sweep.has_finished, configs))))
    failures = []

    def collect(event: Event) -> None:
        if isinstance(event, Failed) and not event.retried:
            failures.append(event)
        report(event)

    if tasks:
        engine.run(tasks, collect)
    return SweepOutcome(tuple(sweep.read(config) for config in configs if sweep.has_finished(config)), tuple(failures))


def _is_left(sweep: SweepFolder, group: Group) -> bool:
    """A group killed between its last result and its end leaves a checkpoint, to be cleared away."""
    return sweep.group(group.name).checkpoint.exists() or not all(map(sweep.has_finished, group.configs))
