"""`rebased bench drift`: how far a float32 state strays from a float64 one over a long stream."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rebased.bench.files import Result
from rebased.bench.verify import relative_rms_error
from rebased.checks import check_integer
from rebased.environment import Environment, describe_environment
from rebased.kernels import REBASED
from rebased.ops import KernelState, initial_state, kernel_attention, kernel_attention_step

__all__ = ["Drift", "DriftResult", "measure_drift"]

_PIECE = 4096
_FEATURE_DIM, _HEAD_DIM = 8, 4
STREAMS = ("random", "equal")
"""Two streams, side by side in one batch: random tokens, and one token over and over, whose every addition rounds
the same way."""


@dataclass(frozen=True, kw_only=True)
class Drift:
    """The state of one stream after ``tokens`` tokens, against float64."""

    stream: str
    feed: str
    """Sequences in pieces, or token by token; "without residual" drops the state's compensation."""
    tokens: int
    values_error: float
    """Relative RMS error of ``state.values``."""
    normalizer_error: float
    """Relative RMS error of ``state.normalizer``."""


@dataclass(frozen=True, kw_only=True)
class DriftResult(Result):
    """Every stream, fed in every way."""

    environment: Environment
    kernel: str
    drifts: tuple[Drift, ...]


def measure_drift(
    num_tokens: int, *, seed: int = 0, progress: Callable[[str], None] = lambda text: None
) -> DriftResult:
    """Feed the same ReBased streams to float64 and float32 states in every way, and compare where they end."""
    check_integer("num_tokens", num_tokens)
    double = _start(torch.float64)
    pieces, steps = _start(torch.float32), _start(torch.float32)
    plain = dataclasses.replace(_start(torch.float32), values_residual=None, normalizer_residual=None)
    generator = torch.Generator().manual_seed(seed)
    same = [_tokens(1, generator)[i][1:, :1] for i in range(2)]
    with torch.no_grad():
        for start in range(0, num_tokens, _PIECE):
            k, v = _tokens(min(_PIECE, num_tokens - start), generator)
            k[1:], v[1:] = same  # the second stream
            double, pieces = _feed(double, k, v), _feed(pieces, k, v)
            for t in range(k.shape[1]):
                for state in (steps, plain):
                    kernel_attention_step(k[:, t], k[:, t], v[:, t], state, REBASED, inplace=True)
            progress(f"{start + k.shape[1]} of {num_tokens} tokens")
    feeds = {f"pieces of {_PIECE}": pieces, "token by token": steps, "token by token, without residual": plain}
    drifts = [
        Drift(
            stream=stream,
            feed=feed,
            tokens=num_tokens,
            values_error=relative_rms_error(state.values[i], double.values[i]),
            normalizer_error=relative_rms_error(state.normalizer[i], double.normalizer[i]),
        )
        for i, stream in enumerate(STREAMS)
        for feed, state in feeds.items()
    ]
    return DriftResult(environment=describe_environment(torch.device("cpu")), kernel=REBASED.name, drifts=tuple(drifts))


def _start(dtype: torch.dtype) -> KernelState:
    return initial_state(REBASED, len(STREAMS), 1, _FEATURE_DIM, _HEAD_DIM, dtype=dtype)


def _tokens(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    k = torch.randn(len(STREAMS), count, 1, _FEATURE_DIM, generator=generator)
    return k, torch.randn(len(STREAMS), count, 1, _HEAD_DIM, generator=generator)


def _feed(state: KernelState, k: Tensor, v: Tensor) -> KernelState:
    """Absorb a piece; nothing is asked of it."""
    k, v = k.to(state.values.dtype), v.to(state.values.dtype)
    nowhere = torch.empty(k.shape[0], 0, dtype=torch.int64)
    _, state = kernel_attention(k[:, :0], k, v, REBASED, at=nowhere, state=state, return_state=True)
    return state
