"""One group after another, in this process."""

from collections.abc import Sequence

from rebased.training.devices import choose_device, current
from rebased.training.engines.engine import attempt
from rebased.training.events import Report
from rebased.training.execute import GroupTask
from rebased.training.recall import RecallConfig
from rebased.training.sizing import fitting

__all__ = ["Serial"]


class Serial:
    """The engine that needs nothing."""

    num_workers = 1

    def __init__(self, device: str = "auto") -> None:
        self.device = choose_device(device)

    def fitting(self, config: RecallConfig, num_wanted: int) -> tuple[int, int]:
        with current(self.device):
            return fitting(config, num_wanted, self.device)

    def run(self, tasks: Sequence[GroupTask], report: Report) -> None:
        for task in tasks:
            attempt(task, self.device, report)
