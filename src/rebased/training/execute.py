"""The training of one group, such that it can be killed at any moment and gone on with.

After each epoch the group's checkpoint is replaced. All else, the runs' metrics, weights and results, follows from the
checkpoint: it is written right after it, and again on going on. So at most the epoch under way is lost.
"""

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rebased.environment import card_digest, describe_environment
from rebased.locks import locked
from rebased.runs import write_config
from rebased.training.boards import Board, Boards, TensorBoard, WandB
from rebased.training.checkpoint import Checkpoint, History, read_checkpoint, write_checkpoint
from rebased.training.devices import current
from rebased.training.events import EpochEnded, Finished, Report, Started, Stepped
from rebased.training.folders import SweepFolder, name_of
from rebased.training.log import append_log
from rebased.training.outcome import write_outcome
from rebased.training.plan import Group
from rebased.training.replicas import Replicas

__all__ = ["GroupTask", "train_group"]

_SECONDS_BETWEEN_STEPS = 0.2
"""Steps can be many and short; people read slower."""


@dataclass(frozen=True)
class GroupTask:
    """A group to train: what goes to the process that does it."""

    sweep: Path
    group: Group
    wandb_project: str | None = None


def train_group(task: GroupTask, device: str, report: Report) -> None:
    """Train the group's runs that are not finished. LockedError if another process is at it."""
    sweep, name = SweepFolder(task.sweep), task.group.name
    with locked(sweep.group(name).lock, f"the group {name}"):
        sweep.group(name).error.unlink(missing_ok=True)  # of an earlier try
        if not all(map(sweep.has_finished, task.group.configs)):
            with current(device):
                _GroupTraining(task, torch.device(device), report).run()
        sweep.group(name).checkpoint.unlink(missing_ok=True)
    report(Finished(name))


class _GroupTraining:
    def __init__(self, task: GroupTask, device: torch.device, report: Report) -> None:
        self.task = task
        self.group = task.group
        self.sweep = SweepFolder(task.sweep)
        self.folder = self.sweep.group(task.group.name)
        self.device = device
        self.report = report
        self.environment = describe_environment(device)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)  # this process may have trained other groups
        for config in self.group.configs:
            write_config(self.sweep.run(config), config.to_dict())
        self.replicas = Replicas(self.group.configs, device=device, micro_batches=self.group.micro_batches)
        self.history: History = {index: [] for index in range(len(self.group.configs))}

    def run(self) -> None:
        self._go_on()
        self._announce()
        with contextlib.closing(Boards(self._open_boards)) as boards:
            while self.replicas.active:
                self._epoch(boards)

    def _go_on(self) -> None:
        """From where the last process stopped, if there was one."""
        checkpoint = read_checkpoint(self.folder.checkpoint)
        if checkpoint is not None:
            self.replicas.load(checkpoint.epoch, checkpoint.active, checkpoint.tensors)
            self.history = checkpoint.history
            self._settle()
        # Without a checkpoint some may be finished too, if somebody has removed it.
        finished = [i for i in self.replicas.active if self.sweep.has_finished(self.group.configs[i])]
        self.replicas.leave(finished)

    def _announce(self) -> None:
        append_log(
            self.folder.log,
            event="start",
            pid=os.getpid(),
            card=card_digest(self.device),
            epoch=self.replicas.epoch,
            environment=dataclasses.asdict(self.environment),
        )
        ended = {i: records[-1] for i, records in self.history.items() if records and i not in self.replicas.active}
        epochs = self.group.configs[0].epochs
        self.report(Started(self.group.name, self.group.run_names, self.replicas.epoch, epochs, ended))

    def _epoch(self, boards: Boards) -> None:
        begun, num_active = time.monotonic(), len(self.replicas.active)
        records = self.replicas.train_epoch(self._on_step())
        trained = time.monotonic()
        for index, record in records.items():
            self.history[index].append(record)
            # Before the checkpoint: an epoch that is trained again is shown again, but none is left out.
            boards.write(index, record)
        state = Checkpoint(self.replicas.epoch, self.replicas.active, self.history, self.replicas.tensors())
        write_checkpoint(self.folder.checkpoint, state)
        self._settle()
        append_log(
            self.folder.log,
            event="epoch",
            epoch=self.replicas.epoch,
            num_active=num_active,
            seconds=round(trained - begun, 4),
            seconds_to_save=round(time.monotonic() - trained, 4),
            peak_bytes=torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None,
        )
        self.report(EpochEnded(self.group.name, self.replicas.epoch, records))

    def _settle(self) -> None:
        """Write what follows from the checkpoint; runs that have ended leave."""
        for index in self.replicas.active:
            weights = partial(self.replicas.weights, index)
            folder = self.sweep.run(self.group.configs[index])
            write_outcome(folder, self.history[index], weights, self._made_with())
        self.replicas.leave([i for i in self.replicas.active if self.history[i][-1].finished is not None])

    def _made_with(self) -> dict[str, Any]:
        environment = dataclasses.asdict(self.environment)
        names = ("rebased", "commit", "source", "torch", "triton", "device_name")
        return {name: environment[name] for name in names} | {"micro_batches": self.group.micro_batches}

    def _on_step(self) -> Callable[[int, int], None]:
        epoch, last = self.replicas.epoch + 1, time.monotonic()

        def on_step(step: int, steps: int) -> None:
            nonlocal last
            if time.monotonic() - last >= _SECONDS_BETWEEN_STEPS:
                last = time.monotonic()
                self.report(Stepped(self.group.name, epoch, step, steps))

        return on_step

    def _open_boards(self, index: int, first_epoch: int) -> Iterator[Board]:
        config = self.group.configs[index]
        folder = self.sweep.run(config)
        yield TensorBoard(folder, first_epoch)
        if self.task.wandb_project is not None:
            yield WandB(self.task.wandb_project, name_of(config), config.to_dict(), folder)
