"""The calls a bench compares: `kernel_attention` by backend, softmax attention, and the peers."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from rebased.bench.config import OpsBenchConfig
from rebased.bench.peers import load_peer
from rebased.kernels import REBASED
from rebased.ops import kernel_attention

__all__ = ["UNSETTLED", "Attend", "Inputs", "build_attend", "build_call", "build_inputs"]

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From q, k and v to the output, all with time before heads."""

UNSETTLED = 32
"""Rows at the start without weight in the loss: a gradient through a normaliser of one or two similarities is rounding
noise in any formulation, and of no size in particular, so it would drown the error of all others."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Inputs:
    """What a call takes, with time before heads."""

    q: Tensor
    k: Tensor
    v: Tensor
    grad_output: Tensor
    """Zero in the first rows: see `UNSETTLED`."""

    def first(self, sequences: int, heads: int) -> "Inputs":
        """Of the first sequences and heads only."""
        return Inputs(**{name: tensor[:sequences, :, :heads] for name, tensor in vars(self).items()})

    def to(self, kind: torch.device | torch.dtype) -> "Inputs":
        """On another device, or in another dtype."""
        return Inputs(**{name: tensor.to(kind) for name, tensor in vars(self).items()})


def build_attend(candidate: str, config: OpsBenchConfig) -> Attend:
    """``candidate`` ("sdpa", a peer or a backend) as a function. PeerUnavailableError if a peer is not here."""
    if candidate == "sdpa":
        return _softmax_attention
    if candidate in config.peers:
        return load_peer(candidate, device=config.device)
    return lambda q, k, v: kernel_attention(q, k, v, REBASED, backend=candidate)


def _softmax_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def build_inputs(candidate: str, length: int, config: OpsBenchConfig) -> Inputs:
    """Fixed random inputs of ``length`` tokens, lying in memory as ``candidate`` likes it best.

    That is time before heads for `kernel_attention`, and heads before time for SDPA and the peers, so that their
    transpositions copy nothing.
    """
    generator = torch.Generator(config.torch_device).manual_seed(config.seed)
    B = config.batch_at(length)
    if candidate == "sdpa":
        H, D = config.sdpa_shape
        F = D
    else:
        H, F, D = config.num_heads, config.feature_dim, config.head_dim
    heads_first = candidate not in config.backends

    def normal(size: int) -> Tensor:
        shape = (B, H, length, size) if heads_first else (B, length, H, size)
        x = torch.randn(shape, generator=generator, device=config.torch_device, dtype=config.torch_dtype)
        return x.transpose(1, 2) if heads_first else x

    inputs = Inputs(q=normal(F), k=normal(F), v=normal(D), grad_output=normal(D))
    inputs.grad_output[:, : min(UNSETTLED, length // 2)] = 0
    return inputs


def build_call(attend: Attend, inputs: Inputs, passes: str) -> Callable[[], tuple[Tensor, ...]]:
    """A call that returns the output, for "both" followed by the gradients of q, k and v."""
    if passes == "forward":
        return lambda: (attend(inputs.q, inputs.k, inputs.v),)
    leaves = [x.detach().requires_grad_() for x in (inputs.q, inputs.k, inputs.v)]

    def both() -> tuple[Tensor, ...]:
        out = attend(*leaves)
        return out.detach(), *torch.autograd.grad(out, leaves, inputs.grad_output)

    return both
