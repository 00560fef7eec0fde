"""A causal convolution of few taps and SiLU: one kernel in each direction."""

from functools import lru_cache

import torch
import triton
from torch import Tensor

from rebased.ops.triton.conv_silu_kernels import conv_silu_backward_kernel, conv_silu_forward_kernel
from rebased.ops.triton.launch import Launcher
from rebased.ops.triton.rows import has_rows, strides_of, with_rows

WIDTH = 64
"""Channels of a program: two a thread, as one load of 16-bit numbers has them."""
STEPS = 8
"""Tokens taken at a time: so many loads are under way at once."""
SPAN = 128
"""Tokens of a program. Its backward pass reads a few more."""


def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    y = torch.empty_like(x)
    written = y if has_rows(y) else x.new_empty(x.shape)
    x = with_rows(x)
    num_programs, sizes = _grid(x)
    run = _launcher("forward", weight.shape[-1])
    run(num_programs, [x, weight.contiguous(), bias.contiguous(), written], [*sizes, *strides_of(x, written)], [])
    return y if written is y else y.copy_(written)


def backward(dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, the weight and the bias."""
    (B, _, G, W), K = x.shape, weight.shape[-1]
    dx = torch.empty_like(x)
    written = dx if has_rows(dx) else x.new_empty(x.shape)
    dy, x = with_rows(dy), with_rows(x)
    num_programs, sizes = _grid(x)
    partial = x.new_empty(B, sizes[-1], G, K + 1, W, dtype=torch.float32)
    tensors = [dy, x, weight.contiguous(), bias.contiguous(), written, partial]
    _launcher("backward", K)(num_programs, tensors, [*sizes, *strides_of(dy, x, written)], [])
    sums = partial.sum(dim=(0, 1))
    # Compiled code takes the strides of whole tensors for granted.
    dweight, dbias = (x.contiguous() for x in (sums[:, :K].transpose(1, 2), sums[:, K]))
    return dx if written is dx else dx.copy_(written), dweight.to(weight.dtype), dbias.to(bias.dtype)


def _grid(x: Tensor) -> tuple[int, list[int]]:
    """How many programs, and the kernels' sizes."""
    B, T, G, W = x.shape
    num_blocks, num_spans = triton.cdiv(W, WIDTH), triton.cdiv(T, SPAN)
    return B * G * num_blocks * num_spans, [T, G, W, num_blocks, num_spans]


@lru_cache
def _launcher(direction: str, num_taps: int) -> Launcher:
    kernel = conv_silu_forward_kernel if direction == "forward" else conv_silu_backward_kernel
    constants = {"K": num_taps, "WIDTH": WIDTH, "STEPS": STEPS, "SPAN": SPAN}
    return Launcher(kernel, constants, num_warps=1, num_stages=1)
