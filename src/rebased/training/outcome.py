"""What a run's records come to in its directory."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from rebased.runs import is_finished, write_metrics, write_result, write_weights
from rebased.training.replicas import Record

__all__ = ["write_outcome"]


def write_outcome(
    folder: Path, records: Sequence[Record], weights: Callable[[], dict[str, Tensor]], made_with: dict[str, Any]
) -> None:
    """The metrics so far; once the run has ended, also its weights and result. Nothing if that is there already.

    ``made_with``: what the result is to say of the machine and the program, the same whenever it is written.
    """
    if is_finished(folder):
        return
    ended = records[-1].finished is not None
    write_metrics(folder, map(_metrics, records), durable=ended)
    if ended:
        write_weights(folder, weights())
        write_result(folder, _result(records) | {"made_with": made_with})


def _metrics(record: Record) -> dict[str, Any]:
    values = dataclasses.asdict(record)
    del values["finished"]  # the result says it
    if not record.watched:
        del values["watched"]
    return values


def _result(records: Sequence[Record]) -> dict[str, Any]:
    """The best epoch counts, as in the paper; the weights are the last one's."""
    best, last = max(records, key=lambda record: record.accuracy), records[-1]
    return {
        "accuracy": best.accuracy,
        "best_epoch": best.epoch,
        "last_accuracy": last.accuracy,
        "epochs": last.epoch,
        "finished": last.finished,
    }
