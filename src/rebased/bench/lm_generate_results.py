"""A bench of generation: what is asked, and what was found, in memory and as JSON."""

from dataclasses import dataclass

from rebased.bench import checks
from rebased.bench.checks import DEVICES, DTYPES
from rebased.bench.files import BenchResult
from rebased.bench.machine import OnMachine
from rebased.bench.timing import Timing
from rebased.checks import check_choice

__all__ = ["GenerateBenchConfig", "GenerateBenchResult", "GenerateMeasurement"]


@dataclass(frozen=True, kw_only=True)
class GenerateBenchConfig(OnMachine):
    """``generate`` of several models after prompts of several lengths."""

    device: str = "cpu"
    """"cpu" or "cuda"."""
    dtype: str = "float32"
    """Of the weights."""
    models: tuple[str, ...] = ("attention", "based", "rebased")
    """Names of `rebased.hf.presets`; ratios are over the first."""
    contexts: tuple[int, ...] = (1024, 8192, 32768)
    """Tokens of the prompts."""
    batch_size: int = 64
    """Sequences that are generated together."""
    new_tokens: int = 64
    """Generated in each repetition, each going on from where the one before it ended."""
    repetitions: int = 3
    """Timed; one more comes before them."""
    threads: int | None = None
    """Threads of one CPU operator; None leaves torch's setting."""
    seed: int = 0
    """Of weights and prompts."""

    def __post_init__(self) -> None:
        """Raise ValueError, naming the field, for a value outside its domain."""
        from rebased.hf.presets import PRESETS

        check_choice("device", self.device, DEVICES)
        check_choice("dtype", self.dtype, DTYPES)
        checks.check_choices("models", self.models, tuple(PRESETS))
        checks.check_lengths("contexts", self.contexts)
        checks.check_integers(self, "batch_size", "new_tokens", "repetitions", "threads")

    @property
    def max_generated(self) -> int:
        """Tokens that come after a prompt in all."""
        return 1 + (1 + self.repetitions) * self.new_tokens


@dataclass(frozen=True, kw_only=True)
class GenerateMeasurement:
    """One model after prompts of one length: either measured, or skipped with a reason."""

    model: str
    context: int
    parameters: int | None = None
    """None if the model could not be built."""
    prompt_seconds: float | None = None
    """Until the first token is there, the second time."""
    timing: Timing | None = None
    """Of ``new_tokens`` steps; None if skipped."""
    tokens_per_second: float | None = None
    """Of all sequences together, at the median."""
    speedup: float | None = None
    """These tokens per second over those of the first model."""
    held_bytes: int | None = None
    """What the cache takes after the prompt."""
    peak_bytes: int | None = None
    """Most in use at a time while tokens are generated, weights and cache included; None on a CPU."""
    skipped: str | None = None
    """Why nothing was measured; None if something was."""


@dataclass(frozen=True, kw_only=True)
class GenerateBenchResult(BenchResult[GenerateBenchConfig, GenerateMeasurement]):
    """What a bench of generation found."""
