"""The selective scan: a program walks along time with the states of a few channels in registers.

A program is one warp. Its states are a tile of (OUTER, NP, LANES): channels, states of each (N padded), channels again.
Threads lie along the last two axes, so that few of them have to add up for an output. Tokens are no axis: the rows of
STEPS of them are tuples of tensors, all loaded before the first is used.
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
"""Channels side by side in a warp; four threads share the states of one."""
FORWARD_ELEMENTS = 32
"""How many numbers a thread holds of the states of STEPS tokens, in the forward pass."""
BACKWARD_ELEMENTS = 16
"""The same in the backward pass: with twice as many, registers are not enough."""
ENOUGH_PROGRAMS = 2048
"""If so many remain, programs take twice the channels: then they write half as many partial sums."""

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def places(block, N: tl.constexpr, OUTER: tl.constexpr, NP: tl.constexpr, LANES: tl.constexpr):
    """Channels and states of a tile."""
    outer = tl.arange(0, OUTER)[:, None, None]
    channel = (block * OUTER + outer) * LANES + tl.arange(0, LANES)[None, None, :]
    return channel, tl.arange(0, NP)[None, :, None]


@triton.jit
def load_rows(pointers, start, end, stride, place, is_real, STEPS: tl.constexpr):
    """The rows of STEPS tokens from ``start`` on; zero from ``end`` on."""
    pointers += tl.cast(start, tl.int64) * stride + place
    rows = ()
    for i in tl.static_range(STEPS):
        rows += (tl.load(pointers + i * stride, mask=is_real & (start + i < end), other=0.0),)
    return rows


@triton.jit
def store_rows(pointers, start, end, stride, place, is_real, rows, STEPS: tl.constexpr):
    pointers += tl.cast(start, tl.int64) * stride + place
    for i in tl.static_range(STEPS):
        tl.store(pointers + i * stride, rows[i].to(pointers.dtype.element_ty), mask=is_real & (start + i < end))


@triton.jit
def selective_scan_forward_kernel(
    x,
    dt,
    A,
    b,
    c,
    state,
    y,
    last,
    kept,
    T,
    G,
    M,
    num_blocks,
    x_batch,
    x_time,
    x_group,
    dt_batch,
    dt_time,
    dt_group,
    b_batch,
    b_time,
    b_group,
    c_batch,
    c_time,
    c_group,
    y_batch,
    y_time,
    y_group,
    N: tl.constexpr,
    NP: tl.constexpr,
    STEPS: tl.constexpr,
    OUTER: tl.constexpr,
    LANES: tl.constexpr,
    CHUNK: tl.constexpr,
    HAS_STATE: tl.constexpr,
):
    """One program: a block of channels of one sequence."""
    block = tl.program_id(0) % num_blocks
    sequence = (tl.program_id(0) // num_blocks).to(tl.int64)
    batch = sequence // G
    group = sequence % G
    x += batch * x_batch + group * x_group
    dt += batch * dt_batch + group * dt_group
    b += batch * b_batch + group * b_group
    c += batch * c_batch + group * c_group
    y += batch * y_batch + group * y_group
    size = M * N
    kept += (batch * (tl.cdiv(T, CHUNK) + 1) * G + group) * size
    channel, n = places(block, N, OUTER, NP, LANES)
    place = channel * N + n
    is_real = (channel < M) & (n < N)
    # What fills a tile up has A = 0 and no input: its states stay zero.
    exponent = tl.load(A + group * size + place, mask=is_real, other=0.0).to(tl.float32) * LOG2_E
    h = tl.zeros((OUTER, NP, LANES), tl.float32)
    if HAS_STATE:
        h = tl.load(state + sequence * size + place, mask=is_real, other=0.0)
    next_x = load_rows(x, 0, T, x_time, channel, channel < M, STEPS)
    next_dt = load_rows(dt, 0, T, dt_time, channel, channel < M, STEPS)
    next_b = load_rows(b, 0, T, b_time, n, n < N, STEPS)
    next_c = load_rows(c, 0, T, c_time, n, n < N, STEPS)
    for start in range(0, T, STEPS):
        xs = next_x
        dts = next_dt
        bs = next_b
        cs = next_c
        next_x = load_rows(x, start + STEPS, T, x_time, channel, channel < M, STEPS)
        next_dt = load_rows(dt, start + STEPS, T, dt_time, channel, channel < M, STEPS)
        next_b = load_rows(b, start + STEPS, T, b_time, n, n < N, STEPS)
        next_c = load_rows(c, start + STEPS, T, c_time, n, n < N, STEPS)
        if start % CHUNK == 0:
            tl.store(kept + tl.cast(start // CHUNK, tl.int64) * G * size + place, h, mask=is_real)
        ys = ()
        for i in tl.static_range(STEPS):
            step = dts[i].to(tl.float32)
            h = tl.exp2(step * exponent) * h + (step * xs[i].to(tl.float32)) * bs[i].to(tl.float32)
            ys += (tl.sum(h * cs[i].to(tl.float32), axis=1, keep_dims=True),)
        store_rows(y, start, T, y_time, channel, channel < M, ys, STEPS)
    tl.store(kept + tl.cast(tl.cdiv(T, CHUNK), tl.int64) * G * size + place, h, mask=is_real)
    tl.store(last + sequence * size + place, h, mask=is_real)


@triton.jit
def selective_scan_backward_kernel(
    dy,
    dlast,
    x,
    dt,
    A,
    b,
    c,
    kept,
    dx,
    ddt,
    dA,
    db,
    dc,
    dstate,
    scratch,
    T,
    G,
    M,
    num_blocks,
    dy_batch,
    dy_time,
    dy_group,
    x_batch,
    x_time,
    x_group,
    dt_batch,
    dt_time,
    dt_group,
    b_batch,
    b_time,
    b_group,
    c_batch,
    c_time,
    c_group,
    dx_batch,
    dx_time,
    dx_group,
    ddt_batch,
    ddt_time,
    ddt_group,
    N: tl.constexpr,
    NP: tl.constexpr,
    STEPS: tl.constexpr,
    OUTER: tl.constexpr,
    LANES: tl.constexpr,
    CHUNK: tl.constexpr,
    HAS_DLAST: tl.constexpr,
):
    """One program: a block of channels of one sequence, from its last chunk to the first.

    It has its own part of dA (B, G, M, N), and one term of db and dc (B, G, T, blocks, N). In its own ``scratch`` it
    leaves the states before each STEPS tokens of a chunk.
    """
    block = tl.program_id(0) % num_blocks
    sequence = (tl.program_id(0) // num_blocks).to(tl.int64)
    batch = sequence // G
    group = sequence % G
    dy += batch * dy_batch + group * dy_group
    x += batch * x_batch + group * x_group
    dt += batch * dt_batch + group * dt_group
    b += batch * b_batch + group * b_group
    c += batch * c_batch + group * c_group
    dx += batch * dx_batch + group * dx_group
    ddt += batch * ddt_batch + group * ddt_group
    db += (sequence * T * num_blocks + block) * N
    dc += (sequence * T * num_blocks + block) * N
    size = M * N
    num_chunks = tl.cdiv(T, CHUNK)
    kept += (batch * (num_chunks + 1) * G + group) * size
    channel, n = places(block, N, OUTER, NP, LANES)
    place = channel * N + n
    is_real = (channel < M) & (n < N)
    exponent = tl.load(A + group * size + place, mask=is_real, other=0.0).to(tl.float32) * LOG2_E
    TILE: tl.constexpr = OUTER * NP * LANES
    scratch += tl.program_id(0).to(tl.int64) * (CHUNK // STEPS) * TILE
    scratch += (channel - block * OUTER * LANES) * NP + n
    dh = tl.zeros((OUTER, NP, LANES), tl.float32)
    if HAS_DLAST:
        dh = tl.load(dlast + sequence * size + place, mask=is_real, other=0.0)
    sum_dA = tl.zeros((OUTER, NP, LANES), tl.float32)
    for chunks_after in range(num_chunks):
        chunk = num_chunks - 1 - chunks_after
        num_tiles = tl.cdiv(tl.minimum(T - chunk * CHUNK, CHUNK), STEPS)
        h = tl.load(kept + tl.cast(chunk, tl.int64) * G * size + place, mask=is_real, other=0.0)
        next_x = load_rows(x, chunk * CHUNK, T, x_time, channel, channel < M, STEPS)
        next_dt = load_rows(dt, chunk * CHUNK, T, dt_time, channel, channel < M, STEPS)
        next_b = load_rows(b, chunk * CHUNK, T, b_time, n, n < N, STEPS)
        for tile in range(num_tiles - 1):
            xs = next_x
            dts = next_dt
            bs = next_b
            after = chunk * CHUNK + (tile + 1) * STEPS
            next_x = load_rows(x, after, T, x_time, channel, channel < M, STEPS)
            next_dt = load_rows(dt, after, T, dt_time, channel, channel < M, STEPS)
            next_b = load_rows(b, after, T, b_time, n, n < N, STEPS)
            tl.store(scratch + tile * TILE, h)
            for i in tl.static_range(STEPS):
                step = dts[i].to(tl.float32)
                h = tl.exp2(step * exponent) * h + (step * xs[i].to(tl.float32)) * bs[i].to(tl.float32)
        tl.store(scratch + (num_tiles - 1) * TILE, h)
        tl.debug_barrier()
        last_tile = chunk * CHUNK + (num_tiles - 1) * STEPS
        next_x = load_rows(x, last_tile, T, x_time, channel, channel < M, STEPS)
        next_dt = load_rows(dt, last_tile, T, dt_time, channel, channel < M, STEPS)
        next_b = load_rows(b, last_tile, T, b_time, n, n < N, STEPS)
        next_dy = load_rows(dy, last_tile, T, dy_time, channel, channel < M, STEPS)
        next_c = load_rows(c, last_tile, T, c_time, n, n < N, STEPS)
        for tiles_after in range(num_tiles):
            tile = num_tiles - 1 - tiles_after
            start = chunk * CHUNK + tile * STEPS
            xs = next_x
            dts = next_dt
            bs = next_b
            dys = next_dy
            cs = next_c
            before = tl.maximum(start - STEPS, 0)
            next_x = load_rows(x, before, T, x_time, channel, channel < M, STEPS)
            next_dt = load_rows(dt, before, T, dt_time, channel, channel < M, STEPS)
            next_b = load_rows(b, before, T, b_time, n, n < N, STEPS)
            next_dy = load_rows(dy, before, T, dy_time, channel, channel < M, STEPS)
            next_c = load_rows(c, before, T, c_time, n, n < N, STEPS)
            h = tl.load(scratch + tile * TILE)
            decays = ()
            carried = ()  # what of the state before a token is left in the one after it
            dcs = ()
            for i in tl.static_range(STEPS):
                step = dts[i].to(tl.float32)
                decays += (tl.exp2(step * exponent),)
                carried += (decays[i] * h,)
                h = carried[i] + (step * xs[i].to(tl.float32)) * bs[i].to(tl.float32)
                dcs += (tl.sum(tl.sum(h * dys[i].to(tl.float32), axis=2, keep_dims=True), axis=0, keep_dims=True),)
            store_rows(dc, start, T, num_blocks * N, n, n < N, dcs, STEPS)
            dbs = ()
            dxs = ()
            ddts = ()
            for j in tl.static_range(STEPS):
                step = dts[STEPS - 1 - j].to(tl.float32)
                token = xs[STEPS - 1 - j].to(tl.float32)
                dh += dys[STEPS - 1 - j].to(tl.float32) * cs[STEPS - 1 - j].to(tl.float32)
                dinput = tl.sum(dh * bs[STEPS - 1 - j].to(tl.float32), axis=1, keep_dims=True)  # of dt·x
                dexponent = dh * carried[STEPS - 1 - j]  # of dt·A
                sum_dA += dexponent * step
                ddt_row = dinput * token + tl.sum(dexponent * exponent, axis=1, keep_dims=True) * LN_2
                dbs = (tl.sum(tl.sum(dh * (step * token), axis=2, keep_dims=True), axis=0, keep_dims=True),) + dbs
                dxs = (dinput * step,) + dxs
                ddts = (ddt_row,) + ddts
                dh *= decays[STEPS - 1 - j]
            store_rows(db, start, T, num_blocks * N, n, n < N, dbs, STEPS)
            store_rows(dx, start, T, dx_time, channel, channel < M, dxs, STEPS)
            store_rows(ddt, start, T, ddt_time, channel, channel < M, ddts, STEPS)
        tl.debug_barrier()
    tl.store(dA + sequence * size + place, sum_dA, mask=is_real)
    tl.store(dstate + sequence * size + place, dh, mask=is_real)


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


def has_rows(x: Tensor) -> bool:
    """Whether a token's numbers lie side by side."""
    return x.stride(-1) == 1 or x.shape[-1] == 1


def with_rows(x: Tensor) -> Tensor:
    return x if has_rows(x) else x.contiguous()


def strides_of(*tensors: Tensor) -> list[int]:
    """Of batch, time and groups."""
    return [stride for x in tensors for stride in x.stride()[:3]]


@lru_cache
def _launcher(direction: str, constants: tuple[int, int, int, int, int], is_given: bool) -> Launcher:
    """``is_given``: there is a first state, or a gradient of the last one."""
    N, padded, steps, outer, chunk = constants
    names = {"N": N, "NP": padded, "STEPS": steps, "OUTER": outer, "LANES": LANES, "CHUNK": chunk}
    if direction == "forward":
        return Launcher(selective_scan_forward_kernel, names | {"HAS_STATE": is_given}, num_warps=1, num_stages=1)
    return Launcher(selective_scan_backward_kernel, names | {"HAS_DLAST": is_given}, num_warps=1, num_stages=1)
