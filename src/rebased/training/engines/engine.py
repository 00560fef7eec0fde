"""What engines have in common."""

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from rebased.files import write_text
from rebased.locks import LockedError
from rebased.training.events import Elsewhere, Failed, Report
from rebased.training.execute import GroupTask, train_group
from rebased.training.folders import SweepFolder
from rebased.training.recall import RecallConfig

__all__ = ["TRIES", "Engine", "attempt"]

TRIES = 2
"""How often a group is tried if its worker dies. It goes on from its checkpoint each time."""


class Engine(Protocol):
    """Trains groups, somewhere."""

    @property
    def num_workers(self) -> int:
        """How many groups train at once, at most."""

    def fitting(self, config: RecallConfig, num_wanted: int) -> tuple[int, int]:
        """`rebased.training.plan.Fitting`, where the runs will train."""

    def run(self, tasks: Sequence[GroupTask], report: Report) -> None:
        """Train all. One that fails is reported, and does not keep the others from training."""


def attempt(task: GroupTask, device: str, report: Report) -> None:
    """Train a group, unless another process does; what goes wrong is reported, not raised."""
    try:
        train_group(task, device, report)
    except LockedError as error:
        report(Elsewhere(task.group.name, str(error)))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        report(Failed(task.group.name, reason, retried=False, traceback=_write_traceback(task, error)))


def _write_traceback(task: GroupTask, error: Exception) -> Path | None:
    """Where, if anywhere: the disk may be full."""
    path = SweepFolder(task.sweep).group(task.group.name).error
    try:
        write_text(path, "".join(traceback.format_exception(error)))
    except OSError:
        return None
    return path
