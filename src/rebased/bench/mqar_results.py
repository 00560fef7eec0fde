"""A bench of training on MQAR: what is asked, and what was found, in memory and as JSON."""

from dataclasses import dataclass

from rebased.bench import checks
from rebased.bench.checks import DEVICES
from rebased.bench.files import BenchResult
from rebased.bench.machine import OnMachine
from rebased.bench.timing import Timing
from rebased.checks import check_choice, check_not_negative
from rebased.models.stacks import STACKS
from rebased.training.recall import DTYPES, RecallConfig

__all__ = ["MqarBenchConfig", "MqarBenchResult", "MqarMeasurement"]


@dataclass(frozen=True, kw_only=True)
class MqarBenchConfig(OnMachine):
    """Steps of training at every length and number of replicas. Checked on construction."""

    device: str = "cpu"
    """"cpu" or "cuda"."""
    dtype: str = "float32"
    """"float32", "float64", or "bfloat16" by autocast."""
    stack: str = "rebased"
    """A name of `rebased.models.STACKS`."""
    d_model: int = 48
    lengths: tuple[int, ...] = (256,)
    """Tokens per sequence."""
    num_pairs: int = 32
    batch_size: int = 512
    replicas: tuple[int, ...] = (1, 20)
    """Runs trained together."""
    micro_batches: int = 1
    """Parts that a batch is cut into."""
    threads: int | None = None
    """Threads of one CPU operator; None leaves torch's setting."""
    min_repetitions: int = 10
    """Steps timed at least."""
    min_seconds: float = 1.0
    """Seconds timed at least."""

    def __post_init__(self) -> None:
        """Raise ValueError, naming the field, for a value outside its domain."""
        check_choice("device", self.device, DEVICES)
        check_choice("dtype", self.dtype, DTYPES)
        check_choice("stack", self.stack, STACKS)
        checks.check_lengths("lengths", self.lengths)
        checks.check_lengths("replicas", self.replicas)
        checks.check_integers(self, "d_model", "num_pairs", "batch_size", "micro_batches", "threads", "min_repetitions")
        check_not_negative("min_seconds", self.min_seconds)
        for length in self.lengths:
            self.run(length, seed=0)

    def run(self, length: int, seed: int) -> RecallConfig:
        """One of the runs that are trained; its training set is small, for the time of a step does not depend on it."""
        return RecallConfig(
            stack=self.stack,
            d_model=self.d_model,
            seq_len=length,
            task_options={"num_pairs": self.num_pairs},
            learning_rate=1e-3,
            seed=seed,
            num_train=8 * self.batch_size,
            num_test=self.batch_size,
            batch_size=self.batch_size,
            dtype=self.dtype,
        )


@dataclass(frozen=True, kw_only=True)
class MqarMeasurement:
    """So many replicas at one length: either measured, or skipped with a reason."""

    length: int
    replicas: int
    timing: Timing | None = None
    """Of one step of all replicas; None if skipped."""
    step_seconds: float | None = None
    """The median per replica."""
    peak_bytes: int | None = None
    """Memory in use at the worst moment: on a GPU with weights and examples, on a CPU that of a step beyond these."""
    first_seconds: float | None = None
    """Of the first step, compilation included."""
    skipped: str | None = None
    """Why nothing was measured; None if something was."""


@dataclass(frozen=True, kw_only=True)
class MqarBenchResult(BenchResult[MqarBenchConfig, MqarMeasurement]):
    """What a bench of training on MQAR found."""
