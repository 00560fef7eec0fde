"""The ledger: what every finished run came to, without its folder, in a file small enough to commit.

A run that is in it counts as finished where results are enough. So wherever this file is, numbers can be found anew and
training gone on with.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rebased.locks import locked
from rebased.runs import Run, write_text
from rebased.training.folders import SweepFolder, name_of
from rebased.training.recall import RecallConfig

__all__ = ["LEDGER", "Entry", "read_ledger", "write_ledger"]

LEDGER = "runs.jsonl"


@dataclass(frozen=True)
class Entry:
    """A line of the ledger."""

    config: RecallConfig
    result: dict[str, Any]
    seconds: float
    """Of a card, or a CPU: the run's part of what its group had."""

    def as_run(self, sweep: SweepFolder) -> Run:
        """As it would be read from its folder, but for metrics and weights."""
        return Run(sweep.run(self.config), self.config.to_dict(), (), self.result)

    def line(self) -> str:
        values = {"run": self.config.identity(), "result": self.result, "seconds": round(self.seconds, 2)}
        return json.dumps(values, sort_keys=True, allow_nan=False) + "\n"


def read_ledger(out: Path) -> dict[str, Entry]:
    """By the runs' names; empty if there is none yet. ValueError, naming file and line, for what is no entry."""
    path = out / LEDGER
    if not path.exists():
        return {}
    entries = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            values = json.loads(line)
            entry = Entry(RecallConfig.from_dict(values["run"]), dict(values["result"]), float(values["seconds"]))
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path}, line {number}, is no run: {error!r}") from error
        entries[name_of(entry.config)] = entry
    return entries


def write_ledger(out: Path, entries: Iterable[Entry]) -> None:
    """Add these, in the place of older entries of the same runs; by name, so that two ledgers differ by few lines."""
    with locked(out / f".{LEDGER}.lock", f"the ledger of {out}"):
        all_of_them = read_ledger(out) | {name_of(entry.config): entry for entry in entries}
        write_text(out / LEDGER, "".join(all_of_them[name].line() for name in sorted(all_of_them)))
