"""What an experiment found, as a file: small enough to keep, enough to draw from, with where it came from."""

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rebased.files import write_text
from rebased.models.config import check_names
from rebased.paper.card_time import share_time
from rebased.runs import Run
from rebased.training.folders import SweepFolder
from rebased.training.log import read_log
from rebased.training.plan import read_plan

__all__ = ["Findings", "findings_path", "machines_of", "read_findings", "seconds_by_run"]


@dataclass(frozen=True, kw_only=True)
class Findings:
    experiment: str
    scale: str
    grid: Mapping[str, Any]
    """The runs asked for."""
    num_runs: int
    """Asked for; 0 where nothing is trained."""
    num_finished: int
    num_waiting: int = 0
    """Finished, but not in the numbers: others of their cell are not finished."""
    machines: Sequence[Mapping[str, Any]]
    """What the runs were made with: commit, versions and device, and how many runs were made so."""
    seconds: float
    """Of a card, or a CPU: runs that train on one at the same time share its time."""
    num_untimed: int = 0
    """Finished, but nothing recorded how long they trained; the seconds are those of the others."""
    data: Mapping[str, Any]
    """The numbers, as the experiment's own module has them."""

    @property
    def is_complete(self) -> bool:
        return self.num_finished == self.num_runs

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to present."""
        return self.num_runs > 0 and self.num_finished == self.num_waiting

    @property
    def speaks_of_the_paper(self) -> bool:
        """Whether its claims can be held against these: not where runs are to show that it works, and no more."""
        return self.scale != "smoke" or not self.num_runs

    @property
    def time_spent(self) -> str:
        """In words."""
        minutes = f"{self.seconds / 60:,.1f} minutes of training"
        if not self.num_untimed:
            return minutes
        return f"{minutes}, without {self.num_untimed} of the runs, whose time was not recorded"

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(dataclasses.asdict(self), indent=1, allow_nan=False, ensure_ascii=False)
        write_text(path, text + "\n", shared=True)

    @classmethod
    def read(cls, path: Path) -> Self:
        """ValueError, naming the file, for what is none."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            check_names(cls, values)
            return cls(**values)
        except (OSError, ValueError, TypeError) as error:
            raise ValueError(f"{path} has no findings: {error}") from error


def findings_path(out: Path, scale: str, experiment: str) -> Path:
    return out / scale / f"{experiment}.json"


def read_findings(out: Path, scale: str, experiment: str) -> Findings | None:
    """None if there are none yet."""
    path = findings_path(out, scale, experiment)
    return Findings.read(path) if path.exists() else None


def machines_of(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """What runs were made with, most common first."""
    kinds = Counter(json.dumps(run.result.get("made_with", {}), sort_keys=True) for run in runs)
    return [json.loads(kind) | {"runs": count} for kind, count in kinds.most_common()]


def seconds_by_run(sweep: SweepFolder) -> dict[str, float]:
    """How long each run had a card, from the logs of groups, whose runs share alike; others are not in it."""
    groups = {group.name: group.run_names for group in read_plan(sweep)}
    logs = {name: read_log(sweep.group(name).log) for name in groups}
    shares = share_time({name: entries for name, entries in logs.items() if entries})
    return {run: shares[name] / len(groups[name]) for name in shares for run in groups[name]}
