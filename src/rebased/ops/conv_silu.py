"""A depth-wise causal convolution of few taps and SiLU after it, as Mamba has them.

``rebased::conv_silu`` has groups, each with its own weights: x (B, T, G, W), weight (G, W, K), bias (G, W). Stacked
replicas run as groups of one call.
"""

from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from rebased.ops.backends import TORCH_OR_TRITON, check_name, no_tuples, require_triton, runs_on_triton
from rebased.ops.checks import check_floats, check_like
from rebased.ops.dtypes import compute_dtype
from rebased.ops.opaque import define_operator
from rebased.ops.replicas import join_replicas

__all__ = ["conv_silu"]

MAX_TRITON_TAPS = 8
"""A program of the backward pass holds two tiles for each; "auto" leaves more to torch."""


def conv_silu(
    x: Float[Tensor, "B T W"], weight: Float[Tensor, "W K"], bias: Float[Tensor, " W"], *, backend: str = "auto"
) -> Float[Tensor, "B T W"]:
    """``SiLU(bias + Σ_j weight_j · x_{t-K+1+j})`` in each channel; before the first token there are zeros.

    The result has x's dtype; sums are float32, or float64 for float64 x, under autocast too. Nothing but the inputs is
    kept for the backward pass.

    Backends: "torch" works everywhere; "triton" is one kernel in each direction, for a GPU, up to `MAX_TRITON_TAPS`
    taps and not in float64; "auto" takes the latter where it can. Raises ValueError (TypeError for a wrong type) that
    names the argument.
    """
    for name, tensor, axes in (("x", x, "B T W"), ("weight", weight, "W K"), ("bias", bias, "W")):
        check_floats(name, tensor, axes)
    W = x.shape[2]
    check_like("weight", weight, (W, weight.shape[1]), "x", x)
    check_like("bias", bias, (W,), "x", x)
    check_name(backend, TORCH_OR_TRITON)
    if backend == "triton":
        require_triton(_no_triton_for(x, weight), instead="torch")
    y: Tensor = _conv_silu(x[:, :, None], weight[None], bias[None], backend)
    return y[:, :, 0]


def _no_triton_for(x: Tensor, weight: Tensor) -> str | None:
    if x.dtype == torch.float64:
        return "computes in float32, and x has dtype float64"
    if weight.shape[-1] > MAX_TRITON_TAPS:
        return f"takes up to {MAX_TRITON_TAPS} taps, and weight has {weight.shape[-1]}"
    return None


def _runs_on_triton(backend: str, x: Tensor, weight: Tensor) -> bool:
    return runs_on_triton(backend, "x", x, _no_triton_for(x, weight) or no_tuples())


# ---- On real tensors ----


def _sums(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Before SiLU, in the dtype of sums."""
    T, K, dtype = x.shape[1], weight.shape[-1], compute_dtype(x)
    padded = functional.pad(x, (0, 0, 0, 0, K - 1, 0)).to(dtype)
    sums = bias.to(dtype)
    for tap in range(K):
        sums = sums + weight[..., tap].to(dtype) * padded[:, tap : tap + T]
    return sums


def _forward(x: Tensor, weight: Tensor, bias: Tensor, backend: str) -> Tensor:
    if x.numel() == 0:
        return torch.empty_like(x)
    if _runs_on_triton(backend, x, weight):
        from rebased.ops.triton import conv_silu

        return conv_silu.forward(x, weight, bias)
    return torch.empty_like(x).copy_(functional.silu(_sums(x, weight, bias)))


def _backward(dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, backend: str) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, the weight and the bias."""
    if x.numel() == 0:
        # Without gaps, as promised to compiled code, whatever the weight's strides.
        return torch.empty_like(x), weight.new_zeros(weight.shape), bias.new_zeros(bias.shape)
    if _runs_on_triton(backend, x, weight):
        from rebased.ops.triton import conv_silu

        return conv_silu.backward(dy, x, weight, bias)
    K, T = weight.shape[-1], x.shape[1]
    sums = _sums(x, weight, bias)
    gate = sums.sigmoid()
    dsums = dy.to(sums.dtype) * gate * (1 + sums * (1 - gate))
    later = functional.pad(dsums, (0, 0, 0, 0, 0, K - 1))
    dx = torch.zeros_like(sums)
    for tap in range(K):
        dx += weight[..., tap].to(sums.dtype) * later[:, K - 1 - tap : K - 1 - tap + T]
    padded = functional.pad(x, (0, 0, 0, 0, K - 1, 0)).to(sums.dtype)
    dweight = torch.stack([(dsums * padded[:, tap : tap + T]).sum(dim=(0, 1)) for tap in range(K)], dim=-1)
    return torch.empty_like(x).copy_(dx), dweight.to(weight.dtype), dsums.sum(dim=(0, 1)).to(bias.dtype)


# ---- Autograd ----


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, backend = inputs
    ctx.save_for_backward(*tensors)
    ctx.backend = backend


def _differentiate(ctx: Any, dy: Tensor) -> Any:
    return *_conv_silu_backward(dy, *ctx.saved_tensors, ctx.backend), None


_conv_silu_backward = define_operator(
    "conv_silu_backward(Tensor dy, Tensor x, Tensor weight, Tensor bias, str backend) -> (Tensor, Tensor, Tensor)",
    implementation=_backward,
    fake=lambda dy, x, weight, bias, backend: (
        torch.empty_like(x),
        weight.new_empty(weight.shape),
        bias.new_empty(bias.shape),
    ),
    vmap=partial(join_replicas, inputs=(2, 2, 0, 0), outputs=(2, 0, 0)),
)

_conv_silu = define_operator(
    "conv_silu(Tensor x, Tensor weight, Tensor bias, str backend) -> Tensor",
    implementation=_forward,
    fake=lambda x, weight, bias, backend: torch.empty_like(x),
    vmap=partial(join_replicas, inputs=(2, 0, 0), outputs=2),
    setup_context=_setup_context,
    backward=_differentiate,
)
