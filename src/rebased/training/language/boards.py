"""Steps where people watch them: TensorBoard's event files, and Weights & Biases."""

from pathlib import Path
from typing import Any, Protocol

from rebased.training.language.config import RunOptions
from rebased.training.language.metrics import StepRecord

__all__ = ["Board", "open_boards"]


class Board(Protocol):
    def write(self, record: StepRecord) -> None: ...

    def close(self) -> None: ...


def open_boards(options: RunOptions, folder: Path, first_step: int, described: dict[str, Any]) -> list[Board]:
    boards: list[Board] = []
    if options.board:
        boards.append(_TensorBoard(folder, first_step))
    if options.wandb_project is not None:
        boards.append(_WandB(options.wandb_project, folder, described))
    return boards


class _TensorBoard:
    def __init__(self, folder: Path, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Steps that a killed process has shown and not saved will come again: TensorBoard forgets them.
        self._writer = SummaryWriter(folder / "tb", purge_step=first_step)

    def write(self, record: StepRecord) -> None:
        for name, value in _values(record).items():
            self._writer.add_scalar(name, value, record.step)

    def close(self) -> None:
        self._writer.close()


class _WandB:
    """A run of Weights & Biases, which goes on where it was. It drops steps that it has."""

    def __init__(self, project: str, folder: Path, described: dict[str, Any]) -> None:
        import wandb

        name = folder.resolve().name
        self._run = wandb.init(project=project, id=name, name=name, config=described, dir=folder, resume="allow")

    def write(self, record: StepRecord) -> None:
        self._run.log(_values(record), step=record.step)

    def close(self) -> None:
        self._run.finish()


def _values(record: StepRecord) -> dict[str, float]:
    return {name: value for name, value in record.to_dict().items() if name != "step"}
