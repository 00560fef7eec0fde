"""What a bench of the operators measures."""

from dataclasses import dataclass

from rebased.bench import checks
from rebased.bench.checks import DEVICES, DTYPES
from rebased.bench.machine import OnMachine
from rebased.bench.peers import PEERS
from rebased.checks import check_choice, check_not_negative
from rebased.ops import BACKENDS

__all__ = ["PASSES", "OpsBenchConfig", "backends_on"]

PASSES = ("forward", "both")
"""What one timed call does: forward alone, or forward and backward."""


def backends_on(device: str) -> tuple[str, ...]:
    """The backends of `kernel_attention` that run on ``device``."""
    return tuple(backend for backend in BACKENDS if device == "cuda" or backend != "triton")


@dataclass(frozen=True, kw_only=True)
class OpsBenchConfig(OnMachine):
    """One bench: every backend, SDPA and the chosen peers at every length. Checked on construction."""

    device: str = "cpu"
    """"cpu" or "cuda"."""
    dtype: str = "float32"
    """Of the inputs: "float32", "float64", "bfloat16" or "float16"."""
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192)
    """Tokens per sequence."""
    backends: tuple[str, ...] = backends_on("cpu")
    """Which backends of `kernel_attention` stand beside SDPA."""
    peers: tuple[str, ...] = ()
    """Which of flash-linear-attention's kernels do too."""
    passes: tuple[str, ...] = ("forward",)
    """What is timed: "forward", "both" (forward and backward in one call), or each."""
    batch_size: int | None = None
    """Sequences per call at every length; without this and ``tokens``, 1."""
    tokens: int | None = None
    """Tokens per call, instead: the batch size at each length is what makes up this number."""
    num_heads: int = 12
    """Heads of queries, keys and values."""
    feature_dim: int = 16
    """Size of queries and keys per head."""
    head_dim: int = 64
    """Size of values per head."""
    sdpa_heads: int | None = None
    """SDPA's heads; None is ``num_heads``."""
    sdpa_head_dim: int | None = None
    """Size of SDPA's queries, keys and values per head; None is ``head_dim``."""
    threads: int | None = None
    """Threads of one CPU operator; None leaves torch's setting."""
    max_reference_length: int = 2048
    """Longer lengths skip the ``reference`` backend, whose memory is quadratic."""
    max_sdpa_length: int = 32768
    """Longer lengths skip SDPA, whose time is quadratic."""
    max_peer_length: int = 65536
    """Longer lengths skip the peers: those whose names begin with "parallel" are quadratic, the other is slow."""
    accuracy: bool = False
    """Whether errors against float64 are measured at the very sizes that are timed, which costs quadratic time."""
    graphs: bool = False
    """Whether calls are recorded and replayed as CUDA graphs: their time is then the device's alone."""
    min_repetitions: int = 5
    """Calls timed at least."""
    min_seconds: float = 0.5
    """Seconds timed at least."""
    seed: int = 0
    """Of the random inputs."""

    def __post_init__(self) -> None:
        """Raise ValueError, naming the field, for a value outside its domain."""
        check_choice("device", self.device, DEVICES)
        check_choice("dtype", self.dtype, DTYPES)
        checks.check_lengths("lengths", self.lengths)
        checks.check_choices("backends", self.backends, BACKENDS)
        checks.check_choices("passes", self.passes, PASSES)
        if self.peers:
            checks.check_choices("peers", self.peers, PEERS)
        checks.check_integers(self, "batch_size", "tokens", "num_heads", "feature_dim", "head_dim")
        checks.check_integers(self, "sdpa_heads", "sdpa_head_dim", "threads", "min_repetitions")
        for name in ("max_reference_length", "max_sdpa_length", "max_peer_length", "min_seconds"):
            check_not_negative(name, getattr(self, name))
        checks.check_graphs(self.graphs, self.device)
        if self.tokens is not None:
            if self.batch_size is not None:
                raise ValueError(f"tokens={self.tokens} and batch_size={self.batch_size} exclude each other; give one")
            checks.check_tokens(self.tokens, self.lengths)

    def batch_at(self, length: int) -> int:
        """Sequences per call at ``length``."""
        return self.batch_size or 1 if self.tokens is None else self.tokens // length

    def skip_reason(self, candidate: str, length: int) -> str | None:
        """Why ``candidate`` is not to be tried at ``length``; ``None`` if it is."""
        limits = {"reference": "max_reference_length", "sdpa": "max_sdpa_length"}
        limits |= dict.fromkeys(self.peers, "max_peer_length")
        limit = limits.get(candidate)
        if limit is not None and length > getattr(self, limit):
            return f"longer than {limit}={getattr(self, limit)}"
        return None

    @property
    def sdpa_shape(self) -> tuple[int, int]:
        """SDPA's number of heads and their size."""
        return self.sdpa_heads or self.num_heads, self.sdpa_head_dim or self.head_dim

    @property
    def candidates(self) -> tuple[str, ...]:
        """What is timed, in order: the backends, "sdpa", the peers."""
        return (*self.backends, "sdpa", *self.peers)
