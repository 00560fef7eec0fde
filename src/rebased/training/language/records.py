"""Where the steps of a run are written: its file, and boards."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

from rebased.runs import run_name
from rebased.training.boards import Board, TensorBoard, WandB
from rebased.training.language.job import Job
from rebased.training.language.metrics import MetricsFile, StepRecord

__all__ = ["Records", "open_records"]


class Records:
    """A process's part in what is written of a run: all of it in the main one, nothing in others."""

    def __init__(self, metrics: MetricsFile | None = None, boards: Sequence[Board] = ()) -> None:
        self._metrics = metrics
        self._boards = boards

    def write(self, record: StepRecord) -> None:
        if self._metrics is not None:
            self._metrics.add(record)
        step, values = record.step, {name: value for name, value in record.to_dict().items() if name != "step"}
        for board in self._boards:
            board.write(step, values)

    def sync(self) -> None:
        """What was written is then on the disk, whatever happens to the machine."""
        if self._metrics is not None:
            self._metrics.sync()


@contextmanager
def open_records(job: Job, last_step: int) -> Iterator[Records]:
    """After so many steps. Only the main process's are written. What is open is closed, also if the rest cannot be."""
    if not job.processes.is_main:
        yield Records()
        return
    with ExitStack() as stack:
        metrics = stack.enter_context(closing(MetricsFile(job.out, last_step)))
        boards = [stack.enter_context(closing(board)) for board in _open_boards(job, last_step + 1)]
        yield Records(metrics, boards)


def _open_boards(job: Job, first_step: int) -> Iterator[Board]:
    if job.options.board:
        yield TensorBoard(job.out, first_step)
    if job.options.wandb_project is not None:
        # Folders of different runs may have the same name.
        name = run_name(job.described, job.out.resolve().name)
        yield WandB(job.options.wandb_project, name, job.described, job.out)
