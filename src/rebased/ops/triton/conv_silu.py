"""A causal convolution of few taps and SiLU: one kernel in each direction."""

from functools import lru_cache

import torch
import triton
from torch import Tensor

from rebased.ops.triton.conv_silu_kernels import conv_silu_backward_kernel, conv_silu_forward_kernel
from rebased.ops.triton.launch import Launcher
from rebased.ops.triton.rows import has_rows, strides_of, with_rows

ROWS, WIDTH = 16, 64
"""Tokens and channels of a tile: eight numbers a thread, and the backward pass has a dozen tiles in registers."""
TILES = 8
"""That a program goes through, one after another, with one set of sums."""


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
    num_blocks, num_spans = triton.cdiv(W, WIDTH), triton.cdiv(T, ROWS * TILES)
    return B * G * num_blocks * num_spans, [T, G, W, num_blocks, num_spans]


@lru_cache
def _launcher(direction: str, num_taps: int) -> Launcher:
    kernel = conv_silu_forward_kernel if direction == "forward" else conv_silu_backward_kernel
    constants = {"K": num_taps, "ROWS": ROWS, "WIDTH": WIDTH, "TILES": TILES}
    return Launcher(kernel, constants, num_warps=4, num_stages=1)
