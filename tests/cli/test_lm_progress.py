"""Lines of a training: each tells of all steps since the one before it."""

import io
import re
import threading
from dataclasses import replace

import pytest
from rich.console import Console

from rebased.cli.lm_progress import STOPPING, _Bar, _Lines
from rebased.training.language.layout import Layout
from rebased.training.language.metrics import StepRecord
from rebased.training.language.train import PartMade, Stopping, TrainingStarted

STARTED = TrainingStarted(
    step=0, steps=8, num_parameters=1234, device="cpu", num_processes=1, layout=Layout(micro_batch=2, accumulation=1)
)


def record(step: int, loss: float, speed: float, validation_loss: float | None = None) -> StepRecord:
    return StepRecord(
        step=step,
        loss=loss,
        learning_rate=1e-3,
        grad_norm=1.0,
        tokens=step * 100,
        tokens_per_second=speed,
        mfu=speed / 1000,
        validation_loss=validation_loss,
    )


def test_means_since_the_line_before() -> None:
    out = io.StringIO()
    lines = _Lines(Console(file=out, width=200), log_every=3)
    lines(STARTED)
    for each in (
        record(1, 9.0, 100.0),
        record(2, 4.0, 100.0),
        record(3, 2.0, 300.0),
        record(4, 1.0, 200.0, validation_loss=1.5),
    ):
        lines(each)
    said = [re.sub(r"\d:\d\d:\d\d", "…", line) for line in out.getvalue().splitlines()]
    assert said == [
        "begins: 1,234 parameters on cpu, 1 × 2 sequences a step",
        "step 1/8, loss 9.0000, 100 tokens/s, MFU 10.0%",
        "step 3/8, … left, mean loss 3.0000, 150 tokens/s, MFU 15.0%",
        "step 4/8, … left, loss 1.0000, validation 1.5000, 200 tokens/s, MFU 20.0%",
    ]


def test_a_slow_step_says_now_and_then_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds after the line before."""
    now = 0.0
    monkeypatch.setattr("rebased.cli.lm_progress.time.monotonic", lambda: now)
    out = io.StringIO()
    lines = _Lines(Console(file=out, width=200), log_every=3)
    started = replace(STARTED, layout=Layout(micro_batch=2, accumulation=4))
    for now, event in (  # noqa: B007  # the clock reads it
        (0.0, started),
        (9.0, PartMade(1, 1)),
        (10.0, PartMade(1, 2)),
        (19.0, PartMade(1, 3)),
        (20.0, record(1, 9.0, 100.0)),
        (29.0, PartMade(2, 1)),
        (31.0, PartMade(2, 2)),
    ):
        lines(event)
    assert out.getvalue().splitlines()[1:] == [
        "2 of 4 parts of step 1",
        "step 1/8, loss 9.0000, 100 tokens/s, MFU 10.0%",
        "2 of 4 parts of step 2",
    ]


def test_the_bar_moves_within_a_step() -> None:
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=True, color_system=None)
    with _Bar(console) as bar:
        for event in (replace(STARTED, layout=Layout(micro_batch=2, accumulation=4)), PartMade(1, 1)):
            bar(event)
        assert bar._progress.tasks[0].completed == 0.25
        bar._progress.refresh()
        for event in (record(1, 9.0, 100.0), PartMade(2, 3)):
            bar(event)
        assert bar._progress.tasks[0].completed == 1.75
    said = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in re.split(r"[\r\n]", out.getvalue())]
    assert any(line.startswith("step 0/8") and line.strip().endswith("1 of 4 parts of step 1") for line in said)
    assert any("loss 9.0000, 100 tokens/s, MFU 10.0%, 3 of 4 parts of step 2" in line for line in said)


def test_that_it_stops_is_a_line_of_its_own() -> None:
    """Of the bar as well, from whichever thread; it goes on below."""
    out = io.StringIO()
    with _Bar(Console(file=out, width=80, force_terminal=True, color_system=None)) as bar:
        for event in (STARTED, record(1, 9.0, 100.0)):
            bar(event)
        announcing = threading.Thread(target=bar, args=(Stopping(),))
        announcing.start()
        announcing.join()
        bar(record(2, 8.0, 100.0))
    said = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).strip() for line in re.split(r"[\r\n]", out.getvalue())]
    assert STOPPING in said
    assert "step 2/8" in "".join(said[said.index(STOPPING) :])

    out = io.StringIO()
    lines = _Lines(Console(file=out, width=80), log_every=3)
    lines(Stopping())  # before there is a model, too
    assert out.getvalue() == f"{STOPPING}\n"
