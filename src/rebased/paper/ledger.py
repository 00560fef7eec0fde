"""The ledger: what every finished run came to, without its folder, in a file small enough to commit.

A run that is in it counts as finished where no weights are needed. So wherever this file is, numbers can be found anew
and training gone on with.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from rebased.files import write_text
from rebased.locks import locked
from rebased.paper.watched import Watched, watched_moments
from rebased.runs import Run
from rebased.training.folders import SweepFolder, name_of
from rebased.training.recall import RecallConfig

__all__ = ["LEDGER", "Entry", "read_ledger", "write_ledger"]

LEDGER = "runs.jsonl"


@dataclass(frozen=True)
class Entry:
    """A line of the ledger."""

    config: RecallConfig
    result: dict[str, Any]
    seconds: float | None
    """Of a card, or a CPU: the run's part of what its group had. None where nothing recorded it.

    While groups beside it train, too many: what shares an epoch that has not ended is known when that has.
    """
    accuracies: tuple[float, ...] = ()
    """After each epoch, where that is known."""
    watched: Watched = field(default_factory=dict)
    """Of a run that watches parameters; empty where that was not kept, as in older ledgers."""

    @classmethod
    def of(cls, config: RecallConfig, run: Run, seconds: float | None) -> Self:
        accuracies = tuple(round(entry["accuracy"], 5) for entry in run.metrics)
        rounded = None if seconds is None else round(seconds, 2)
        return cls(config, run.result, rounded, accuracies, watched_moments(run))

    def as_run(self, sweep: SweepFolder) -> Run:
        """As it would be read from its folder, without weights and with little of its metrics."""
        metrics: list[dict[str, Any]] = [
            {"epoch": epoch, "accuracy": x} for epoch, x in enumerate(self.accuracies, start=1)
        ]
        if self.watched:
            for index, entry in enumerate(metrics):
                entry["watched"] = {name: moments[index] for name, moments in self.watched.items()}
        return Run(sweep.run(self.config), self.config.to_dict(), tuple(metrics), self.result)

    def line(self) -> str:
        values: dict[str, Any] = {"run": self.config.to_dict(), "result": self.result, "seconds": self.seconds}
        if self.accuracies:
            values["accuracies"] = self.accuracies
        if self.watched:
            values["watched"] = self.watched
        return json.dumps(values, sort_keys=True, allow_nan=False) + "\n"

    @classmethod
    def parse(cls, line: str) -> Self:
        values = json.loads(line)
        config, result = RecallConfig.from_dict(values["run"]), dict(values["result"])
        accuracies, watched = tuple(map(float, values.get("accuracies", ()))), dict(values.get("watched", {}))
        if any(len(moments) != len(accuracies) for moments in watched.values()):
            raise ValueError("watched and accuracies are not of the same epochs")
        seconds = values["seconds"]
        return cls(config, result, None if seconds is None else float(seconds), accuracies, watched)


def read_ledger(out: Path) -> dict[str, Entry]:
    """By the runs' names; empty if there is none yet. ValueError, naming file and line, for what is no entry."""
    path = out / LEDGER
    if not path.exists():
        return {}
    entries = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            entry = Entry.parse(line)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path}, line {number}, is no run: {error!r}") from error
        entries[name_of(entry.config)] = entry
    return entries


def write_ledger(out: Path, entries: Iterable[Entry]) -> None:
    """Add these, in the place of older entries of the same runs; by name, so that two ledgers differ by few lines."""
    with locked(out / f".{LEDGER}.lock", f"the ledger of {out}"):
        all_of_them = read_ledger(out) | {name_of(entry.config): entry for entry in entries}
        write_text(out / LEDGER, "".join(all_of_them[name].line() for name in sorted(all_of_them)))
