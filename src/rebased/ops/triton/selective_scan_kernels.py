"""The selective scan's kernels: a program walks along time with the states of a few channels in registers.

A program is one warp. Each of its LANES has OUTER channels, and for each of these there is a tile (LANES, NP) of states
(N padded). Tiles are in tuples: of one larger tensor Triton would spread OUTER over threads too, which would then have
to add up more. Tokens are taken STEPS at a time.

What is done once for a token and not once for a state should not take long either. So strides along time are constants,
pointers walk along, nothing is masked where all is there (WHOLE), and a lane's numbers are read and written several at
a time, as words of up to eight bytes (of X_WORD or DT_WORD numbers).
"""

import triton
import triton.language as tl

from rebased.ops.triton.tokens import before

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def load(pointers, is_there, WHOLE: tl.constexpr):
    """As it is; what is not there is zero."""
    if WHOLE:
        tile = tl.load(pointers)
    else:
        tile = tl.load(pointers, mask=is_there, other=0)
    return tile


@triton.jit
def store(pointers, tile, is_there, WHOLE: tl.constexpr):
    if WHOLE:
        tl.store(pointers, tile)
    else:
        tl.store(pointers, tile, mask=is_there)


@triton.jit
def places(BLOCKS: tl.constexpr, N: tl.constexpr, NP: tl.constexpr, OUTER: tl.constexpr, LANES: tl.constexpr):
    """The program's sequence and block; channels (LANES, 1) and states (LANES, NP) of a tile, its places in (M, N).

    The states are the same for all lanes. But a tensor of one row Triton might give a layout of its own.
    """
    block = tl.program_id(0) % BLOCKS
    lane = tl.arange(0, LANES)[:, None]
    channel = (block * LANES + lane) * OUTER
    n = tl.arange(0, NP)[None, :] + 0 * lane
    return (tl.program_id(0) // BLOCKS).to(tl.int64), block, channel, n, channel * N + n


# ---- A token's numbers of each channel ----


@triton.jit
def as_words(pointer, WORD: tl.constexpr):
    """The same, to words of that many numbers."""
    if WORD == 1:
        words = pointer
    else:
        BITS: tl.constexpr = WORD * pointer.dtype.element_ty.primitive_bitwidth
        words = pointer.to(tl.pointer_type(tl.int64 if BITS == 64 else tl.int32))
    return words


@triton.jit
def load_rows(
    pointer,
    start,
    T,
    channel,
    TIME: tl.constexpr,
    M: tl.constexpr,
    STEPS: tl.constexpr,
    OUTER: tl.constexpr,
    WHOLE: tl.constexpr,
    WORD: tl.constexpr,
):
    """Of STEPS tokens, the first of which is at ``pointer``; `number` finds them."""
    rows = ()
    for i in tl.static_range(STEPS):
        for o in tl.static_range(0, OUTER, WORD):
            there = before(start + i, T, channel + o < M)
            rows += (load(as_words(pointer + i * TIME, WORD) + (channel + o) // WORD, there, WHOLE),)
    return rows


@triton.jit
def number(rows, i: tl.constexpr, o: tl.constexpr, OUTER: tl.constexpr, WORD: tl.constexpr, dtype: tl.constexpr):
    """In float32: of token i, of each lane's channel o, (LANES, 1)."""
    word = rows[(i * OUTER + o) // WORD]
    if WORD == 1:
        found = word.to(tl.float32)
    elif dtype.primitive_bitwidth == 32:
        found = (word >> (o % WORD * 32)).to(tl.int32).to(dtype, bitcast=True)
    else:
        pair = (word >> (o % WORD // 2 * 32)).to(tl.int32)
        if dtype == tl.bfloat16:  # the first half of a float32
            found = (pair & -65536 if o % 2 == 1 else pair << 16).to(tl.float32, bitcast=True)
        else:
            found = (pair >> (o % 2 * 16)).to(tl.int16).to(dtype, bitcast=True).to(tl.float32)
    return found


@triton.jit
def store_row(
    pointer,
    row,
    token,
    T,
    channel,
    M: tl.constexpr,
    OUTER: tl.constexpr,
    WHOLE: tl.constexpr,
    WORD: tl.constexpr,
):
    """Of one token, at ``pointer``; the tuple has a tile (LANES, 1) for each o."""
    dtype: tl.constexpr = pointer.dtype.element_ty
    words = as_words(pointer, WORD)
    for o in tl.static_range(0, OUTER, WORD):
        if WORD == 1:
            word = row[o].to(dtype)
        else:
            BITS: tl.constexpr = dtype.primitive_bitwidth
            integer: tl.constexpr = tl.uint32 if BITS == 32 else tl.uint16
            word = tl.zeros(channel.shape, words.dtype.element_ty)
            for k in tl.static_range(WORD):
                word |= row[o + k].to(dtype).to(integer, bitcast=True).to(word.dtype) << (BITS * k)
        store(words + (channel + o) // WORD, word, before(token, T, channel + o < M), WHOLE)


# ---- Its b and c, and the states ----


@triton.jit
def load_columns(pointer, start, T, n, TIME: tl.constexpr, N: tl.constexpr, STEPS: tl.constexpr, WHOLE: tl.constexpr):
    """Of STEPS tokens, (LANES, NP) each."""
    columns = ()
    for i in tl.static_range(STEPS):
        columns += (load(pointer + i * TIME + n, before(start + i, T, n < N), WHOLE),)
    return columns


@triton.jit
def store_sums(pointer, tile, token, T, n, N: tl.constexpr, WHOLE: tl.constexpr):
    """Of all lanes, each of which has them; the first writes them."""
    sums = tl.broadcast_to(tl.sum(tile, axis=0, keep_dims=True), tile.shape)
    writes = (tl.arange(0, tile.shape[0])[:, None] == 0) & (n < N)
    tl.store(pointer + n, sums, mask=writes if WHOLE else before(token, T, writes))


@triton.jit
def load_states(pointers, channel, n, M: tl.constexpr, N: tl.constexpr, OUTER: tl.constexpr, WHOLE: tl.constexpr):
    """Of (…, M, N)."""
    tiles = ()
    for o in tl.static_range(OUTER):
        tiles += (load(pointers + o * N, (channel + o < M) & (n < N), WHOLE).to(tl.float32),)
    return tiles


@triton.jit
def store_states(
    pointers, tiles, channel, n, M: tl.constexpr, N: tl.constexpr, OUTER: tl.constexpr, WHOLE: tl.constexpr
):
    for o in tl.static_range(OUTER):
        store(pointers + o * N, tiles[o], (channel + o < M) & (n < N), WHOLE)


@triton.jit
def zero_states(n, OUTER: tl.constexpr):
    tiles = ()
    for _ in tl.static_range(OUTER):
        tiles += (tl.zeros(n.shape, tl.float32),)
    return tiles


# ---- Forward ----


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
    x_batch,
    x_group,
    dt_batch,
    dt_group,
    b_batch,
    b_group,
    c_batch,
    c_group,
    y_batch,
    y_group,
    X_TIME: tl.constexpr,
    DT_TIME: tl.constexpr,
    B_TIME: tl.constexpr,
    C_TIME: tl.constexpr,
    Y_TIME: tl.constexpr,
    BLOCKS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    NP: tl.constexpr,
    STEPS: tl.constexpr,
    OUTER: tl.constexpr,
    LANES: tl.constexpr,
    CHUNK: tl.constexpr,
    WHOLE: tl.constexpr,
    X_WORD: tl.constexpr,
    DT_WORD: tl.constexpr,
    HAS_STATE: tl.constexpr,
):
    """One program: a block of channels of one sequence. It loads the tokens that follow before it uses these."""
    x_dtype: tl.constexpr = x.dtype.element_ty
    dt_dtype: tl.constexpr = dt.dtype.element_ty
    sequence, _, channel, n, place = places(BLOCKS, N, NP, OUTER, LANES)
    batch = sequence // G
    group = sequence % G
    x += batch * x_batch + group * x_group
    dt += batch * dt_batch + group * dt_group
    b += batch * b_batch + group * b_group
    c += batch * c_batch + group * c_group
    y += batch * y_batch + group * y_group
    SIZE: tl.constexpr = M * N
    kept += (batch * (tl.cdiv(T, CHUNK) + 1) * G + group) * SIZE
    # What fills a tile up has A = 0 and no input: its states stay zero.
    As = load_states(A + group * SIZE + place, channel, n, M, N, OUTER, WHOLE)
    hs = zero_states(n, OUTER)
    if HAS_STATE:
        hs = load_states(state + sequence * SIZE + place, channel, n, M, N, OUTER, WHOLE)
    next_x = load_rows(x, 0, T, channel, X_TIME, M, STEPS, OUTER, False, X_WORD)
    next_dt = load_rows(dt, 0, T, channel, DT_TIME, M, STEPS, OUTER, False, DT_WORD)
    next_b = load_columns(b, 0, T, n, B_TIME, N, STEPS, False)
    next_c = load_columns(c, 0, T, n, C_TIME, N, STEPS, False)
    for start in range(0, T, STEPS):
        xs = next_x
        dts = next_dt
        bs = next_b
        cs = next_c
        x += STEPS * X_TIME
        dt += STEPS * DT_TIME
        b += STEPS * B_TIME
        c += STEPS * C_TIME
        next_x = load_rows(x, start + STEPS, T, channel, X_TIME, M, STEPS, OUTER, False, X_WORD)
        next_dt = load_rows(dt, start + STEPS, T, channel, DT_TIME, M, STEPS, OUTER, False, DT_WORD)
        next_b = load_columns(b, start + STEPS, T, n, B_TIME, N, STEPS, False)
        next_c = load_columns(c, start + STEPS, T, n, C_TIME, N, STEPS, False)
        if start % CHUNK == 0:
            store_states(kept + place, hs, channel, n, M, N, OUTER, WHOLE)
            kept += tl.cast(G, tl.int64) * SIZE
        for i in tl.static_range(STEPS):
            states = hs
            hs = ()
            ys = ()
            for o in tl.static_range(OUTER):
                step = number(dts, i, o, OUTER, DT_WORD, dt_dtype)
                token = number(xs, i, o, OUTER, X_WORD, x_dtype)
                decay = tl.exp2(step * (As[o] * LOG2_E))
                hs += (decay * states[o] + (step * token) * bs[i].to(tl.float32),)
                ys += (tl.sum(hs[o] * cs[i].to(tl.float32), axis=1, keep_dims=True),)
            store_row(y + i * Y_TIME, ys, start + i, T, channel, M, OUTER, WHOLE, X_WORD)
        y += STEPS * Y_TIME
    store_states(kept + place, hs, channel, n, M, N, OUTER, WHOLE)
    store_states(last + sequence * SIZE + place, hs, channel, n, M, N, OUTER, WHOLE)


# ---- Backward ----


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
    dy_batch,
    dy_group,
    x_batch,
    x_group,
    dt_batch,
    dt_group,
    b_batch,
    b_group,
    c_batch,
    c_group,
    dx_batch,
    dx_group,
    ddt_batch,
    ddt_group,
    DY_TIME: tl.constexpr,
    X_TIME: tl.constexpr,
    DT_TIME: tl.constexpr,
    B_TIME: tl.constexpr,
    C_TIME: tl.constexpr,
    DX_TIME: tl.constexpr,
    DDT_TIME: tl.constexpr,
    BLOCKS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    NP: tl.constexpr,
    STEPS: tl.constexpr,
    OUTER: tl.constexpr,
    LANES: tl.constexpr,
    CHUNK: tl.constexpr,
    WHOLE: tl.constexpr,
    X_WORD: tl.constexpr,
    DT_WORD: tl.constexpr,
    HAS_DLAST: tl.constexpr,
):
    """One program: a block of channels of one sequence, from its last chunk to the first.

    It has its own part of dA (B, G, M, N), and one term of db and dc (B, G, T, blocks, N). In its own ``scratch`` it
    leaves the states before each STEPS tokens of a chunk. Tokens are loaded before those next to them are used.
    """
    dy_dtype: tl.constexpr = dy.dtype.element_ty
    x_dtype: tl.constexpr = x.dtype.element_ty
    dt_dtype: tl.constexpr = dt.dtype.element_ty
    sequence, block, channel, n, place = places(BLOCKS, N, NP, OUTER, LANES)
    batch = sequence // G
    group = sequence % G
    num_chunks = tl.cdiv(T, CHUNK)
    start = (num_chunks - 1) * CHUNK  # of the chunk, then of the tile
    SIZE: tl.constexpr = M * N
    SUMS_TIME: tl.constexpr = BLOCKS * N
    # Through each chunk these walk forth and back.
    here = start.to(tl.int64)
    x += batch * x_batch + group * x_group + here * X_TIME
    dt += batch * dt_batch + group * dt_group + here * DT_TIME
    b += batch * b_batch + group * b_group + here * B_TIME
    kept += ((batch * (num_chunks + 1) + num_chunks - 1) * G + group) * SIZE
    # These walk from the last tile to the first.
    here += tl.cast((T - 1 - start) // STEPS, tl.int64) * STEPS
    dy += batch * dy_batch + group * dy_group + here * DY_TIME
    c += batch * c_batch + group * c_group + here * C_TIME
    dx += batch * dx_batch + group * dx_group + here * DX_TIME
    ddt += batch * ddt_batch + group * ddt_group + here * DDT_TIME
    db += (sequence * T + here) * SUMS_TIME + block * N
    dc += (sequence * T + here) * SUMS_TIME + block * N
    TILE: tl.constexpr = LANES * NP
    scratch += tl.program_id(0).to(tl.int64) * (CHUNK // STEPS * OUTER * TILE)
    in_tile = tl.arange(0, LANES)[:, None] * NP + n
    As = load_states(A + group * SIZE + place, channel, n, M, N, OUTER, WHOLE)
    exponents = ()
    for o in tl.static_range(OUTER):
        exponents += (As[o] * LOG2_E,)
    sums = zero_states(n, OUTER)  # of dA
    dhs = zero_states(n, OUTER)
    if HAS_DLAST:
        dhs = load_states(dlast + sequence * SIZE + place, channel, n, M, N, OUTER, WHOLE)
    for _ in range(num_chunks):
        num_tiles = tl.cdiv(tl.minimum(T - start, CHUNK), STEPS)
        hs = load_states(kept + place, channel, n, M, N, OUTER, WHOLE)
        kept -= tl.cast(G, tl.int64) * SIZE
        next_x = load_rows(x, start, T, channel, X_TIME, M, STEPS, OUTER, WHOLE, X_WORD)
        next_dt = load_rows(dt, start, T, channel, DT_TIME, M, STEPS, OUTER, WHOLE, DT_WORD)
        next_b = load_columns(b, start, T, n, B_TIME, N, STEPS, WHOLE)
        for _ in range(num_tiles - 1):
            xs = next_x
            dts = next_dt
            bs = next_b
            start += STEPS
            x += STEPS * X_TIME
            dt += STEPS * DT_TIME
            b += STEPS * B_TIME
            next_x = load_rows(x, start, T, channel, X_TIME, M, STEPS, OUTER, WHOLE, X_WORD)
            next_dt = load_rows(dt, start, T, channel, DT_TIME, M, STEPS, OUTER, WHOLE, DT_WORD)
            next_b = load_columns(b, start, T, n, B_TIME, N, STEPS, WHOLE)
            for o in tl.static_range(OUTER):
                tl.store(scratch + o * TILE + in_tile, hs[o])
            scratch += OUTER * TILE
            for i in tl.static_range(STEPS):
                states = hs
                hs = ()
                for o in tl.static_range(OUTER):
                    step = number(dts, i, o, OUTER, DT_WORD, dt_dtype)
                    token = number(xs, i, o, OUTER, X_WORD, x_dtype)
                    hs += (tl.exp2(step * exponents[o]) * states[o] + (step * token) * bs[i].to(tl.float32),)
        for o in tl.static_range(OUTER):
            tl.store(scratch + o * TILE + in_tile, hs[o])
        tl.debug_barrier()
        # The other three again: Triton would have to convert what goes from one loop to another.
        next_x = load_rows(x, start, T, channel, X_TIME, M, STEPS, OUTER, WHOLE, X_WORD)
        next_dt = load_rows(dt, start, T, channel, DT_TIME, M, STEPS, OUTER, WHOLE, DT_WORD)
        next_b = load_columns(b, start, T, n, B_TIME, N, STEPS, WHOLE)
        next_dy = load_rows(dy, start, T, channel, DY_TIME, M, STEPS, OUTER, WHOLE, X_WORD)
        next_c = load_columns(c, start, T, n, C_TIME, N, STEPS, WHOLE)
        for tiles_after in range(num_tiles):
            back = tl.where(tiles_after < num_tiles - 1, STEPS, 0)  # no further than to the chunk's first tile
            xs = next_x
            dts = next_dt
            bs = next_b
            dys = next_dy
            cs = next_c
            x -= back.to(tl.int64) * X_TIME
            dt -= back.to(tl.int64) * DT_TIME
            b -= back.to(tl.int64) * B_TIME
            dy -= back.to(tl.int64) * DY_TIME
            c -= back.to(tl.int64) * C_TIME
            next_x = load_rows(x, start - back, T, channel, X_TIME, M, STEPS, OUTER, WHOLE, X_WORD)
            next_dt = load_rows(dt, start - back, T, channel, DT_TIME, M, STEPS, OUTER, WHOLE, DT_WORD)
            next_b = load_columns(b, start - back, T, n, B_TIME, N, STEPS, WHOLE)
            next_dy = load_rows(dy, start - back, T, channel, DY_TIME, M, STEPS, OUTER, WHOLE, X_WORD)
            next_c = load_columns(c, start - back, T, n, C_TIME, N, STEPS, WHOLE)
            states = ()  # before each token and after the last, OUTER tiles each
            for o in tl.static_range(OUTER):
                states += (tl.load(scratch + o * TILE + in_tile),)
            decays = ()
            for i in tl.static_range(STEPS):
                products = tl.zeros((LANES, NP), tl.float32)
                for o in tl.static_range(OUTER):
                    step = number(dts, i, o, OUTER, DT_WORD, dt_dtype)
                    token = number(xs, i, o, OUTER, X_WORD, x_dtype)
                    decay = tl.exp2(step * exponents[o])
                    h = decay * states[i * OUTER + o] + (step * token) * bs[i].to(tl.float32)
                    products += h * number(dys, i, o, OUTER, X_WORD, dy_dtype)
                    decays += (decay,)
                    states += (h,)
                store_sums(dc + i * SUMS_TIME, products, start + i, T, n, N, WHOLE)
            for j in tl.static_range(STEPS - 1, -1, -1):
                dstates = dhs
                earlier = sums
                dhs = ()
                sums = ()
                dxs = ()
                ddts = ()
                products = tl.zeros((LANES, NP), tl.float32)
                for o in tl.static_range(OUTER):
                    step = number(dts, j, o, OUTER, DT_WORD, dt_dtype)
                    token = number(xs, j, o, OUTER, X_WORD, x_dtype)
                    dh = dstates[o] + number(dys, j, o, OUTER, X_WORD, dy_dtype) * cs[j].to(tl.float32)
                    products += dh * (step * token)
                    dinput = tl.sum(dh * bs[j].to(tl.float32), axis=1, keep_dims=True)  # of dt·x
                    dhs += (dh * decays[j * OUTER + o],)
                    dexponent = dhs[o] * states[j * OUTER + o]  # of dt·A
                    sums += (earlier[o] + dexponent * step,)
                    dxs += (dinput * step,)
                    ddts += (dinput * token + tl.sum(dexponent * exponents[o], axis=1, keep_dims=True) * LN_2,)
                store_sums(db + j * SUMS_TIME, products, start + j, T, n, N, WHOLE)
                store_row(dx + j * DX_TIME, dxs, start + j, T, channel, M, OUTER, WHOLE, X_WORD)
                store_row(ddt + j * DDT_TIME, ddts, start + j, T, channel, M, OUTER, WHOLE, DT_WORD)
            start -= back
            dx -= STEPS * DX_TIME
            ddt -= STEPS * DDT_TIME
            db -= STEPS * SUMS_TIME
            dc -= STEPS * SUMS_TIME
            scratch -= OUTER * TILE
        start -= CHUNK
        x -= CHUNK * X_TIME
        dt -= CHUNK * DT_TIME
        b -= CHUNK * B_TIME
        dy -= STEPS * DY_TIME
        c -= STEPS * C_TIME
        scratch += OUTER * TILE
        tl.debug_barrier()
    store_states(dA + sequence * SIZE + place, sums, channel, n, M, N, OUTER, WHOLE)
    store_states(dstate + sequence * SIZE + place, dhs, channel, n, M, N, OUTER, WHOLE)
