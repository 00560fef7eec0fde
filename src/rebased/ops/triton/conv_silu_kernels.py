"""The kernels of `rebased.ops.conv_silu`: a program walks along time, with the taps' last tokens in registers.

So every token is loaded once, and what SiLU needs is computed once.
"""

import triton
import triton.language as tl

from rebased.ops.triton.tokens import before, load_tokens, store_tokens

MINUS_LOG2_E = tl.constexpr(-1.4426950408889634)


@triton.jit
def sigmoid(x):
    """In fewer instructions than Triton's, which does not begin with exp2."""
    return 1 / (1 + tl.exp2(x * MINUS_LOG2_E))


@triton.jit
def place_of_program(num_blocks, num_spans, G):
    """The block of channels, the span of tokens, the row of the batch and the group."""
    block = tl.program_id(0) % num_blocks
    span = tl.program_id(0) // num_blocks % num_spans
    sequence = (tl.program_id(0) // num_blocks // num_spans).to(tl.int64)
    return block, span, sequence // G, sequence % G


@triton.jit
def load_taps(weight, bias, first, channel, is_real, K: tl.constexpr):
    """The weights of each tap, and the bias, of each channel."""
    taps = ()
    for k in tl.static_range(K):
        taps += (tl.load(weight + (first + channel) * K + k, mask=is_real, other=0.0).to(tl.float32),)
    return taps, tl.load(bias + first + channel, mask=is_real, other=0.0).to(tl.float32)


@triton.jit
def load_past(x, first, stride, channel, is_real, NUM: tl.constexpr):
    """The NUM tokens before the first, in float32; before the sequence there are zeros."""
    past = ()
    for i in tl.static_range(NUM):
        token = first - NUM + i
        is_there = is_real & (tl.full(is_real.shape, token, tl.int32) >= 0)
        place = x + tl.cast(token, tl.int64) * stride + channel
        past += (tl.load(place, mask=is_there, other=0.0).to(tl.float32),)
    return past


@triton.jit
def after(past, token, NUM: tl.constexpr):
    """The last NUM of these and the token."""
    past += (token,)
    last = ()
    for i in tl.static_range(NUM):
        last += (past[i + 1],)
    return last


@triton.jit
def convolve(past, token, taps, shift, K: tl.constexpr):
    out = shift + taps[K - 1] * token
    for k in tl.static_range(K - 1):
        out += taps[k] * past[k]
    return out


@triton.jit
def conv_silu_forward_kernel(
    x,
    weight,
    bias,
    y,
    T,
    G,
    W,
    num_blocks,
    num_spans,
    x_batch,
    x_time,
    x_group,
    y_batch,
    y_time,
    y_group,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    STEPS: tl.constexpr,
    SPAN: tl.constexpr,
):
    """One program: a block of channels and SPAN tokens of one sequence, taken STEPS at a time."""
    block, span, batch, group = place_of_program(num_blocks, num_spans, G)
    x += batch * x_batch + group * x_group
    y += batch * y_batch + group * y_group
    channel = block * WIDTH + tl.arange(0, WIDTH)
    is_real = channel < W
    taps, shift = load_taps(weight, bias, group * W, channel, is_real, K)
    first = span * SPAN
    past = load_past(x, first, x_time, channel, is_real, K - 1)
    for start in range(first, tl.minimum(first + SPAN, T), STEPS):
        xs = load_tokens(x, start, T, x_time, channel, is_real, STEPS)
        ys = ()
        for i in tl.static_range(STEPS):
            token = xs[i].to(tl.float32)
            out = convolve(past, token, taps, shift, K)
            ys += (out * sigmoid(out),)
            past = after(past, token, K - 1)
        store_tokens(y, start, T, y_time, channel, is_real, ys, STEPS, False)


@triton.jit
def conv_silu_backward_kernel(
    dy,
    x,
    weight,
    bias,
    dx,
    partial,
    T,
    G,
    W,
    num_blocks,
    num_spans,
    dy_batch,
    dy_time,
    dy_group,
    x_batch,
    x_time,
    x_group,
    dx_batch,
    dx_time,
    dx_group,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    STEPS: tl.constexpr,
    SPAN: tl.constexpr,
):
    """The same programs; each has its own sums for the taps and the bias, partial (B, spans, G, K + 1, W).

    A token's gradient has terms of the K - 1 after it, so it is known that much later, and a program walks as far
    beyond its span.
    """
    block, span, batch, group = place_of_program(num_blocks, num_spans, G)
    dy += batch * dy_batch + group * dy_group
    x += batch * x_batch + group * x_group
    dx += batch * dx_batch + group * dx_group
    partial += ((batch * num_spans + span) * G + group) * (K + 1) * W
    channel = block * WIDTH + tl.arange(0, WIDTH)
    is_real = channel < W
    taps, shift = load_taps(weight, bias, group * W, channel, is_real, K)
    first = span * SPAN
    end = tl.minimum(first + SPAN, T)
    past = load_past(x, first, x_time, channel, is_real, K - 1)
    zeros = tl.zeros((WIDTH,), tl.float32)
    douts = ()  # gradients before SiLU, of the K - 1 tokens before
    for _ in tl.static_range(K - 1):
        douts += (zeros,)
    sums = ()
    for _ in tl.static_range(K + 1):
        sums += (zeros,)
    for start in range(first, end + K - 1, STEPS):
        xs = load_tokens(x, start, T, x_time, channel, is_real, STEPS)
        dys = load_tokens(dy, start, T, dy_time, channel, is_real, STEPS)
        for i in tl.static_range(STEPS):
            token = xs[i].to(tl.float32)
            out = convolve(past, token, taps, shift, K)
            gate = sigmoid(out)
            dout = dys[i].to(tl.float32) * (gate * (1 + out * (1 - gate)))
            dtoken = taps[0] * dout
            for k in tl.static_range(1, K):
                dtoken += taps[k] * douts[K - 1 - k]
            place = start + i - (K - 1)
            is_own = before(place, end, is_real) & (tl.full(is_real.shape, place, tl.int32) >= first)
            tl.store(dx + tl.cast(place, tl.int64) * dx_time + channel, dtoken.to(dx.dtype.element_ty), mask=is_own)
            counted = tl.where(before(start + i, end, is_real), dout, 0.0)  # those beyond are another program's
            added = ()
            for k in tl.static_range(K - 1):
                added += (sums[k] + counted * past[k],)
            added += (sums[K - 1] + counted * token, sums[K] + counted)
            sums = added
            douts = after(douts, dout, K - 1)
            past = after(past, token, K - 1)
    for k in tl.static_range(K + 1):
        tl.store(partial + k * W + channel, sums[k], mask=is_real)
