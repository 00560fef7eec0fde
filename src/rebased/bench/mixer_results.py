"""A bench of the mixers: what is asked, and what was found, in memory and as JSON."""

from dataclasses import dataclass

from rebased.bench import checks
from rebased.bench.checks import DEVICES, DTYPES
from rebased.bench.config import PASSES
from rebased.bench.files import BenchResult
from rebased.bench.machine import OnMachine
from rebased.bench.timing import Timing
from rebased.checks import check_choice, check_not_negative
from rebased.layers import MIXERS

__all__ = ["MixerBenchConfig", "MixerBenchResult", "MixerMeasurement"]


@dataclass(frozen=True, kw_only=True)
class MixerBenchConfig(OnMachine):
    """Layers side by side, with their own defaults, at every length. Checked on construction."""

    device: str = "cpu"
    """"cpu" or "cuda"."""
    dtype: str = "float32"
    """Of weights and inputs."""
    mixers: tuple[str, ...] = ("rebased", "based", "attention", "rwkv", "mamba")
    """Names of `rebased.layers.MIXERS`; the others are compared with the first."""
    lengths: tuple[int, ...] = (512, 2048)
    """Tokens per sequence."""
    batch_size: int = 4
    d_model: int = 64
    passes: str = "both"
    """"forward", or "both": forward and backward in one call."""
    threads: int | None = None
    """Threads of one CPU operator; None leaves torch's setting."""
    min_repetitions: int = 5
    """Calls timed at least."""
    min_seconds: float = 0.2
    """Seconds timed at least."""
    seed: int = 0
    """Of weights and inputs."""

    def __post_init__(self) -> None:
        """Raise ValueError, naming the field, for a value outside its domain."""
        check_choice("device", self.device, DEVICES)
        check_choice("dtype", self.dtype, DTYPES)
        checks.check_choices("mixers", self.mixers, tuple(MIXERS))
        check_choice("passes", self.passes, PASSES)
        checks.check_lengths("lengths", self.lengths)
        checks.check_integers(self, "batch_size", "d_model", "threads", "min_repetitions")
        check_not_negative("min_seconds", self.min_seconds)


@dataclass(frozen=True, kw_only=True)
class MixerMeasurement:
    """One mixer at one length: either measured, or skipped with a reason."""

    mixer: str
    length: int
    error: float | None = None
    """Relative RMS error of the output against float64, from the check before the timing."""
    timing: Timing | None = None
    """None if skipped."""
    peak_bytes: int | None = None
    """Memory of one call beyond weights and inputs."""
    state_bytes: int | None = None
    """Of one sequence, after it."""
    time_ratio: float | None = None
    """This median time over that of the first mixer at this length; None if either was skipped."""
    memory_ratio: float | None = None
    """The same of the peak memory."""
    skipped: str | None = None
    """Why nothing was measured; None if something was."""


@dataclass(frozen=True, kw_only=True)
class MixerBenchResult(BenchResult[MixerBenchConfig, MixerMeasurement]):
    """Measurements are by length, and within one in the order of the mixers."""
