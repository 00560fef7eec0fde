"""Outputs: each tile of queries meets the state before its chunk and the keys inside it."""

import triton
import triton.language as tl

from rebased.ops.triton.tiles import (
    clamped_similarity,
    common_factor,
    direct_terms,
    dot_precisely,
    head_offset,
    load_coefficients,
    load_columns,
    load_keys,
    load_rows,
    locate,
    place_queries,
    products,
    state_slot,
    store_rows,
)


@triton.jit
def forward_kernel(
    q,
    k,
    v,
    out,
    normalizer,
    key_mask,
    coefficients,
    prefix,
    prefix_moments,
    table,
    order,
    positions,
    q_batch,
    q_time,
    q_head,
    k_batch,
    k_time,
    k_head,
    v_batch,
    v_time,
    v_head,
    num_queries,
    num_keys,
    tiles_per_row,
    num_heads,
    scale,
    eps,
    Q_ALIGN: tl.constexpr,
    K_ALIGN: tl.constexpr,
    V_ALIGN: tl.constexpr,
    GROUP: tl.constexpr,
    F: tl.constexpr,
    FP: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    TERM0: tl.constexpr,
    TERM1: tl.constexpr,
    TERM2: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    NUM_I: tl.constexpr,
    OPERAND: tl.constexpr,
    PRECISION: tl.constexpr,
    EVEN: tl.constexpr,
    TABLE: tl.constexpr,
    PACKED: tl.constexpr,
    GATHERED: tl.constexpr,
    CAUSAL: tl.constexpr,
    HAS_STATE: tl.constexpr,
    HAS_INITIAL: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_COEFFICIENTS: tl.constexpr,
    NORMALIZE: tl.constexpr,
    NONNEGATIVE: tl.constexpr,
    DROP: tl.constexpr,
    SQUARE: tl.constexpr,
    CLAMP: tl.constexpr,
    ROUNDING: tl.constexpr,
):
    """One program: one tile of queries of one head. Of the normaliser, the sign says that the state was dropped."""
    head = tl.program_id(0) % num_heads  # neighbours in memory are neighbours in time
    tile = tl.program_id(0) // num_heads
    sequence, start, end, chunk, chunk_start, sequence_start, sequence_end = locate(
        tile, table, num_queries, tiles_per_row, ROWS, CHUNK, TABLE
    )
    if end <= start:
        return
    batch = sequence.to(tl.int64)
    if PACKED:
        batch *= 0
    key_head = head // GROUP
    num_key_heads = num_heads // GROUP
    q, at_query, row, real, position = place_queries(
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
        Q_ALIGN,
        ROWS,
        GATHERED,
    )
    k0, k1, k2 = load_coefficients(
        coefficients, scale, sequence, head, num_heads, HAS_COEFFICIENTS, TERM0, TERM1, TERM2
    )
    common, k2 = common_factor(k2, TERM0, TERM1)
    d0, d1, d2 = direct_terms(
        k0, k1, k2, coefficients, scale, sequence, head, num_heads, HAS_COEFFICIENTS, TERM0, TERM1, TERM2, SQUARE
    )
    queries = load_rows(q, row, real, q_time, F, FP, OPERAND, EVEN)
    numerator = tl.zeros((ROWS, DP), tl.float32)
    denominator = tl.zeros((ROWS,), tl.float32)
    dropped = denominator > 0.0

    if HAS_STATE:
        FEATURES: tl.constexpr = TERM2 * FP * FP + TERM1 * FP + TERM0
        LINEAR: tl.constexpr = TERM2 * FP * FP
        CONSTANT: tl.constexpr = LINEAR + TERM1 * FP
        i = tl.arange(0, FP)
        d = tl.arange(0, DP)
        slot = state_slot(
            chunk,
            sequence,
            chunk_start,
            sequence_start,
            sequence_end,
            num_keys,
            CHUNK,
            PACKED,
            CAUSAL,
            False,
            HAS_INITIAL,
        )
        prefix += (slot * num_key_heads + key_head) * (FEATURES * DP)
        prefix_moments += (slot * num_key_heads + key_head) * FEATURES
        magnitude = tl.zeros((ROWS,), tl.float32)
        precise = queries.to(tl.float32)
        if TERM2:
            for group in tl.static_range(FP // NUM_I):
                some = load_columns(q, row, real, q_time, group * NUM_I, NUM_I, F, FP, OPERAND, EVEN)
                feature = group * (NUM_I * FP) + tl.arange(0, NUM_I * FP)
                state = tl.load(prefix + feature[:, None] * DP + d[None, :])
                features = products(some, queries, ROWS, NUM_I, FP)
                numerator = tl.dot(features, state, numerator, input_precision=PRECISION)
            numerator *= k2
            if NORMALIZE:
                square = tl.load(prefix_moments + i[:, None] * FP + i[None, :])
                terms = dot_precisely(queries, square, PRECISION) * precise
                denominator += tl.sum(terms, axis=1) * k2
                if DROP:
                    terms = tl.dot(tl.abs(queries), tl.abs(square).to(OPERAND), input_precision=PRECISION)
                    magnitude += tl.sum(terms * tl.abs(precise), axis=1) * tl.abs(k2)
        if TERM1:
            state = tl.load(prefix + (LINEAR + i)[:, None] * DP + d[None, :])
            numerator += tl.dot(queries, state, input_precision=PRECISION) * k1
            terms = precise * tl.load(prefix_moments + LINEAR + i)[None, :]
            denominator += tl.sum(terms, axis=1) * k1
            magnitude += tl.sum(tl.abs(terms), axis=1) * tl.abs(k1)
        if TERM0:
            numerator += tl.load(prefix + CONSTANT * DP + d).to(tl.float32)[None, :] * k0
            term = tl.load(prefix_moments + CONSTANT) * k0
            denominator += term
            magnitude += tl.abs(term)
        if DROP:
            dropped = denominator <= magnitude * ROUNDING
            numerator = tl.where(dropped[:, None], 0.0, numerator)
            denominator = tl.where(dropped, 0.0, denominator)

    if CAUSAL:
        chunk_end = tl.minimum(chunk_start + CHUNK, sequence_end)
        # Keys before all of the tile's queries need no mask; gathered queries may lie anywhere in the chunk.
        border = chunk_start
        if not GATHERED:
            border = start
            chunk_end = tl.minimum(chunk_end, end)
        k += batch * k_batch + head_offset(key_head, k_head, K_ALIGN) + chunk_start.to(tl.int64) * k_time
        v += batch * v_batch + head_offset(key_head, v_head, V_ALIGN) + chunk_start.to(tl.int64) * v_time
        key_mask += batch * num_keys + chunk_start
        column = tl.arange(0, COLUMNS)
        for first in range(0, border - chunk_start, COLUMNS):
            key = first + column
            keys, values, visible = load_keys(
                k, v, key_mask, key, key >= 0, k_time, v_time, F, FP, D, DP, OPERAND, HAS_MASK, True
            )
            s = tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
            sim = clamped_similarity(s, d0, d1, d2, TERM0, TERM1, TERM2, SQUARE, CLAMP)
            if TERM0 and HAS_MASK:
                sim = tl.where(visible[None, :], sim, 0.0)
            denominator += tl.sum(sim, axis=1)
            numerator = tl.dot(sim.to(OPERAND), values, numerator, input_precision=PRECISION)
        for first in range(border - chunk_start, chunk_end - chunk_start, COLUMNS):
            key = first + column
            visible = key < chunk_end - chunk_start
            keys, values, visible = load_keys(
                k, v, key_mask, key, visible, k_time, v_time, F, FP, D, DP, OPERAND, HAS_MASK, EVEN
            )
            s = tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
            sim = clamped_similarity(s, d0, d1, d2, TERM0, TERM1, TERM2, SQUARE, CLAMP)
            seen = key[None, :] <= (position - chunk_start)[:, None]
            if TERM0:
                seen = seen & visible[None, :]
            sim = tl.where(seen, sim, 0.0)
            denominator += tl.sum(sim, axis=1)
            numerator = tl.dot(sim.to(OPERAND), values, numerator, input_precision=PRECISION)

    if NORMALIZE:
        denominator *= common
        divisor = denominator + eps
        if NONNEGATIVE:
            divisor = tl.where(denominator > 0, divisor, float("inf"))
        # One reciprocal a row instead of a division an element; that of a tiny divisor would overflow.
        lift = tl.where(tl.abs(divisor) < 2.0**-60, 2.0**60, 1.0)
        numerator = numerator * lift[:, None] * (common / (divisor * lift))[:, None]
        if DROP:
            divisor = tl.where(dropped, -divisor, divisor)
        tl.store(normalizer + at_query + row * num_heads, divisor, mask=real)
    else:
        numerator *= common
    store_rows(out + at_query * D, row * num_heads, real, numerator, D, D, DP, EVEN)
