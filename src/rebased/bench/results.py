"""What a bench of the operators found, in memory and as JSON."""

from dataclasses import dataclass
from typing import Any

from rebased.bench.accuracy import Accuracy
from rebased.bench.config import OpsBenchConfig
from rebased.bench.files import BenchResult, read_record
from rebased.bench.limit import Limit
from rebased.bench.rates import Rates
from rebased.bench.timing import Timing

__all__ = ["CandidateGrowth", "Measurement", "OpsBenchResult"]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One candidate at one length: either measured, or skipped with a reason."""

    candidate: str
    """A backend's name, "sdpa", or a peer's name."""
    length: int
    """Tokens per sequence."""
    passes: str
    """"forward" or "both"."""
    timing: Timing | None = None
    """None if skipped."""
    launch_seconds: float | None = None
    """On CUDA, how long a call keeps the CPU: where that is longer, an eager call takes this. None if skipped."""
    peak_bytes: int | None = None
    """Peak memory of one call beyond its inputs; None if skipped."""
    speedup_over_sdpa: float | None = None
    """SDPA's median time over this one's: above 1 is faster than SDPA. None if either was skipped."""
    limit_fraction: float | None = None
    """The limit's time over this one's: 1 is as fast as can be. None if skipped and for SDPA, which does other work."""
    skipped: str | None = None
    """Why nothing was measured; None if something was."""


@dataclass(frozen=True, kw_only=True)
class CandidateGrowth:
    """Fitted exponents of one candidate's cost over length; None with fewer than two lengths measured."""

    candidate: str
    passes: str
    time_exponent: float | None
    memory_exponent: float | None


@dataclass(frozen=True, kw_only=True)
class OpsBenchResult(BenchResult[OpsBenchConfig, Measurement]):
    """Measurements are by length, then in the order of ``config.candidates``, then of ``config.passes``."""

    errors: dict[str, float]
    """Relative RMS error of each backend against the float64 reference, from the check before the timing."""
    rates: Rates | None
    """What the device can do, for the limits; None in files of before they were measured."""
    limits: tuple[Limit, ...]
    """By length, then in the order of ``config.passes``."""
    growth: tuple[CandidateGrowth, ...]
    """In the order of ``config.candidates``, then of ``config.passes``."""
    accuracy: tuple[Accuracy, ...]
    """With ``config.accuracy``, by length: of each candidate that ran."""

    def at(self, candidate: str, length: int, passes: str | None = None) -> Measurement:
        """The measurement of ``candidate`` at ``length``; KeyError if the run did not cover it.

        ``passes`` may be left out if the run covered only one choice of them.
        """
        if passes is None:
            (passes,) = self.config.passes
        for measurement in self.measurements:
            if (measurement.candidate, measurement.length, measurement.passes) == (candidate, length, passes):
                return measurement
        raise KeyError((candidate, length, passes))

    @classmethod
    def _read_parts(cls, data: dict[str, Any]) -> dict[str, Any]:
        return {
            "rates": data["rates"] and read_record(Rates, data["rates"]),
            "limits": [read_record(Limit, entry) for entry in data["limits"]],
            "growth": [read_record(CandidateGrowth, entry) for entry in data["growth"]],
            "accuracy": [read_record(Accuracy, entry) for entry in data["accuracy"]],
        }
