"""The kernels of a head's cross entropy: tiles of logits are made, used, and made again in the backward pass.

In each group x (N, W) has ``num_rows`` rows and ``weight`` (V, W) is a table of ``num_words``; W is padded to WP. Of a
row's sum of exponentials the greatest logit (``peaks``) and the logarithm of what is left (``log_sums``) are kept: in
one number, logits of thousands would leave few digits to the probabilities.

SHIFT: probabilities are scaled by 2^SHIFT before they are rounded to an operand of a product. In float16 most would be
zero or nearly so without it.
"""

import triton
import triton.language as tl

from rebased.ops.triton.tiles import load_rows, store_rows

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def load_tile(matrix, first, num_rows, W: tl.constexpr, WP: tl.constexpr, SIZE: tl.constexpr, EVEN: tl.constexpr):
    """SIZE rows from the first one on; zero beyond the last, which EVEN says is the last of a tile too."""
    row = tl.arange(0, SIZE)
    matrix += tl.cast(first, tl.int64) * W
    return load_rows(matrix, row, first + row < num_rows, W, W, WP, matrix.dtype.element_ty, EVEN)


@triton.jit
def scaled_probabilities(logits, peak, exponent, SHIFT: tl.constexpr, EVEN_WORDS: tl.constexpr):
    """Softmax times 2^SHIFT; for what fills the table up, whose words are zero, anything finite."""
    powers = (logits - peak[:, None]) * LOG2_E + exponent[:, None]
    if not EVEN_WORDS:
        powers = tl.minimum(powers, SHIFT)
    return tl.exp2(powers)


@triton.jit
def cross_entropy_forward_kernel(
    x,
    weight,
    labels,
    losses,
    peaks,
    log_sums,
    x_group,
    weight_group,
    num_rows,
    num_words,
    tiles_per_group,
    W: tl.constexpr,
    WP: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    EVEN_ROWS: tl.constexpr,
    EVEN_WORDS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program: one tile of rows, along the table."""
    group = (tl.program_id(0) // tiles_per_group).to(tl.int64)
    first = tl.program_id(0) % tiles_per_group * ROWS
    row = first + tl.arange(0, ROWS)
    real = row < num_rows
    place = group * num_rows + row
    weight += group * weight_group
    rows = load_tile(x + group * x_group, first, num_rows, W, WP, ROWS, EVEN_ROWS)
    peak = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    for start in range(0, num_words, WORDS):
        words = load_tile(weight, start, num_words, W, WP, WORDS, EVEN_WORDS)
        logits = tl.dot(rows, tl.trans(words), input_precision=PRECISION)
        if not EVEN_WORDS:
            logits = tl.where((start + tl.arange(0, WORDS) < num_words)[None, :], logits, float("-inf"))
        higher = tl.maximum(peak, tl.max(logits, axis=1))
        terms = tl.exp2((logits - higher[:, None]) * LOG2_E)
        total = total * tl.exp2((peak - higher) * LOG2_E) + tl.sum(terms, axis=1)
        peak = higher
    # The labels' own logits are the diagonal of one more product, which rounds as the others did.
    label = tl.load(labels + place, mask=real, other=0)
    known = real & (label >= 0) & (label < num_words)
    words = load_rows(weight, label, known, W, W, WP, weight.dtype.element_ty, False)
    logits = tl.dot(rows, tl.trans(words), input_precision=PRECISION)
    index = tl.arange(0, ROWS)
    chosen = tl.sum(tl.where(index[:, None] == index[None, :], logits, 0.0), axis=1)
    log_sum = tl.log(total)
    loss = tl.where(known, peak - chosen + log_sum, float("nan"))
    tl.store(losses + place, loss, mask=real)
    tl.store(peaks + place, peak, mask=real)
    tl.store(log_sums + place, log_sum, mask=real)


@triton.jit
def cross_entropy_dx_kernel(
    dlosses,
    x,
    weight,
    labels,
    peaks,
    log_sums,
    dx,
    x_group,
    weight_group,
    num_rows,
    num_words,
    tiles_per_group,
    W: tl.constexpr,
    WP: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    EVEN_ROWS: tl.constexpr,
    EVEN_WORDS: tl.constexpr,
    PRECISION: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """One program: one tile of rows, along the table."""
    group = (tl.program_id(0) // tiles_per_group).to(tl.int64)
    first = tl.program_id(0) % tiles_per_group * ROWS
    row = first + tl.arange(0, ROWS)
    real = row < num_rows
    place = group * num_rows + row
    weight += group * weight_group
    rows = load_tile(x + group * x_group, first, num_rows, W, WP, ROWS, EVEN_ROWS)
    label = tl.load(labels + place, mask=real, other=0).to(tl.int32)
    peak = tl.load(peaks + place, mask=real, other=0.0)
    exponent = SHIFT - tl.load(log_sums + place, mask=real, other=0.0) * LOG2_E
    total = tl.zeros((ROWS, WP), tl.float32)
    for start in range(0, num_words, WORDS):
        words = load_tile(weight, start, num_words, W, WP, WORDS, EVEN_WORDS)
        logits = tl.dot(rows, tl.trans(words), input_precision=PRECISION)
        dlogits = scaled_probabilities(logits, peak, exponent, SHIFT, EVEN_WORDS)
        chosen = tl.arange(0, WORDS)[None, :] == (label - start)[:, None]
        dlogits = tl.where(chosen, dlogits - 2.0**SHIFT, dlogits)
        total = tl.dot(dlogits.to(words.dtype), words, total, input_precision=PRECISION)
    total *= (tl.load(dlosses + place, mask=real, other=0.0) * 2.0**-SHIFT)[:, None]
    store_rows(dx, place, real, total, W, W, WP, EVEN_ROWS)


@triton.jit
def cross_entropy_dweight_kernel(
    dlosses,
    x,
    weight,
    labels,
    peaks,
    log_sums,
    dweight,
    x_group,
    weight_group,
    num_groups,
    num_rows,
    num_words,
    tiles_per_group,
    num_parts,
    rows_per_part,
    W: tl.constexpr,
    WP: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    EVEN_ROWS: tl.constexpr,
    EVEN_WORDS: tl.constexpr,
    PRECISION: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """One program: one tile of the table, along a part of the rows; dweight is (parts, G, V, W)."""
    part = tl.program_id(0) % num_parts
    tile = tl.program_id(0) // num_parts
    group = (tile // tiles_per_group).to(tl.int64)
    first = tile % tiles_per_group * WORDS
    word = first + tl.arange(0, WORDS)
    x += group * x_group
    words = load_tile(weight + group * weight_group, first, num_words, W, WP, WORDS, EVEN_WORDS)
    total = tl.zeros((WP, WORDS), tl.float32)
    for start in range(part * rows_per_part, tl.minimum((part + 1) * rows_per_part, num_rows), ROWS):
        rows = load_tile(x, start, num_rows, W, WP, ROWS, EVEN_ROWS)
        row = start + tl.arange(0, ROWS)
        real = row < num_rows
        place = group * num_rows + row
        label = tl.load(labels + place, mask=real, other=0).to(tl.int32)
        peak = tl.load(peaks + place, mask=real, other=0.0)
        exponent = SHIFT - tl.load(log_sums + place, mask=real, other=0.0) * LOG2_E
        dloss = tl.load(dlosses + place, mask=real, other=0.0)
        logits = tl.dot(rows, tl.trans(words), input_precision=PRECISION)
        dlogits = scaled_probabilities(logits, peak, exponent, SHIFT, EVEN_WORDS)
        chosen = word[None, :] == label[:, None]
        dlogits = tl.where(chosen, dlogits - 2.0**SHIFT, dlogits) * dloss[:, None]
        total = tl.dot(tl.trans(rows), dlogits.to(rows.dtype), total, input_precision=PRECISION)
    place = (part * num_groups + group) * num_words + word
    store_rows(dweight, place, word < num_words, tl.trans(total) * 2.0**-SHIFT, W, W, WP, EVEN_WORDS)
