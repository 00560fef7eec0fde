"""Gradients of keys and values: each tile of keys meets the queries of later chunks as a state, those of its own one by one."""

import triton
import triton.language as tl

from rebased.ops.triton.tiles import (
    contract,
    dot_precisely,
    load_coefficients,
    load_columns,
    load_rows,
    locate,
    products,
    similarity,
    slope,
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
    scale,
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
    TABLE: tl.constexpr,
    PACKED: tl.constexpr,
    GATHERED: tl.constexpr,
    CAUSAL: tl.constexpr,
    HAS_STATE: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_COEFFICIENTS: tl.constexpr,
    NORMALIZE: tl.constexpr,
    DROP: tl.constexpr,
    CLAMP: tl.constexpr,
):
    """One program: one tile of keys (ROWS) of one key head; its queries come COLUMNS at a time."""
    tile = tl.program_id(0) % tiles_per_row
    key_head = tl.program_id(0) // tiles_per_row % num_key_heads
    tile += tl.program_id(0) // tiles_per_row // num_key_heads * tiles_per_row
    sequence, start, end, chunk, chunk_start, sequence_end = locate(
        tile, table, num_keys, tiles_per_row, ROWS, CHUNK, TABLE
    )
    if end <= start:
        return
    if not CAUSAL:
        chunk = sequence
    batch = sequence.to(tl.int64)
    if PACKED:
        batch *= 0
    num_heads = num_key_heads * GROUP
    q += batch * q_batch
    k += batch * k_batch + key_head.to(tl.int64) * k_head
    v += batch * v_batch + key_head.to(tl.int64) * v_head
    key = start + tl.arange(0, ROWS)
    row = key.to(tl.int64)
    real = key < end
    if HAS_MASK:
        real = real & (tl.load(key_mask + batch * num_keys + key, mask=real, other=0) != 0)
    keys = load_rows(k, row, real, k_time, F, FP, OPERAND)
    values = load_rows(v, row, real, v_time, D, DP, OPERAND)
    dkeys = tl.zeros((ROWS, FP), tl.float32)
    dvalues = tl.zeros((ROWS, DP), tl.float32)
    i = tl.arange(0, FP)
    d = tl.arange(0, DP)

    if HAS_STATE:
        FEATURES: tl.constexpr = TERM2 * FP * FP + TERM1 * FP + TERM0
        LINEAR: tl.constexpr = TERM2 * FP * FP
        CONSTANT: tl.constexpr = LINEAR + TERM1 * FP
        suffix += (chunk.to(tl.int64) * num_key_heads + key_head) * (FEATURES * DP)
        suffix_moments += (chunk.to(tl.int64) * num_key_heads + key_head) * FEATURES
        if TERM2:
            for group in tl.static_range(FP // NUM_I):
                some = load_columns(k, row, real, k_time, group * NUM_I, NUM_I, F, FP, OPERAND)
                feature = group * (NUM_I * FP) + tl.arange(0, NUM_I * FP)
                state = tl.load(suffix + feature[:, None] * DP + d[None, :])
                features = products(some, keys, ROWS, NUM_I, FP)
                dvalues = tl.dot(features, state, dvalues, input_precision=PRECISION)
                dfeatures = tl.dot(values, tl.trans(state), input_precision=PRECISION)
                dkeys += contract(some, dfeatures, ROWS, NUM_I, FP)
            square = tl.load(suffix_moments + i[:, None] * FP + i[None, :])
            dkeys = 2.0 * (dkeys + dot_precisely(keys, square, PRECISION))
        if TERM1:
            state = tl.load(suffix + (LINEAR + i)[:, None] * DP + d[None, :])
            dvalues = tl.dot(keys, state, dvalues, input_precision=PRECISION)
            dkeys = tl.dot(values, tl.trans(state), dkeys, input_precision=PRECISION)
            dkeys += tl.load(suffix_moments + LINEAR + i)[None, :]
        if TERM0:
            dvalues += tl.load(suffix + CONSTANT * DP + d).to(tl.float32)[None, :]

    if CAUSAL:
        if GATHERED:
            first_query = tl.load(row_borders + chunk)
            last_query = tl.load(row_borders + chunk + 1)
        else:
            first_query = start
            last_query = tl.minimum(chunk_start + CHUNK, sequence_end)
        num_tiles = tl.cdiv(last_query - first_query, COLUMNS)
        for step in range(num_tiles * GROUP):
            head = key_head * GROUP + step % GROUP
            index = first_query + step // GROUP * COLUMNS + tl.arange(0, COLUMNS)
            present = index < last_query
            position = index
            query_row = index.to(tl.int64)
            if GATHERED:
                query_row = tl.load(order + index, mask=present, other=0).to(tl.int64)
                position = tl.load(positions + index, mask=present, other=-1)
            c0, c1, c2 = load_coefficients(
                coefficients, sequence, head, num_heads, HAS_COEFFICIENTS, TERM0, TERM1, TERM2
            )
            k1 = c1 * scale
            k2 = c2 * scale * scale
            at_query = (batch * num_queries + query_row) * num_heads + head
            queries = load_rows(q + head.to(tl.int64) * q_head, query_row, present, q_time, F, FP, OPERAND)
            grads = load_rows(dout, at_query, present, D, D, DP, OPERAND)
            seen = (key[:, None] <= position[None, :]) & real[:, None] & present[None, :]
            s = tl.where(seen, tl.dot(keys, tl.trans(queries), input_precision=PRECISION), 0.0)
            dsim = tl.dot(values, tl.trans(grads), input_precision=PRECISION)
            sim = similarity(s, c0, k1, k2, TERM0, TERM1, TERM2)
            steep = slope(s, k1, k2, TERM1, TERM2)
            if CLAMP:
                steep = tl.where(sim < 0, 0.0, steep)
                sim = tl.maximum(sim, 0.0)
            if TERM1:
                steep = tl.where(seen, steep, 0.0)
            if TERM0:
                sim = tl.where(seen, sim, 0.0)
            if NORMALIZE:
                divisor = tl.load(normalizer + at_query, mask=present, other=1.0)
                inverse = 1.0 / tl.abs(divisor) if DROP else 1.0 / divisor
                sim *= inverse[None, :]
                dsim = dsim * inverse[None, :] + tl.load(dnormalizer + at_query, mask=present, other=0.0)[None, :]
            dvalues = tl.dot(sim.to(OPERAND), grads, dvalues, input_precision=PRECISION)
            dkeys = tl.dot((dsim * steep).to(OPERAND), queries, dkeys, input_precision=PRECISION)

    at_key = (batch * num_keys + row) * num_key_heads + key_head
    inside = key < end
    mask = inside[:, None]
    if F != FP:
        mask = mask & (i < F)[None, :]
    dkeys = tl.where(real[:, None], dkeys, 0.0)
    tl.store(dk + at_key[:, None] * F + i[None, :], dkeys.to(dk.dtype.element_ty), mask=mask)
    mask = inside[:, None]
    if D != DP:
        mask = mask & (d < D)[None, :]
    dvalues = tl.where(real[:, None], dvalues, 0.0)
    tl.store(dv + at_key[:, None] * D + d[None, :], dvalues.to(dv.dtype.element_ty), mask=mask)
