"""`rebased paper`: the paper's tables and figures, by command.

Examples: ``rebased paper list``, ``rebased paper run table1 --scale small``, ``rebased paper report``
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from rebased.analysis.pages import Section
from rebased.cli.console import fail, fail_stopped, make_console, make_folder, print_text
from rebased.cli.fitting import new_table, print_fitting
from rebased.cli.numbers import count
from rebased.cli.section import print_section
from rebased.cli.train import Device, EngineName, Jobs, RayAddress, choose_engine, progress
from rebased.files import write_text
from rebased.paper import figures
from rebased.paper.conduct import conduct, num_finished
from rebased.paper.experiment import SCALES, Experiment
from rebased.paper.findings import Findings, read_findings
from rebased.paper.ledger import Entry, read_ledger
from rebased.paper.registry import EXPERIMENTS, KNOWN, find_experiments
from rebased.paper.report import render_paper_report
from rebased.paper.selection import select
from rebased.training.devices import choose_device
from rebased.training.folders import name_of
from rebased.training.recall import RecallConfig

__all__ = ["paper_app"]

paper_app = typer.Typer(help="The paper's tables and figures, beside the published numbers.", no_args_is_help=True)

Out = Annotated[Path, typer.Option(file_okay=False, help="Folder for runs, findings, pictures and the report.")]
Scale = Annotated[str, typer.Option(help="; ".join(f"{name}: {what}" for name, what in SCALES.items()) + ".")]
_OUT = Path("runs/paper")


@paper_app.command("list")
def list_experiments(out: Out = _OUT) -> None:
    """Every table and figure, and what there is of it: runs that need not be trained, of those that each scale has.

    Findings may be of more runs than these: they stay where weights that were looked at are gone.
    """
    try:
        ledger = read_ledger(out)
        found = {name: _found(experiment, out) for name, experiment in EXPERIMENTS.items()}
    except ValueError as error:
        fail(error)
    table = new_table()
    for name in ("name", "title", *SCALES, "findings"):
        table.add_column(name)
    for experiment in EXPERIMENTS.values():
        table.add_row(
            experiment.name,
            experiment.title,
            *(_progress(experiment, scale, out, ledger) for scale in SCALES),
            found[experiment.name] or "none yet",
        )
    print_fitting(table, make_console())


def _found(experiment: Experiment, out: Path) -> str:
    """``smoke (12 runs), small (84 runs)``."""
    by_scale = {scale: read_findings(out, scale, experiment.name) for scale in SCALES}
    return ", ".join(
        f"{scale} ({count(findings.num_finished, 'run')})" if findings.num_runs else scale
        for scale, findings in by_scale.items()
        if findings is not None
    )


def _progress(experiment: Experiment, scale: str, out: Path, ledger: dict[str, Entry]) -> str:
    configs = experiment.configs(scale)
    return f"{num_finished(experiment, scale, out, ledger)}/{len(configs)}" if configs else "no runs"


@paper_app.command()
def run(
    names: Annotated[list[str], typer.Argument(help=f"Of {', '.join(KNOWN)}; or all.")],
    scale: Scale = "smoke",
    out: Out = _OUT,
    jobs: Jobs = 1,
    engine: EngineName = None,
    device: Device = "auto",
    ray_address: RayAddress = None,
    train: Annotated[bool, typer.Option(help="Without, only what is finished is measured.")] = True,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=VALUE[,VALUE]", help="Train these runs alone: stack=mamba,rwkv; several times."),
    ] = None,
) -> None:
    """Train what is not finished, and show what was found. Stopped or killed, the same command goes on."""
    try:
        experiments = find_experiments(names)
        if only and not train:
            raise ValueError("--only chooses what is trained, and with --no-train nothing is: leave one of them out")
        chosen = {name_of(config) for config in _selected(experiments, scale, only or [])}
        # Ray trains on the cluster's devices, which this machine may lack; it measures on what it has.
        is_elsewhere = train and engine == "ray" and device == "cuda"
        place = choose_device("auto" if is_elsewhere else device)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if not train and not out.is_dir():
        raise typer.BadParameter(f"there is no folder {out}, and without training none is made")
    make_folder(out)
    trainer = choose_engine(engine, device, jobs, ray_address) if train else None
    console, failed, untrained, shown = make_console(), list[str](), list[str](), False
    for experiment in experiments:
        try:
            with progress() as report:
                findings, failures = conduct(
                    experiment, scale, out, trainer, device=place, report=report, chosen=chosen
                )
            if not findings.is_empty:
                section = experiment.section(findings.data)
                _save_pictures(section, out / scale)
                print_section(section if findings.speaks_of_the_paper else replace(section, claims=()), console)
                shown = True
        except KeyboardInterrupt:
            fail_stopped()
        except (ImportError, ValueError, RuntimeError, OSError) as error:
            failed.append(f"{experiment.name}: {error}")
            continue
        print_text(_told(findings), console)
        untrained += [f"{experiment.name}: {failure.group} failed" for failure in failures]
    if untrained:
        failed += [*untrained, "the same command tries again"]
    if failed:
        fail("\n".join(failed))
    if not shown:
        print(
            f"nothing is finished at scale {scale} in {out}" + ("" if train else "; without --no-train it is trained")
        )
        return
    print(
        f"findings and pictures are in {out / scale}; one page of all that there is: rebased paper report --out {out}"
    )


def _selected(experiments: Sequence[Experiment], scale: str, only: Sequence[str]) -> list[RecallConfig]:
    """ValueError where no run is so, which may be for want of the right scale."""
    configs = [config for experiment in experiments for config in experiment.configs(scale)]
    try:
        return select(configs, only)
    except ValueError as error:
        raise ValueError(f"{error} (at scale {scale}; --scale may be {', '.join(SCALES)})") from None


def _save_pictures(section: Section, folder: Path) -> None:
    for picture in section.pictures:
        figures.save(picture.figure, folder, picture.name)


def _told(findings: Findings) -> str:
    if not findings.num_runs:
        return f"{findings.experiment}: no runs of its own, the same at every scale\n"
    runs = f"{findings.num_finished} of {count(findings.num_runs, 'run')}"
    if findings.num_waiting:
        runs += f" ({findings.num_waiting} not in these numbers: others of their cell are not finished)"
    made = f"scale {findings.scale} ({SCALES[findings.scale]}); {runs}, {findings.time_spent}"
    return f"{findings.experiment}: {made}\n"


@paper_app.command()
def report(
    out: Out = _OUT,
    scale: Annotated[
        str | None, typer.Option(help="Of the findings; if not given, of each the largest that there is.")
    ] = None,
) -> None:
    """Write one HTML page with everything found so far."""
    if scale is not None and scale not in SCALES:
        raise typer.BadParameter(f"scale={scale!r} is unknown; there are {', '.join(SCALES)}")
    if not out.is_dir():
        raise typer.BadParameter(f"there is no folder {out}; `rebased paper run` makes it, or --out names another")
    page = out / "report.html"
    try:
        entries = [(experiment, _largest(experiment, out, scale)) for experiment in EXPERIMENTS.values()]
        if not any(findings for _, findings in entries):
            what = "findings" if scale is None else f"findings of scale {scale}"
            raise ValueError(f"there are no {what} in {out}; `rebased paper run` makes them")
        seconds = {name: entry.seconds for name, entry in read_ledger(out).items()}
        html = render_paper_report(entries, scale=scale or "small", out=None if out == _OUT else out, seconds=seconds)
        write_text(page, html)
    except (ImportError, ValueError, OSError) as error:
        fail(error)
    found = sum(findings is not None for _, findings in entries)
    print(f"wrote {page}: {found} of {len(entries)} tables and figures")


def _largest(experiment: Experiment, out: Path, scale: str | None) -> Findings | None:
    for name in [scale] if scale else reversed(SCALES):
        findings = read_findings(out, name, experiment.name)
        if findings is not None and not findings.is_empty:
            return findings
    return None
