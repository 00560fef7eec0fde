"""Carrying out an experiment: train what is not finished, measure, and keep what was found."""

import json
import logging
from collections.abc import Collection, Container, Mapping, Sequence
from pathlib import Path

from rebased.locks import LockedError
from rebased.paper.experiment import Experiment, Material
from rebased.paper.findings import Findings, findings_path, machines_of, read_findings, seconds_by_run
from rebased.paper.ledger import Entry, read_ledger, write_ledger
from rebased.runs import Run
from rebased.training.engines import Engine
from rebased.training.events import Event, Failed, Finished, Report
from rebased.training.folders import SweepFolder, name_of
from rebased.training.grid import expand_grid
from rebased.training.recall import RecallConfig
from rebased.training.sweep import run_sweep

__all__ = ["conduct", "num_finished", "sweep_folder"]

_LOGGER = logging.getLogger(__name__)


def sweep_folder(out: Path) -> SweepFolder:
    """One for all experiments and scales: many are made of the same runs."""
    return SweepFolder(out / "sweep")


def num_finished(experiment: Experiment, scale: str, out: Path, ledger: dict[str, Entry]) -> int:
    """How many of its runs need not be trained."""
    sweep, serving = sweep_folder(out), _serving(experiment, ledger)
    return sum(sweep.has_finished(config) or name_of(config) in serving for config in experiment.configs(scale))


def conduct(
    experiment: Experiment,
    scale: str,
    out: Path,
    engine: Engine | None,
    *,
    device: str,
    report: Report,
    chosen: Container[str] | None = None,
) -> tuple[Findings, tuple[Failed, ...]]:
    """The findings, also written if there are any, and what could not be trained.

    Killed at any moment and called again, it goes on, and the ledger has the runs of every group that ended. Of its
    runs those are trained whose names are ``chosen``, or all; without an engine, none. Whatever is finished is
    measured; without an engine, what was found in weights that are gone stands. ValueError, before findings are
    overwritten, where earlier ones rest on runs that are gone.
    """
    configs = experiment.configs(scale)
    sweep, ledger = sweep_folder(out), read_ledger(out)
    serving = _serving(experiment, ledger)
    before = read_findings(out, scale, experiment.name)
    path = findings_path(out, scale, experiment.name)
    failures: tuple[Failed, ...] = ()
    left = [
        config for config in configs if name_of(config) not in serving and (chosen is None or name_of(config) in chosen)
    ]
    if engine is not None and left:
        kept = _finished(sweep, configs, serving).keys() | set(map(name_of, left))
        if lost := _lost(experiment, before, kept):
            raise ValueError(_would_lose(path, lost))

        def enter_and_report(event: Event) -> None:
            report(event)
            if isinstance(event, Finished):
                try:
                    _into_ledger(out, sweep, configs, _finished(sweep, configs, serving), ledger)
                except (OSError, ValueError, LockedError) as error:  # others train; at the end it is tried again
                    _LOGGER.warning("the ledger was left as it is when %s ended: %s", event.group, error)

        failures = run_sweep(sweep.path, left, engine, report=enter_and_report).failures
    finished = _finished(sweep, configs, serving)
    entries = _into_ledger(out, sweep, configs, finished, ledger)
    runs = _of_whole_cells(configs, finished)
    lost = _lost(experiment, before, {run.folder.name for run in runs})
    if before is not None and (lost or _num_still_asked(before, configs) > len(finished)):
        if engine is None and experiment.needs == "weights":
            return before, ()
        # They may be all that is left of those runs.
        raise ValueError(
            _would_lose(path, lost)
            if lost
            else f"{path} has findings of {before.num_finished} runs, and only {len(finished)} are finished in "
            f"{sweep.path}; move it away to measure these"
        )
    material = Material(scale=scale, runs=runs, out=out, device=device)
    findings = Findings(
        experiment=experiment.name,
        scale=scale,
        grid=experiment.grids[scale],
        num_runs=len(configs),
        num_finished=len(finished),
        num_waiting=len(finished) - len(runs),
        machines=machines_of(list(finished.values())),
        seconds=round(sum((entry.seconds or 0.0 for entry in entries), start=0.0), 1),
        num_untimed=sum(entry.seconds is None for entry in entries),
        data=experiment.data_from(material),
    )
    if not findings.is_empty:
        findings.write(path)
    return findings, failures


def _into_ledger(
    out: Path,
    sweep: SweepFolder,
    configs: Sequence[RecallConfig],
    finished: Mapping[str, Run],
    ledger: Mapping[str, Entry],
) -> list[Entry]:
    """Write an entry for each finished run, and return them."""
    seconds = {name: entry.seconds for name, entry in ledger.items()} | seconds_by_run(sweep)
    named = {name_of(config): config for config in configs}
    entries = [Entry.of(named[name], run, seconds.get(name)) for name, run in finished.items()]
    if entries:
        write_ledger(out, entries)
    return entries


def _num_still_asked(before: Findings, configs: Sequence[RecallConfig]) -> int:
    """Of the runs that earlier findings had finished, how many at least are still asked for: grids change."""
    asked = set(map(name_of, expand_grid(dict(before.grid)))) if before.grid else set()
    return before.num_finished - len(asked - set(map(name_of, configs)))


def _lost(experiment: Experiment, before: Findings | None, kept: Collection[str]) -> list[str]:
    """Runs whose weights were looked at, and which would not be in the findings any more."""
    if before is None or experiment.needs != "weights":
        return []
    return sorted(before.data["runs"].keys() - kept)


def _would_lose(path: Path, lost: Sequence[str]) -> str:
    return (
        f"{path} has findings of {len(lost)} runs that would be lost, such as {lost[0]}: their weights are gone; train "
        "these runs as well, or move it away"
    )


def _serving(experiment: Experiment, ledger: dict[str, Entry]) -> dict[str, Entry]:
    """What the ledger has for this experiment."""
    if experiment.needs == "weights":
        return {}
    if experiment.needs == "watched":
        return {name: entry for name, entry in ledger.items() if entry.watched}
    return ledger


def _finished(sweep: SweepFolder, configs: Sequence[RecallConfig], ledger: Mapping[str, Entry]) -> dict[str, Run]:
    """By name: from their folders or, where these are gone, from the ledger."""
    runs = {}
    for config in configs:
        name = name_of(config)
        if sweep.has_finished(config):
            runs[name] = sweep.read(config)
        elif name in ledger:
            runs[name] = ledger[name].as_run(sweep)
    return runs


def _of_whole_cells(configs: Sequence[RecallConfig], finished: Mapping[str, Run]) -> tuple[Run, ...]:
    """Those whose cell, all learning rates and seeds of it, is finished.

    A run ends when it is good enough, or has diverged: of those that train together, the first to be finished are the
    best or the worst.
    """
    cells = {name_of(config): json.dumps(config.cell(), sort_keys=True) for config in configs}
    unfinished = {cells[name] for name in cells.keys() - finished.keys()}
    return tuple(run for name, run in finished.items() if cells[name] not in unfinished)
