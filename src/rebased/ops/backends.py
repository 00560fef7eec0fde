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
TORCH_OR_TRITON = ("torch", "triton")
"""The same where there is no choice of algorithm: single tokens, `norm_affine`, `linear_cross_entropy`, the scans."""
FASTEST = {"cuda": "triton", "cpu": "chunked"}
"""What "auto" takes where it can, by device. Sizes and dtypes do not change the choice: forward + backward in
milliseconds, 4 sequences, 12 heads, F 16, D 64, from ``benchmarks/auto-*.json``:

    H200      bfloat16                    float32                     two CPU cores, float32
    tokens    reference chunked triton    reference chunked triton    reference chunked
    16        3.5       5.4     1.6       3.0       4.4     1.4       0.9       1.4
    64        3.1       3.8     1.3       3.2       3.7     1.3       3.6       3.7
    256       2.7       10.8    1.1       2.8       10.9    1.5       35        44
    1024      3.6       11.1    1.9       3.5       11.5    2.0       1974      206

Where "reference" is ahead it is by less than it would cost to have a second precision for short sequences.
"""
MAX_TRITON_FEATURE_DIM = 32
MAX_STEP_HEAD_DIM = 256
MAX_TRITON_ROWS = 2**30
"""The kernels that work row by row count rows in 32 bits, and their last tile may reach beyond the last row."""

HAS_TRITON = find_spec("triton") is not None
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Triton's kernels then run on the CPU; as Triton has it, this is settled before anything is imported."""
_LOGGER = logging.getLogger(__name__)


def choose_backend(backend: str, q: Tensor, kernel: Kernel) -> str:
    """The backend to use; ValueError if the one asked for cannot do it."""
    check_name(backend, BACKENDS)
    if backend == "triton":
        require_triton(_no_triton_for(q, kernel) or no_triton_on("q", q.device), instead="chunked")
    if backend != "auto":
        return backend
    choice = FASTEST.get(q.device.type, "chunked")
    if choice == "triton":
        refused = _no_triton_for(q, kernel)
        if refused is None and not HAS_TRITON:
            _warn_once()
        if refused or not HAS_TRITON or no_triton_on("q", q.device):
            choice = "chunked"
    if not torch.compiler.is_compiling():  # a log call would break the graph
        _LOGGER.debug("backend='auto' chose %r for %s on %s", choice, tuple(q.shape), q.device)
    return choice


def choose_step_backend(
    backend: str, q: Tensor, v: Tensor, state: KernelState, kernel: Kernel, *, needs_grad: bool
) -> str:
    """The same for a single token."""
    check_name(backend, TORCH_OR_TRITON)
    if backend == "torch" or (backend == "auto" and not q.is_cuda):
        return "torch"
    reason = _no_triton_for(q, kernel) or _no_step_for(v, state, needs_grad=needs_grad) or no_triton_on("q", q.device)
    if backend == "triton":
        require_triton(reason, instead="torch")
    return "triton" if reason is None else "torch"


def check_name(backend: str, names: tuple[str, ...]) -> None:
    if backend not in ("auto", *names):
        raise ValueError(f"backend={backend!r} is unknown; it may be 'auto', {', '.join(map(repr, names))}")


def require_triton(reason: str | None, *, instead: str) -> None:
    """ValueError where there is a reason against it."""
    if reason is not None:
        raise ValueError(f"backend='triton' {reason}; use 'auto' or {instead!r}")


def runs_on_triton(backend: str, name: str, x: Tensor, reason: str | None, *, num_rows: int = 0) -> bool:
    """Whether Triton's kernels do the work where there is no choice of algorithm; ``reason`` speaks against it already.

    Decided where nothing is traced: sizes are known, and questions about the device break no graph.
    """
    if x.numel() == 0 or backend == "torch":
        return False
    if num_rows > MAX_TRITON_ROWS:
        reason = reason or f"takes up to {MAX_TRITON_ROWS} rows, {name} has {num_rows}"
    reason = reason or no_triton_on(name, x.device)
    if backend == "triton":
        require_triton(reason, instead="torch")
        return True
    chosen = x.is_cuda and reason is None
    _LOGGER.debug("backend='auto' chose %r for %s on %s", "triton" if chosen else "torch", tuple(x.shape), x.device)
    return chosen


def no_triton_on(name: str, device: torch.device) -> str | None:
    """Why the Triton kernels cannot run where the tensor of that name is; ``None`` if they can."""
    if not HAS_TRITON:
        return "needs Triton (pip install triton)"
    if device.type != "cuda" and not IS_INTERPRETED:
        return f"needs a CUDA device, and {name} is on {device}"
    if torch.version.hip is not None:
        return "is written for NVIDIA devices"
    # Asked outside of compiled code only: the question would break the graph.
    if device.type == "cuda" and torch.cuda.is_available() and not torch.compiler.is_compiling():
        capability = torch.cuda.get_device_capability(device)
        if capability < (8, 0):
            return f"needs compute capability 8.0, {device} has {capability[0]}.{capability[1]}"
    return None


def _no_triton_for(q: Tensor, kernel: Kernel) -> str | None:
    """Why they cannot compute this; ``None`` if they can.

    Sizes and a kernel's numbers may be symbols while torch.compile traces this, and those cannot be put into words.
    """
    if not isinstance(kernel, Polynomial):
        return f"computes Polynomial kernels, not {type(kernel).__name__}"
    if q.dtype == torch.float64:
        return "computes in float32 and less, and q has dtype float64"
    if q.shape[-1] > MAX_TRITON_FEATURE_DIM:
        return f"takes feature_dim up to {MAX_TRITON_FEATURE_DIM}, and q has more"
    return None


def _no_step_for(v: Tensor, state: KernelState, *, needs_grad: bool) -> str | None:
    if v.shape[-1] > MAX_STEP_HEAD_DIM:
        return f"takes head_dim up to {MAX_STEP_HEAD_DIM}, and v has more"
    if needs_grad:
        return "has no gradient"
    if not all(x is None or x.is_contiguous() for x in state.tensors()):
        return "needs a contiguous state"
    if (state.values_residual is None) != (state.normalizer_residual is None):
        return "needs both residuals of the state, or none"
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


def no_tuples() -> str | None:
    """Why these kernels cannot run: tuples of tensors came with Triton 3.3, torch 2.6 with an earlier one."""
    if not HAS_TRITON:
        return None  # there is a better reason
    import triton.language

    return None if hasattr(triton.language, "tuple") else "needs Triton 3.3 or later"
