"""Groups as tasks of a Ray cluster, whose machines see the sweep's folder under the same path."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from rebased.training.devices import DEVICE_KINDS
from rebased.training.engines.engine import TRIES, attempt
from rebased.training.events import Failed, Report
from rebased.training.execute import GroupTask
from rebased.training.recall import RecallConfig
from rebased.training.sizing import fitting

if TYPE_CHECKING:
    from ray.util.queue import Queue

__all__ = ["Ray"]

_SECONDS_BETWEEN_LOOKS = 0.2


class Ray:
    """A task at a time on each GPU of the cluster, or on each processor if it has none.

    Without an address a cluster is started on this machine, and ends with this process. It has ``jobs`` processors, or
    one for each GPU if these are more.
    """

    def __init__(self, device: str = "auto", *, jobs: int = 1, address: str | None = None) -> None:
        if device not in DEVICE_KINDS:  # Ray itself says which GPU
            raise ValueError(f"device={device!r} is unknown to engine='ray'; it may be {', '.join(DEVICE_KINDS)}")
        try:
            import ray
        except ImportError as error:
            raise ImportError("engine='ray' needs Ray: pip install ray") from error
        if address is not None:
            ray.init(address=address, log_to_driver=False)
        elif not ray.is_initialized():
            # A task takes a processor too, so that with fewer of them GPUs would wait.
            num_cpus = jobs if device == "cpu" else max(jobs, torch.cuda.device_count())
            ray.init(address="local", num_cpus=num_cpus, include_dashboard=False, log_to_driver=False)
        resources = ray.cluster_resources()
        num_gpus = int(resources.get("GPU", 0))
        if device == "cuda" and not num_gpus:
            raise ValueError("device='cuda' was asked for, but the cluster has no GPU; use 'cpu'")
        self.device = ("cuda" if num_gpus else "cpu") if device == "auto" else device
        self.num_workers = num_gpus if self.device == "cuda" else int(resources["CPU"])
        self._remote = ray.remote(num_cpus=1, num_gpus=1 if self.device == "cuda" else 0, max_retries=0)

    def fitting(self, config: RecallConfig, num_wanted: int) -> tuple[int, int]:
        """Asked where the devices are: this machine may have none."""
        import ray

        found: tuple[int, int] = ray.get(self._remote(fitting).remote(config, num_wanted, self.device))
        return found

    def run(self, tasks: Sequence[GroupTask], report: Report) -> None:
        import ray
        from ray.util.queue import Queue

        begun: Counter[str] = Counter()
        events = Queue(actor_options={"num_cpus": 0})
        train = self._remote(_train)

        def begin(task: GroupTask) -> Any:
            begun[task.group.name] += 1
            return train.remote(task, self.device, events)

        pending: dict[Any, GroupTask] = {}
        try:
            for task in tasks:
                pending[begin(task)] = task
            while pending:
                done, _ = ray.wait(list(pending), timeout=_SECONDS_BETWEEN_LOOKS)
                for event in events.get_nowait_batch(events.qsize()):
                    report(event)
                for reference in done:
                    task = pending.pop(reference)
                    try:
                        ray.get(reference)
                    except ray.exceptions.RayError as error:
                        again = begun[task.group.name] < TRIES
                        if again:
                            pending[begin(task)] = task
                        report(Failed(task.group.name, f"its worker died: {_first_line(error)}", retried=again))
        finally:
            for reference in pending:
                ray.cancel(reference, force=True)
            events.shutdown()


def _train(task: GroupTask, device: str, events: "Queue") -> None:
    attempt(task, device, events.put)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
