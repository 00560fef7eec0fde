"""A bench of decoding: what is asked, and what was found, in memory and as JSON."""

from dataclasses import dataclass

from rebased.bench import checks
from rebased.bench.checks import DEVICES, DTYPES
from rebased.bench.files import BenchResult
from rebased.bench.machine import OnMachine
from rebased.bench.timing import Timing
from rebased.checks import check_choice, check_not_negative
from rebased.ops.backends import TORCH_OR_TRITON

__all__ = ["DecodeBenchConfig", "DecodeBenchResult", "DecodeMeasurement"]


@dataclass(frozen=True, kw_only=True)
class DecodeBenchConfig(OnMachine):
    """One decoding step with a state, beside softmax attention over a cache of keys and values."""

    device: str = "cpu"
    """"cpu" or "cuda"."""
    dtype: str = "float32"
    """Of the inputs and the cache; a state is float32 whatever it is, or float64."""
    contexts: tuple[int, ...] = (2048, 8192, 32768)
    """Tokens in the cache."""
    batch_size: int = 64
    """Sequences that are decoded together."""
    num_heads: int = 64
    """Of `kernel_attention_step`."""
    feature_dim: int = 16
    """Size of its queries and keys per head."""
    head_dim: int = 12
    """Size of its values per head."""
    sdpa_heads: int = 12
    sdpa_head_dim: int = 64
    """Size of SDPA's queries, keys and values per head."""
    backend: str = "auto"
    """Of `kernel_attention_step`."""
    graphs: bool = False
    """Whether steps are recorded and replayed as CUDA graphs, as decoding loops do."""
    threads: int | None = None
    """Threads of one CPU operator; None leaves torch's setting."""
    min_repetitions: int = 5
    """Steps timed at least."""
    min_seconds: float = 0.2
    """Seconds timed at least."""
    seed: int = 0
    """Of the random inputs."""

    def __post_init__(self) -> None:
        """Raise ValueError, naming the field, for a value outside its domain."""
        check_choice("device", self.device, DEVICES)
        check_choice("dtype", self.dtype, DTYPES)
        check_choice("backend", self.backend, ("auto", *TORCH_OR_TRITON))
        checks.check_lengths("contexts", self.contexts)
        checks.check_integers(self, "batch_size", "num_heads", "feature_dim", "head_dim")
        checks.check_integers(self, "sdpa_heads", "sdpa_head_dim", "threads", "min_repetitions")
        check_not_negative("min_seconds", self.min_seconds)
        checks.check_graphs(self.graphs, self.device)


@dataclass(frozen=True, kw_only=True)
class DecodeMeasurement:
    """One step of one candidate: either measured, or skipped with a reason."""

    candidate: str
    """"state" (`kernel_attention_step`) or "sdpa"."""
    context: int | None
    """Tokens in SDPA's cache; None for the state, whose size does not depend on them."""
    held_bytes: int | None = None
    """What is kept from step to step: the state, or the cache."""
    timing: Timing | None = None
    """None if skipped."""
    slowdown: float | None = None
    """This median time over that of the state; None if either was skipped."""
    skipped: str | None = None
    """Why nothing was measured; None if something was."""


@dataclass(frozen=True, kw_only=True)
class DecodeBenchResult(BenchResult[DecodeBenchConfig, DecodeMeasurement]):
    """Of the measurements the state's comes first, then SDPA's by context."""

    error: float
    """Relative RMS error of steps in a row against the float64 reference, from the check before the timing."""
