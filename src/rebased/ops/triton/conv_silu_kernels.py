"""The kernels of `rebased.ops.conv_silu`: a program walks along time with the last K tokens of a few channels.

It is one warp, with WIDTH channels and SPAN tokens of one sequence, and loads STEPS tokens at a time.
"""

import triton
import triton.language as tl

MINUS_LOG2_E = tl.constexpr(-1.4426950408889634)


@triton.jit
def sigmoid(x):
    """In fewer instructions than Triton's, or than a division: that takes care of very large numbers."""
    root = tl.rsqrt(1 + tl.exp2(x * MINUS_LOG2_E))
    return root * root


@triton.jit
def place_of_program(num_blocks, num_spans, G, WIDTH: tl.constexpr):
    """The channels, the span of tokens, the row of the batch and the group."""
    block = tl.program_id(0) % num_blocks
    span = tl.program_id(0) // num_blocks % num_spans
    sequence = (tl.program_id(0) // num_blocks // num_spans).to(tl.int64)
    return block * WIDTH + tl.arange(0, WIDTH), span, sequence // G, sequence % G


@triton.jit
def load_taps(weight, bias, first, channel, W, K: tl.constexpr):
    """The weights of each tap, and the bias, of each channel."""
    taps = ()
    for k in tl.static_range(K):
        taps += (tl.load(weight + (first + channel) * K + k, mask=channel < W, other=0.0).to(tl.float32),)
    return taps, tl.load(bias + first + channel, mask=channel < W, other=0.0).to(tl.float32)


@triton.jit
def load_tokens(x, first, T, stride, channel, W, COUNT: tl.constexpr):
    """COUNT tokens in float32, of which ``first`` is at x; before the first of all and after the last are zeros."""
    tokens = ()
    for i in tl.static_range(COUNT):
        is_there = (tl.full(channel.shape, first + i, tl.int32) < T) & (first + i >= 0) & (channel < W)
        tokens += (tl.load(x + i * stride + channel, mask=is_there, other=0.0).to(tl.float32),)
    return tokens


@triton.jit
def add_weighted(total, taps, tokens, K: tl.constexpr):
    for k in tl.static_range(K):
        total += taps[k] * tokens[k]
    return total


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
    SPAN: tl.constexpr,
    STEPS: tl.constexpr,
):
    channel, span, batch, group = place_of_program(num_blocks, num_spans, G, WIDTH)
    taps, shift = load_taps(weight, bias, group * W, channel, W, K)
    start = span * SPAN
    x += batch * x_batch + group * x_group + tl.cast(start, tl.int64) * x_time
    y += batch * y_batch + group * y_group + tl.cast(start, tl.int64) * y_time
    xs = load_tokens(x - (K - 1) * x_time, start - (K - 1), T, x_time, channel, W, K - 1)  # before the next
    for first in range(start, start + SPAN, STEPS):
        xs += load_tokens(x, first, T, x_time, channel, W, STEPS)
        for i in tl.static_range(STEPS):
            out = add_weighted(shift, taps, xs, K)
            is_there = (tl.full(channel.shape, first + i, tl.int32) < T) & (channel < W)
            tl.store(y + i * y_time + channel, (out * sigmoid(out)).to(y.dtype.element_ty), mask=is_there)
            xs = xs[1:]
        x += STEPS * x_time
        y += STEPS * y_time


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
    SPAN: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Each program has its own sums for the taps and the bias, partial (B, spans, G, K + 1, W).

    A token's gradient has terms of the K - 1 after it, so a program goes that much further than its span.
    """
    channel, span, batch, group = place_of_program(num_blocks, num_spans, G, WIDTH)
    taps, shift = load_taps(weight, bias, group * W, channel, W, K)
    start = span * SPAN
    end = tl.minimum(start + SPAN, T)
    dy += batch * dy_batch + group * dy_group + tl.cast(start, tl.int64) * dy_time
    x += batch * x_batch + group * x_group + tl.cast(start, tl.int64) * x_time
    dx += batch * dx_batch + group * dx_group + (tl.cast(start, tl.int64) - (K - 1)) * dx_time
    partial += ((batch * num_spans + span) * G + group) * (K + 1) * W
    xs = load_tokens(x - (K - 1) * x_time, start - (K - 1), T, x_time, channel, W, K - 1)
    douts = ()  # of the sums before SiLU, the latest first
    sums = ()  # of the taps and the bias
    for _ in tl.static_range(K - 1):
        douts += (tl.zeros((WIDTH,), tl.float32),)
    for _ in tl.static_range(K + 1):
        sums += (tl.zeros((WIDTH,), tl.float32),)
    for first in range(start, end + (K - 1), STEPS):
        xs += load_tokens(x, first, T, x_time, channel, W, STEPS)
        dys = load_tokens(dy, first, T, dy_time, channel, W, STEPS)
        for i in tl.static_range(STEPS):
            out = add_weighted(shift, taps, xs, K)
            gate = sigmoid(out)
            dout = dys[i] * (gate * (1 + out * (1 - gate)))
            own = tl.where(first + i < end, dout, 0.0)  # what comes after is another program's
            added = ()
            for k in tl.static_range(K):
                added += (sums[k] + own * xs[k],)
            sums = added + (sums[K] + own,)  # noqa: RUF005 - Triton has no stars
            douts = (dout,) + douts  # noqa: RUF005
            token = first + i - (K - 1)
            is_own = (tl.full(channel.shape, token, tl.int32) < end) & (token >= start) & (channel < W)
            dtoken = add_weighted(tl.zeros((WIDTH,), tl.float32), taps, douts, K)
            tl.store(dx + i * dx_time + channel, dtoken.to(dx.dtype.element_ty), mask=is_own)
            xs = xs[1:]
            douts = douts[: K - 1]
        x += STEPS * x_time
        dy += STEPS * dy_time
        dx += STEPS * dx_time
    for k in tl.static_range(K + 1):
        tl.store(partial + k * W + channel, sums[k], mask=channel < W)
