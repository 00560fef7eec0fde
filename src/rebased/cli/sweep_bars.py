"""A sweep's progress on a terminal: a bar for each group that trains, a small cell for the accuracy of each run."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from rebased.cli.sweep_lines import describe_elsewhere, describe_failure, describe_plan
from rebased.training.events import Elsewhere, EpochEnded, Event, Finished, Planned, Started, Stepped
from rebased.training.replicas import Record

__all__ = ["SweepBars", "show_accuracies"]

_LEVELS = "▁▂▃▄▅▆▇█"
_STYLES = {None: "cyan", "reached": "green", "epochs": "yellow", "diverged": "red"}


def show_accuracies(records: list[Record | None]) -> Text:
    """A cell for each run, higher with its accuracy and coloured by its fate, and the highest of these as a number."""
    text = Text()
    for record in records:
        if record is None:
            text.append("·", style="dim")
        elif record.finished == "diverged":
            text.append("×", style=_STYLES["diverged"])
        else:
            level = min(int(record.accuracy * len(_LEVELS)), len(_LEVELS) - 1)
            text.append(_LEVELS[level], style=_STYLES[record.finished])
    highest = max((record.accuracy for record in records if record is not None), default=None)
    return text if highest is None else text.append(f" up to {highest:.3f}", style="none")


class _Accuracies(ProgressColumn):
    def render(self, task: Task) -> Text:
        records: list[Record | None] = task.fields["records"]
        return show_accuracies(records)


class SweepBars:
    """Callable with events, within ``with``."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            _Accuracies(),
            TimeRemainingColumn(),
            console=console,
        )
        self._bars: dict[str, TaskID] = {}
        self._records: dict[str, list[Record | None]] = {}
        self._groups: TaskID | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Planned):
            self._say(describe_plan(event))
            if event.num_groups:
                self._groups = self._progress.add_task("groups", total=event.num_groups, records=[])
        elif isinstance(event, Started):
            self._begin(event)
        elif isinstance(event, Stepped):
            self._progress.update(self._bars[event.group], completed=event.epoch - 1 + event.step / event.steps)
        elif isinstance(event, EpochEnded):
            for index, record in event.records.items():
                self._records[event.group][index] = record
            self._progress.update(self._bars[event.group], completed=event.epoch)
        elif isinstance(event, Finished):
            self._end(event.group)
        elif isinstance(event, Elsewhere):
            self._say(describe_elsewhere(event))
            self._end(event.group)
        else:
            self._say(describe_failure(event))
            if not event.retried:
                self._end(event.group)

    def _begin(self, event: Started) -> None:
        """A group that is tried again has its bar already."""
        self._records[event.group] = [event.finished.get(index) for index in range(len(event.run_names))]
        if event.group not in self._bars:
            self._bars[event.group] = self._progress.add_task(event.group, total=event.epochs, records=[])
        self._progress.update(
            self._bars[event.group], completed=event.epoch, records=self._records[event.group], refresh=True
        )

    def _end(self, group: str) -> None:
        """The bar makes room for others; a group that failed before it began has none."""
        bar = self._bars.pop(group, None)
        if bar is not None:
            self._progress.remove_task(bar)
            accuracies = show_accuracies(self._records.pop(group))
            self._progress.console.print(Text(f"{group} ").append_text(accuracies), soft_wrap=True)
        if self._groups is not None:
            self._progress.advance(self._groups)

    def _say(self, line: str) -> None:
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
