"""What all kernels share: where a program works, and how tiles are loaded and multiplied.

Names in kernels: FP and DP are F and D padded to what a tile can be; ``TERM0`` … ``TERM2`` say which powers of the
score the kernel has; OPERAND is the dtype that matrix products take, sums are float32 throughout.
"""

import triton
import triton.language as tl

PIECE_COLUMNS = tl.constexpr(7)


@triton.jit
def locate(
    index,
    table,
    row_length,
    pieces_per_row,
    LENGTH: tl.constexpr,
    CHUNK: tl.constexpr,
    TABLE: tl.constexpr,
):
    """The index-th piece: sequence, first and last row, its chunk, where that starts, the sequence's start and end.

    Without a table all sequences have one length and are cut evenly.
    """
    if TABLE:
        entry = table + index * PIECE_COLUMNS
        sequence = tl.load(entry)
        start = tl.load(entry + 1)
        end = tl.load(entry + 2)
        chunk = tl.load(entry + 3)
        chunk_start = tl.load(entry + 4)
        sequence_start = tl.load(entry + 5)
        sequence_end = tl.load(entry + 6)
    else:
        sequence = index // pieces_per_row
        start = index % pieces_per_row * LENGTH
        end = tl.minimum(start + LENGTH, row_length)
        chunk = sequence * tl.cdiv(row_length, CHUNK) + start // CHUNK
        chunk_start = start // CHUNK * CHUNK
        sequence_start = 0
        sequence_end = row_length
    return sequence, start, end, chunk, chunk_start, sequence_start, sequence_end


@triton.jit
def slot_of(
    index,
    sequence,
    start,
    sequence_start,
    sequence_end,
    num_tokens,
    LENGTH: tl.constexpr,
    PACKED: tl.constexpr,
    AFTER: tl.constexpr,
    OWN_EDGES: tl.constexpr,
):
    """Where the sums before (after) the index-th chunk or segment, of LENGTH tokens, are kept.

    Packed sequences may be many and short. Chunks that follow another one of their sequence start at least LENGTH
    apart, however, and so do those that another one follows: start // LENGTH is theirs alone. All others share slot 0;
    where a state was given, each sequence has its own, behind the rest (``OWN_EDGES``).
    """
    if PACKED:
        if AFTER:
            slot = start // LENGTH + 1
            at_edge = start + LENGTH >= sequence_end
        else:
            slot = start // LENGTH
            at_edge = start == sequence_start
        if OWN_EDGES:
            index = tl.where(at_edge, num_tokens // LENGTH + 1 + sequence, slot)
        else:
            index = tl.where(at_edge, 0, slot)
    return index


@triton.jit
def state_slot(
    chunk,
    sequence,
    chunk_start,
    sequence_start,
    sequence_end,
    num_tokens,
    CHUNK: tl.constexpr,
    PACKED: tl.constexpr,
    CAUSAL: tl.constexpr,
    AFTER: tl.constexpr,
    OWN_EDGES: tl.constexpr,
):
    """Where the sums before (after) a chunk are kept, or those of its sequence if attention is not causal."""
    slot = sequence
    if CAUSAL:
        slot = slot_of(
            chunk, sequence, chunk_start, sequence_start, sequence_end, num_tokens, CHUNK, PACKED, AFTER, OWN_EDGES
        )
    return slot.to(tl.int64)


@triton.jit
def segment_slot(
    sequence,
    start,
    sequence_start,
    sequence_end,
    num_tokens,
    segments_per_row,
    SEGMENT: tl.constexpr,
    PACKED: tl.constexpr,
    AFTER: tl.constexpr,
):
    """Where the sums before (after) the segment are kept that has the chunk which begins at ``start``."""
    place = (start - sequence_start) // SEGMENT
    slot = slot_of(
        sequence * segments_per_row + place,
        sequence,
        sequence_start + place * SEGMENT,
        sequence_start,
        sequence_end,
        num_tokens,
        SEGMENT,
        PACKED,
        AFTER,
        False,
    )
    return slot.to(tl.int64)


@triton.jit
def head_offset(head, stride, ALIGN: tl.constexpr):
    """Where a head begins; that this is a multiple of ALIGN makes loads wide."""
    return tl.multiple_of(head.to(tl.int64) * stride, ALIGN)


@triton.jit
def place_queries(
    q,
    order,
    positions,
    batch,
    head,
    start,
    end,
    num_queries,
    num_heads,
    q_batch,
    q_time,
    q_head,
    ALIGN: tl.constexpr,
    ROWS: tl.constexpr,
    GATHERED: tl.constexpr,
):
    """Of a tile of queries: where q and the outputs begin, rows counted from there, which are real, their positions."""
    index = start + tl.arange(0, ROWS)
    real = index < end
    q += batch * q_batch + head_offset(head, q_head, ALIGN)
    at_query = batch * num_queries * num_heads + head
    if GATHERED:
        row = tl.load(order + index, mask=real, other=0).to(tl.int64)
        position = tl.load(positions + index, mask=real, other=-1)
    else:
        row = tl.arange(0, ROWS)
        position = index
        q += start.to(tl.int64) * q_time
        at_query += start.to(tl.int64) * num_heads
    return q, at_query, row, real, position


@triton.jit
def load_keys(
    k,
    v,
    key_mask,
    key,
    visible,
    k_time,
    v_time,
    F: tl.constexpr,
    FP: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    OPERAND: tl.constexpr,
    HAS_MASK: tl.constexpr,
    ALL_VISIBLE: tl.constexpr,
):
    """Keys and values, and which are to be seen once the mask is heeded."""
    if HAS_MASK:
        visible = visible & (tl.load(key_mask + key, mask=visible, other=0) != 0)
    keys = load_rows(k, key, visible, k_time, F, FP, OPERAND, ALL_VISIBLE and not HAS_MASK)
    values = load_rows(v, key, visible, v_time, D, DP, OPERAND, ALL_VISIBLE and not HAS_MASK)
    return keys, values, visible


@triton.jit
def load_rows(
    pointers,
    rows,
    real,
    stride,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    OPERAND: tl.constexpr,
    ALL_REAL: tl.constexpr,
):
    """Some rows of a matrix, (rows, PADDED); zero where ``real`` is False and beyond WIDTH, whatever memory holds."""
    return load_columns(pointers, rows, real, stride, 0, PADDED, WIDTH, PADDED, OPERAND, ALL_REAL)


@triton.jit
def load_columns(
    pointers,
    rows,
    real,
    stride,
    first,
    NUM: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    OPERAND: tl.constexpr,
    ALL_REAL: tl.constexpr,
):
    """Columns first, first + 1, … of the same rows, (rows, NUM)."""
    columns = first + tl.arange(0, NUM)
    pointers = pointers + rows[:, None] * stride + columns[None, :]
    if ALL_REAL:
        if WIDTH == PADDED:
            x = tl.load(pointers)
        else:
            x = tl.load(pointers, mask=(columns < WIDTH)[None, :], other=0.0)
    else:
        if WIDTH == PADDED:
            x = tl.load(pointers, mask=real[:, None], other=0.0)
        else:
            x = tl.load(pointers, mask=real[:, None] & (columns < WIDTH)[None, :], other=0.0)
    return x.to(OPERAND)


@triton.jit
def store_rows(
    pointers, rows, real, x, STRIDE: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, ALL_REAL: tl.constexpr
):
    columns = tl.arange(0, PADDED)
    pointers = pointers + rows[:, None] * STRIDE + columns[None, :]
    x = x.to(pointers.dtype.element_ty)
    if ALL_REAL:
        if WIDTH == PADDED:
            tl.store(pointers, x)
        else:
            tl.store(pointers, x, mask=(columns < WIDTH)[None, :])
    else:
        if WIDTH == PADDED:
            tl.store(pointers, x, mask=real[:, None])
        else:
            tl.store(pointers, x, mask=real[:, None] & (columns < WIDTH)[None, :])


@triton.jit
def products(some, every, ROWS: tl.constexpr, NUM: tl.constexpr, FP: tl.constexpr):
    """Features x_i·x_j of each row for NUM values of i and all j, (ROWS, NUM · FP)."""
    return tl.reshape(some[:, :, None] * every[:, None, :], (ROWS, NUM * FP))


@triton.jit
def contract(some, dfeatures, ROWS: tl.constexpr, NUM: tl.constexpr, FP: tl.constexpr):
    """Σ_i x_i · dfeatures_ij, (ROWS, FP): half the gradient of `products` where dfeatures is symmetric."""
    return tl.sum(some.to(tl.float32)[:, :, None] * tl.reshape(dfeatures, (ROWS, NUM, FP)), axis=1)


@triton.jit
def dot_precisely(x, matrix, PRECISION: tl.constexpr):
    """The product with a float32 matrix, which is not to be rounded to x's few bits."""
    if x.dtype == tl.float32:
        return tl.dot(x, matrix, input_precision=PRECISION)
    high = matrix.to(x.dtype)
    low = (matrix - high.to(tl.float32)).to(x.dtype)
    return tl.dot(x, low, tl.dot(x, high))


@triton.jit
def load_unscaled(
    pointers,
    sequence,
    head,
    num_heads,
    HAS: tl.constexpr,
    TERM0: tl.constexpr,
    TERM1: tl.constexpr,
    TERM2: tl.constexpr,
):
    """c0, c1, c2, where a missing one is 1."""
    c0 = 1.0
    c1 = 1.0
    c2 = 1.0
    if HAS:
        pointers += (sequence * num_heads + head) * (TERM0 + TERM1 + TERM2)
        if TERM0:
            c0 = tl.load(pointers)
        if TERM1:
            c1 = tl.load(pointers + TERM0)
        if TERM2:
            c2 = tl.load(pointers + TERM0 + TERM1)
    return c0, c1, c2


@triton.jit
def load_coefficients(
    pointers,
    scale,
    sequence,
    head,
    num_heads,
    HAS: tl.constexpr,
    TERM0: tl.constexpr,
    TERM1: tl.constexpr,
    TERM2: tl.constexpr,
):
    """What the powers of qᵀk are multiplied with: c0, c1·scale, c2·scale², where a missing c is 1."""
    c0, c1, c2 = load_unscaled(pointers, sequence, head, num_heads, HAS, TERM0, TERM1, TERM2)
    return c0, scale * c1, scale * scale * c2


@triton.jit
def common_factor(k2, TERM0: tl.constexpr, TERM1: tl.constexpr):
    """(k2, 1) or (1, k2): where there is only a square, sums are multiplied with k2 at their end, not term by term."""
    common = 1.0
    if not (TERM0 or TERM1):
        common = k2
        k2 = 1.0
    return common, k2


@triton.jit
def direct_terms(
    k0,
    k1,
    k2,
    pointers,
    scale,
    sequence,
    head,
    num_heads,
    HAS: tl.constexpr,
    TERM0: tl.constexpr,
    TERM1: tl.constexpr,
    TERM2: tl.constexpr,
    SQUARE: tl.constexpr,
):
    """What `clamped_similarity` is given: k0, k1 and k2; with SQUARE r, b and g such that it is (g·s + b)² + r.

    A polynomial that is nowhere negative has no r below zero, and so does not round below zero in this form.
    """
    if SQUARE:
        _, c1, c2 = load_unscaled(pointers, sequence, head, num_heads, HAS, TERM0, TERM1, TERM2)
        root = tl.sqrt(c2 + 0.0 * scale)  # of a number too
        k2 = root * scale
        k1 = 0.0
        if TERM1:  # without a c2 that is more than 0 in float32 there is no c1 either
            k1 = tl.where(root > 0, 0.5 * c1 / tl.where(root > 0, root, 1.0), 0.0)
        k0 = tl.maximum(k0 - k1 * k1, 0.0)
    return k0, k1, k2


@triton.jit
def similarity(s, k0, k1, k2, TERM0: tl.constexpr, TERM1: tl.constexpr, TERM2: tl.constexpr):
    """k0 + k1·s + k2·s², of the terms there are."""
    if TERM2:
        total = s * s * k2
        if TERM1:
            total += s * k1
    else:
        total = s * k1 if TERM1 else s * 0.0
    if TERM0:
        total += k0
    return total


@triton.jit
def clamped_similarity(
    s,
    k0,
    k1,
    k2,
    TERM0: tl.constexpr,
    TERM1: tl.constexpr,
    TERM2: tl.constexpr,
    SQUARE: tl.constexpr,
    CLAMP: tl.constexpr,
):
    """`similarity`, by `direct_terms`; with SQUARE or CLAMP it does not round below zero."""
    if SQUARE:
        root = s * k2 + k1
        sim = root * root + k0
    else:
        sim = similarity(s, k0, k1, k2, TERM0, TERM1, TERM2)
        if CLAMP:
            sim = tl.maximum(sim, 0.0)
    return sim


@triton.jit
def similarity_and_half_slope(
    s,
    seen,
    k0,
    k1,
    k2,
    TERM0: tl.constexpr,
    TERM1: tl.constexpr,
    TERM2: tl.constexpr,
    SQUARE: tl.constexpr,
    CLAMP: tl.constexpr,
):
    """`clamped_similarity` and half its derivative, both zero where not ``seen``.

    Unless there are both TERM0 and TERM1, s has to be zero there.
    """
    if SQUARE:
        root = s * k2 + k1
        sim = root * root + k0
        half_slope = root * k2
    else:
        sim = similarity(s, k0, k1, k2, TERM0, TERM1, TERM2)
        half_slope = s * k2 if TERM2 else s * 0.0
        if TERM1:
            half_slope += 0.5 * k1
        if CLAMP:
            half_slope = tl.where(sim < 0, 0.0, half_slope)
            sim = tl.maximum(sim, 0.0)
    if TERM1:
        half_slope = tl.where(seen, half_slope, 0.0)
    if TERM0:
        sim = tl.where(seen, sim, 0.0)
    return sim, half_slope


@triton.jit
def add_coefficient_sums(
    share0,
    share1,
    share2,
    sum0,
    sum1,
    sum2,
    s,
    dsim,
    seen,
    AXIS: tl.constexpr,
    TERM0: tl.constexpr,
    TERM1: tl.constexpr,
    TERM2: tl.constexpr,
):
    """For the coefficients' gradients, of each query: Σ s^d · dout·v (shares) and Σ s^d over the keys along AXIS."""
    if TERM0:
        share0 += tl.sum(tl.where(seen, dsim, 0.0), axis=AXIS)
        sum0 += tl.sum(seen.to(tl.float32), axis=AXIS)
    if TERM1:
        share1 += tl.sum(dsim * s, axis=AXIS)
        sum1 += tl.sum(s, axis=AXIS)
    if TERM2:
        share2 += tl.sum(dsim * s * s, axis=AXIS)
        sum2 += tl.sum(s * s, axis=AXIS)
    return share0, share1, share2, sum0, sum1, sum2


@triton.jit
def store_coefficient_grads(
    pointers,
    share0,
    share1,
    share2,
    sum0,
    sum1,
    sum2,
    inverse,
    dnormalizer,
    scale,
    TERM0: tl.constexpr,
    TERM1: tl.constexpr,
    TERM2: tl.constexpr,
):
    """Of a tile's queries, from the sums of `add_coefficient_sums`."""
    if TERM0:
        tl.store(pointers, tl.sum(share0 * inverse + sum0 * dnormalizer, axis=0))
    if TERM1:
        tl.store(pointers + TERM0, tl.sum(share1 * inverse + sum1 * dnormalizer, axis=0) * scale)
    if TERM2:
        square = scale * scale
        tl.store(pointers + TERM0 + TERM1, tl.sum(share2 * inverse + sum2 * dnormalizer, axis=0) * square)
