"""A language model's training as it goes: a bar on a terminal, lines elsewhere."""

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from rebased.cli.console import make_console, print_text
from rebased.cli.numbers import clock
from rebased.training.language.metrics import StepRecord
from rebased.training.language.train import PartMade, Report, Stopping, TrainingStarted

__all__ = ["training_progress"]

STOPPING = "stopping after this step; Ctrl-C again stops now"
SECONDS = 10.0
"""Without a line, after which one says how far a step has come."""


def training_progress(log_every: int) -> contextlib.AbstractContextManager[Report]:
    """On stderr. ``log_every``: steps between two lines; the first, the last and those with a validation loss show."""
    console = make_console(stderr=True)
    return _Bar(console) if console.is_terminal else contextlib.nullcontext(_Lines(console, log_every))


def _describe_start(event: TrainingStarted) -> str:
    begins = "begins" if event.step == 0 else f"goes on after step {event.step}"
    where = event.device if event.num_processes == 1 else f"{event.num_processes} × {event.device.partition(':')[0]}"
    parts = f"{event.layout.accumulation} × {event.layout.micro_batch} sequences a step"
    return f"{begins}: {event.num_parameters:,} parameters on {where}, {parts}"


def _describe_part(event: PartMade, started: TrainingStarted) -> str:
    return f"{event.parts} of {started.layout.accumulation} parts of step {event.step}"


def _describe_step(record: StepRecord) -> str:
    shown = f"loss {record.loss:.4f}"
    if record.validation_loss is not None:
        shown += f", validation {record.validation_loss:.4f}"
    shown += f", {record.tokens_per_second:,.0f} tokens/s"
    return shown if record.mfu is None else f"{shown}, MFU {record.mfu:.1%}"


class _Lines:
    """Callable with events. A line tells of all steps since the one before it."""

    def __init__(self, console: Console, log_every: int) -> None:
        self._console = console
        self._log_every = log_every
        self._started: TrainingStarted | None = None
        self._since = self._said = time.monotonic()
        self._untold: list[StepRecord] = []

    def __call__(self, event: TrainingStarted | PartMade | StepRecord | Stopping) -> None:
        if isinstance(event, Stopping):
            self._say(STOPPING)
            return
        if isinstance(event, TrainingStarted):
            self._started, self._since = event, time.monotonic()
            self._say(_describe_start(event))
            return
        assert self._started is not None
        if isinstance(event, PartMade):
            if time.monotonic() >= self._said + SECONDS:
                self._say(_describe_part(event, self._started))
            return
        self._untold.append(event)
        is_edge = event.step in (self._started.step + 1, self._started.steps)
        if is_edge or event.validation_loss is not None or event.step % self._log_every == 0:
            told = f"{'mean ' if len(self._untold) > 1 else ''}{_describe_step(_mean(self._untold))}"
            self._say(f"step {event.step}/{self._started.steps}, {self._left(event)}{told}")
            self._untold.clear()

    def _left(self, record: StepRecord) -> str:
        """Nothing after one step: the first takes longer than others."""
        assert self._started is not None
        made = record.step - self._started.step
        if made == 1:
            return ""
        return f"{clock((time.monotonic() - self._since) / made * (self._started.steps - record.step))} left, "

    def _say(self, line: str) -> None:
        self._said = time.monotonic()
        print_text(line, self._console)


def _mean(records: Sequence[StepRecord]) -> StepRecord:
    """The last one, with the mean loss and speed of all."""
    last = records[-1]
    speed = len(records) / sum(1 / record.tokens_per_second for record in records)
    mfu = None if last.mfu is None else last.mfu * speed / last.tokens_per_second
    loss = statistics.fmean(record.loss for record in records)
    return dataclasses.replace(last, loss=loss, tokens_per_second=speed, mfu=mfu)


class _Bar:
    """Callable with events, within its context."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("step {task.fields[step]}/{task.total}"), BarColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, TextColumn("{task.description}"), console=console)
        self._console = console
        self._told = ""

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def __call__(self, event: TrainingStarted | PartMade | StepRecord | Stopping) -> None:
        if isinstance(event, Stopping):
            print_text(STOPPING, self._console)
        elif isinstance(event, TrainingStarted):
            print_text(_describe_start(event), self._console)
            self._started = event
            self._task = self._progress.add_task("", total=event.steps, completed=event.step, step=event.step)
        elif isinstance(event, PartMade):
            told = ", ".join(filter(None, (self._told, _describe_part(event, self._started))))
            completed = event.step - 1 + event.parts / self._started.layout.accumulation
            self._progress.update(self._task, completed=completed, description=told)
        else:
            self._told = _describe_step(event)
            self._progress.update(self._task, completed=event.step, step=event.step, description=self._told)
