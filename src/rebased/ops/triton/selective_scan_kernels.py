"""The selective scan's kernels: a program walks along time with the states of a few channels in registers.

A program is one warp. Its states are a tile of (OUTER, NP, LANES): channels, states of each (N padded), channels again.
Threads lie along the last two axes, so that few of them have to add up for an output. Tokens are taken STEPS at a time.
The forward pass loads those that follow before it uses these; in the backward pass the registers which that takes are
better spent on more programs at once.
"""

import triton
import triton.language as tl

from rebased.ops.triton.tokens import load_tokens, store_tokens

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def places(block, N: tl.constexpr, OUTER: tl.constexpr, NP: tl.constexpr, LANES: tl.constexpr):
    """Channels and states of a tile."""
    outer = tl.arange(0, OUTER)[:, None, None]
    channel = (block * OUTER + outer) * LANES + tl.arange(0, LANES)[None, None, :]
    return channel, tl.arange(0, NP)[None, :, None]


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
    next_x = load_tokens(x, 0, T, x_time, channel, channel < M, STEPS)
    next_dt = load_tokens(dt, 0, T, dt_time, channel, channel < M, STEPS)
    next_b = load_tokens(b, 0, T, b_time, n, n < N, STEPS)
    next_c = load_tokens(c, 0, T, c_time, n, n < N, STEPS)
    for start in range(0, T, STEPS):
        xs = next_x
        dts = next_dt
        bs = next_b
        cs = next_c
        next_x = load_tokens(x, start + STEPS, T, x_time, channel, channel < M, STEPS)
        next_dt = load_tokens(dt, start + STEPS, T, dt_time, channel, channel < M, STEPS)
        next_b = load_tokens(b, start + STEPS, T, b_time, n, n < N, STEPS)
        next_c = load_tokens(c, start + STEPS, T, c_time, n, n < N, STEPS)
        if start % CHUNK == 0:
            tl.store(kept + tl.cast(start // CHUNK, tl.int64) * G * size + place, h, mask=is_real)
        ys = ()
        for i in tl.static_range(STEPS):
            step = dts[i].to(tl.float32)
            h = tl.exp2(step * exponent) * h + (step * xs[i].to(tl.float32)) * bs[i].to(tl.float32)
            ys += (tl.sum(h * cs[i].to(tl.float32), axis=1, keep_dims=True),)
        store_tokens(y, start, T, y_time, channel, channel < M, ys, STEPS, False)
    tl.store(kept + tl.cast(tl.cdiv(T, CHUNK), tl.int64) * G * size + place, h, mask=is_real)
    tl.store(last + sequence * size + place, h, mask=is_real)


@triton.jit
def sum_channels(tile):
    """First those that a thread holds, then over threads."""
    return tl.sum(tl.sum(tile, axis=0, keep_dims=True), axis=2, keep_dims=True)


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
        for tile in range(num_tiles - 1):
            start = chunk * CHUNK + tile * STEPS
            xs = load_tokens(x, start, T, x_time, channel, channel < M, STEPS)
            dts = load_tokens(dt, start, T, dt_time, channel, channel < M, STEPS)
            bs = load_tokens(b, start, T, b_time, n, n < N, STEPS)
            tl.store(scratch + tile * TILE, h)
            for i in tl.static_range(STEPS):
                step = dts[i].to(tl.float32)
                h = tl.exp2(step * exponent) * h + (step * xs[i].to(tl.float32)) * bs[i].to(tl.float32)
        tl.store(scratch + (num_tiles - 1) * TILE, h)
        tl.debug_barrier()
        for tiles_after in range(num_tiles):
            tile = num_tiles - 1 - tiles_after
            start = chunk * CHUNK + tile * STEPS
            xs = load_tokens(x, start, T, x_time, channel, channel < M, STEPS)
            dts = load_tokens(dt, start, T, dt_time, channel, channel < M, STEPS)
            bs = load_tokens(b, start, T, b_time, n, n < N, STEPS)
            dys = load_tokens(dy, start, T, dy_time, channel, channel < M, STEPS)
            cs = load_tokens(c, start, T, c_time, n, n < N, STEPS)
            h = tl.load(scratch + tile * TILE)
            decays = ()
            carried = ()  # what of the state before a token is left in the one after it
            dcs = ()
            for i in tl.static_range(STEPS):
                step = dts[i].to(tl.float32)
                decays += (tl.exp2(step * exponent),)
                carried += (decays[i] * h,)
                h = carried[i] + (step * xs[i].to(tl.float32)) * bs[i].to(tl.float32)
                dcs += (sum_channels(h * dys[i].to(tl.float32)),)
            store_tokens(dc, start, T, num_blocks * N, n, n < N, dcs, STEPS, False)
            dbs = ()  # these three from the last token to the first
            dxs = ()
            ddts = ()
            for j in tl.static_range(STEPS):
                step = dts[STEPS - 1 - j].to(tl.float32)
                token = xs[STEPS - 1 - j].to(tl.float32)
                dh += dys[STEPS - 1 - j].to(tl.float32) * cs[STEPS - 1 - j].to(tl.float32)
                dinput = tl.sum(dh * bs[STEPS - 1 - j].to(tl.float32), axis=1, keep_dims=True)  # of dt·x
                dexponent = dh * carried[STEPS - 1 - j]  # of dt·A
                sum_dA += dexponent * step
                dbs += (sum_channels(dh * (step * token)),)
                dxs += (dinput * step,)
                ddts += (dinput * token + tl.sum(dexponent * exponent, axis=1, keep_dims=True) * LN_2,)
                dh *= decays[STEPS - 1 - j]
            store_tokens(db, start, T, num_blocks * N, n, n < N, dbs, STEPS, True)
            store_tokens(dx, start, T, dx_time, channel, channel < M, dxs, STEPS, True)
            store_tokens(ddt, start, T, ddt_time, channel, channel < M, ddts, STEPS, True)
        tl.debug_barrier()
    tl.store(dA + sequence * size + place, sum_dA, mask=is_real)
    tl.store(dstate + sequence * size + place, dh, mask=is_real)
