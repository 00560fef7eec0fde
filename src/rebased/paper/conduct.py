"""Carrying out an experiment: train what is not finished, measure, and keep what was found."""

import json
from collections.abc import Sequence
from pathlib import Path

from rebased.paper.experiment import Experiment, Material
from rebased.paper.findings import Findings, findings_path, machines_of, read_findings, seconds_of
from rebased.runs import Run
from rebased.training.engines import Engine
from rebased.training.events import Failed, Report
from rebased.training.folders import SweepFolder, name_of
from rebased.training.recall import RecallConfig
from rebased.training.sweep import SweepOutcome, run_sweep

__all__ = ["conduct", "sweep_folder"]


def sweep_folder(out: Path) -> SweepFolder:
    """One for all experiments and scales: many are made of the same runs."""
    return SweepFolder(out / "sweep")


def conduct(
    experiment: Experiment, scale: str, out: Path, engine: Engine | None, *, device: str, report: Report
) -> tuple[Findings, tuple[Failed, ...]]:
    """The findings, also written, and what could not be trained. Killed at any moment and called again, it goes on.

    Without an engine nothing is trained: what is finished is measured.
    """
    configs = experiment.configs(scale)
    sweep = sweep_folder(out)
    if engine is not None and configs:
        outcome = run_sweep(sweep.path, configs, engine, report=report)
    else:
        outcome = SweepOutcome(tuple(map(sweep.read, filter(sweep.has_finished, configs))), ())
    _keep_more(experiment, scale, out, len(outcome.runs))
    runs = _of_whole_cells(configs, outcome.runs)
    material = Material(scale=scale, runs=runs, out=out, device=device)
    findings = Findings(
        experiment=experiment.name,
        scale=scale,
        grid=experiment.grids[scale],
        num_runs=len(configs),
        num_finished=len(outcome.runs),
        num_waiting=len(outcome.runs) - len(runs),
        machines=machines_of(outcome.runs),
        seconds=seconds_of(sweep, configs),
        data=experiment.measure(material),
    )
    findings.write(findings_path(out, scale, experiment.name))
    return findings, outcome.failures


def _of_whole_cells(configs: Sequence[RecallConfig], runs: Sequence[Run]) -> tuple[Run, ...]:
    """Those whose cell, all learning rates and seeds of it, is finished.

    A run ends when it is good enough, or has diverged: of those that train together, the first to be finished are the
    best or the worst.
    """
    cells = {name_of(config): json.dumps(config.cell(), sort_keys=True) for config in configs}
    unfinished = {cells[name] for name in cells.keys() - {run.folder.name for run in runs}}
    return tuple(run for run in runs if cells[run.folder.name] not in unfinished)


def _keep_more(experiment: Experiment, scale: str, out: Path, num_runs: int) -> None:
    """ValueError where there are findings of more runs than are here: they may be all that is left of those runs."""
    before = read_findings(out, scale, experiment.name)
    if before is not None and before.num_finished > num_runs:
        raise ValueError(
            f"{findings_path(out, scale, experiment.name)} has findings of {before.num_finished} runs, and only "
            f"{num_runs} are finished in {sweep_folder(out).path}; move it away to measure these"
        )
