"""The kernels of `rebased.ops.conv_silu`: tiles of ROWS tokens and WIDTH channels, read once for each tap.

A shifted tile is another load, which the cache answers: registers cannot be shifted.
"""

import triton
import triton.language as tl

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
def load_rows(x, rows, T, stride, channel, W):
    """Tiles in float32; rows before the first and after the last are zeros."""
    is_there = ((rows >= 0) & (rows < T))[:, None] & (channel < W)[None, :]
    places = tl.cast(rows, tl.int64)[:, None] * stride + channel[None, :]
    return tl.load(x + places, mask=is_there, other=0.0).to(tl.float32)


@triton.jit
def store_rows(y, rows, T, stride, channel, W, tile):
    places = tl.cast(rows, tl.int64)[:, None] * stride + channel[None, :]
    tl.store(y + places, tile.to(y.dtype.element_ty), mask=(rows < T)[:, None] & (channel < W)[None, :])


@triton.jit
def load_taps(weight, bias, first, channel, W, K: tl.constexpr):
    """The weights of each tap, and the bias, of each channel."""
    taps = ()
    for k in tl.static_range(K):
        taps += (tl.load(weight + (first + channel) * K + k, mask=channel < W, other=0.0).to(tl.float32)[None, :],)
    return taps, tl.load(bias + first + channel, mask=channel < W, other=0.0).to(tl.float32)[None, :]


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
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    TILES: tl.constexpr,
):
    """One program: a block of channels and a span of TILES tiles of one sequence."""
    block, span, batch, group = place_of_program(num_blocks, num_spans, G)
    x += batch * x_batch + group * x_group
    y += batch * y_batch + group * y_group
    channel = block * WIDTH + tl.arange(0, WIDTH)
    taps, shift = load_taps(weight, bias, group * W, channel, W, K)
    for tile in range(TILES):
        rows = (span * TILES + tile) * ROWS + tl.arange(0, ROWS)
        out = shift
        for k in tl.static_range(K):
            out = out + taps[k] * load_rows(x, rows - (K - 1 - k), T, x_time, channel, W)
        store_rows(y, rows, T, y_time, channel, W, out * sigmoid(out))


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
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    TILES: tl.constexpr,
):
    """The same programs; each has its own sums for the taps and the bias, partial (B, spans, G, K + 1, W).

    A token's gradient has terms of the K - 1 after it, whose sums before SiLU are computed here too.
    """
    block, span, batch, group = place_of_program(num_blocks, num_spans, G)
    dy += batch * dy_batch + group * dy_group
    x += batch * x_batch + group * x_group
    dx += batch * dx_batch + group * dx_group
    partial += ((batch * num_spans + span) * G + group) * (K + 1) * W
    channel = block * WIDTH + tl.arange(0, WIDTH)
    taps, shift = load_taps(weight, bias, group * W, channel, W, K)
    sums = ()
    for _ in tl.static_range(K + 1):
        sums += (tl.zeros((ROWS, WIDTH), tl.float32),)
    for tile in range(TILES):
        rows = (span * TILES + tile) * ROWS + tl.arange(0, ROWS)
        xs = ()  # from K - 1 tokens before to as many after
        for offset in tl.static_range(2 * K - 1):
            xs += (load_rows(x, rows + (offset - (K - 1)), T, x_time, channel, W),)
        dtoken = tl.zeros((ROWS, WIDTH), tl.float32)
        own = dtoken
        for after in tl.static_range(K):
            out = shift
            for k in tl.static_range(K):
                out = out + taps[k] * xs[after + k]
            gate = sigmoid(out)
            dout = load_rows(dy, rows + after, T, dy_time, channel, W) * (gate * (1 + out * (1 - gate)))
            dtoken += taps[K - 1 - after] * dout
            if after == 0:
                own = dout
        added = ()
        for k in tl.static_range(K):
            added += (sums[k] + own * xs[k],)
        added += (sums[K] + own,)
        sums = added
        store_rows(dx, rows, T, dx_time, channel, W, dtoken)
    for k in tl.static_range(K + 1):
        tl.store(partial + k * W + channel, tl.sum(sums[k], axis=0), mask=channel < W)
