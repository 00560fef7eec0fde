"""RWKV's weighted average: one kernel in each direction."""

from functools import lru_cache

import torch
import triton
from torch import Tensor

from rebased.ops.triton.launch import Launcher
from rebased.ops.triton.rows import copied, rows_for, strides_of, with_rows
from rebased.ops.triton.wkv_kernels import wkv_backward_kernel, wkv_forward_kernel

WIDTH = 32
"""Channels of a program, one for each thread of a warp."""
FORWARD_STEPS = 16
"""Tokens at a time."""
BACKWARD_STEPS = 8
"""The same on the way back, where registers are not enough for more."""


def forward(
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    bonus: Tensor,
    key_mask: Tensor | None,
    numerator: Tensor | None,
    denominator: Tensor | None,
    maximum: Tensor | None,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Output, the last state's tensors, and the states before each chunk and after the last, (B, ·, 3, G, M)."""
    B, T, G, M = k.shape
    out = torch.empty_like(v)
    written = rows_for(out)
    states = k.new_empty(B, triton.cdiv(T, chunk) + 1, 3, G, M, dtype=torch.float32)
    last = states.new_empty(3, B, G, M)
    k, v = with_rows(k), with_rows(v)
    mask, mask_strides = _mask(key_mask, k)
    # A kernel does not read what is missing, but something must be passed.
    given = [last if x is None else x.contiguous() for x in (numerator, denominator, maximum)]
    num_blocks = triton.cdiv(M, WIDTH)
    run = _forward_launcher(min(FORWARD_STEPS, chunk), WIDTH, chunk, key_mask is not None, numerator is not None)
    run(
        B * G * num_blocks,
        [k, v, decay.contiguous(), bonus.contiguous(), mask, *given, written, last, states],
        [B, T, G, M, num_blocks, *strides_of(k, v, written), *mask_strides],
        [],
    )
    return copied(out, written), last[0].clone(), last[1].clone(), last[2].clone(), states


def backward(
    dout: Tensor,
    dnumerator: Tensor | None,
    ddenominator: Tensor | None,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    bonus: Tensor,
    key_mask: Tensor | None,
    states: Tensor,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of k, v, decay, bonus and the first state's tensors."""
    B, T, G, M = k.shape
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    written_dk, written_dv = rows_for(dk), rows_for(dv)
    ddecay, dbonus = (states.new_empty(B, G, M) for _ in range(2))
    dfirst = states.new_empty(3, B, G, M)
    dout, k, v = with_rows(dout), with_rows(k), with_rows(v)
    mask, mask_strides = _mask(key_mask, k)
    given = [dfirst if grad is None else grad.contiguous() for grad in (dnumerator, ddenominator)]
    steps = min(BACKWARD_STEPS, chunk)
    num_blocks = triton.cdiv(M, WIDTH)
    scratch = states.new_empty(B * G * num_blocks, chunk // steps, 3, WIDTH)
    has_grads = dnumerator is not None, ddenominator is not None
    run = _backward_launcher(steps, WIDTH, chunk, key_mask is not None, *has_grads)
    run(
        B * G * num_blocks,
        [
            *(dout, *given, k, v, decay.contiguous(), bonus.contiguous(), mask, states.contiguous()),
            *(written_dk, written_dv, ddecay, dbonus, dfirst, scratch),
        ],
        [B, T, G, M, num_blocks, *strides_of(dout, k, v, written_dk, written_dv), *mask_strides],
        [],
    )
    sums = ddecay.sum(dim=0).to(decay.dtype), dbonus.sum(dim=0).to(bonus.dtype)
    return (
        copied(dk, written_dk),
        copied(dv, written_dv),
        *sums,
        dfirst[0].clone(),
        dfirst[1].clone(),
        dfirst[2].clone(),
    )


def _mask(key_mask: Tensor | None, k: Tensor) -> tuple[Tensor, list[int]]:
    """A mask that kernels can read, and its strides."""
    if key_mask is None:
        return k, [0, 0, 0]
    return key_mask.view(torch.uint8), list(key_mask.stride())


@lru_cache
def _forward_launcher(steps: int, width: int, chunk: int, has_mask: bool, has_state: bool) -> Launcher:
    constants = {"STEPS": steps, "WIDTH": width, "CHUNK": chunk, "HAS_MASK": has_mask, "HAS_STATE": has_state}
    return Launcher(wkv_forward_kernel, constants, num_warps=1, num_stages=1)


@lru_cache
def _backward_launcher(
    steps: int, width: int, chunk: int, has_mask: bool, has_dnumerator: bool, has_ddenominator: bool
) -> Launcher:
    constants = {
        "STEPS": steps,
        "WIDTH": width,
        "CHUNK": chunk,
        "HAS_MASK": has_mask,
        "HAS_DNUMERATOR": has_dnumerator,
        "HAS_DDENOMINATOR": has_ddenominator,
    }
    return Launcher(wkv_backward_kernel, constants, num_warps=1, num_stages=1)
