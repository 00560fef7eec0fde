"""What a bench of the operators found, in memory and as JSON."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rebased.bench.config import OpsBenchConfig
from rebased.bench.environment import Environment
from rebased.bench.files import write_json
from rebased.bench.timing import Timing

__all__ = ["CandidateGrowth", "Measurement", "OpsBenchResult"]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One candidate at one length: either measured, or skipped with a reason."""

    candidate: str
    """A backend's name, or "sdpa"."""
    length: int
    """Tokens per sequence."""
    timing: Timing | None = None
    """None if skipped."""
    peak_bytes: int | None = None
    """Peak memory of one call beyond its inputs; None if skipped."""
    speedup_over_sdpa: float | None = None
    """SDPA's median time over this one's: above 1 is faster than SDPA. None if either was skipped."""
    skipped: str | None = None
    """Why nothing was measured; None if something was."""


@dataclass(frozen=True, kw_only=True)
class CandidateGrowth:
    """Fitted exponents of one candidate's cost over length; None with fewer than two lengths measured."""

    candidate: str
    time_exponent: float | None
    memory_exponent: float | None


@dataclass(frozen=True, kw_only=True)
class OpsBenchResult:
    """Everything one run found, with what was asked and where it ran."""

    config: OpsBenchConfig
    environment: Environment
    errors: dict[str, float]
    """Relative RMS error of each backend against the float64 reference, from the check before the timing."""
    other_cpus: float | None
    """Processors that other processes kept busy on average during the run; None where the system does not say."""
    measurements: tuple[Measurement, ...]
    """By length, then in the order of ``config.candidates``."""
    growth: tuple[CandidateGrowth, ...]
    """In the order of ``config.candidates``."""

    def at(self, candidate: str, length: int) -> Measurement:
        """The measurement of ``candidate`` at ``length``; KeyError if the run did not cover it."""
        for measurement in self.measurements:
            if (measurement.candidate, measurement.length) == (candidate, length):
                return measurement
        raise KeyError((candidate, length))

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists, strings and numbers, ready for ``json.dump``; `from_json` reads them back."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self), allow_nan=False))
        return plain

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "OpsBenchResult":
        """The result that `to_json` turned into ``data``."""
        config: dict[str, Any] = dict(data["config"])
        for name in ("lengths", "backends"):
            config[name] = tuple(config[name])
        return cls(
            config=OpsBenchConfig(**config),
            environment=Environment(**data["environment"]),
            errors=dict(data["errors"]),
            other_cpus=data["other_cpus"],
            measurements=tuple(
                Measurement(**(entry | {"timing": entry["timing"] and Timing(**entry["timing"])}))
                for entry in data["measurements"]
            ),
            growth=tuple(CandidateGrowth(**entry) for entry in data["growth"]),
        )

    def write(self, path: Path) -> None:
        """Write the JSON to ``path``, whole or not at all."""
        write_json(path, self.to_json())
