"""The selective scan: a program walks along time with the states of a few channels in registers.

A tile has four axes: STEPS tokens, OUTER · LANES channels and NP states of each (N padded), in the order (STEPS, OUTER,
NP, LANES). A program is one warp. Of the last two axes each of its threads holds a part; the first two are its own, so
that a step from one token to the next needs no other thread.
"""

# Triton reads kernels as a language of its own, in which nothing is annotated; the rest of this file is.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from rebased.ops.triton.launch import Launcher

LANES = 8
"""Channels side by side in a warp, with a quarter of their states in each thread."""
FORWARD_ELEMENTS = 64
"""Numbers that a thread holds of each tile in the forward pass."""
BACKWARD_ELEMENTS = 32
"""The same in the backward pass, which has more tiles at once."""
MAX_STEPS = 16
ENOUGH_PROGRAMS = 2048
"""Programs hold twice as many channels, and write half as many partial sums, while at least that many remain."""

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def pick(tile, step, index: tl.constexpr):
    """What a tile holds of one token. Sums of integers cost nothing where all but one are known to be zero."""
    bits = tl.where(step == index, tile.to(tl.int32, bitcast=True), 0)
    return tl.sum(bits, axis=0).to(tl.float32, bitcast=True)


@triton.jit
def load_tile(pointers, offsets, mask):
    return tl.load(pointers + offsets, mask=mask, other=0.0).to(tl.float32)
