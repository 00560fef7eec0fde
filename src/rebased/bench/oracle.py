"""Attention and its gradients in float64, by definition and at any length: a block of queries at a time."""

from collections.abc import Callable

import torch
from torch import Tensor

from rebased.bench.candidates import Inputs
from rebased.kernels import Kernel
from rebased.ops import kernel_attention

__all__ = ["Rows", "attend_by_rows", "kernel_rows", "softmax_rows"]

Rows = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Outputs of the last P of T tokens, given their queries (B, P, H, F) and all T keys and values."""

_MAX_SIMILARITIES = 1 << 25  # of one block, all sequences and heads together: 256 MiB an array


def attend_by_rows(rows: Rows, inputs: Inputs, *, max_similarities: int = _MAX_SIMILARITIES) -> tuple[Tensor, ...]:
    """The output, dq, dk and dv. Time is quadratic in the length, memory linear.

    Each block of queries is differentiated by itself; what it says of keys and values is added up.
    """
    q, k, v, grad_output = inputs.q, inputs.k, inputs.v, inputs.grad_output
    B, T, H = q.shape[:3]
    out, dq, dk, dv = torch.empty_like(v), torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    size = max(1, max_similarities // (B * H * T))
    for start in range(0, T, size):
        end = min(start + size, T)
        leaves = [x.detach().requires_grad_() for x in (q[:, start:end], k[:, :end], v[:, :end])]
        block = rows(*leaves)
        gradients = torch.autograd.grad(block, leaves, grad_output[:, start:end])
        out[:, start:end], dq[:, start:end] = block.detach(), gradients[0]
        dk[:, :end] += gradients[1]
        dv[:, :end] += gradients[2]
    return out, dq, dk, dv


def kernel_rows(kernel: Kernel) -> Rows:
    """Kernel attention, by the reference backend."""

    def rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return kernel_attention(q, k, v, kernel, at=_positions(q, k).expand(q.shape[0], -1), backend="reference")

    return rows


def softmax_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal softmax attention with the scale 1/√F."""
    scores = torch.einsum("bthf,bshf->bhts", q * q.shape[-1] ** -0.5, k)
    hidden = torch.arange(k.shape[1], device=k.device) > _positions(q, k)[:, None]
    return torch.einsum("bhts,bshd->bthd", scores.masked_fill(hidden, -torch.inf).softmax(dim=-1), v)


def _positions(q: Tensor, k: Tensor) -> Tensor:
    return torch.arange(k.shape[1] - q.shape[1], k.shape[1], device=k.device)
