"""A causal convolution of few taps and SiLU: one kernel in each direction."""

from functools import lru_cache

import torch
import triton
from torch import Tensor

from rebased.ops.triton.conv_silu_kernels import conv_silu_backward_kernel, conv_silu_forward_kernel
from rebased.ops.triton.launch import Launcher
from rebased.ops.triton.rows import copied, rows_for, strides_of, with_rows

FORWARD_WIDTH = 64
"""Channels of a program, two for each thread of a warp; fewer where there are fewer."""
FORWARD_STEPS = 8
"""Tokens that are loaded at a time."""
BACKWARD_WIDTH = 128
BACKWARD_STEPS = 4
SPAN = 128
"""Tokens of a program, which computes a few more in the backward pass; half as many while programs are few."""
ENOUGH_PROGRAMS = 2048
BACKWARD_REGISTERS = 96
"""The most that a thread may have with up to four taps, which do with so many: more programs then run at once."""


def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    y = torch.empty_like(x)
    written = rows_for(y)
    x = with_rows(x)
    width, span, num_programs, sizes = _grid(x, FORWARD_WIDTH, FORWARD_STEPS)
    run = _launcher("forward", weight.shape[-1], width, span)
    run(num_programs, [x, weight.contiguous(), bias.contiguous(), written], [*sizes, *strides_of(x, written)], [])
    return copied(y, written)


def backward(dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, the weight and the bias."""
    (B, _, G, W), K = x.shape, weight.shape[-1]
    dx = torch.empty_like(x)
    written = rows_for(dx)
    dy, x = with_rows(dy), with_rows(x)
    width, span, num_programs, sizes = _grid(x, BACKWARD_WIDTH, BACKWARD_STEPS)
    partial = x.new_empty(B, sizes[-1], G, K + 1, W, dtype=torch.float32)
    tensors = [dy, x, weight.contiguous(), bias.contiguous(), written, partial]
    _launcher("backward", K, width, span)(num_programs, tensors, [*sizes, *strides_of(dy, x, written)], [])
    sums = partial.sum(dim=(0, 1))
    # Compiled code takes the strides of whole tensors for granted.
    dweight, dbias = (x.contiguous() for x in (sums[:, :K].transpose(1, 2), sums[:, K]))
    return copied(dx, written), dweight.to(weight.dtype), dbias.to(bias.dtype)


def _grid(x: Tensor, most_width: int, steps: int) -> tuple[int, int, int, list[int]]:
    """Channels and tokens of a program, how many programs, and the kernels' sizes."""
    B, T, G, W = x.shape
    width, span = min(most_width, max(32, triton.next_power_of_2(W))), SPAN
    num_blocks = triton.cdiv(W, width)
    while span > 4 * steps and B * G * num_blocks * triton.cdiv(T, span) < ENOUGH_PROGRAMS:
        span //= 2
    num_spans = triton.cdiv(T, span)
    return width, span, B * G * num_blocks * num_spans, [T, G, W, num_blocks, num_spans]


@lru_cache
def _launcher(direction: str, num_taps: int, width: int, span: int) -> Launcher:
    if direction == "forward":
        kernel, steps, registers = conv_silu_forward_kernel, FORWARD_STEPS, None
    else:
        kernel, steps = conv_silu_backward_kernel, BACKWARD_STEPS
        registers = BACKWARD_REGISTERS if num_taps <= 4 else None
    constants = {"K": num_taps, "WIDTH": width, "SPAN": span, "STEPS": steps}
    return Launcher(kernel, constants, num_warps=1, num_stages=1, max_registers=registers)
