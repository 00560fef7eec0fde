"""A bench of training language models: what is asked, and what was found, in memory and as JSON."""

from dataclasses import dataclass

from rebased.bench import checks
from rebased.bench.checks import DEVICES, DTYPES
from rebased.bench.files import BenchResult
from rebased.bench.machine import OnMachine
from rebased.bench.timing import Timing
from rebased.checks import check_choice

__all__ = ["TrainBenchConfig", "TrainBenchResult", "TrainMeasurement"]


@dataclass(frozen=True, kw_only=True)
class TrainBenchConfig(OnMachine):
    """Steps of training of several models with sequences of several lengths."""

    device: str = "cpu"
    """"cpu" or "cuda"."""
    dtype: str = "float32"
    """Of products, by autocast; weights are float32."""
    models: tuple[str, ...] = ("attention", "based", "rebased")
    """Names of `rebased.hf.presets`; ratios are over the first."""
    lengths: tuple[int, ...] = (4096, 16384, 65536)
    """Tokens of a sequence."""
    tokens: int = 65536
    """Of a step, in as many sequences as that makes: a multiple of every length."""
    compile: bool = False
    """Whether the layers are compiled, each kind once."""
    repetitions: int = 5
    """Steps timed."""
    threads: int | None = None
    """Threads of one CPU operator; None leaves torch's setting."""
    seed: int = 0
    """Of weights and tokens."""

    def __post_init__(self) -> None:
        """Raise ValueError, naming the field, for a value outside its domain."""
        from rebased.hf.presets import PRESETS

        check_choice("device", self.device, DEVICES)
        check_choice("dtype", self.dtype, DTYPES)
        checks.check_choices("models", self.models, tuple(PRESETS))
        checks.check_lengths("lengths", self.lengths)
        checks.check_integers(self, "tokens", "repetitions", "threads")
        checks.check_tokens(self.tokens, self.lengths)


@dataclass(frozen=True, kw_only=True)
class TrainMeasurement:
    """One model with sequences of one length: either measured, or skipped with a reason."""

    model: str
    length: int
    batch_size: int
    parameters: int | None = None
    """The position table, as long as a sequence, included; None if the model could not be built."""
    timing: Timing | None = None
    """Of a step: forward, backward, optimizer; None if skipped."""
    tokens_per_second: float | None = None
    """At the median."""
    parameter_flops: float | None = None
    """6 × parameters × tokens per second."""
    speedup: float | None = None
    """These tokens per second over those of the first model."""
    peak_bytes: int | None = None
    """Most in use at a time, weights and their moments included; None on a CPU."""
    first_seconds: float | None = None
    """The first step, compilation included."""
    skipped: str | None = None
    """Why nothing was measured; None if something was."""


@dataclass(frozen=True, kw_only=True)
class TrainBenchResult(BenchResult[TrainBenchConfig, TrainMeasurement]):
    """What a bench of training language models found."""
