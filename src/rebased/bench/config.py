"""What a bench of the operators measures."""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from rebased.ops import BACKENDS

__all__ = ["DEVICES", "DTYPES", "OpsBenchConfig"]

DEVICES = ("cpu", "cuda")
DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, kw_only=True)
class OpsBenchConfig:
    """One bench: every backend and SDPA at every length. Checked on construction."""

    device: str = "cpu"
    """"cpu" or "cuda"."""
    dtype: str = "float32"
    """Of the inputs: "float32", "float64", "bfloat16" or "float16"."""
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192)
    """Tokens per sequence, one row of the table each."""
    backends: tuple[str, ...] = BACKENDS
    """Which backends of `kernel_attention` stand beside SDPA."""
    backward: bool = False
    """Time forward and backward together instead of forward alone."""
    batch_size: int = 1
    """Sequences per call."""
    num_heads: int = 12
    """Heads of queries, keys and values, for SDPA too."""
    feature_dim: int = 16
    """Size of queries and keys per head. SDPA's are of ``head_dim``."""
    head_dim: int = 64
    """Size of values per head."""
    threads: int | None = None
    """Threads of one CPU operator; None leaves torch's setting."""
    max_reference_length: int = 2048
    """Longer lengths skip the ``reference`` backend, whose memory is quadratic."""
    max_sdpa_length: int = 32768
    """Longer lengths skip SDPA, whose time is quadratic."""
    min_repetitions: int = 5
    """Calls timed at least."""
    min_seconds: float = 0.5
    """Seconds timed at least."""
    seed: int = 0
    """Of the random inputs."""

    def __post_init__(self) -> None:
        """Raise ValueError, naming the field, for a value outside its domain."""
        _check_choice("device", self.device, DEVICES)
        _check_choice("dtype", self.dtype, DTYPES)
        if not self.backends:
            raise ValueError(f"backends is empty; it may hold {_listed(BACKENDS)}")
        for backend in self.backends:
            _check_choice("backends", backend, BACKENDS)
        if not self.lengths:
            raise ValueError("lengths is empty; it must hold at least one positive integer")
        for length in self.lengths:
            _check_positive("lengths", length)
        _check_distinct("lengths", self.lengths)
        _check_distinct("backends", self.backends)
        for name in ("batch_size", "num_heads", "feature_dim", "head_dim", "min_repetitions"):
            _check_positive(name, getattr(self, name))
        if self.threads is not None:
            _check_positive("threads", self.threads)
        for name in ("max_reference_length", "max_sdpa_length", "min_seconds"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)} must be finite and not negative")

    def check_machine(self) -> None:
        """Raise ValueError if this machine lacks what it takes. Construction does not: results are read anywhere."""
        processors = os.cpu_count() or 1
        if self.threads is not None and self.threads > processors:
            raise ValueError(f"threads: {self.threads} is more than the {processors} processors of this machine")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device: 'cuda' was asked for, but torch sees no CUDA device; use 'cpu'")

    @property
    def torch_device(self) -> torch.device:
        """``device`` as torch knows it."""
        return torch.device(self.device)

    @property
    def torch_dtype(self) -> torch.dtype:
        """``dtype`` as torch knows it."""
        return DTYPES[self.dtype]

    @property
    def candidates(self) -> tuple[str, ...]:
        """What is timed, in order: the backends, then "sdpa"."""
        return (*self.backends, "sdpa")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def _check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name}: {value!r} is unknown; it may be {_listed(choices)}")


def _check_positive(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name}: {value} is not a positive integer")


def _check_distinct(name: str, values: tuple[object, ...]) -> None:
    if len(set(values)) != len(values):
        raise ValueError(f"{name}: {', '.join(map(str, values))} names an entry twice")
