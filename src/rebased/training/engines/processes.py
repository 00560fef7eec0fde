"""Groups handed out to several processes of this machine, each with a GPU where there are some."""

from collections import Counter, deque
from collections.abc import Sequence
from multiprocessing.connection import wait

import torch

from rebased.training.devices import choose_device, current, device_of_worker
from rebased.training.engines.engine import TRIES
from rebased.training.engines.worker import Worker, WorkerDiedError
from rebased.training.events import Failed, Report
from rebased.training.execute import GroupTask
from rebased.training.recall import RecallConfig
from rebased.training.sizing import fitting

__all__ = ["Processes"]


class Processes:
    """``jobs`` workers; with the device "cuda", they are spread over all GPUs."""

    def __init__(self, device: str = "auto", jobs: int = 2) -> None:
        self.device = choose_device(device)
        self.num_workers = jobs

    def fitting(self, config: RecallConfig, num_wanted: int) -> tuple[int, int]:
        """Workers on one device share it."""
        num_devices = torch.cuda.device_count() if self.device == "cuda" else 1
        with current(self.device):
            return fitting(config, num_wanted, self.device, num_sharing=-(-self.num_workers // num_devices))

    def run(self, tasks: Sequence[GroupTask], report: Report) -> None:
        waiting, begun = deque(tasks), Counter[str]()
        workers: dict[int, Worker] = {}
        try:
            while True:
                self._hand_out(waiting, begun, workers)
                busy = {worker.connection: number for number, worker in workers.items() if worker.task is not None}
                if not busy:
                    return
                for connection in wait(list(busy)):
                    number = busy[connection]  # type: ignore[index]  # nothing but connections was waited for
                    task = workers[number].task
                    assert task is not None
                    try:
                        event = workers[number].receive()
                    except WorkerDiedError as error:
                        workers.pop(number).stop()
                        again = begun[task.group.name] < TRIES
                        if again:
                            waiting.append(task)
                        event = Failed(task.group.name, str(error), retried=again)
                    if event is not None:
                        report(event)
        finally:
            for worker in workers.values():
                worker.dismiss()  # all at the same time
            for worker in workers.values():
                worker.stop()

    def _hand_out(self, waiting: deque[GroupTask], begun: Counter[str], workers: dict[int, Worker]) -> None:
        """To those who have nothing to do. Places are numbered: the number decides the GPU."""
        for number in range(self.num_workers):
            if not waiting:
                return
            if number in workers and workers[number].task is None and workers[number].has_failed:
                workers.pop(number).stop()
            if number not in workers:
                threads = max(1, torch.get_num_threads() // self.num_workers)
                workers[number] = Worker(device_of_worker(self.device, number), threads)
            if workers[number].task is None:
                task = waiting.popleft()
                begun[task.group.name] += 1
                workers[number].give(task)
