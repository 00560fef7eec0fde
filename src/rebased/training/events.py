"""What a sweep says while it goes on: plain values, which pass between processes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rebased.training.replicas import Record

__all__ = ["Elsewhere", "EpochEnded", "Event", "Failed", "Finished", "Planned", "Report", "Started", "Stepped"]


@dataclass(frozen=True)
class Planned:
    """First of all: what there is to do."""

    num_groups: int
    """To train; groups that are finished are not among them."""
    num_runs: int
    """Asked for, finished or not."""
    num_finished: int


@dataclass(frozen=True)
class Started:
    """A group begins, or goes on after ``epoch`` epochs."""

    group: str
    run_names: tuple[str, ...]
    epoch: int
    epochs: int
    """In all, if no run ends before."""
    finished: dict[int, Record]
    """The last record of the runs that have ended, by their index in the group."""


@dataclass(frozen=True)
class Stepped:
    """Now and then within an epoch."""

    group: str
    epoch: int
    """The one under way."""
    step: int
    steps: int


@dataclass(frozen=True)
class EpochEnded:
    """After the checkpoint: what is reported is safe."""

    group: str
    epoch: int
    records: dict[int, Record]
    """Of the runs that were training, by their index in the group."""


@dataclass(frozen=True)
class Finished:
    """All runs of a group have ended."""

    group: str


@dataclass(frozen=True)
class Failed:
    """A group could not be trained."""

    group: str
    reason: str
    retried: bool
    """Whether it will be tried again."""
    traceback: Path | None = None
    """A file that says where the error was, if it was one of Python's."""


@dataclass(frozen=True)
class Elsewhere:
    """Another process trains the group: it is left to it."""

    group: str
    reason: str


Event = Planned | Started | Stepped | EpochEnded | Finished | Failed | Elsewhere
Report = Callable[[Event], None]
