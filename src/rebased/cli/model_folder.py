"""Folders of models that commands are given."""

from pathlib import Path

import typer

from rebased.runs import TRAINING
from rebased.training.language.checkpoints import CHECKPOINTS, last_checkpoint
from rebased.training.language.folder import RUN

__all__ = ["check_model_folder"]


def check_model_folder(folder: Path) -> None:
    """Say so if there is none, or a run that is still without a model."""
    if not folder.is_dir():
        raise typer.BadParameter(f"there is no folder {folder}")
    if (folder / RUN).exists() and not (folder / TRAINING).exists():
        last = last_checkpoint(folder / CHECKPOINTS)
        instead = "it has no checkpoint yet" if last is None else f"its last checkpoint is a model too: {last}"
        raise typer.BadParameter(f"the run in {folder} is not finished; {instead}")
