"""What is known of each step, and the file that says it: a line for each, once, however often a run was killed."""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rebased.runs import METRICS, metrics_line, write_metrics

__all__ = ["MetricsFile", "StepRecord", "read_metrics"]


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """A step that was made."""

    step: int
    loss: float
    """The mean over the step's tokens, before the weights moved."""
    learning_rate: float
    grad_norm: float
    """Before clipping."""
    tokens: int
    """Of all steps so far."""
    tokens_per_second: float
    mfu: float | None = None
    """Model FLOP utilisation; None where the device's peak is unknown."""
    validation_loss: float | None = None
    """After the weights moved; None for most steps."""

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


class MetricsFile:
    """Lines are added as steps are made; those after the step gone on from are removed first: they come again."""

    def __init__(self, folder: Path, last_step: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / METRICS
        write_metrics(folder, [entry for entry in read_metrics(folder) if entry["step"] <= last_step])
        self._file = self._path.open("a", encoding="utf-8")

    def add(self, record: StepRecord) -> None:
        self._file.write(metrics_line(record.to_dict()))
        self._file.flush()

    def sync(self) -> None:
        """From here on even the machine may fail."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run so far; one that a kill has cut short is left out."""
    path = folder / METRICS
    return list(_whole_lines(path.read_text(encoding="utf-8"))) if path.exists() else []


def _whole_lines(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)
