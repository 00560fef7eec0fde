"""A sweep's progress: bars on a terminal, lines elsewhere."""

import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from rebased.cli.sweep_bars import SweepBars, show_accuracies
from rebased.cli.sweep_lines import SweepLines
from rebased.training.events import Elsewhere, EpochEnded, Event, Failed, Finished, Planned, Started, Stepped
from rebased.training.replicas import Record


def record(epoch: int, accuracy: float, finished: str | None = None) -> Record:
    return Record(epoch, math.nan if finished == "diverged" else 0.5, accuracy, 1e-3, finished)


STORY: list[Event] = [
    Planned(num_groups=3, num_runs=5, num_finished=1),
    Started("a", ("r0", "r1"), 0, 4, {}),
    Stepped("a", 1, 1, 2),
    EpochEnded("a", 1, {1: record(1, 0.0, "diverged"), 0: record(1, 0.25)}),  # NaN first: nothing is less than it
    Failed("a", "its worker died", retried=True),
    Started("a", ("r0", "r1"), 1, 4, {1: record(1, 0.0, "diverged")}),
    EpochEnded("a", 2, {0: record(2, 0.993, "reached")}),
    Finished("a"),
    Failed("b", "ValueError: wrong", retried=False, traceback=Path("groups/b/error.txt")),
    Elsewhere("c", "the group c is in use by process 7"),
]


def told(terminal: bool) -> str:
    console = Console(file=io.StringIO(), width=160, force_terminal=terminal, no_color=True)
    if terminal:
        with SweepBars(console) as bars:
            for event in STORY:
                bars(event)
                bars._progress.refresh()
    else:
        lines = SweepLines(console)
        for event in STORY:
            lines(event)
    return console.file.getvalue()


def test_lines() -> None:
    lines = told(terminal=False).splitlines()
    assert lines[0] == "5 runs, 1 finished; 3 groups to train"
    assert lines[1] == "a begins"
    assert lines[2].startswith("a epoch 1/4, at most 0:00:00 left, least loss 0.5, accuracy 0.250 0.000 (diverged)")
    assert lines[3] == "a failed: its worker died; it is tried again"
    assert lines[4] == "a goes on after epoch 1"
    assert lines[5].endswith("accuracy 0.993 (reached) -")
    assert lines[6:] == [
        "a is finished",
        "b failed: ValueError: wrong; the traceback is in groups/b/error.txt",
        "the group c is in use by process 7: it is left to that",
    ]


def test_a_line_of_runs_that_have_all_diverged() -> None:
    console = Console(file=io.StringIO(), width=160)
    lines = SweepLines(console)
    lines(Started("a", ("r0",), 0, 4, {}))
    lines(EpochEnded("a", 1, {0: record(1, 0.0, "diverged")}))
    assert console.file.getvalue().endswith("least loss nan, accuracy 0.000 (diverged)\n")


def test_bars() -> None:
    said = told(terminal=True)
    for part in (
        "5 runs, 1 finished; 3 groups to train",
        "1/4",
        "▃× up to 0.250",
        "█× up to 0.993",
        "it is tried again",
    ):
        assert part in said
    assert "3/3" in said  # groups, also those that never began here


def test_nothing_to_train() -> None:
    console = Console(file=io.StringIO(), width=160)
    SweepLines(console)(Planned(num_groups=0, num_runs=5, num_finished=5))
    assert console.file.getvalue() == "5 runs, all finished: nothing to train\n"


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([None, None], "··"),
        ([record(1, 0.0), record(1, 0.5), record(1, 1.0)], "▁▅█ up to 1.000"),
        ([record(1, 0.0, "diverged"), None], "×· up to 0.000"),
    ],
)
def test_a_cell_for_each_run(records: list[Record | None], expected: str) -> None:
    assert show_accuracies(records).plain == expected


def test_a_slow_epoch_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """After half a minute, from the time of steps but the first."""
    times = iter([0.0, 100.0, 120.0, 140.0, 160.0])
    monkeypatch.setattr("rebased.cli.sweep_lines.time.monotonic", lambda: next(times))
    console = Console(file=io.StringIO(), width=160)
    lines = SweepLines(console)
    lines(Started("a", ("r0",), 0, 4, {}))
    for step in (1, 2, 3, 4):
        lines(Stepped("a", 1, step, 196))
    assert console.file.getvalue().splitlines() == ["a begins", "a step 3/196: an epoch takes about 1:05:20"]
