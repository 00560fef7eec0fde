"""Carrying out an experiment: train what is not finished, measure, and keep what was found."""

from pathlib import Path

from rebased.paper.experiment import Experiment, Material
from rebased.paper.findings import Findings, findings_path, machines_of, seconds_of
from rebased.runs import read_run
from rebased.training.engines import Engine
from rebased.training.events import Failed, Report
from rebased.training.folders import SweepFolder
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
        finished = filter(sweep.has_finished, configs)
        outcome = SweepOutcome(tuple(read_run(sweep.run(config)) for config in finished), ())
    material = Material(scale=scale, runs=outcome.runs, out=out, device=device)
    findings = Findings(
        experiment=experiment.name,
        scale=scale,
        grid=experiment.grids[scale],
        num_runs=len(configs),
        num_finished=len(outcome.runs),
        machines=machines_of(outcome.runs),
        seconds=seconds_of(sweep, configs),
        data=experiment.measure(material),
    )
    findings.write(findings_path(out, scale, experiment.name))
    return findings, outcome.failures
