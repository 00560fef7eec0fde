"""Where the steps of a run are written: its file, and boards."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rebased.training.language.boards import Board, open_boards
from rebased.training.language.job import Job
from rebased.training.language.metrics import MetricsFile, StepRecord

__all__ = ["Records", "open_records"]


class Records:
    def __init__(self, metrics: MetricsFile | None = None, boards: Sequence[Board] = ()) -> None:
        self._metrics = metrics
        self._boards = boards

    def write(self, record: StepRecord) -> None:
        if self._metrics is not None:
            self._metrics.add(record)
        for board in self._boards:
            board.write(record)

    def sync(self) -> None:
        """What was written is then on the disk, whatever happens to the machine."""
        if self._metrics is not None:
            self._metrics.sync()

    def close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()
        for board in self._boards:
            board.close()


@contextmanager
def open_records(job: Job, last_step: int) -> Iterator[Records]:
    """After so many steps. Only the main process's are written."""
    records = Records()
    if job.processes.is_main:
        metrics = MetricsFile(job.out, last_step)
        records = Records(metrics, open_boards(job.options, job.out, last_step + 1, job.described))
    try:
        yield records
    finally:
        records.close()
