"""A sweep's progress as plain lines, for logs: one for each epoch of a group."""

import math
import time

from rich.console import Console

from rebased.cli.console import print_text
from rebased.cli.numbers import clock, count
from rebased.training.events import Elsewhere, EpochEnded, Event, Failed, Finished, Planned, Started, Stepped
from rebased.training.replicas import Record

__all__ = ["SweepLines", "describe_elsewhere", "describe_failure", "describe_plan"]


def describe_plan(event: Planned) -> str:
    runs = count(event.num_runs, "run")
    if not event.num_groups:
        return f"{runs}, all finished: nothing to train"
    return f"{runs}, {event.num_finished} finished; {count(event.num_groups, 'group')} to train"


def describe_failure(event: Failed) -> str:
    where = "" if event.traceback is None else f"; the traceback is in {event.traceback}"
    return f"{event.group} failed: {event.reason}{where}" + ("; it is tried again" if event.retried else "")


def describe_elsewhere(event: Elsewhere) -> str:
    return f"{event.reason}: it is left to that"


SILENCE = 30.0
"""Seconds of a group's first epoch after which it is said how long an epoch takes: on a CPU that may be hours."""


class SweepLines:
    """Callable with events."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started: dict[str, tuple[float, Started]] = {}
        self._first_steps: dict[str, tuple[float, int] | None] = {}

    def __call__(self, event: Event) -> None:
        if isinstance(event, Planned):
            self._say(describe_plan(event))
        elif isinstance(event, Started):
            self._started[event.group] = time.monotonic(), event
            self._first_steps.pop(event.group, None)
            self._say(
                f"{event.group} begins" if event.epoch == 0 else f"{event.group} goes on after epoch {event.epoch}"
            )
        elif isinstance(event, Stepped):
            self._on_step(event)
        elif isinstance(event, EpochEnded):
            self._first_steps[event.group] = None
            self._say(self._describe(event))
        elif isinstance(event, Finished):
            self._say(f"{event.group} is finished")
        elif isinstance(event, Elsewhere):
            self._say(describe_elsewhere(event))
        elif isinstance(event, Failed):
            self._say(describe_failure(event))

    def _on_step(self, event: Stepped) -> None:
        """Once, in a first epoch that takes long. The first step is left out: it may have been compiled in it."""
        now = time.monotonic()
        first = self._first_steps.setdefault(event.group, (now, event.step))
        if first is None or event.step == first[1]:
            return
        seconds = now - first[0]
        if seconds >= SILENCE:
            epoch = seconds / (event.step - first[1]) * event.steps
            self._say(f"{event.group} step {event.step}/{event.steps}: an epoch takes about {clock(epoch)}")
            self._first_steps[event.group] = None

    def _describe(self, event: EpochEnded) -> str:
        since, started = self._started[event.group]
        seconds = (time.monotonic() - since) / (event.epoch - started.epoch) * (started.epochs - event.epoch)
        records = event.records.values()
        loss = min((record.loss for record in records if math.isfinite(record.loss)), default=math.nan)
        accuracies = " ".join(_accuracy(event.records.get(index)) for index in range(len(started.run_names)))
        return (
            f"{event.group} epoch {event.epoch}/{started.epochs}, at most {clock(seconds)} left, "
            f"least loss {loss:.3g}, accuracy {accuracies}"
        )

    def _say(self, line: str) -> None:
        print_text(line, self._console)


def _accuracy(record: Record | None) -> str:
    """Each run keeps its place in the line; of one that has ended before, the line of that epoch tells."""
    if record is None:
        return "-"
    return f"{record.accuracy:.3f}" + ("" if record.finished is None else f" ({record.finished})")
