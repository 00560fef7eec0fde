"""Gradients of keys and values: a tile of keys meets the queries of its chunk directly, later ones as a state."""

import triton
import triton.language as tl

from rebased.ops.triton.tiles import (
    common_factor,
    contract,
    direct_terms,
    dot_precisely,
    head_offset,
    load_coefficients,
    load_columns,
    load_rows,
    locate,
    products,
    segment_slot,
    similarity_and_half_slope,
    state_slot,
    store_rows,
)


@triton.jit
def key_grads_kernel(
    q,
    k,
    v,
    normalizer,
    dout,
    dnormalizer,
    dk,
    dv,
    key_mask,
    coefficients,
    suffix,
    suffix_moments,
    after,
    after_moments,
    table,
    order,
    positions,
    row_borders,
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
    num_key_heads,
    segments_per_row,
    scale,
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
    SEGMENT: tl.constexpr,
    SEGMENTED: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_COEFFICIENTS: tl.constexpr,
    NORMALIZE: tl.constexpr,
    DROP: tl.constexpr,
    SQUARE: tl.constexpr,
    CLAMP: tl.constexpr,
):
    """One program: one tile of keys (ROWS) of one key head; its queries come COLUMNS at a time."""
    key_head = tl.program_id(0) % num_key_heads  # neighbours in memory are neighbours in time
    tile = tl.program_id(0) // num_key_heads
    sequence, start, end, chunk, chunk_start, sequence_start, sequence_end = locate(
        tile, table, num_keys, tiles_per_row, ROWS, CHUNK, TABLE
    )
    if end <= start:
        return
    batch = sequence.to(tl.int64)
    if PACKED:
        batch *= 0
    num_heads = num_key_heads * GROUP
    key = tl.arange(0, ROWS)
    inside = start + key < end
    real = inside
    k += batch * k_batch + head_offset(key_head, k_head, K_ALIGN) + start.to(tl.int64) * k_time
    v += batch * v_batch + head_offset(key_head, v_head, V_ALIGN) + start.to(tl.int64) * v_time
    if HAS_MASK:
        real = real & (tl.load(key_mask + batch * num_keys + start + key, mask=real, other=0) != 0)
    keys = load_rows(k, key, real, k_time, F, FP, OPERAND, EVEN and not HAS_MASK)
    values = load_rows(v, key, real, v_time, D, DP, OPERAND, EVEN and not HAS_MASK)
    dkeys = tl.zeros((ROWS, FP), tl.float32)  # half of them, until the end
    dvalues = tl.zeros((ROWS, DP), tl.float32)
    i = tl.arange(0, FP)
    d = tl.arange(0, DP)

    if HAS_STATE:
        FEATURES: tl.constexpr = TERM2 * FP * FP + TERM1 * FP + TERM0
        LINEAR: tl.constexpr = TERM2 * FP * FP
        CONSTANT: tl.constexpr = LINEAR + TERM1 * FP
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
            True,
            HAS_INITIAL,
        )
        suffix += (slot * num_key_heads + key_head) * (FEATURES * DP)
        suffix_moments += (slot * num_key_heads + key_head) * FEATURES
        if SEGMENTED:
            segment = segment_slot(
                sequence,
                chunk_start,
                sequence_start,
                sequence_end,
                num_keys,
                segments_per_row,
                SEGMENT,
                PACKED,
                True,
            )
            after += (segment * num_key_heads + key_head) * (FEATURES * DP)
            after_moments += (segment * num_key_heads + key_head) * FEATURES
        if TERM2:
            for group in tl.static_range(FP // NUM_I):
                some = load_columns(k, key, real, k_time, group * NUM_I, NUM_I, F, FP, OPERAND, EVEN and not HAS_MASK)
                feature = group * (NUM_I * FP) + tl.arange(0, NUM_I * FP)
                state = tl.load(suffix + feature[:, None] * DP + d[None, :])
                features = products(some, keys, ROWS, NUM_I, FP)
                dvalues = tl.dot(features, state, dvalues, input_precision=PRECISION)
                dfeatures = tl.dot(values, tl.trans(state), input_precision=PRECISION)
                if SEGMENTED:
                    state = tl.load(after + feature[:, None] * DP + d[None, :])
                    dvalues = tl.dot(features, state, dvalues, input_precision=PRECISION)
                    dfeatures = tl.dot(values, tl.trans(state), dfeatures, input_precision=PRECISION)
                dkeys += contract(some, dfeatures, ROWS, NUM_I, FP)
            square = tl.load(suffix_moments + i[:, None] * FP + i[None, :])
            if SEGMENTED:
                square += tl.load(after_moments + i[:, None] * FP + i[None, :])
            dkeys += dot_precisely(keys, square, PRECISION)
        if TERM1:
            state = tl.load(suffix + (LINEAR + i)[:, None] * DP + d[None, :])
            dvalues = tl.dot(keys, state, dvalues, input_precision=PRECISION)
            linear = tl.dot(values, tl.trans(state), input_precision=PRECISION)
            linear += tl.load(suffix_moments + LINEAR + i)[None, :]
            if SEGMENTED:
                state = tl.load(after + (LINEAR + i)[:, None] * DP + d[None, :])
                dvalues = tl.dot(keys, state, dvalues, input_precision=PRECISION)
                linear = tl.dot(values, tl.trans(state), linear, input_precision=PRECISION)
                linear += tl.load(after_moments + LINEAR + i)[None, :]
            dkeys += 0.5 * linear
        if TERM0:
            dvalues += tl.load(suffix + CONSTANT * DP + d).to(tl.float32)[None, :]
            if SEGMENTED:
                dvalues += tl.load(after + CONSTANT * DP + d).to(tl.float32)[None, :]

    if CAUSAL:
        if GATHERED:
            first_query = tl.load(row_borders + chunk)
            last_query = tl.load(row_borders + chunk + 1)
        else:
            first_query = start
            last_query = tl.minimum(chunk_start + CHUNK, sequence_end)
        q += batch * q_batch
        at_head = batch * num_queries * num_heads + key_head * GROUP
        column = tl.arange(0, COLUMNS)
        num_tiles = tl.cdiv(last_query - first_query, COLUMNS)
        for step in range(num_tiles * GROUP):
            member = step % GROUP
            tile_start = first_query + step // GROUP * COLUMNS
            present = tile_start + column < last_query
            head = key_head * GROUP + member
            q_tile = q + head_offset(head, q_head, Q_ALIGN)
            at_query = at_head + member
            if GATHERED:
                query_row = tl.load(order + tile_start + column, mask=present, other=0).to(tl.int64)
                position = tl.load(positions + tile_start + column, mask=present, other=-1)
            else:
                query_row = column
                position = tile_start + column
                q_tile += tile_start.to(tl.int64) * q_time
                at_query += tile_start.to(tl.int64) * num_heads
            k0, k1, k2 = load_coefficients(
                coefficients, scale, sequence, head, num_heads, HAS_COEFFICIENTS, TERM0, TERM1, TERM2
            )
            common, k2 = common_factor(k2, TERM0, TERM1)
            k0, k1, k2 = direct_terms(
                k0,
                k1,
                k2,
                coefficients,
                scale,
                sequence,
                head,
                num_heads,
                HAS_COEFFICIENTS,
                TERM0,
                TERM1,
                TERM2,
                SQUARE,
            )
            at_output = query_row * num_heads
            queries = load_rows(q_tile, query_row, present, q_time, F, FP, OPERAND, EVEN)
            grads = load_rows(dout + at_query * D, at_output, present, D, D, DP, OPERAND, EVEN)
            seen = (start + key)[:, None] <= position[None, :]
            if TERM0 or GATHERED:
                seen = seen & real[:, None] & present[None, :]
            s = tl.dot(keys, tl.trans(queries), input_precision=PRECISION)
            if not (TERM0 and TERM1):  # else all that comes of it is masked
                s = tl.where(seen, s, 0.0)
            dsim = tl.dot(values, tl.trans(grads), input_precision=PRECISION)
            sim, half_slope = similarity_and_half_slope(s, seen, k0, k1, k2, TERM0, TERM1, TERM2, SQUARE, CLAMP)
            if NORMALIZE:
                divisor = tl.load(normalizer + at_query + at_output, mask=present, other=1.0)
                weight = tl.load(dnormalizer + at_query + at_output, mask=present, other=0.0)
                inverse = common / (tl.abs(divisor) if DROP else divisor)
                sim *= inverse[None, :]
                dsim = dsim * inverse[None, :] + (weight * common)[None, :]
            else:
                sim *= common
                dsim *= common
            dvalues = tl.dot(sim.to(OPERAND), grads, dvalues, input_precision=PRECISION)
            dkeys = tl.dot((dsim * half_slope).to(OPERAND), queries, dkeys, input_precision=PRECISION)

    if HAS_MASK:
        dkeys = tl.where(real[:, None], dkeys, 0.0)
        dvalues = tl.where(real[:, None], dvalues, 0.0)
    at_key = (batch * num_keys + start) * num_key_heads + key_head
    store_rows(dk + at_key * F, key * num_key_heads, inside, dkeys * 2.0, F, F, FP, EVEN)
    store_rows(dv + at_key * D, key * num_key_heads, inside, dvalues, D, D, DP, EVEN)
