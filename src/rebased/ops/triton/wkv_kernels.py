"""The kernels of RWKV's weighted average: a program walks along time with the sums of a warp's channels in registers.

Tokens are taken STEPS at a time, and those that follow are loaded before these are used. A token that is masked, or
beyond the end, is walked over like any other, but changes nothing.
"""

import triton
import triton.language as tl

from rebased.ops.triton.tokens import load_tokens, store_tokens

LOWEST = tl.constexpr(-1e30)


@triton.jit
def load_mask(key_mask, start, end, stride, STEPS: tl.constexpr, HAS_MASK: tl.constexpr):
    """Which of STEPS tokens are there, one scalar for each."""
    if HAS_MASK:
        key_mask += tl.cast(start, tl.int64) * stride
    mask = ()
    for i in tl.static_range(STEPS):
        if HAS_MASK:
            mask += (tl.load(key_mask + i * stride, mask=start + i < end, other=0) != 0,)
        else:
            mask += (start + i < end,)
    return mask


@triton.jit
def load_state(states, place, plane, is_real):
    """Numerator, denominator and maximum; what fills a tile up has empty sums."""
    numerator = tl.load(states + place, mask=is_real, other=0.0)
    denominator = tl.load(states + plane + place, mask=is_real, other=0.0)
    return numerator, denominator, tl.load(states + 2 * plane + place, mask=is_real, other=LOWEST)


@triton.jit
def store_state(states, place, plane, is_real, numerator, denominator, maximum):
    tl.store(states + place, numerator, mask=is_real)
    tl.store(states + plane + place, denominator, mask=is_real)
    tl.store(states + 2 * plane + place, maximum, mask=is_real)


@triton.jit
def log_denominator(denominator, maximum):
    """Of the true sum."""
    is_empty = denominator <= 0
    return tl.where(is_empty, LOWEST, maximum + tl.log(tl.where(is_empty, 1.0, denominator)))


@triton.jit
def weights(key, bonus, maximum):
    """What the sums so far and v are multiplied with in the output; the larger one is 1."""
    difference = (key - maximum) + bonus
    smaller = tl.exp(-tl.abs(difference))
    return tl.where(difference > 0, smaller, 1.0), tl.where(difference > 0, 1.0, smaller)


@triton.jit
def absorb(key, decay, is_there, maximum, largest):
    """A token enters: what remains of the sums, what v is multiplied with in them, their maximum rounded and exact."""
    new_largest = tl.maximum(largest - decay, key)
    new_maximum = tl.ceil(new_largest)
    kept = tl.exp(tl.where(is_there, (maximum - new_maximum) - decay, 0.0))
    entering = tl.exp(tl.where(is_there, key - new_maximum, LOWEST))
    return kept, entering, tl.where(is_there, new_maximum, maximum), tl.where(is_there, new_largest, largest)


@triton.jit
def wkv_forward_kernel(
    k,
    v,
    decay,
    bonus,
    key_mask,
    numerator,
    denominator,
    maximum,
    out,
    last,
    states,
    B,
    T,
    G,
    M,
    num_blocks,
    k_batch,
    k_time,
    k_group,
    v_batch,
    v_time,
    v_group,
    out_batch,
    out_time,
    out_group,
    mask_batch,
    mask_time,
    mask_group,
    STEPS: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_STATE: tl.constexpr,
):
    """One program: a block of channels of one sequence. ``last`` is (3, B, G, M)."""
    channel = tl.program_id(0) % num_blocks * WIDTH + tl.arange(0, WIDTH)
    is_real = channel < M
    sequence = (tl.program_id(0) // num_blocks).to(tl.int64)
    batch = sequence // G
    group = sequence % G
    k += batch * k_batch + group * k_group
    v += batch * v_batch + group * v_group
    out += batch * out_batch + group * out_group
    key_mask += batch * mask_batch + group * mask_group
    num_chunks = tl.cdiv(T, CHUNK)
    plane = tl.cast(G, tl.int64) * M
    states += batch * (num_chunks + 1) * 3 * plane + group * M
    w = tl.load(decay + group * M + channel, mask=is_real, other=0.0).to(tl.float32)
    u = tl.load(bonus + group * M + channel, mask=is_real, other=0.0).to(tl.float32)
    p = tl.zeros((WIDTH,), tl.float32)
    q = tl.zeros((WIDTH,), tl.float32)
    m = tl.full((WIDTH,), LOWEST, tl.float32)
    if HAS_STATE:
        place = sequence * M + channel
        p = tl.load(numerator + place, mask=is_real, other=0.0)
        q = tl.load(denominator + place, mask=is_real, other=0.0)
        m = tl.load(maximum + place, mask=is_real, other=LOWEST)
    next_k = load_tokens(k, 0, T, k_time, channel, is_real, STEPS)
    next_v = load_tokens(v, 0, T, v_time, channel, is_real, STEPS)
    next_mask = load_mask(key_mask, 0, T, mask_time, STEPS, HAS_MASK)
    for start in range(0, T, STEPS):
        ks = next_k
        vs = next_v
        mask = next_mask
        next_k = load_tokens(k, start + STEPS, T, k_time, channel, is_real, STEPS)
        next_v = load_tokens(v, start + STEPS, T, v_time, channel, is_real, STEPS)
        next_mask = load_mask(key_mask, start + STEPS, T, mask_time, STEPS, HAS_MASK)
        if start % CHUNK == 0:
            store_state(states + tl.cast(start // CHUNK, tl.int64) * 3 * plane, channel, plane, is_real, p, q, m)
        largest = log_denominator(q, m)
        outs = ()
        for i in tl.static_range(STEPS):
            key = tl.where(mask[i], ks[i].to(tl.float32), 0.0)
            value = tl.where(mask[i], vs[i].to(tl.float32), 0.0)
            past, own = weights(key, u, m)
            average = (past * p + own * value) / (past * q + own)
            outs += (tl.where(mask[i], average, 0.0),)
            kept, entering, m, largest = absorb(key, w, mask[i], m, largest)
            p = kept * p + entering * value
            q = kept * q + entering
        store_tokens(out, start, T, out_time, channel, is_real, outs, STEPS, False)
    store_state(states + tl.cast(num_chunks, tl.int64) * 3 * plane, channel, plane, is_real, p, q, m)
    store_state(last, sequence * M + channel, B * plane, is_real, p, q, m)


@triton.jit
def wkv_backward_kernel(
    dout,
    dnumerator,
    ddenominator,
    k,
    v,
    decay,
    bonus,
    key_mask,
    states,
    dk,
    dv,
    ddecay,
    dbonus,
    dfirst,
    scratch,
    B,
    T,
    G,
    M,
    num_blocks,
    dout_batch,
    dout_time,
    dout_group,
    k_batch,
    k_time,
    k_group,
    v_batch,
    v_time,
    v_group,
    dk_batch,
    dk_time,
    dk_group,
    dv_batch,
    dv_time,
    dv_group,
    mask_batch,
    mask_time,
    mask_group,
    STEPS: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_DNUMERATOR: tl.constexpr,
    HAS_DDENOMINATOR: tl.constexpr,
):
    """One program: a block of channels of one sequence, from its last chunk to the first.

    ddecay and dbonus (B, G, M) are its own part of sums over the batch, dfirst is (3, B, G, M). In its own ``scratch``
    it leaves the states before each STEPS tokens of a chunk.
    """
    channel = tl.program_id(0) % num_blocks * WIDTH + tl.arange(0, WIDTH)
    is_real = channel < M
    sequence = (tl.program_id(0) // num_blocks).to(tl.int64)
    batch = sequence // G
    group = sequence % G
    dout += batch * dout_batch + group * dout_group
    k += batch * k_batch + group * k_group
    v += batch * v_batch + group * v_group
    dk += batch * dk_batch + group * dk_group
    dv += batch * dv_batch + group * dv_group
    key_mask += batch * mask_batch + group * mask_group
    num_chunks = tl.cdiv(T, CHUNK)
    plane = tl.cast(G, tl.int64) * M
    states += batch * (num_chunks + 1) * 3 * plane + group * M
    scratch += tl.program_id(0).to(tl.int64) * (CHUNK // STEPS * 3 * WIDTH)
    lane = tl.arange(0, WIDTH)
    w = tl.load(decay + group * M + channel, mask=is_real, other=0.0).to(tl.float32)
    u = tl.load(bonus + group * M + channel, mask=is_real, other=0.0).to(tl.float32)
    place = sequence * M + channel
    dp = tl.zeros((WIDTH,), tl.float32)
    dq = tl.zeros((WIDTH,), tl.float32)
    if HAS_DNUMERATOR:
        dp = tl.load(dnumerator + place, mask=is_real, other=0.0)
    if HAS_DDENOMINATOR:
        dq = tl.load(ddenominator + place, mask=is_real, other=0.0)
    dw = tl.zeros((WIDTH,), tl.float32)
    du = tl.zeros((WIDTH,), tl.float32)
    for chunks_after in range(num_chunks):
        chunk = num_chunks - 1 - chunks_after
        begin = chunk * CHUNK
        num_tiles = tl.cdiv(tl.minimum(T - begin, CHUNK), STEPS)
        at_chunk = states + tl.cast(chunk, tl.int64) * 3 * plane
        p, q, m = load_state(at_chunk, channel, plane, is_real)
        next_k = load_tokens(k, begin, T, k_time, channel, is_real, STEPS)
        next_v = load_tokens(v, begin, T, v_time, channel, is_real, STEPS)
        next_mask = load_mask(key_mask, begin, T, mask_time, STEPS, HAS_MASK)
        for tile in range(num_tiles):
            start = begin + tile * STEPS
            ks = next_k
            vs = next_v
            mask = next_mask
            next_k = load_tokens(k, start + STEPS, T, k_time, channel, is_real, STEPS)
            next_v = load_tokens(v, start + STEPS, T, v_time, channel, is_real, STEPS)
            next_mask = load_mask(key_mask, start + STEPS, T, mask_time, STEPS, HAS_MASK)
            store_state(scratch + tile * 3 * WIDTH, lane, WIDTH, lane < WIDTH, p, q, m)
            largest = log_denominator(q, m)
            for i in tl.static_range(STEPS):
                key = tl.where(mask[i], ks[i].to(tl.float32), 0.0)
                value = tl.where(mask[i], vs[i].to(tl.float32), 0.0)
                kept, entering, m, largest = absorb(key, w, mask[i], m, largest)
                p = kept * p + entering * value
                q = kept * q + entering
        # Should a rounding error have made another whole number of the maximum, the gradients are made to fit.
        expected = tl.load(at_chunk + 5 * plane + channel, mask=is_real, other=0.0)
        fit = tl.exp(tl.where(is_real, m - expected, 0.0))
        dp *= fit
        dq *= fit
        tl.debug_barrier()
        last_tile = begin + (num_tiles - 1) * STEPS
        next_k = load_tokens(k, last_tile, T, k_time, channel, is_real, STEPS)
        next_v = load_tokens(v, last_tile, T, v_time, channel, is_real, STEPS)
        next_dout = load_tokens(dout, last_tile, T, dout_time, channel, is_real, STEPS)
        next_mask = load_mask(key_mask, last_tile, T, mask_time, STEPS, HAS_MASK)
        for tiles_after in range(num_tiles):
            tile = num_tiles - 1 - tiles_after
            start = begin + tile * STEPS
            ks = next_k
            vs = next_v
            douts = next_dout
            mask = next_mask
            before = tl.maximum(start - STEPS, 0)
            next_k = load_tokens(k, before, T, k_time, channel, is_real, STEPS)
            next_v = load_tokens(v, before, T, v_time, channel, is_real, STEPS)
            next_dout = load_tokens(dout, before, T, dout_time, channel, is_real, STEPS)
            next_mask = load_mask(key_mask, before, T, mask_time, STEPS, HAS_MASK)
            p, q, m = load_state(scratch + tile * 3 * WIDTH, lane, WIDTH, lane < WIDTH)
            largest = log_denominator(q, m)
            values = ()
            averages = ()
            pasts = ()  # of the output's gradient, what the sums before a token get, and v of the token itself
            owns = ()
            ps = ()  # the sums before a token
            qs = ()
            kepts = ()
            enterings = ()
            for i in tl.static_range(STEPS):
                key = tl.where(mask[i], ks[i].to(tl.float32), 0.0)
                values += (tl.where(mask[i], vs[i].to(tl.float32), 0.0),)
                past, own = weights(key, u, m)
                below = tl.where(mask[i], past * q + own, 1.0)
                averages += ((past * p + own * values[i]) / below,)
                dratio = tl.where(mask[i], douts[i].to(tl.float32), 0.0) / below
                pasts += (past * dratio,)
                owns += (own * dratio,)
                ps += (p,)
                qs += (q,)
                kept, entering, m, largest = absorb(key, w, mask[i], m, largest)
                kepts += (kept,)
                enterings += (entering,)
                p = kept * p + entering * values[i]
                q = kept * q + entering
            dks = ()  # from the last token to the first
            dvs = ()
            for j in tl.static_range(STEPS):
                dkey = owns[STEPS - 1 - j] * (values[STEPS - 1 - j] - averages[STEPS - 1 - j])
                du += dkey
                kept = kepts[STEPS - 1 - j]
                dkept = kept * (ps[STEPS - 1 - j] * dp + qs[STEPS - 1 - j] * dq)
                dw -= tl.where(mask[STEPS - 1 - j], dkept, 0.0)
                entering = enterings[STEPS - 1 - j]
                dks += (dkey + entering * (values[STEPS - 1 - j] * dp + dq),)
                dvs += (owns[STEPS - 1 - j] + entering * dp,)
                dp = kept * dp + pasts[STEPS - 1 - j]
                dq = kept * dq - pasts[STEPS - 1 - j] * averages[STEPS - 1 - j]
            store_tokens(dk, start, T, dk_time, channel, is_real, dks, STEPS, True)
            store_tokens(dv, start, T, dv_time, channel, is_real, dvs, STEPS, True)
        tl.debug_barrier()
    tl.store(ddecay + place, dw, mask=is_real)
    tl.store(dbonus + place, du, mask=is_real)
    p, q, m = load_state(states, channel, plane, is_real)
    store_state(dfirst, place, B * plane, is_real, dp, dq, p * dp + q * dq)
