"""`rebased quickstart`: what this package is about, in some minutes on any machine.

Example: ``rebased quickstart --out out``
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer

from rebased.analysis import recall_figure
from rebased.analysis.recall_rows import RecallRow, accuracy_table
from rebased.analysis.recall_words import compare, describe_learning, describe_setting
from rebased.analysis.report import render_report
from rebased.analysis.summary import summarize
from rebased.cli.console import fail, fail_stopped, make_console, make_folder, print_text
from rebased.cli.quickstart_runs import MODELS, quickstart_note, quickstart_runs
from rebased.cli.section import print_table
from rebased.cli.train import Device, choose_engine, progress
from rebased.environment import usable_cpus
from rebased.files import write_text
from rebased.locks import LockedError
from rebased.paper import figure2, figures
from rebased.runs import Run
from rebased.training.devices import choose_device
from rebased.training.folders import SweepFolder, name_of
from rebased.training.log import read_log
from rebased.training.plan import read_plan
from rebased.training.recall import RecallConfig
from rebased.training.sweep import run_sweep

__all__ = ["quickstart"]


def quickstart(
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for the report, the figures and the runs.")] = Path(
        "out"
    ),
    device: Device = "auto",
) -> None:
    """Train Attention, Based, ReBased and x² on recall, show who learns it, and write a report.

    Stopped or killed, the same command goes on where it was; when all is trained, it shows the result again.
    """
    try:
        device = choose_device(device)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        similarities = figure2.draw(figure2.similarity_curves())
    except ImportError as error:
        fail(error)
    make_folder(out)
    configs, begun = quickstart_runs(device), time.monotonic()
    rows = _rows(_train(configs, out, device))
    findings = [describe_learning(list(rows.values())), *compare(rows["rebased"], rows["x2"])]
    console = make_console()
    print_table(accuracy_table(list(rows.values())), console)
    for sentence in findings:
        print_text(sentence, console)

    accuracies, page = out / "recall.png", out / "report.html"
    recall_figure.save(recall_figure.draw(list(rows.values())), accuracies)
    similarities_png, similarities_svg = figures.save(similarities, out, "figure2")
    text = render_report(
        list(rows.values()),
        findings=findings,
        setting=describe_setting(list(rows.values())) | {"models": quickstart_note(device)},
        environment=_environment(out, configs),
        figure=accuracies.read_bytes(),
        similarities=similarities_png.read_bytes(),
    )
    write_text(page, text)
    for path in (accuracies, similarities_png, similarities_svg):
        print(f"wrote {path}")
    print(f"runs are in {out / 'runs'}; to watch them: tensorboard --logdir {out / 'runs'}")
    print(f"the report, after {time.monotonic() - begun:.0f} s: {page}")


def _train(configs: Sequence[RecallConfig], out: Path, device: str) -> tuple[Run, ...]:
    """All runs, of which those are trained that are not finished; ends the command if some cannot be."""
    try:
        with progress() as report:
            outcome = run_sweep(out, configs, choose_engine(None, device, _jobs(device), None), report=report)
    except KeyboardInterrupt:
        fail_stopped()
    except (ImportError, ValueError, OSError, LockedError, torch.OutOfMemoryError) as error:
        fail(error)
    if outcome.failures:
        groups = ", ".join(failure.group for failure in outcome.failures)
        fail(f"failed: {groups}; the same command tries again")
    if len(outcome.runs) < len(configs):
        fail(f"another process is training in {out}; once it has finished, the same command shows the results")
    return outcome.runs


def _jobs(device: str) -> int:
    """Small models gain more from processes than from threads: one for each model, if there are so many cores."""
    return 1 if device.startswith("cuda") else min(len(MODELS), usable_cpus())


def _rows(runs: Sequence[Run]) -> dict[str, RecallRow]:
    """By stack, in the order of `MODELS`."""
    summaries = {summary.cell["stack"]: summary for summary in summarize(runs)}
    return {stack: RecallRow.of(name, summaries[stack]) for stack, name in MODELS.items()}


def _environment(out: Path, configs: Sequence[RecallConfig]) -> dict[str, str]:
    """Where the runs were trained, which need not be here and now: from the log of the last group that began."""
    sweep, names = SweepFolder(out), set(map(name_of, configs))
    groups = [group for group in read_plan(sweep) if not names.isdisjoint(group.run_names)]
    logs = [entry for group in groups for entry in read_log(sweep.group(group.name).log)]
    starts = [entry for entry in logs if entry["event"] == "start"]
    environment = max(starts, key=lambda entry: entry["date"])["environment"] if starts else {}
    return {name.replace("_", " "): str(value) for name, value in environment.items() if value is not None}
