"""What the commands that train have in common: options, progress, a table at the end."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer

from rebased.analysis.summary import summarize
from rebased.cli.cells_table import print_cells
from rebased.cli.console import fail, fail_stopped, make_console
from rebased.cli.numbers import count
from rebased.cli.sweep_bars import SweepBars
from rebased.cli.sweep_lines import SweepLines
from rebased.locks import LockedError
from rebased.training.devices import DEVICES
from rebased.training.engines import ENGINES, Engine, make_engine
from rebased.training.events import Report
from rebased.training.recall import RecallConfig
from rebased.training.sweep import SweepOutcome, run_sweep

__all__ = ["Device", "EngineName", "Jobs", "RayAddress", "WandB", "choose_engine", "progress", "train"]

Device = Annotated[str, typer.Option(help=f"One of {', '.join(DEVICES)}; cuda is all there are.")]
Jobs = Annotated[int, typer.Option(help="Groups of runs that train at once, each in a process of its own.")]
EngineName = Annotated[
    str | None, typer.Option("--engine", help=f"Of {', '.join(ENGINES)}; by default processes for several jobs.")
]
RayAddress = Annotated[
    str | None, typer.Option(help="Of the Ray cluster, or auto; without it, one is started on this machine.")
]
WandB = Annotated[str | None, typer.Option("--wandb", metavar="PROJECT", help="Also log to Weights & Biases.")]


def choose_engine(name: str | None, device: str, jobs: int, ray_address: str | None) -> Engine:
    try:
        return make_engine(name, device=device, jobs=jobs, ray_address=ray_address)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    except (ImportError, ConnectionError) as error:
        fail(error)


def train(configs: Sequence[RecallConfig], out: Path, engine: Engine, wandb_project: str | None) -> None:
    """Train what is not finished, print the table, say where things are; status 1 if something failed."""
    try:
        with progress() as report:
            outcome = run_sweep(out, configs, engine, report=report, wandb_project=wandb_project)
    except KeyboardInterrupt:
        fail_stopped()
    except (ImportError, ValueError, OSError, LockedError, torch.OutOfMemoryError) as error:
        fail(error)
    _show(outcome, out)
    num_elsewhere = len(configs) - len(outcome.runs)
    if num_elsewhere and not outcome.failures:
        print(f"{count(num_elsewhere, 'run')} left to another process; once finished, the same command shows them too")
    if outcome.failures:
        groups = ", ".join(failure.group for failure in outcome.failures)
        fail(f"{count(len(outcome.failures), 'group')} failed: {groups}; the same command tries again")


def progress() -> contextlib.AbstractContextManager[Report]:
    """Bars on a terminal, lines elsewhere."""
    console = make_console(stderr=True)
    return SweepBars(console) if console.is_terminal else contextlib.nullcontext(SweepLines(console))


def _show(outcome: SweepOutcome, out: Path) -> None:
    if outcome.runs:
        print_cells(summarize(outcome.runs), make_console())
    print(f"runs are in {out / 'runs'}; to watch them: tensorboard --logdir {out / 'runs'}")
