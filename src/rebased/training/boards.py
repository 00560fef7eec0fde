"""Numbers where people watch them: TensorBoard's event files, and Weights & Biases."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rebased.training.packages import require_packages

if TYPE_CHECKING:
    from rebased.training.replicas import Record

__all__ = ["Board", "Boards", "TensorBoard", "WandB", "check_packages"]


def check_packages(*, wandb: bool) -> None:
    """ImportError, naming it, if what training writes with is not installed."""
    require_packages("training", "safetensors", "tensorboard", *(["wandb"] if wandb else []))


class Board(Protocol):
    """Where one run's numbers are shown, by step: an epoch, or a step of the optimizer."""

    def write(self, step: int, values: dict[str, float]) -> None: ...

    def close(self, finished: str | None = None) -> None:
        """``finished``: why the run has ended, if it has."""


class Boards:
    """Those of a group's runs, opened with a run's first record and closed with its last."""

    def __init__(self, open_for: Callable[[int, int], Iterable[Board]]) -> None:
        """``open_for(index, epoch)``: opens, one after another, a run's boards for its records from that epoch on."""
        self._open_for = open_for
        self._open: dict[int, list[Board]] = {}

    def write(self, index: int, record: "Record") -> None:
        if index not in self._open:
            self._open[index] = []
            for board in self._open_for(index, record.epoch):
                self._open[index].append(board)  # at once: if the next cannot be opened, this one is to be closed
        values = {"accuracy": record.accuracy, "loss": record.loss, "learning_rate": record.learning_rate}
        for board in self._open[index]:
            board.write(record.epoch, values)
        if record.finished is not None:
            self._close(index, record.finished)

    def close(self) -> None:
        with ExitStack() as stack:
            for index in list(self._open):
                stack.callback(self._close, index)

    def _close(self, index: int, finished: str | None = None) -> None:
        with ExitStack() as stack:  # all are closed, also if one of them fails to
            for board in self._open.pop(index):
                stack.callback(board.close, finished)


class TensorBoard:
    """Event files in the run's directory."""

    def __init__(self, folder: Path, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Steps that a killed process has shown and not saved will come again: TensorBoard forgets them.
        self._writer = SummaryWriter(folder / "tb", purge_step=first_step)

    def write(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, finished: str | None = None) -> None:
        self._writer.close()


class WandB:
    """A run of Weights & Biases, which goes on where it was. It drops steps that it has."""

    def __init__(self, project: str, name: str, config: dict[str, Any], folder: Path) -> None:
        """``name``: of this run alone, in all of the project."""
        import wandb

        # Many runs are open at once in one process.
        self._run = wandb.init(
            project=project, id=name, name=name, config=config, dir=folder, resume="allow", reinit="create_new"
        )

    def write(self, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step=step)

    def close(self, finished: str | None = None) -> None:
        if finished is not None:
            self._run.summary["finished"] = finished
        self._run.finish()
