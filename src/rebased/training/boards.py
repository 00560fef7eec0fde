"""Records where people watch them: TensorBoard's event files, and Weights & Biases."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from rebased.training.replicas import Record

__all__ = ["Board", "Boards", "TensorBoard", "WandB", "check_packages"]


def check_packages(*, wandb: bool) -> None:
    """ImportError, naming it, if what training writes with is not installed."""
    for package in ("safetensors", "tensorboard", *(["wandb"] if wandb else [])):
        if find_spec(package) is None:
            raise ImportError(f"training needs {package}: pip install {package}")


class Board(Protocol):
    """Where one run's records are shown."""

    def write(self, record: Record) -> None: ...

    def close(self) -> None: ...


class Boards:
    """Those of a group's runs, opened with a run's first record and closed with its last."""

    def __init__(self, open_for: Callable[[int, int], list[Board]]) -> None:
        """``open_for(index, epoch)``: the boards of a run, whose records from that epoch on will come."""
        self._open_for = open_for
        self._open: dict[int, list[Board]] = {}

    def write(self, index: int, record: Record) -> None:
        if index not in self._open:
            self._open[index] = self._open_for(index, record.epoch)
        for board in self._open[index]:
            board.write(record)
        if record.finished is not None:
            self._close(index)

    def close(self) -> None:
        for index in list(self._open):
            self._close(index)

    def _close(self, index: int) -> None:
        for board in self._open.pop(index):
            board.close()


class TensorBoard:
    """Event files in the run's directory."""

    def __init__(self, folder: Path, first_epoch: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Epochs that a killed process has shown and not saved will come again: TensorBoard forgets them.
        self._writer = SummaryWriter(folder / "tb", purge_step=first_epoch)

    def write(self, record: Record) -> None:
        for name, value in _values(record).items():
            self._writer.add_scalar(name, value, record.epoch)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandB:
    """A run of Weights & Biases, which goes on where it was. It drops epochs that it has."""

    def __init__(self, project: str, name: str, config: dict[str, Any], folder: Path) -> None:
        import wandb

        # Many runs are open at once in one process.
        self._run = wandb.init(
            project=project, id=name, name=name, config=config, dir=folder, resume="allow", reinit="create_new"
        )

    def write(self, record: Record) -> None:
        self._run.log(_values(record), step=record.epoch)
        if record.finished is not None:
            self._run.summary["finished"] = record.finished

    def close(self) -> None:
        self._run.finish()


def _values(record: Record) -> dict[str, float]:
    return {"accuracy": record.accuracy, "loss": record.loss, "learning_rate": record.learning_rate}
