"""`rebased sweep`.

Example: ``rebased sweep examples/table1-small.toml --out runs/table1-small --jobs 2``
"""

from pathlib import Path
from typing import Annotated

import typer

from rebased.cli.train import Device, EngineName, Jobs, RayAddress, WandB, choose_engine, train
from rebased.training.grid import read_grid

__all__ = ["sweep"]


def sweep(
    grid: Annotated[Path, typer.Argument(help="A TOML file that says which runs there are; see examples/.")],
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for the plan, the runs and their logs.")],
    jobs: Jobs = 1,
    engine: EngineName = None,
    device: Device = "auto",
    ray_address: RayAddress = None,
    wandb: WandB = None,
) -> None:
    """Train a grid of runs, many at once. Stopped or killed, the same command goes on where it was."""
    try:
        configs = read_grid(grid)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    train(configs, out, choose_engine(engine, device, jobs, ray_address), wandb)
