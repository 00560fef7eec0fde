"""The selective scan: one kernel in each direction."""

from functools import lru_cache

import torch
import triton
from torch import Tensor

from rebased.ops.triton.launch import Launcher
from rebased.ops.triton.rows import has_rows, strides_of, with_rows
from rebased.ops.triton.selective_scan_kernels import selective_scan_backward_kernel, selective_scan_forward_kernel

LANES = 8
"""Channels side by side in a warp; four threads share the states of one."""
FORWARD_ELEMENTS = 32
"""How many numbers a thread holds of the states of STEPS tokens, in the forward pass."""
BACKWARD_ELEMENTS = 16
"""The same in the backward pass: with twice as many, registers are not enough."""
BACKWARD_REGISTERS = 128
"""Of a thread, where there are many programs of small states: left alone it has 160, and fewer run at once."""
ENOUGH_PROGRAMS = 2048
"""If so many remain, programs take twice the channels: then they write half as many partial sums."""


def forward(
    x: Tensor, dt: Tensor, A: Tensor, b: Tensor, c: Tensor, state: Tensor | None, chunk: int
) -> tuple[Tensor, Tensor, Tensor]:
    """y, the last state, and the states before each chunk and after the last."""
    B, T, G, M = x.shape
    plan = _Plan(x, A, chunk, FORWARD_ELEMENTS)
    y = torch.empty_like(x)
    written = y if has_rows(y) else x.new_empty(x.shape)
    last = x.new_empty(B, *A.shape, dtype=torch.float32)
    kept = last.new_empty(B, triton.cdiv(T, chunk) + 1, *A.shape)
    x, dt, b, c = (with_rows(tensor) for tensor in (x, dt, b, c))
    run = _launcher("forward", plan.constants, state is not None)
    run(
        plan.num_programs,
        # A kernel does not read what is missing, but something must be passed.
        [x, dt, A.contiguous(), b, c, last if state is None else state.contiguous(), written, last, kept],
        [T, G, M, plan.num_blocks, *strides_of(x, dt, b, c, written)],
        [],
    )
    return y if written is y else y.copy_(written), last, kept


def backward(
    dy: Tensor,
    dlast: Tensor | None,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    b: Tensor,
    c: Tensor,
    kept: Tensor,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, dt, A, b, c and the first state."""
    B, T, G, M = x.shape
    N = A.shape[-1]
    plan = _Plan(x, A, chunk, BACKWARD_ELEMENTS)
    dx, ddt, db, dc = (torch.empty_like(tensor) for tensor in (x, dt, b, c))
    written_dx, written_ddt = (grad if has_rows(grad) else grad.new_empty(x.shape) for grad in (dx, ddt))
    dA, dstate = (kept.new_empty(B, G, M, N) for _ in range(2))
    partial_db, partial_dc = (kept.new_empty(B, G, T, plan.num_blocks, N) for _ in range(2))
    scratch = kept.new_empty(plan.num_programs, plan.num_scratch)
    dy, x, dt, b, c = (with_rows(tensor) for tensor in (dy, x, dt, b, c))
    run = _launcher("backward", plan.constants, dlast is not None)
    run(
        plan.num_programs,
        [
            *(dy, dstate if dlast is None else dlast.contiguous(), x, dt, A.contiguous(), b, c, kept.contiguous()),
            *(written_dx, written_ddt, dA, partial_db, partial_dc, dstate, scratch),
        ],
        [T, G, M, plan.num_blocks, *strides_of(dy, x, dt, b, c, written_dx, written_ddt)],
        [],
    )
    for grad, written in ((dx, written_dx), (ddt, written_ddt)):
        if written is not grad:
            grad.copy_(written)
    for grad, partial in ((db, partial_db), (dc, partial_dc)):
        grad.copy_(partial.sum(dim=3).transpose(1, 2))
    return dx, ddt, dA.sum(dim=0).to(A.dtype), db, dc, dstate


class _Plan:
    """How the work is cut into programs, and how many tokens these take at a time."""

    def __init__(self, x: Tensor, A: Tensor, chunk: int, elements: int) -> None:
        B, _, G, M = x.shape
        N = A.shape[-1]
        padded = max(32 // LANES, triton.next_power_of_2(N))
        outer = 2 if B * G * triton.cdiv(M, 2 * LANES) >= ENOUGH_PROGRAMS else 1
        steps = min(chunk, max(1, elements * 32 // (outer * max(16, padded) * LANES)))
        assert chunk % steps == 0, f"{chunk=} must be a multiple of {steps=}"
        self.num_blocks = triton.cdiv(M, outer * LANES)
        self.num_programs = B * G * self.num_blocks
        self.num_scratch = chunk // steps * outer * padded * LANES
        self.constants = N, padded, steps, outer, chunk


@lru_cache
def _launcher(direction: str, constants: tuple[int, int, int, int, int], is_given: bool) -> Launcher:
    """``is_given``: there is a first state, or a gradient of the last one."""
    N, padded, steps, outer, chunk = constants
    names = {"N": N, "NP": padded, "STEPS": steps, "OUTER": outer, "LANES": LANES, "CHUNK": chunk}
    if direction == "forward":
        return Launcher(selective_scan_forward_kernel, names | {"HAS_STATE": is_given}, num_warps=1, num_stages=1)
    return Launcher(
        selective_scan_backward_kernel,
        names | {"HAS_DLAST": is_given},
        num_warps=1,
        num_stages=1,
        max_registers=BACKWARD_REGISTERS if outer > 1 and steps > 1 else None,
    )
