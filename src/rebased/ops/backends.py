"""Which backend does the work: what each can do, and which one "auto" takes."""

import logging
import os
import warnings
from importlib.util import find_spec

import torch
from torch import Tensor

from rebased.kernels import Kernel, Polynomial
from rebased.ops.state import KernelState

BACKENDS = ("reference", "chunked", "triton")
"""What ``backend`` may name, beside "auto"."""
STEP_BACKENDS = ("torch", "triton")
"""The same for a single token."""
MAX_TRITON_FEATURE_DIM = 32
MAX_STEP_HEAD_DIM = 256

_HAS_TRITON = find_spec("triton") is not None
_IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_LOGGER = logging.getLogger(__name__)


def choose_backend(backend: str, q: Tensor, kernel: Kernel) -> str:
    """The backend to use; ValueError if the one asked for cannot do it."""
    if backend not in ("auto", *BACKENDS):
        raise ValueError(f"backend={backend!r} is unknown; it may be 'auto', {', '.join(map(repr, BACKENDS))}")
    if backend == "triton":
        reason = _no_triton_for(q, kernel) or _no_triton_on(q.device)
        if reason is not None:
            raise ValueError(f"backend='triton' {reason}; use 'auto' or 'chunked'")
    if backend != "auto":
        return backend
    choice = "chunked"
    if q.is_cuda and _no_triton_for(q, kernel) is None:
        if _HAS_TRITON:
            choice = "triton" if _no_triton_on(q.device) is None else "chunked"
        else:
            _warn_once()
    if not torch.compiler.is_compiling():  # a log call would break the graph
        _LOGGER.debug("backend='auto' chose %r for %s on %s", choice, tuple(q.shape), q.device)
    return choice


def choose_step_backend(
    backend: str, q: Tensor, v: Tensor, state: KernelState, kernel: Kernel, *, needs_grad: bool
) -> str:
    """The same for a single token."""
    if backend not in ("auto", *STEP_BACKENDS):
        raise ValueError(f"backend={backend!r} is unknown; it may be 'auto', {', '.join(map(repr, STEP_BACKENDS))}")
    if backend == "torch" or (backend == "auto" and (not q.is_cuda or _no_triton_on(q.device) is not None)):
        return "torch"
    reason = _no_triton_for(q, kernel)
    tensors = state.values, state.normalizer, state.count, state.values_residual, state.normalizer_residual
    if v.shape[-1] > MAX_STEP_HEAD_DIM:
        reason = f"takes head_dim up to {MAX_STEP_HEAD_DIM}, v has {v.shape[-1]}"
    elif needs_grad:
        reason = "has no gradient"
    elif not all(x is None or x.is_contiguous() for x in tensors):
        reason = "needs a contiguous state"
    elif (state.values_residual is None) != (state.normalizer_residual is None):
        reason = "needs both residuals of the state, or none"
    if backend == "auto":
        return "torch" if reason is not None else "triton"
    reason = reason or _no_triton_on(q.device)
    if reason is not None:
        raise ValueError(f"backend='triton' {reason}; use 'auto' or 'torch'")
    return backend


def _no_triton_for(q: Tensor, kernel: Kernel) -> str | None:
    """Why the Triton kernels cannot compute this; ``None`` if they can."""
    if not isinstance(kernel, Polynomial):
        return f"computes Polynomial kernels, not {kernel!r}"
    if q.dtype == torch.float64:
        return "computes in float32 and less, and q has dtype float64"
    if q.shape[-1] > MAX_TRITON_FEATURE_DIM:
        return f"takes feature_dim up to {MAX_TRITON_FEATURE_DIM}, q has {q.shape[-1]}"
    return None


def _no_triton_on(device: torch.device) -> str | None:
    if not _HAS_TRITON:
        return "needs Triton (pip install triton)"
    if device.type == "cpu" and not _IS_INTERPRETED:
        return "needs a CUDA device, and q is on the CPU"
    if torch.version.hip is not None:
        return "is written for NVIDIA devices"
    # Asked outside of compiled code only: the question would break the graph.
    if device.type == "cuda" and torch.cuda.is_available() and not torch.compiler.is_compiling():
        capability = torch.cuda.get_device_capability(device)
        if capability < (8, 0):
            return f"needs compute capability 8.0, {device} has {capability[0]}.{capability[1]}"
    return None


_warned = False


def _warn_once() -> None:
    global _warned
    if _warned or torch.compiler.is_compiling():
        return
    _warned = True
    warnings.warn(
        "Triton is not installed: kernel attention on CUDA uses the slower 'chunked' backend (pip install triton)",
        stacklevel=4,
    )
